package simulate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluicegate/sluice/scoring"
)

// Strategy is how a worker is chosen: one of the live router's own, or the
// oracle.
type Strategy struct {
	// live is the router's strategy; the oracle's choice is forced upon it.
	live   scoring.Strategy
	oracle bool
}

// Strategies returns all strategies in the order in which they are reported.
func Strategies() []Strategy {
	return []Strategy{
		{live: scoring.StrategyTTFT}, {live: scoring.StrategyRandom}, {live: scoring.StrategyRoundRobin},
		{live: scoring.StrategyLeastLoaded}, {live: scoring.StrategyPrefixOnly}, {oracle: true},
	}
}

// String returns the strategy's name.
func (s Strategy) String() string {
	if s.oracle {
		return "oracle"
	}
	return s.live.String()
}

// ParseStrategy returns the strategy of that name.
func ParseStrategy(name string) (Strategy, error) {
	all := Strategies()
	if i := slices.IndexFunc(all, func(s Strategy) bool { return s.String() == name }); i >= 0 {
		return all[i], nil
	}
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.String()
	}
	return Strategy{}, fmt.Errorf("%q is no strategy, should be one of %s", name, strings.Join(names, ", "))
}
