package chargeback

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"
)

// ranking keeps the tenants that use most, by tokens that count half after
// halfLife. The caller protects it.
type ranking struct {
	places  int
	members map[string]bool
	scores  map[string]*score
	last    time.Time // when members were last compared with the others
}

type score struct {
	value float64
	at    time.Time
}

const (
	// halfLife is after how long a token counts half: long enough that a burst
	// changes little, short enough that a day shows.
	halfLife = 6 * time.Hour
	// rankEvery is how often members may change: a series that comes and goes
	// within a few scrapes tells nobody anything.
	rankEvery = 10 * time.Minute
	// rankLead is how many times a member's usage one must have to take its
	// place, so that two that use about the same do not change places for ever.
	rankLead = 1.5
)

func newRanking() *ranking {
	return &ranking{members: make(map[string]bool), scores: make(map[string]*score)}
}

// now returns a score as it is at an instant.
func (s *score) now(at time.Time) float64 {
	age := at.Sub(s.at)
	if age <= 0 {
		return s.value
	}
	return s.value * math.Exp2(-float64(age)/float64(halfLife))
}

// use adds to a tenant's score.
func (r *ranking) use(tenant string, tokens int64, at time.Time) {
	s := r.scores[tenant]
	if s == nil {
		s = &score{}
		r.scores[tenant] = s
	}
	s.value = s.now(at) + float64(max(0, tokens)) + 1 // a request counts, too
	if at.After(s.at) {
		s.at = at
	}
}

// due reports whether it is time to compare, which it then is taken to be done.
// A clock that was set back starts the wait anew.
func (r *ranking) due(at time.Time) bool {
	if r.last.IsZero() || at.Before(r.last) {
		r.last = at
		return false
	}
	if at.Sub(r.last) < rankEvery {
		return false
	}
	r.last = at
	return true
}

// swaps returns which members leave for which others; the two are parallel. Who
// uses nothing any more is forgotten.
func (r *ranking) swaps(at time.Time, eligible func(tenant string) bool) (leave, join []string) {
	type ranked struct {
		tenant string
		value  float64
	}
	var in, out []ranked
	for tenant, s := range r.scores {
		v := s.now(at)
		switch {
		case r.members[tenant]:
			in = append(in, ranked{tenant, v})
		case v < 1:
			delete(r.scores, tenant)
		case eligible(tenant):
			out = append(out, ranked{tenant, v})
		}
	}
	for tenant := range r.members {
		if r.scores[tenant] == nil {
			in = append(in, ranked{tenant: tenant})
		}
	}
	up := func(a, b ranked) int {
		return cmp.Or(cmp.Compare(a.value, b.value), strings.Compare(b.tenant, a.tenant))
	}
	slices.SortFunc(in, up)
	slices.SortFunc(out, func(a, b ranked) int { return up(b, a) })
	for i := range min(len(in), len(out)) {
		if out[i].value <= rankLead*in[i].value {
			break
		}
		leave, join = append(leave, in[i].tenant), append(join, out[i].tenant)
	}
	return leave, join
}

// shrink returns which members leave so that no more than places are left.
func (r *ranking) shrink(at time.Time) []string {
	over := len(r.members) - r.places
	if over <= 0 {
		return nil
	}
	list := make([]string, 0, len(r.members))
	for tenant := range r.members {
		list = append(list, tenant)
	}
	value := func(tenant string) float64 {
		if s := r.scores[tenant]; s != nil {
			return s.now(at)
		}
		return 0
	}
	slices.SortFunc(list, func(a, b string) int {
		return cmp.Or(cmp.Compare(value(a), value(b)), strings.Compare(b, a))
	})
	return list[:over]
}
