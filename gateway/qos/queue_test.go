package qos

import (
	"slices"
	"testing"
	"time"
)

// slots is a Placer of pools that take so many entries each.
type slots struct {
	free map[PoolID]int
	asks []string
}

func (s *slots) Begin() {}

func (s *slots) Wait(_ time.Time, pool PoolID, _ time.Duration) (time.Duration, time.Time) {
	if s.free[pool] == 0 {
		return Unbounded, time.Time{}
	}
	return 0, time.Time{}
}

func (s *slots) Place(_ time.Time, e *Entry, terms Terms) (Placement, bool) {
	name, _ := e.Payload.(string)
	s.asks = append(s.asks, name)
	if !slices.Contains(e.Pools, terms.Pool) {
		panic("BUG: the queue offers a pool that the entry may not go to")
	}
	if s.free[terms.Pool] == 0 {
		return Placement{Pool: terms.Pool}, false
	}
	s.free[terms.Pool]--
	return Placement{Pool: terms.Pool}, true
}

var start = time.Unix(1_000_000, 0)

func newQueue(t testing.TB, change func(*Config), pools ...string) *Queue {
	t.Helper()
	cfg := DefaultConfig("urgent", "plain", "batch")
	if change != nil {
		change(&cfg)
	}
	q, err := New(cfg, pools)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func entry(name string, class ClassID, tenant string, work int64, pools ...PoolID) *Entry {
	return &Entry{
		Class: class, Tenant: tenant, Pools: pools, Work: work, Payload: name,
		Arrived: start, Deadline: start.Add(time.Minute), Until: start.Add(time.Hour),
	}
}

// names returns what became of whom.
func names(out []Outcome) []string {
	var all []string
	for _, o := range out {
		name, _ := o.Entry.Payload.(string)
		if o.State == Refused {
			name += " " + o.Reason.String()
		}
		all = append(all, name)
	}
	return all
}

func TestMoreUrgentClassesGoFirst(t *testing.T) {
	q := newQueue(t, func(c *Config) { c.Classes[1].Share, c.Classes[2].Share = 0, 0 }, "a")
	p := &slots{free: map[PoolID]int{}}
	var out []Outcome
	for _, e := range []*Entry{
		entry("batch", 2, "x", 100, 0), entry("urgent", 0, "x", 100, 0), entry("plain", 1, "x", 100, 0),
	} {
		out = q.Admit(start, e, p, out)
	}
	if len(out) != 0 {
		t.Fatalf("outcomes with no room: %v", names(out))
	}
	for range 3 {
		p.free[0] = 1
		q.Dirty(0)
		out = q.Pump(start, p, out)
	}
	if want := []string{"urgent", "plain", "batch"}; !slices.Equal(names(out), want) {
		t.Errorf("granted %v, want %v", names(out), want)
	}
}

func TestWaitingEndsAtUntilOrByLeaving(t *testing.T) {
	q := newQueue(t, nil, "a")
	p := &slots{free: map[PoolID]int{}}
	a, b := entry("a", 0, "x", 1, 0), entry("b", 0, "x", 1, 0)
	q.Admit(start, a, p, nil)
	q.Admit(start, b, p, nil)
	if was := q.Leave(start, b); was != Waiting {
		t.Errorf("b was %v when it left, want waiting", was)
	}
	next, ok := q.Next()
	for ok && next.Before(a.Until) {
		q.Pump(next, p, nil)
		next, ok = q.Next()
	}
	if !ok || !next.Equal(a.Until) {
		t.Fatalf("Next is %v, %v, want %v", next, ok, a.Until)
	}
	if out := q.Pump(next, p, nil); !slices.Equal(names(out), []string{"a waited"}) {
		t.Errorf("at its end: %v", names(out))
	}
	if was := q.Leave(next, a); was != Refused {
		t.Errorf("a was %v when it left, want refused", was)
	}
	if q.Waiting() != 0 {
		t.Errorf("%d wait", q.Waiting())
	}
}

// elsewhere is a Placer whose entries all have one best worker, which is alone in its
// pool.
type elsewhere struct {
	best   PoolID
	closed map[PoolID]bool
}

func (p *elsewhere) Begin() {}

func (p *elsewhere) Wait(_ time.Time, pool PoolID, _ time.Duration) (time.Duration, time.Time) {
	if p.closed[pool] {
		return Unbounded, time.Time{}
	}
	return 0, time.Time{}
}

func (p *elsewhere) Place(_ time.Time, _ *Entry, terms Terms) (Placement, bool) {
	return Placement{Pool: p.best}, p.best == terms.Pool && !p.closed[p.best]
}

// TestAnotherPoolMayBeTheBestNow has an entry wait for the worker of one pool beside an
// open one of another. When the former goes, the latter is the best: nothing happens
// there that tells so.
func TestAnotherPoolMayBeTheBestNow(t *testing.T) {
	for _, gone := range []PoolID{0, 1} {
		q := newQueue(t, nil, "a", "b", "c")
		p := &elsewhere{best: gone, closed: map[PoolID]bool{gone: true}}
		alone := entry("alone", 0, "x", 100, 2)
		if out := q.Admit(start, entry("both", 0, "x", 100, 0, 1), p, nil); len(out) != 0 {
			t.Fatalf("outcomes with the best worker busy: %v", names(out))
		}
		if out := q.Pump(start, p, nil); len(out) != 0 {
			t.Fatalf("outcomes with the best worker busy: %v", names(out))
		}
		p.best = 1 - gone
		q.Dirty(gone)
		if out := q.Pump(start, p, nil); !slices.Equal(names(out), []string{"both"}) {
			t.Errorf("pool %d: %v, want both", gone, names(out))
		}
		p.closed[2], p.best = true, 2
		q.Admit(start, alone, p, nil)
		q.Admit(start, entry("also", 0, "x", 100, 0, 1), p, nil)
		q.Pump(start, p, nil)
		q.Dirty(gone)
		later := start.Add(time.Second)
		q.Pump(later, p, nil)
		if both := q.pools[0].tried.Equal(later) && q.pools[1].tried.Equal(later); !both || q.pools[2].tried.Equal(later) {
			t.Error("not just the two pools that share an entry are looked at")
		}
	}
}

// TestStrand: what no worker can take comes out with a reason of its own, once.
func TestStrand(t *testing.T) {
	q := newQueue(t, nil, "a")
	p := &slots{free: map[PoolID]int{}}
	e := entry("e", 2, "x", 1, 0)
	if out := q.Strand(start, e, nil); len(out) != 0 {
		t.Errorf("one that the queue never had: %v", names(out))
	}
	q.Admit(start, e, p, nil)
	out := q.Strand(start.Add(time.Second), e, nil)
	if !slices.Equal(names(out), []string{"e no_worker"}) || out[0].Waited != time.Second || q.Waiting() != 0 {
		t.Errorf("%v after %v, %d wait", names(out), out[0].Waited, q.Waiting())
	}
	if out := q.Strand(start, e, nil); len(out) != 0 {
		t.Errorf("one that is refused already: %v", names(out))
	}
	var stats Stats
	if q.Stats(start, &stats); stats.Classes[2].Refused[ReasonNoWorker] != 1 {
		t.Errorf("counted %+v", stats.Classes[2])
	}
}
