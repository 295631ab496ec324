package qos_test

import (
	"container/heap"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/gateway/qos/qostest"
)

// world is a queue before a fleet in virtual time.
type world struct {
	q     *qos.Queue
	fleet *qostest.Fleet
	// placer stands for the fleet, if set.
	placer qos.Placer
	now    time.Time
	todo   agenda
	n      int
	// outcome is called with what became of entries, if set.
	outcome func(o qos.Outcome)
	// most is how many outcomes end a run, if set.
	most, seen int
	// idle is called when nothing is due, if set.
	idle func()
}

type event struct {
	at time.Time
	n  int
	do func()
}

type agenda []event

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at.Before(a[j].at) || a[i].at.Equal(a[j].at) && a[i].n < a[j].n
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(event)) }
func (a *agenda) Pop() any     { s := *a; x := s[len(s)-1]; *a = s[:len(s)-1]; return x }

// newWorld makes a world with these pools, and as many workers in each, of a rate.
func newWorld(t testing.TB, workers int, rate float64, change func(*qos.Config), pools ...string) *world {
	t.Helper()
	cfg := qos.DefaultConfig("urgent", "plain", "batch")
	if change != nil {
		change(&cfg)
	}
	q, err := qos.New(cfg, pools)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{q: q, fleet: &qostest.Fleet{Dirty: q.Dirty}, now: start}
	for i := range workers * len(pools) {
		w.fleet.Workers = append(w.fleet.Workers, &qostest.Worker{Pool: qos.PoolID(i % len(pools)), Rate: rate})
	}
	return w
}

// at does something at a time after the start.
func (w *world) at(after time.Duration, do func()) {
	w.n++
	heap.Push(&w.todo, event{start.Add(after), w.n, do})
}

// every does something again and again until an end, from the start.
func (w *world) every(period, end time.Duration, do func()) {
	var next func()
	at := time.Duration(0)
	next = func() {
		do()
		if at += period; at < end {
			w.at(at, next)
		}
	}
	w.at(0, next)
}

// entry returns an entry that arrives now, by its class's numbers.
func (w *world) entry(class, tenant string, work int64, pools ...qos.PoolID) *qos.Entry {
	id, ok := w.q.Class(class)
	if !ok {
		panic("BUG: no such class: " + class)
	}
	c := w.q.Settings(id)
	if len(pools) == 0 {
		pools = []qos.PoolID{0}
	}
	return &qos.Entry{
		Class: id, Tenant: tenant, Work: work, Room: work, Pools: pools, Bytes: 1, Payload: &qostest.Request{},
		Arrived: w.now, Deadline: w.now.Add(c.Target), Until: w.now.Add(c.MaxWait),
	}
}

func (w *world) places() qos.Placer {
	if w.placer != nil {
		return w.placer
	}
	return w.fleet
}

func (w *world) admit(e *qos.Entry) { w.take(w.q.Admit(w.now, e, w.places(), nil)) }

func (w *world) take(out []qos.Outcome) {
	w.seen += len(out)
	if w.outcome != nil {
		for _, o := range out {
			w.outcome(o)
		}
	}
}

// run goes on until a time after the start.
func (w *world) run(end time.Duration) {
	for stop := start.Add(end); ; {
		next := stop
		if len(w.todo) > 0 && w.todo[0].at.Before(next) {
			next = w.todo[0].at
		}
		if at, ok := w.fleet.Next(); ok && at.Before(next) {
			next = at
		}
		if at, ok := w.q.Next(); ok && at.Before(next) {
			next = at
		}
		if next.Before(w.now) {
			next = w.now
		}
		if w.now = next; !next.Before(stop) || w.most > 0 && w.seen > w.most {
			return
		}
		w.fleet.Advance(w.now, nil)
		for len(w.todo) > 0 && !w.todo[0].at.After(w.now) {
			heap.Pop(&w.todo).(event).do()
		}
		w.take(w.q.Pump(w.now, w.places(), nil))
		if due, ok := w.q.Next(); w.idle != nil && (!ok || due.Sub(w.now) > 2*time.Millisecond) {
			w.idle()
		}
	}
}
