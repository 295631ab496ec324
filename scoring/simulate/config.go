package simulate

import (
	"fmt"
	"math"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// Config describes a fleet and its router. Start from [DefaultConfig].
type Config struct {
	// Workers is their number, Engine each one's size and speed. Its MaxModelLen
	// is what the cache holds, its Seed and JitterSeed are set from Seed.
	Workers int
	Engine  engine.Config
	// Slow multiplies the steps of single workers, by index from 0.
	Slow map[int]float64
	// SharedCores makes all workers compute on one machine, which can run this
	// many of their steps at full speed at once: with k of them, each takes
	// k/SharedCores times as long, its fixed part (Timing.Step) excepted. 0 gives
	// each worker a machine of its own.
	SharedCores float64

	// Pools are the numbers of workers of each pool, which all serve the one model;
	// none is one pool of all.
	Pools []int
	// QoS is the queue in front of the workers; nil sends whatever arrives at once.
	// Its classes are those of the plan's requests.
	QoS *qos.Config

	// EventDelay is how long cache events are on their way to the router.
	EventDelay time.Duration
	// LoadInterval is how often the router reads a worker's own account of its
	// load; 0 is never.
	LoadInterval time.Duration
	// Prior lets the router start from the workers' true speed instead of the
	// live defaults. Its sizes (blocks, budget of a step, sequences) it knows
	// either way, as live from its configuration.
	Prior bool

	// Objective is the TTFT that a request must meet to count for goodput.
	Objective time.Duration
	// Warmup is how many requests, in order of the plan, are left out of all
	// figures but the counts of work done.
	Warmup int
	// Seed decides ties, random picks and jitter.
	Seed uint64
}

// DefaultConfig returns eight workers of the default profile.
func DefaultConfig() Config {
	return Config{
		Workers:      8,
		Engine:       Profiles[0].Engine,
		EventDelay:   time.Millisecond,
		LoadInterval: 5 * time.Second,
		Objective:    2 * time.Second,
		Seed:         1,
	}
}

// MaxWorkers bounds a fleet.
const MaxWorkers = 1024

const (
	minFactor = 0.001 // of Slow
	maxFactor = 1000
	minStep   = time.Microsecond
)

// engine is the configuration of one worker's engine.
func (c *Config) engine(worker int) engine.Config {
	e := c.Engine
	e.Seed = c.Seed
	e.JitterSeed = mix(uint64(worker) + 1)
	e.Vocab = vocabulary
	e.MaxModelLen = c.capacity()
	e.OutputTokens = 0
	if f, ok := c.Slow[worker]; ok {
		t := &e.Timing
		for _, d := range []*time.Duration{&t.Step, &t.PrefillToken, &t.DecodeSeq, &t.Context, &t.Attention} {
			*d = time.Duration(math.Round(float64(*d) * f))
		}
	}
	return e
}

// capacity is the tokens that a worker's cache holds.
func (c *Config) capacity() int { return (c.Engine.Blocks - 1) * c.Engine.BlockSize }

// scoring is the configuration of the router.
func (c *Config) scoring(s scoring.Strategy) scoring.Config {
	cfg := scoring.DefaultConfig()
	cfg.Seed = c.Seed
	cfg.Strategy = s
	cfg.BlockSize = c.Engine.BlockSize
	cfg.BatchTokens = c.Engine.BatchTokens
	cfg.MaxSeqs = c.Engine.MaxSeqs
	cfg.Predictions = 0
	if c.Prior {
		t := c.Engine.Timing
		step := t.Step * 1000 / time.Duration(c.Engine.BatchTokens)
		cfg.Prior = scoring.Coefficients{
			Base: t.Step, PerKilo: 1000*t.PrefillToken + step, PerSeq: t.DecodeSeq, Attention: t.Attention,
		}
	}
	return cfg
}

// pools are the pools' names.
func (c *Config) pools() []string {
	if len(c.Pools) == 0 {
		return []string{"pool"}
	}
	names := make([]string, len(c.Pools))
	for i := range names {
		names[i] = fmt.Sprint("pool ", i+1)
	}
	return names
}

// poolOf is the index of a worker's pool.
func (c *Config) poolOf(worker int) int {
	for i, n := range c.Pools {
		if worker -= n; worker < 0 {
			return i
		}
	}
	return 0
}

func (c *Config) validateQueue() error {
	workers := 0
	for i, n := range c.Pools {
		if n < 1 {
			return fmt.Errorf("simulate: Pools has %d workers in pool %d; each must have at least 1", n, i+1)
		}
		workers += n
	}
	if len(c.Pools) > 0 && workers != c.Workers {
		return fmt.Errorf("simulate: Pools has %d workers in all; there are %d", workers, c.Workers)
	}
	if len(c.Pools) > qos.MaxPools {
		return fmt.Errorf("simulate: there are %d Pools; at most %d are possible", len(c.Pools), qos.MaxPools)
	}
	if c.QoS != nil {
		if err := c.QoS.Validate(); err != nil {
			return fmt.Errorf("simulate: QoS: %w", err)
		}
	}
	return nil
}

// Validate reports the first field that no simulation can run with.
func (c *Config) Validate() error {
	if c.Workers < 1 || c.Workers > MaxWorkers {
		return fmt.Errorf("simulate: Workers is %d; it must be between 1 and %d", c.Workers, MaxWorkers)
	}
	for w, f := range c.Slow {
		if w < 0 || w >= c.Workers {
			return fmt.Errorf("simulate: Slow names worker %d; there are %d, counted from 0", w, c.Workers)
		}
		if !(f >= minFactor && f <= maxFactor) {
			return fmt.Errorf("simulate: Slow is %v for worker %d; it must be between %v and %v", f, w, minFactor, maxFactor)
		}
	}
	if !(c.SharedCores >= 0 && c.SharedCores <= MaxWorkers) {
		return fmt.Errorf("simulate: SharedCores is %v; it must be between 0 and %d", c.SharedCores, MaxWorkers)
	}
	for _, d := range []struct {
		name string
		v    time.Duration
	}{{"EventDelay", c.EventDelay}, {"LoadInterval", c.LoadInterval}, {"Objective", c.Objective}} {
		if d.v < 0 || d.v > time.Hour {
			return fmt.Errorf("simulate: %s is %s; it must be between 0 and 1h", d.name, d.v)
		}
	}
	if err := c.validateQueue(); err != nil {
		return err
	}
	if c.Warmup < 0 {
		return fmt.Errorf("simulate: Warmup is %d; it must not be negative", c.Warmup)
	}
	for i := range c.Workers {
		e := c.engine(i)
		if err := e.Validate(); err != nil {
			return err
		}
		if e.Timing.Step < minStep {
			return fmt.Errorf("simulate: Timing.Step is %s for worker %d; it must be at least %s", e.Timing.Step, i, minStep)
		}
	}
	s := c.scoring(scoring.StrategyTTFT)
	return s.Validate()
}
