package scoring

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Strategy says how [Fleet.Pick] chooses among the eligible workers. Load,
// predictions and expected blocks are kept in the same way under each, so
// strategies can be compared, in the simulator and live.
type Strategy uint8

const (
	// StrategyTTFT takes the worker with the least predicted cost; the default.
	StrategyTTFT Strategy = iota
	// StrategyRandom takes any worker.
	StrategyRandom
	// StrategyRoundRobin takes the worker that was picked longest ago.
	StrategyRoundRobin
	// StrategyLeastLoaded takes the worker with the fewest requests in flight.
	StrategyLeastLoaded
	// StrategyPrefixOnly takes the worker that holds most of the prompt, the
	// one with the fewest requests in flight among equals.
	StrategyPrefixOnly

	strategies = iota
)

var strategyNames = [strategies]string{"ttft", "random", "round-robin", "least-loaded", "prefix-only"}

// String returns the name as configuration and command line spell it.
func (s Strategy) String() string {
	if int(s) < len(strategyNames) {
		return strategyNames[s]
	}
	return "invalid"
}

// ParseStrategy returns the strategy of that name.
func ParseStrategy(name string) (Strategy, error) {
	if i := slices.Index(strategyNames[:], name); i >= 0 {
		return Strategy(i), nil
	}
	return 0, fmt.Errorf("no strategy is called %q; there are %s", name, strings.Join(strategyNames[:], ", "))
}

// compare orders two candidates, the better one first; 0 is a tie. The
// strategies that compare predictions don't come here.
func (s Strategy) compare(a, b *candidate) int {
	switch s {
	case StrategyRoundRobin:
		return cmp.Compare(a.worker.lastPick, b.worker.lastPick)
	case StrategyLeastLoaded:
		return cmp.Compare(a.worker.inFlight(), b.worker.inFlight())
	case StrategyPrefixOnly:
		return cmp.Or(cmp.Compare(b.cached, a.cached), cmp.Compare(a.worker.inFlight(), b.worker.inFlight()))
	}
	return 0
}

// chooseBy returns the candidate that the strategy puts first, one of equals at
// random. It requires that f.mu is held.
func (f *Fleet) chooseBy(s *scratch, by Strategy) *candidate {
	var best *candidate
	ties := 0
	for i := range s.candidates {
		c := &s.candidates[i]
		order := -1
		if best != nil {
			order = by.compare(c, best)
		}
		switch {
		case order < 0:
			best, ties = c, 1
		case order == 0:
			if ties++; f.rng.IntN(ties) == 0 {
				best = c
			}
		}
	}
	return best
}
