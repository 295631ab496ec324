package qos_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/gateway/qos/qostest"
	"pgregory.net/rapid"
)

var start = time.Unix(1_000_000, 0)

// queue is what the queue and its reference have in common.
type queue interface {
	Admit(now time.Time, e *qos.Entry, p qos.Placer, out []qos.Outcome) []qos.Outcome
	Passed(now time.Time, e *qos.Entry, pool qos.PoolID, work int64)
	Leave(now time.Time, e *qos.Entry) qos.State
	Again(now time.Time, e *qos.Entry)
	Strand(now time.Time, e *qos.Entry, out []qos.Outcome) []qos.Outcome
	Pump(now time.Time, p qos.Placer, out []qos.Outcome) []qos.Outcome
	Dirty(pool qos.PoolID)
	Next() (time.Time, bool)
	Settle(now time.Time, e *qos.Entry, off int64)
	Waiting() int
}

// side is a queue with a fleet of its own: the real one, or the reference.
type side struct {
	queue
	fleet   *qostest.Fleet
	entries []*qos.Entry
	said    []string
}

func (s *side) say(out []qos.Outcome) {
	for _, o := range out {
		r := o.Entry.Payload.(*qostest.Request)
		s.said = append(s.said, fmt.Sprintf("%s %v %v pool %d work %d after %v", r.Name, o.State, o.Reason, o.Pool, o.Work, o.Waited))
	}
}

// model plays the same calls to both sides.
type model struct {
	cfg   qos.Config
	pools int
	now   time.Time
	sides [2]*side
	state map[int]qos.State // of the entries
}

func newModel(t *rapid.T) *model {
	cfg := qos.DefaultConfig("urgent", "plain", "batch")
	for i := range cfg.Classes {
		c := &cfg.Classes[i]
		c.Share = rapid.SampledFrom([]float64{0, 0.1, 0.3}).Draw(t, "share")
		c.Preemptible = rapid.Bool().Draw(t, "preemptible")
		c.MaxQueue = rapid.SampledFrom([]int{0, 0, 3, 30}).Draw(t, "maxQueue")
	}
	cfg.MaxEntries = rapid.IntRange(1, 60).Draw(t, "maxEntries")
	cfg.MaxBytes = rapid.Int64Range(1, 6000).Draw(t, "maxBytes")
	cfg.Tries = rapid.IntRange(2, 8).Draw(t, "tries")
	cfg.Slack = rapid.Int64Range(0, 5000).Draw(t, "slack")
	m := &model{cfg: cfg, pools: rapid.IntRange(1, 3).Draw(t, "pools"), now: start, state: make(map[int]qos.State)}
	names := []string{"a", "b", "c"}[:m.pools]
	q, err := qos.New(cfg, names)
	if err != nil {
		t.Fatal(err)
	}
	q.Blind() // the reference doesn't forecast
	m.sides[0], m.sides[1] = &side{queue: q}, &side{queue: qostest.NewReference(cfg, m.pools)}
	workers := rapid.IntRange(1, 3).Draw(t, "workers")
	slots := rapid.IntRange(0, 4).Draw(t, "slots")
	for _, s := range m.sides {
		s.fleet = &qostest.Fleet{Dirty: s.Dirty}
		for i := range workers * m.pools {
			s.fleet.Workers = append(s.fleet.Workers, &qostest.Worker{
				Pool: qos.PoolID(i % m.pools), Rate: float64(2000 + 1000*i), Slots: slots,
			})
		}
	}
	return m
}

// both does the same on both sides.
func (m *model) both(f func(s *side)) {
	for _, s := range m.sides {
		f(s)
	}
}

func (m *model) entry(t *rapid.T) int {
	id := len(m.sides[0].entries)
	class := rapid.IntRange(0, len(m.cfg.Classes)-1).Draw(t, "class")
	e := qos.Entry{
		Class:  qos.ClassID(class),
		Tenant: string(rune('A' + rapid.IntRange(0, 4).Draw(t, "tenant"))),
		Weight: rapid.SampledFrom([]float64{0, 0.5, 1, 3}).Draw(t, "weight"),
		Work:   rapid.Int64Range(1, 6000).Draw(t, "work"),
		Own:    time.Duration(rapid.IntRange(0, 3).Draw(t, "own")) * time.Second,
		Bytes:  rapid.Int64Range(0, 300).Draw(t, "bytes"),

		Preemptible: rapid.Bool().Draw(t, "preemptible"),

		Arrived:  m.now,
		Deadline: m.now.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "deadline")) * time.Second),
		Until:    m.now.Add(time.Duration(rapid.IntRange(1, 60_000).Draw(t, "until"))*time.Millisecond + time.Duration(id)),
	}
	e.Room = 2 * e.Work
	for p := range m.pools {
		if len(e.Pools) == 0 && p == m.pools-1 || rapid.Bool().Draw(t, "pool") {
			e.Pools = append(e.Pools, qos.PoolID(p))
		}
	}
	r := qostest.Request{Name: fmt.Sprint(id), Answer: time.Duration(rapid.IntRange(0, 8000).Draw(t, "answer")) * time.Millisecond}
	workers := len(m.sides[0].fleet.Workers)
	switch rapid.IntRange(0, 5).Draw(t, "kind") {
	case 0:
		r.Near = rapid.IntRange(1, workers).Draw(t, "near")
	case 1:
		r.Only = rapid.IntRange(1, workers).Draw(t, "only")
	}
	m.both(func(s *side) {
		e, r := e, r
		e.Pools = slices.Clone(e.Pools)
		e.Payload = &r
		s.entries = append(s.entries, &e)
	})
	return id
}

// pick returns an entry that is in a state, or -1.
func (m *model) pick(t *rapid.T, state qos.State) int {
	var in []int
	for id, s := range m.state {
		if s == state {
			in = append(in, id)
		}
	}
	if len(in) == 0 {
		t.Skip() // rapid draws another action then: no test is skipped
	}
	slices.Sort(in)
	return rapid.SampledFrom(in).Draw(t, "entry")
}

// note takes up what both said, which must be the same.
func (m *model) note(t *rapid.T, outs [2][]qos.Outcome) {
	for i, s := range m.sides {
		s.say(outs[i])
	}
	if a, b := m.sides[0].said, m.sides[1].said; !slices.Equal(a, b) {
		t.Fatalf("the queue says\n%q\nthe reference\n%q", a, b)
	}
	m.both(func(s *side) { s.said = nil })
	for _, o := range outs[0] {
		id := slices.Index(m.sides[0].entries, o.Entry)
		if m.state[id] != qos.Waiting {
			t.Fatalf("entry %d became %v when it was %v", id, o.State, m.state[id])
		}
		m.state[id] = o.State
	}
}

func (m *model) admit(t *rapid.T) {
	id := m.entry(t)
	m.state[id] = qos.Waiting
	var outs [2][]qos.Outcome
	for i, s := range m.sides {
		outs[i] = s.Admit(m.now, s.entries[id], s.fleet, nil)
	}
	m.note(t, outs)
}

func (m *model) pump(t *rapid.T) {
	var outs [2][]qos.Outcome
	for i, s := range m.sides {
		outs[i] = s.Pump(m.now, s.fleet, nil)
	}
	m.note(t, outs)
}

// to goes on in time.
func (m *model) to(t *rapid.T, now time.Time) {
	m.now = now
	m.both(func(s *side) { s.fleet.Advance(now, nil) })
	m.pump(t)
}

func (m *model) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"admit":  m.admit,
		"admit2": m.admit,
		"admit3": m.admit,
		"pass": func(t *rapid.T) {
			id := m.entry(t)
			m.state[id] = qos.Granted
			m.both(func(s *side) { s.Passed(m.now, s.entries[id], s.entries[id].Pools[0], 0) })
		},
		"leave": func(t *rapid.T) {
			id := m.pick(t, qos.Waiting)
			m.both(func(s *side) {
				if was := s.Leave(m.now, s.entries[id]); was != qos.Waiting {
					t.Fatalf("entry %d was %v when it left", id, was)
				}
			})
			m.state[id] = qos.Left
		},
		"strand": func(t *rapid.T) {
			id := m.pick(t, qos.Waiting)
			var outs [2][]qos.Outcome
			for i, s := range m.sides {
				outs[i] = s.Strand(m.now, s.entries[id], nil)
			}
			m.note(t, outs)
			if m.state[id] != qos.Refused {
				t.Fatalf("entry %d is %v after it was stranded", id, m.state[id])
			}
		},
		"again": func(t *rapid.T) {
			id := m.pick(t, qos.Granted)
			m.both(func(s *side) {
				s.fleet.Fail(s.entries[id])
				s.Again(m.now, s.entries[id])
			})
			m.state[id] = qos.Waiting
		},
		"settle": func(t *rapid.T) {
			id := m.pick(t, qos.Granted)
			off := rapid.Int64Range(-2000, 2000).Draw(t, "off")
			m.both(func(s *side) { s.Settle(m.now, s.entries[id], off) })
		},
		"wait": func(t *rapid.T) {
			m.to(t, m.now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms"))*time.Millisecond))
		},
		"event": func(t *rapid.T) {
			next, ok := m.sides[0].fleet.Next()
			if due, has := m.sides[0].Next(); has && (!ok || due.Before(next)) {
				next, ok = due, true
			}
			if !ok {
				t.Skip() // as in pick: another action is drawn
			}
			if next.Before(m.now) {
				next = m.now
			}
			m.to(t, next)
		},
		"close": func(t *rapid.T) {
			w := rapid.IntRange(0, len(m.sides[0].fleet.Workers)-1).Draw(t, "worker")
			m.both(func(s *side) {
				s.fleet.Workers[w].Closed = !s.fleet.Workers[w].Closed
				s.Dirty(s.fleet.Workers[w].Pool)
			})
			m.pump(t)
		},
		"": func(t *rapid.T) {
			if err := m.sides[0].queue.(*qos.Queue).Check(); err != nil {
				t.Fatal(err)
			}
			if a, b := m.sides[0].Waiting(), m.sides[1].Waiting(); a != b {
				t.Fatalf("%d wait, by the reference %d", a, b)
			}
			a, has := m.sides[0].Next()
			if b, also := m.sides[1].Next(); has != also || !a.Equal(b) {
				t.Fatalf("next is %v %v, by the reference %v %v", a.Sub(m.now), has, b.Sub(m.now), also)
			}
		},
	}
}

// order plays calls to the queue and to the reference, which looks at everything each
// time: at every placement they must choose the same.
func order(t *rapid.T) {
	m := newModel(t)
	t.Repeat(m.actions())
}

func TestOrder(t *testing.T) { rapid.Check(t, order) }

func FuzzOrder(f *testing.F) { f.Fuzz(rapid.MakeFuzz(order)) }
