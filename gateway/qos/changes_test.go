package qos_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/gateway/qos/qostest"
	"pgregory.net/rapid"
)

// anyConfig draws a configuration: which classes there are and in which order, and
// bounds that may be less than what waits.
func anyConfig(t *rapid.T) qos.Config {
	names := rapid.Permutation([]string{"urgent", "plain", "batch", "further"}).Draw(t, "classes")
	cfg := qos.DefaultConfig(names[:rapid.IntRange(1, 4).Draw(t, "n")]...)
	for i := range cfg.Classes {
		c := &cfg.Classes[i]
		c.Share = rapid.SampledFrom([]float64{0, 0.1, 0.2}).Draw(t, "share")
		c.MaxQueue = rapid.SampledFrom([]int{0, 0, 2}).Draw(t, "maxQueue")
		c.Preemptible = rapid.Bool().Draw(t, "preemptible")
	}
	cfg.MaxEntries = rapid.IntRange(1, 30).Draw(t, "maxEntries")
	cfg.MaxBytes = rapid.Int64Range(1, 30).Draw(t, "maxBytes")
	cfg.Tries = rapid.IntRange(2, 8).Draw(t, "tries")
	return cfg
}

// TestChangesLoseNobody has the configuration change and the clock step, an hour back or
// ahead, while requests come, wait and go. Each has one outcome, none has waited in
// vain before its time, the queue agrees with itself, and all end.
func TestChangesLoseNobody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(&testing.T{}, rapid.IntRange(1, 2).Draw(t, "workers"), 10_000, nil, "a", "b")
		classes := []string{"urgent", "plain", "batch"}
		waits := make(map[*qos.Entry]bool)
		w.outcome = func(o qos.Outcome) {
			if !waits[o.Entry] {
				t.Fatalf("one that does not wait is %v %v", o.State, o.Reason)
			}
			delete(waits, o.Entry)
			if o.Reason == qos.ReasonWaited && w.now.Before(o.Entry.Until) {
				t.Fatalf("one has waited in vain %v before its time", o.Entry.Until.Sub(w.now))
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"admit": func(t *rapid.T) {
				pools := rapid.SampledFrom([][]qos.PoolID{{0}, {1}, {0, 1}}).Draw(t, "pools")
				e := w.entry(rapid.SampledFrom(classes).Draw(t, "class"), fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "tenant")),
					rapid.Int64Range(1, 20_000).Draw(t, "work"), pools...)
				e.Key = rapid.Uint64Range(0, 5).Draw(t, "key")
				e.Payload = &qostest.Request{Answer: time.Second}
				waits[e] = true
				w.admit(e)
			},
			"wait": func(t *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(0, 5000).Draw(t, "ms")) * time.Millisecond)
			},
			"step": func(t *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.SampledFrom([]int{-3600, -1, 1, 3600}).Draw(t, "seconds")) * time.Second)
			},
			"change": func(t *rapid.T) {
				pools := rapid.SampledFrom([][]string{{"a", "b"}, {"b"}, {"a", "c"}}).Draw(t, "pools")
				if err := w.q.Reconfigure(anyConfig(t), pools); err != nil {
					t.Fatal(err)
				}
				classes = classes[:0]
				for _, name := range []string{"urgent", "plain", "batch", "further"} {
					if _, ok := w.q.Class(name); ok { // also those that are gone
						classes = append(classes, name)
					}
				}
			},
			"": func(t *rapid.T) {
				w.fleet.Advance(w.now, nil)
				w.take(w.q.Pump(w.now, w.fleet, nil))
				if err := w.q.Check(); err != nil {
					t.Fatal(err)
				}
				if w.q.Waiting() != len(waits) {
					t.Fatalf("%d wait, by their outcomes %d", w.q.Waiting(), len(waits))
				}
			},
		})
		for i := 0; w.q.Waiting() > 0 && i < 200; i++ { // a clock that was hours ahead comes again
			w.run(w.now.Sub(start) + time.Hour)
		}
		if len(waits) > 0 || w.q.Waiting() > 0 {
			t.Fatalf("%d wait for ever", len(waits))
		}
	})
}
