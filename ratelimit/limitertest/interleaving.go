package limitertest

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicegate/sluice/ratelimit"
)

// model is what a month and some slots should have.
type model struct {
	limit, slots, inFlight, taken int64
	open                          []*reserved
}

// reserved is one reservation of the model.
type reserved struct {
	r             ratelimit.Reservation
	amount, taken int64
}

// testInterleaving holds months and slots to a model through any interleaving of
// reservations, uses and ends.
func testInterleaving(t *testing.T, outer *subject) {
	rapid.Check(t, func(t *rapid.T) {
		s := &subject{Subject: outer.Subject, t: t}
		m := &model{limit: 1000, slots: 4}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if len(m.open) == 0 || rapid.IntRange(0, 2).Draw(t, "what") == 0 {
				m.reserve(t, s)
				continue
			}
			i := rapid.IntRange(0, len(m.open)-1).Draw(t, "which")
			if rapid.Bool().Draw(t, "use") {
				m.use(t, s, m.open[i])
				continue
			}
			m.end(t, s, m.open[i])
			m.open = append(m.open[:i], m.open[i+1:]...)
		}
		for _, x := range m.open {
			x.r.Cancel(s.Now())
			m.taken -= x.taken
		}
		if v := m.view(t, s); v.Remaining != max(0, m.limit-m.taken) {
			t.Fatalf("%+v at the end, %d of %d are taken", v, m.taken, m.limit)
		}
	})
}

func (m *model) reserve(t *rapid.T, s *subject) {
	amount := rapid.Int64Range(0, 300).Draw(t, "amount")
	r, failures := s.reserve(s.month("m", m.limit, amount), s.slot("s", m.slots))
	if fits := m.taken+amount <= m.limit && m.inFlight < m.slots; fits != (r != nil) {
		t.Fatalf("admitted %v with %d taken of %d, %d in flight and %d wanted: %+v", r != nil, m.taken, m.limit, m.inFlight, amount, failures)
	}
	if r != nil {
		m.open = append(m.open, &reserved{r, amount, amount})
		m.taken += amount
		m.inFlight++
	}
}

func (m *model) use(t *rapid.T, s *subject, x *reserved) {
	used := rapid.Int64Range(-1, 600).Draw(t, "used")
	x.r.Use(s.Now(), []int64{used, used})
	if used > x.taken {
		m.taken += used - x.taken
		x.taken = used
	}
}

func (m *model) end(t *rapid.T, s *subject, x *reserved) {
	m.inFlight--
	charge := rapid.Int64Range(-1, 600).Draw(t, "charge")
	switch {
	case rapid.Bool().Draw(t, "cancel"):
		charge = 0
		x.r.Cancel(s.Now())
	default:
		x.r.Settle(s.Now(), []int64{charge, charge})
		if charge < 0 {
			charge = x.taken
		}
	}
	m.taken += charge - x.taken
	if got := x.r.Available(0); got != m.limit-m.taken {
		t.Fatalf("%d are said to be available, %d of %d are taken", got, m.taken, m.limit)
	}
}

// view is the month as a reservation of nothing would see it, or as its refusal
// says.
func (m *model) view(_ *rapid.T, s *subject) ratelimit.View {
	r, failures := s.reserve(s.month("m", m.limit, 0))
	if r == nil {
		return failures[0].View
	}
	defer r.Cancel(s.Now())
	return r.View(0)
}
