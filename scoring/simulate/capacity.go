package simulate

import "fmt"

const (
	// capacityRequests are those of one run of [Capacity], for each worker, of which
	// the first capacityWarmup are left out.
	capacityRequests, capacityWarmup = 400, 150
	// leastStreams begin, for each worker; each run has so many times more.
	leastStreams  = 8
	moreStreams   = 1.25
	decliningRuns = 2
)

// Capacity is how many requests of a kind the fleet serves a second at most with their
// first tokens within cfg.Objective, and with how many streams: requests of one class
// of which as many as that are always under way. It is looked for with more and more
// of them, until more serve less.
func Capacity(cfg *Config, prompts Prefixed) (rate float64, streams int, err error) {
	one := *cfg
	one.QoS, one.Warmup = nil, capacityWarmup*cfg.Workers
	l := prompts
	l.Requests = capacityRequests * cfg.Workers
	for n, worse := float64(leastStreams*cfg.Workers), 0; worse < decliningRuns && n < float64(cfg.Engine.MaxSeqs*cfg.Workers); n *= moreStreams {
		r, err := Run(&one, l.Plan(Arrivals{Streams: int(n)}, cfg.Seed), Strategy{})
		if err != nil {
			return 0, 0, fmt.Errorf("cannot measure the capacity: %w", err)
		}
		if worse++; r.steady() > rate {
			rate, streams, worse = r.steady(), int(n), 0
		}
	}
	return rate, streams, nil
}

// steady is how many requests were sent a second that met the objective, after the
// warm-up. While a closed loop lasts that is its goodput; its end, when the last ones
// run on with nobody behind them, does not count.
func (r *Result) steady() float64 {
	measured := r.Samples[len(r.Samples)-r.Requests:]
	if len(measured) < 2 {
		return 0
	}
	if took := measured[len(measured)-1].Sent - measured[0].Sent; took > 0 {
		return r.Met * float64(len(measured)-1) / took.Seconds()
	}
	return 0
}
