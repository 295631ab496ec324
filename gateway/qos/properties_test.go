package qos_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/gateway/qos/qostest"
	"pgregory.net/rapid"
)

// keeps has a tenant always have n entries of a class waiting: another comes for each
// that goes.
func (w *world) keeps(n int, class, tenant string, size func() *qos.Entry) {
	before := w.outcome
	w.outcome = func(o qos.Outcome) {
		if before != nil {
			before(o)
		}
		if o.Entry.Tenant == tenant && w.q.Settings(o.Entry.Class).Name == class {
			w.at(w.now.Sub(start), func() { w.admit(size()) })
		}
	}
	for range n {
		w.at(0, func() { w.admit(size()) })
	}
}

// patient has classes wait as long as it takes.
func patient(c *qos.Config) {
	for i := range c.Classes {
		c.Classes[i].MaxWait = 1000 * time.Hour
	}
}

// TestShares overloads a pool with each class. In any interval a class gets its share of
// the work, but for what may be owed at its ends.
func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shares := []float64{
			float64(rapid.IntRange(0, 30).Draw(t, "share")) / 100,
			float64(rapid.IntRange(0, 30).Draw(t, "share")) / 100,
			float64(rapid.IntRange(1, 30).Draw(t, "share")) / 100,
		}
		w := newWorld(&testing.T{}, rapid.IntRange(1, 3).Draw(t, "workers"), 10_000, func(c *qos.Config) {
			patient(c)
			for i := range c.Classes {
				c.Classes[i].Share, c.Classes[i].Bound = shares[i], time.Millisecond
			}
		}, "a")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		// Each takes its worker beyond the bound, so that a pump doesn't take all that waits.
		sizes := []int64{
			rapid.Int64Range(11, 5000).Draw(t, "largest"),
			rapid.Int64Range(11, 5000).Draw(t, "largest"),
			rapid.Int64Range(11, 5000).Draw(t, "largest"),
		}
		largest := slices.Max(sizes)
		var got [3]float64
		var above [3]float64 // the most that a class had beyond its share
		total := 0.0
		w.outcome = func(o qos.Outcome) {
			if o.State != qos.Granted {
				t.Fatalf("%v", o.Reason)
			}
			total += float64(o.Work)
			got[o.Entry.Class] += float64(o.Work)
			for c := range got {
				off := got[c] - shares[c]*total
				above[c] = max(above[c], off)
				// Two other classes may be owed, too.
				if above[c]-off > 6*float64(largest) && (c > 0 || shares[0] > 0) {
					t.Fatalf("class %d with share %v is %v behind, the largest is %v", c, shares[c], above[c]-off, largest)
				}
			}
		}
		for i, class := range []string{"urgent", "plain", "batch"} {
			w.keeps(6, class, class, func() *qos.Entry { return w.entry(class, class, 11+rng.Int64N(sizes[i]-10)) })
		}
		w.most = 1000
		w.run(time.Hour)
	})
}

// TestSharesOfTrueWork has answers cost another multiple of what was expected in each class,
// which is known when they end. The share is of what they cost, whichever class was
// misjudged, but for what is not known yet.
func TestSharesOfTrueWork(t *testing.T) {
	for _, c := range []struct {
		name  string
		times [3]int64 // what is true, in halves of what is expected
	}{
		{"all as expected", [3]int64{2, 2, 2}},
		{"the urgent ones are longer", [3]int64{6, 2, 2}},
		{"the urgent ones are shorter", [3]int64{1, 2, 2}},
		{"its own are longer", [3]int64{2, 2, 6}},
		{"its own are shorter", [3]int64{2, 2, 1}},
		{"all are longer", [3]int64{6, 6, 6}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 1, 10_000, func(cfg *qos.Config) {
				patient(cfg)
				cfg.Classes[0].Share, cfg.Classes[1].Share, cfg.Classes[2].Share = 0, 0.1, 0.15
			}, "a")
			rng := rand.New(rand.NewPCG(1, 0))
			var got [3]int64
			total, unknown := int64(0), int64(0)
			w.outcome = func(o qos.Outcome) {
				class, truly := o.Entry.Class, o.Work*c.times[o.Entry.Class]/2
				got[class] += truly
				total += truly
				unknown = max(unknown, truly)
				w.at(w.now.Sub(start)+300*time.Millisecond, func() { w.q.Settle(w.now, o.Entry, truly-o.Work) })
			}
			for _, class := range []string{"urgent", "plain", "batch"} {
				w.keeps(6, class, class, func() *qos.Entry { return w.entry(class, class, 200+rng.Int64N(1800)) })
			}
			w.run(2 * time.Minute)
			// A worker takes a second's work of 10,000 in 300 ms at most.
			off := 4 * float64(unknown) / float64(total)
			for i, share := range []float64{0.75, 0.1, 0.15} {
				if part := float64(got[i]) / float64(total); part < share-off || part > share+off {
					t.Errorf("class %d has %.4f of all work, its share is %.2f, give or take %.4f", i, part, share, off)
				}
			}
		})
	}
}

// TestNoBurstOfCredit has a class wait for a worker that is closed, after a giant entry of
// it has come and left. When the worker is back it gets its share, and not all that it
// could not get before.
func TestNoBurstOfCredit(t *testing.T) {
	w := newWorld(t, 2, 10_000, func(c *qos.Config) {
		patient(c)
		c.Classes[2].Share = 0.1
	}, "a")
	w.fleet.Workers[0].Closed = true
	got := make(map[string]int64)
	w.outcome = func(o qos.Outcome) { got[o.Entry.Tenant] += o.Work }
	size := func(class string, only int) func() *qos.Entry {
		return func() *qos.Entry {
			e := w.entry(class, class, 500)
			e.Payload = &qostest.Request{Only: only}
			return e
		}
	}
	w.keeps(20, "batch", "batch", size("batch", 1))
	w.keeps(20, "urgent", "urgent", size("urgent", 0))
	w.at(time.Second, func() {
		giant := w.entry("batch", "giant", 1_000_000)
		giant.Payload = &qostest.Request{Only: 1}
		w.admit(giant)
		w.at(2*time.Second, func() { w.q.Leave(w.now, giant) })
	})
	w.at(time.Minute, func() {
		clear(got)
		w.fleet.Workers[0].Closed = false
		w.q.Dirty(0)
	})
	w.run(time.Minute + 10*time.Second)
	all := got["batch"] + got["urgent"]
	if share := float64(all) / 10; float64(got["batch"]) > share+3000 || float64(got["batch"]) < share-3000 {
		t.Errorf("batch got %d of %d when its worker was back, its share is 0.1", got["batch"], all)
	}
}

// TestStarvationByBound keeps each worker's wait between the bound of a class and that of a
// more urgent one, which never has anything waiting for long: the former is
// never within its own bound, and must have its share nevertheless.
func TestStarvationByBound(t *testing.T) {
	for _, load := range []float64{0.98, 1.5} {
		w := newWorld(t, 1, 10_000, func(c *qos.Config) {
			patient(c)
			c.Classes[0].Share, c.Classes[1].Share, c.Classes[2].Share = 0, 0, 0.1
		}, "a")
		got := make(map[string]int64)
		total := int64(0)
		w.outcome = func(o qos.Outcome) {
			got[o.Entry.Tenant] += o.Work
			total += o.Work
		}
		w.keeps(2, "batch", "batch", func() *qos.Entry { return w.entry("batch", "batch", 900) })
		// Urgent work, each entry shorter than what its bound exceeds that of batch by.
		period := time.Duration(500 / (10_000 * load) * float64(time.Second))
		w.every(period, time.Minute, func() { w.admit(w.entry("urgent", "urgent", 500)) })
		w.run(time.Minute)
		if part := float64(got["batch"]) / float64(total); part < 0.095 {
			t.Errorf("at %v times what can be served batch has %.3f of the work, its share is 0.1", load, part)
		}
	}
}

// TestStarvationByRoom has urgent requests hold all the room that is not kept for
// further ones: what is owed goes to a worker nevertheless.
func TestStarvationByRoom(t *testing.T) {
	w := newWorld(t, 1, 1_000_000, func(c *qos.Config) {
		patient(c)
		c.Classes[2].Share = 0.2
	}, "a")
	w.fleet.Workers[0].Slots = 10
	batch, total := 0, 0
	w.outcome = func(o qos.Outcome) {
		if total++; o.Entry.Tenant == "batch" {
			batch++
		}
	}
	w.keeps(5, "batch", "batch", func() *qos.Entry {
		e := w.entry("batch", "batch", 100)
		e.Payload = &qostest.Request{Answer: 2 * time.Second}
		return e
	})
	w.every(100*time.Millisecond, time.Minute, func() {
		e := w.entry("urgent", "urgent", 100)
		e.Payload = &qostest.Request{Answer: 2 * time.Second}
		w.admit(e)
	})
	w.run(time.Minute)
	if batch*100 < total*18 {
		t.Errorf("batch has %d of %d slots, its share is 0.2", batch, total)
	}
}

// TestRoomForUrgentWork has long answers of a less urgent class take all slots, but for
// those that will be wanted: with nothing kept urgent requests would wait for an end.
func TestRoomForUrgentWork(t *testing.T) {
	w := newWorld(t, 1, 1_000_000, func(c *qos.Config) {
		patient(c)
		c.Classes[2].Share = 0
	}, "a")
	w.fleet.Workers[0].Slots = 20
	late, urgent, most := 0, 0, 0
	w.outcome = func(o qos.Outcome) {
		most = max(most, w.fleet.Running())
		if o.Entry.Tenant == "urgent" && w.now.Sub(start) > 40*time.Second {
			if urgent++; w.now.After(o.Entry.Deadline) {
				late++
			}
		}
	}
	answer := func(class string, answer time.Duration) *qos.Entry {
		e := w.entry(class, class, 100)
		e.Payload = &qostest.Request{Answer: answer}
		return e
	}
	w.keeps(50, "batch", "batch", func() *qos.Entry { return answer("batch", 30*time.Second) })
	w.every(500*time.Millisecond, 2*time.Minute, func() { w.admit(answer("urgent", time.Second)) })
	w.run(2 * time.Minute)
	// At first nothing is known of urgent requests, and answers take half a minute.
	if urgent < 150 || late > 0 {
		t.Errorf("%d of %d urgent requests were late", late, urgent)
	}
	if most < 17 {
		t.Errorf("at most %d of 20 slots were used", most)
	}
}

// TestFair has tenants of one class always want more. What they get, over their weights,
// never differs by more than the slack and a largest entry of each, whatever their
// sizes are.
func TestFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slack := rapid.Int64Range(0, 20_000).Draw(t, "slack")
		w := newWorld(&testing.T{}, rapid.IntRange(1, 3).Draw(t, "workers"), 10_000, func(c *qos.Config) {
			patient(c)
			c.Slack = slack
			c.Classes[0].Bound, c.Classes[1].Bound, c.Classes[2].Bound = time.Millisecond, time.Millisecond, time.Millisecond
		}, "a")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		n := rapid.IntRange(2, 6).Draw(t, "tenants")
		weights, largest := make([]float64, n), make([]int64, n)
		got := make([]float64, n)
		least, most := make(map[[2]int]float64), make(map[[2]int]float64)
		w.outcome = func(o qos.Outcome) {
			i := int(o.Entry.Tenant[0] - 'A')
			got[i] += float64(o.Work) / weights[i]
			for j := range n {
				if j == i {
					continue
				}
				a, b := min(i, j), max(i, j)
				pair, off := [2]int{a, b}, got[a]-got[b]
				least[pair], most[pair] = min(least[pair], off), max(most[pair], off)
				can := float64(slack+largest[a])/weights[a] + float64(slack+largest[b])/weights[b]
				if by := most[pair] - least[pair]; by > can+1 {
					t.Fatalf("over an interval %d got %v more than %d; %v is possible", a, by, b, can)
				}
			}
		}
		for i := range n {
			tenant := string(rune('A' + i))
			weights[i] = rapid.SampledFrom([]float64{0.1, 0.5, 1, 2, 10}).Draw(t, "weight")
			largest[i] = rapid.SampledFrom([]int64{11, 20, 1000, 100_000}).Draw(t, "largest")
			w.keeps(rapid.IntRange(4, 8).Draw(t, "waiting"), "plain", tenant, func() *qos.Entry {
				e := w.entry("plain", tenant, 11+rng.Int64N(largest[i]-10))
				e.Weight = weights[i]
				e.Deadline = w.now.Add(time.Duration(rng.Int64N(int64(time.Hour))))
				return e
			})
		}
		for _, worker := range w.fleet.Workers { // until all wait
			worker.Closed = true
			w.at(time.Millisecond, func() { worker.Closed = false; w.q.Dirty(0) })
		}
		w.most = 1000
		w.run(100 * time.Hour)
	})
}

// TestFloodIsRemembered has a tenant fill the workers while nobody else comes. When
// others do, what it has had lately counts, and what it had long ago does not.
func TestFloodIsRemembered(t *testing.T) {
	first := func(pause time.Duration) string {
		w := newWorld(t, 1, 10_000, patient, "a")
		for range 50 {
			e := w.entry("plain", "flood", 1000)
			w.q.Passed(w.now, e, 0, 0)
		}
		w.now = w.now.Add(pause)
		w.fleet.Workers[0].Closed = true
		w.admit(w.entry("plain", "flood", 1000))
		w.admit(w.entry("plain", "new", 1000))
		var name string
		w.outcome = func(o qos.Outcome) {
			if name == "" {
				name = o.Entry.Tenant
			}
		}
		w.fleet.Workers[0].Closed = false
		w.q.Dirty(0)
		w.run(w.now.Sub(start) + time.Second)
		return name
	}
	if got := first(time.Second); got != "new" {
		t.Errorf("a second after a flood %q is first", got)
	}
	if got := first(time.Hour); got != "flood" {
		t.Errorf("an hour after a flood %q is first", got)
	}
}

// TestHeldEntriesDoNotHideOthers has a tenant that has had least wait for a busy worker
// with all it has. The others are as entitled to the idle one as if it were not there.
func TestHeldEntriesDoNotHideOthers(t *testing.T) {
	w := newWorld(t, 2, 10_000, func(c *qos.Config) {
		patient(c)
		c.Slack = 0
	}, "a")
	for range 20 { // these have had a lot
		for _, tenant := range []string{"x", "y"} {
			w.q.Passed(w.now, w.entry("plain", tenant, 10_000), 0, 0)
		}
	}
	busy := w.entry("plain", "busy", 600_000) // a minute
	busy.Payload = &qostest.Request{Only: 1}
	w.admit(busy)
	for range 100 {
		e := w.entry("plain", "held", 20_000) // ten of them are what the others had
		e.Payload = &qostest.Request{Only: 1}
		w.admit(e)
	}
	placed := make(map[string]int)
	var first time.Duration
	w.outcome = func(o qos.Outcome) {
		if placed[o.Entry.Tenant]++; len(placed) == 1 && placed[o.Entry.Tenant] == 1 {
			first = w.now.Sub(start)
		}
	}
	for range 50 {
		w.admit(w.entry("plain", "x", 1000))
		w.admit(w.entry("plain", "y", 1000))
	}
	w.run(12 * time.Second)
	if placed["x"] != 50 || placed["y"] != 50 || placed["held"] != 0 {
		t.Errorf("placed %v, want 50 of x and y", placed)
	}
	if first > 3*time.Millisecond {
		t.Errorf("the first of the others is placed after %v", first)
	}
	w.run(5 * time.Minute)
	if placed["held"] != 100 {
		t.Errorf("%d of 100 that waited for a worker were placed when it was free", placed["held"])
	}
}

// TestMisfitsDoNotKeepOthersOut has a run of entries of many tenants that only a busy
// worker can take, more than a pump looks at, and behind them others for an idle one.
func TestMisfitsDoNotKeepOthersOut(t *testing.T) {
	w := newWorld(t, 2, 10_000, patient, "a")
	only := func(tenant string, work int64) *qos.Entry {
		e := w.entry("plain", tenant, work)
		e.Payload = &qostest.Request{Only: 1}
		return e
	}
	w.admit(only("busy", 100_000)) // ten seconds
	for i := range 500 {
		w.admit(only(fmt.Sprint("misfit", i), 100))
	}
	placed := make(map[string]time.Duration)
	misfits := 0
	w.outcome = func(o qos.Outcome) {
		placed[o.Entry.Tenant] = w.now.Sub(start)
		if o.Entry.Tenant[0] == 'm' {
			misfits++
		}
	}
	w.at(time.Second, func() { w.admit(w.entry("plain", "other", 1000)) })
	// There is always something else that the idle worker can take.
	w.every(50*time.Millisecond, 30*time.Second, func() { w.admit(w.entry("plain", "further", 500)) })
	w.run(30 * time.Second)
	// 500 are looked at, four new ones a pump.
	if at, ok := placed["other"]; !ok || at > 1200*time.Millisecond {
		t.Errorf("placed after %v, %v", at, ok)
	}
	// Each takes 10 ms of the worker that was busy for ten seconds.
	if misfits != 500 || placed["misfit499"] > 17*time.Second {
		t.Errorf("%d misfits were placed, the last after %v", misfits, placed["misfit499"])
	}
}

// TestAgainComesFirst lets a worker fail an entry: it comes before those that waited
// longer, is not charged again, and has time.
func TestAgainComesFirst(t *testing.T) {
	w := newWorld(t, 1, 10_000, patient, "a")
	failed := w.entry("plain", "x", 3000)
	failed.Until = w.now.Add(time.Second)
	w.admit(failed)
	for range 5 {
		w.admit(w.entry("plain", "y", 1000))
	}
	w.now = w.now.Add(300 * time.Millisecond)
	var order []string
	work := int64(0)
	w.outcome = func(o qos.Outcome) {
		order = append(order, o.Entry.Tenant)
		work += o.Work
	}
	w.fleet.Fail(failed)
	w.q.Again(w.now, failed)
	if failed.Until != w.now.Add(2*time.Second) {
		t.Errorf("it has %v left", failed.Until.Sub(w.now))
	}
	w.run(5 * time.Second)
	if !slices.Equal(order, []string{"x", "y", "y", "y", "y", "y"}) || work != 5000 {
		t.Errorf("placed %v with work %d", order, work)
	}
	if was := w.q.Leave(w.now, failed); was != qos.Granted {
		t.Errorf("it was %v", was)
	}
}

// TestTimeJumps has the clock go back and far ahead: no entry is lost and none of a
// tenant overtakes another.
func TestTimeJumps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(&testing.T{}, 1, 10_000, patient, "a")
		w.fleet.Workers[0].Closed = true
		n := rapid.IntRange(1, 50).Draw(t, "entries")
		for i := range n {
			e := w.entry("plain", "x", 100)
			e.Deadline, e.Until = start.Add(10*time.Hour), start.Add(1000*time.Hour)
			e.Payload = &qostest.Request{Name: fmt.Sprint(i)}
			w.admit(e)
			w.now = start.Add(time.Duration(rapid.Int64Range(int64(-time.Hour), int64(time.Hour)).Draw(t, "now")))
			w.take(w.q.Pump(w.now, w.fleet, nil))
			if err := w.q.Check(); err != nil {
				t.Fatal(err)
			}
		}
		next := 0
		w.outcome = func(o qos.Outcome) {
			if name := o.Entry.Payload.(*qostest.Request).Name; name != fmt.Sprint(next) {
				t.Fatalf("%s is placed, %d was next", name, next)
			}
			next++
		}
		w.fleet.Workers[0].Closed = false
		w.q.Dirty(0)
		w.take(w.q.Pump(w.now, w.fleet, nil))
		w.run(w.now.Sub(start) + time.Minute)
		if next != n {
			t.Fatalf("%d of %d placed", next, n)
		}
	})
}

// TestTenantsAreForgotten sends a request each of many tenants past the queue and
// through it: what is kept of them stays bounded, and goes.
func TestTenantsAreForgotten(t *testing.T) {
	w := newWorld(t, 1, 1_000_000, nil, "a", "b")
	var stats qos.Stats
	most := 0
	for i := range 200_000 {
		w.now = w.now.Add(100 * time.Microsecond)
		w.fleet.Advance(w.now, nil)
		e := w.entry("plain", fmt.Sprint(i), 10, 0, 1)
		if i%2 == 0 {
			w.q.Passed(w.now, e, 0, 0)
		} else {
			w.admit(e)
			w.take(w.q.Pump(w.now, w.fleet, nil))
		}
		if i%1000 == 0 {
			w.q.Stats(w.now, &stats)
			most = max(most, stats.Flows)
		}
	}
	if most > 1<<16+10 {
		t.Errorf("%d tenants were known", most)
	}
	w.run(time.Hour)
	for range most {
		w.q.Pump(w.now, w.fleet, nil)
	}
	if w.q.Stats(w.now, &stats); stats.Flows != 0 || stats.Waiting != 0 || stats.Bytes != 0 {
		t.Errorf("an hour later: %d tenants, %d entries, %d bytes", stats.Flows, stats.Waiting, stats.Bytes)
	}
	if err := w.q.Check(); err != nil {
		t.Error(err)
	}
}
