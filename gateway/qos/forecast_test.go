package qos_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/gateway/qos/qostest"
)

// clients send requests at a multiple of what a pool can take, and come again
// exactly when they are told to.
type clients struct {
	*world
	rng  *rand.Rand
	key  uint64
	told map[*qos.Entry]bool // those that come again

	came, refusedAgain, granted, met, waited int
	work                                     int64
}

const poolRate = 20_000 // tokens a second

func newClients(t *testing.T, obey bool) *clients {
	w := newWorld(t, 2, poolRate/2, nil, "a")
	c := &clients{world: w, rng: rand.New(rand.NewPCG(1, 2)), told: make(map[*qos.Entry]bool)}
	w.outcome = func(o qos.Outcome) {
		told := c.told[o.Entry]
		delete(c.told, o.Entry)
		switch {
		case o.State == qos.Granted:
			c.granted++
			c.work += o.Work
			if wait := o.Entry.Payload.(*qostest.Request).Worker; wait != nil && !w.now.After(o.Entry.Deadline) {
				c.met++
			}
			return
		case o.Reason == qos.ReasonWaited:
			c.waited++
			return
		case told:
			c.refusedAgain++
		}
		if o.RetryAfter <= 0 {
			t.Fatal("a client is not told when to come again")
		}
		if !obey {
			return
		}
		after := o.RetryAfter.Truncate(time.Second) + time.Second // as HTTP says it
		w.at(w.now.Add(after).Sub(start), func() { c.send(o.Entry.Tenant, o.Entry.Work, o.Entry.Key, true) })
	}
	return c
}

func (c *clients) send(tenant string, work int64, key uint64, told bool) {
	e := c.entry("plain", tenant, work)
	e.Key = key
	if told {
		c.came++
		c.told[e] = true
	}
	c.admit(e)
}

// load sends at so many times what the pool can take.
func (c *clients) load(times float64, end time.Duration) {
	period := time.Duration(1000 / (poolRate * times) * float64(time.Second))
	c.every(period, end, func() {
		c.key++
		c.send(fmt.Sprint(c.rng.IntN(4)), 500+c.rng.Int64N(1000), c.key, false)
	})
	c.run(end)
}

// TestRetryAfterIsHonest overloads a pool with clients that obey: of ten that come again
// when they were told to, at least nine find room, and no work is lost by that.
func TestRetryAfterIsHonest(t *testing.T) {
	for _, times := range []float64{1.2, 2, 5} {
		t.Run(fmt.Sprint(times), func(t *testing.T) {
			const end = 6 * time.Minute
			c := newClients(t, true)
			c.load(times, end)
			t.Logf("%d came again, %d of them were refused; %d granted, %d in time; %d waited in vain",
				c.came, c.refusedAgain, c.granted, c.met, c.waited)
			if c.came < 100 || c.refusedAgain*10 > c.came {
				t.Errorf("of %d that came again %d were refused", c.came, c.refusedAgain)
			}
			if full := int64(poolRate * end.Seconds()); c.work < full*97/100 {
				t.Errorf("%d tokens were served, %d were possible", c.work, full)
			}
			if c.met < c.granted*9/10 {
				t.Errorf("of %d granted %d were in time", c.granted, c.met)
			}
			// At first all wait in the hope that it is a burst.
			if c.waited > c.granted/10 {
				t.Errorf("%d waited in vain, %d were granted", c.waited, c.granted)
			}
		})
	}
}

// TestBookingsOfClientsThatStayAway has clients that never come again: the room that
// is kept for them must not stay empty.
func TestBookingsOfClientsThatStayAway(t *testing.T) {
	const end = 6 * time.Minute
	c := newClients(t, false)
	c.load(2, end)
	if full := int64(poolRate * end.Seconds()); c.work < full*97/100 || c.met < c.granted*9/10 {
		t.Errorf("%d tokens were served, %d were possible; of %d granted %d were in time",
			c.work, full, c.granted, c.met)
	}
}

// TestOverloadEnds has a tenant ask for twice of what a pool can take for a minute, and then
// for a tenth, while batch always waits. Then nobody of it is refused, however long its
// prompts take beside the target.
func TestOverloadEnds(t *testing.T) {
	const overload, calm, end = time.Minute, 150 * time.Second, 6 * time.Minute
	for _, own := range []time.Duration{0, 4 * time.Second, 9 * time.Second} { // the target is 8 s
		w := newWorld(t, 2, poolRate/2, nil, "a")
		key, refused, granted, later := uint64(0), 0, 0, 0
		var send func(key uint64)
		send = func(key uint64) {
			e := w.entry("plain", "x", 2000)
			e.Own, e.Key = own, key
			w.admit(e)
		}
		w.outcome = func(o qos.Outcome) {
			if o.Entry.Tenant != "x" {
				return
			}
			after := w.now.Sub(start) > calm
			switch {
			case o.State != qos.Granted:
				refused++
				if after {
					later++
				}
				w.at(w.now.Add(o.RetryAfter.Truncate(time.Second)+time.Second).Sub(start), func() { send(o.Entry.Key) })
			case after:
				granted++
			}
		}
		w.every(50*time.Millisecond, end, func() {
			if w.q.Waiting() < 200 {
				w.admit(w.entry("batch", "b", poolRate))
			}
			if now := w.now.Sub(start); now < overload || now%time.Second == 0 {
				key++
				send(key)
			}
		})
		w.run(end)
		if refused == later || granted < int((end-calm)/time.Second)*9/10 || later > 0 {
			t.Errorf("prompts of %v: %d were refused, %d of them after the overload, and %d granted then", own, refused, later, granted)
		}
	}
}

// TestRefusesNobodyWhileOthersDoNotWait makes forecasts as bad as can be; nobody is
// refused who finds nobody waiting.
func TestRefusesNobodyWhileOthersDoNotWait(t *testing.T) {
	c := newClients(t, true)
	c.load(3, time.Minute)
	var stats qos.Stats
	if c.q.Stats(c.now, &stats); stats.Classes[1].Refused[qos.ReasonForecast] == 0 {
		t.Fatal("nobody was refused in an overload")
	}
	drain := func() {
		for c.q.Waiting() > 0 || c.fleet.Running() > 0 {
			c.run(c.now.Add(time.Second).Sub(start))
		}
	}
	refusing := func() bool {
		c.q.Stats(c.now, &stats)
		return slices.ContainsFunc(stats.Bands, func(b qos.BandStats) bool { return b.Refusing })
	}
	if !refusing() {
		t.Error("nobody is refused, the queue says, in an overload")
	}
	c.todo, c.outcome = nil, nil
	drain()
	if refusing() {
		t.Error("arrivals are refused, the queue says, where nobody waits")
	}
	c.outcome = func(o qos.Outcome) {
		if o.State == qos.Refused {
			t.Fatalf("refused: %v", o.Reason)
		}
	}
	for range 2000 {
		drain()
		for _, w := range c.fleet.Workers {
			w.Rate = 1 + 1e6*c.rng.Float64()
		}
		e := c.entry("plain", fmt.Sprint(c.rng.IntN(5)), 1+c.rng.Int64N(1e6))
		e.Own = time.Duration(c.rng.Int64N(int64(time.Hour)))
		c.admit(e)
	}
}

// TestLessUrgentWorkHardlyDelaysUrgent says that a class waits longer beside less urgent
// work by no more than what that is owed, however much there is.
func TestLessUrgentWorkHardlyDelaysUrgent(t *testing.T) {
	longest := func(batch int) (wait, forecast time.Duration) {
		w := newWorld(t, 2, 10_000, func(c *qos.Config) { c.Classes[2].Share = 0.2 }, "a")
		w.outcome = func(o qos.Outcome) {
			if o.Entry.Tenant != "u" {
				return
			}
			if o.State != qos.Granted {
				t.Errorf("urgent work is refused: %v", o.Reason)
			}
			wait, forecast = max(wait, o.Waited), max(forecast, o.Forecast)
		}
		w.every(50*time.Millisecond, 20*time.Second, func() {
			for range batch {
				w.admit(w.entry("batch", "b", 700))
			}
			w.admit(w.entry("urgent", "u", 700)) // seven tenths
		})
		w.run(20 * time.Second)
		return wait, forecast
	}
	alone, _ := longest(0)
	beside, forecast := longest(1)
	if beside > alone+200*time.Millisecond || forecast > time.Second {
		t.Errorf("it waits %v beside less urgent work, %v alone; the forecast is %v", beside, alone, forecast)
	}
	if more, also := longest(10); more > beside+70*time.Millisecond || also > forecast+70*time.Millisecond {
		t.Errorf("it waits %v, by the forecast %v, beside ten times as much, %v and %v before", more, also, beside, forecast)
	}
}
