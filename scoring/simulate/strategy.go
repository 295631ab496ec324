package simulate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluicegate/sluice/scoring"
)

// Strategy is how a worker is chosen: one of the live router's own, or an
// oracle.
type Strategy struct {
	// live is the router's strategy; an oracle's choice is forced upon it.
	live   scoring.Strategy
	oracle oracleKind
}

// oracleKind tells the oracles apart.
type oracleKind uint8

const (
	noOracle oracleKind = iota
	// greedy takes the least true TTFT.
	greedy
	// foresight takes the least sum of the true TTFT and those of the requests
	// that come next.
	foresight
)

// Strategies returns the strategies that are compared unless others are asked
// for, in the order in which they are reported: all but oracle-foresight, which
// is slow and has conditions; see [Run].
func Strategies() []Strategy {
	return []Strategy{
		{live: scoring.StrategyTTFT}, {live: scoring.StrategyRandom}, {live: scoring.StrategyRoundRobin},
		{live: scoring.StrategyLeastLoaded}, {live: scoring.StrategyPrefixOnly}, {oracle: greedy},
	}
}

// String returns the strategy's name.
func (s Strategy) String() string {
	switch s.oracle {
	case greedy:
		return "oracle"
	case foresight:
		return "oracle-foresight"
	}
	return s.live.String()
}

// ParseStrategy returns the strategy of that name.
func ParseStrategy(name string) (Strategy, error) {
	all := append(Strategies(), Strategy{oracle: foresight})
	if i := slices.IndexFunc(all, func(s Strategy) bool { return s.String() == name }); i >= 0 {
		return all[i], nil
	}
	names := make([]string, len(all))
	for i, s := range all {
		names[i] = s.String()
	}
	return Strategy{}, fmt.Errorf("%q is no strategy, should be one of %s", name, strings.Join(names, ", "))
}
