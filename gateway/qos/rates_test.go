package qos_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
)

// slowly has a pool be overloaded while its worker is slow, at so many tokens a second,
// and goes on until nothing waits any more.
func slowly(t *testing.T, rate float64) *world {
	t.Helper()
	w := newWorld(t, 1, rate, nil, "a")
	for i := range 30 {
		e := w.entry("batch", fmt.Sprint(i%3), int64(rate))
		e.Until = e.Until.Add(time.Hour)
		w.admit(e)
	}
	w.run(29 * time.Second)
	var s qos.Stats
	if w.q.Stats(w.now, &s); s.Pools[0].Rate < rate/2 || s.Pools[0].Rate > 2*rate || s.Waiting != 0 {
		t.Fatalf("a rate of %.0f, not %.0f, and %d wait", s.Pools[0].Rate, rate, s.Waiting)
	}
	return w
}

// TestRateOfAnotherTime: what a pool took when it had fewer workers says nothing a minute
// later. A burst that the workers of now serve in half of the time that it has is not
// refused.
func TestRateOfAnotherTime(t *testing.T) {
	w := slowly(t, 2500)
	w.fleet.Workers[0].Rate = 20_000
	refused, n := 0, 0
	w.outcome = func(o qos.Outcome) {
		if o.State == qos.Refused {
			refused++
		}
	}
	w.at(90*time.Second, func() {
		for i := range 300 { // 15 s of work, two minutes by the old rate
			n++
			w.admit(w.entry("plain", fmt.Sprint(i%3), 1000))
		}
	})
	w.at(93*time.Second, func() { // now something is known of the new one
		for i := range 60 {
			n++
			w.admit(w.entry("plain", fmt.Sprint(i%3), 1000))
		}
	})
	w.run(2 * time.Minute)
	if refused > 0 {
		t.Errorf("%d of %d are refused", refused, n)
	}
}

// TestWrongRateIsCorrected: a rate that is so low that nobody may wait behind another one
// is corrected although nobody does.
func TestWrongRateIsCorrected(t *testing.T) {
	w := slowly(t, 100)
	w.fleet.Workers[0].Rate = 10_000
	early, late := 0, 0
	w.outcome = func(o qos.Outcome) {
		switch at := w.now.Sub(start); {
		case o.State == qos.Granted:
		case at < time.Minute:
			early++
		default:
			late++
		}
	}
	w.every(2*time.Second, 5*time.Minute, func() {
		if w.now.Sub(start) < 30*time.Second {
			return
		}
		for range 3 { // the first is given to the worker, the second waits
			w.admit(w.entry("plain", "x", 5000))
		}
	})
	w.run(5 * time.Minute)
	if late > 0 || early > 10 {
		t.Errorf("%d are refused at first, %d later", early, late)
	}
}

// TestPassedCountsAsItCosts: more urgent requests that pass the queue, most of whose
// prompts is cached, take what they cost from those that wait, and not all that they have.
func TestPassedCountsAsItCosts(t *testing.T) {
	w := newWorld(t, 1, 10_000, nil, "a")
	w.outcome = func(o qos.Outcome) {
		if o.State == qos.Refused {
			t.Fatalf("after %v one is refused: %v", w.now.Sub(start), o.Reason)
		}
	}
	w.every(100*time.Millisecond, 5*time.Second, func() {
		w.q.Passed(w.now, w.entry("urgent", "u", 20_000), 0, 100)
		w.admit(w.entry("plain", "x", 2000))
	})
	w.run(5 * time.Second)
}
