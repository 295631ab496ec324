package scoring

import (
	"fmt"
	"strings"
	"time"
)

// Config holds what an operator may tune. Start from [DefaultConfig]; the zero
// value does not validate.
type Config struct {
	// Seed seeds the generator that breaks ties. Equal seeds and equal calls
	// give equal picks.
	Seed uint64
	// Strategy says how a worker is chosen; the zero value is the prediction.
	Strategy Strategy

	// BlockSize is assumed for a worker whose own block size is not known yet,
	// in tokens.
	BlockSize int
	// BatchTokens is the engine's token budget per step (vLLM's
	// max_num_batched_tokens).
	BatchTokens int
	// MaxSeqs is how many sequences an engine runs at once (vLLM's
	// max_num_seqs). A request beyond it waits for one to end.
	MaxSeqs int

	// SpeculativeTTL is how long a pick's blocks are believed to be on their
	// way into the worker's cache before the worker's own events must have said
	// so: 2 to 5 seconds.
	SpeculativeTTL time.Duration
	// SpeculativeKeys bounds the blocks held by speculative entries, all workers
	// together. The oldest entries go first.
	SpeculativeKeys int
	// LoadStale is the age at which an observed load no longer counts. Its
	// weight falls linearly to zero over this time.
	LoadStale time.Duration
	// IdleHalfLife is how fast what was learned about a worker that gets no
	// requests gives way to what its pool knows, so that a worker that was slow
	// once is tried again.
	IdleHalfLife time.Duration

	// SlowStart is how long a worker that has become ready is spared while
	// others are past theirs: it is a candidate for a tenth of the picks at
	// first, and for a share that grows evenly to all of them. 0 is at once.
	SlowStart time.Duration

	// MaxBlocks bounds the view of one rank of a worker whose capacity is not
	// known, and of the tiers below the device, in blocks.
	MaxBlocks int
	// HeldBlocks bounds, per rank, the blocks kept aside because their parent
	// is not known.
	HeldBlocks int

	// Prior is where the coefficients of a pool's first worker start.
	Prior Coefficients
	// CPUCost and DiskCost say what a token read from host memory or from a
	// slower store costs, as a fraction of computing it (0 to 1).
	CPUCost, DiskCost float64

	// Predictions is how many recent picks [Fleet.Predictions] keeps.
	Predictions int
}

// DefaultConfig returns the configuration that fits vLLM's own defaults on one
// data centre GPU.
func DefaultConfig() Config {
	return Config{
		BlockSize:       16,
		BatchTokens:     2048,
		MaxSeqs:         256,
		SpeculativeTTL:  3 * time.Second,
		SpeculativeKeys: 1 << 20,
		LoadStale:       15 * time.Second,
		IdleHalfLife:    30 * time.Second,
		SlowStart:       10 * time.Second,
		MaxBlocks:       1 << 20,
		HeldBlocks:      4096,
		Prior: Coefficients{
			Base:      30 * time.Millisecond,
			PerKilo:   125 * time.Millisecond,
			PerSeq:    200 * time.Microsecond,
			Attention: 3 * time.Millisecond,
		},
		CPUCost:     0.1,
		DiskCost:    0.5,
		Predictions: 256,
	}
}

// Validate reports the first field that can't be used, with its value and the
// permitted range.
func (c *Config) Validate() error {
	ints := []struct {
		name   string
		v      int
		lo, hi int
	}{
		{"BlockSize", c.BlockSize, 1, maxBlockSize},
		{"BatchTokens", c.BatchTokens, 1, 1 << 24},
		{"MaxSeqs", c.MaxSeqs, 1, 1 << 20},
		{"SpeculativeKeys", c.SpeculativeKeys, 0, 1 << 28},
		{"MaxBlocks", c.MaxBlocks, 1, 1 << 28},
		{"HeldBlocks", c.HeldBlocks, 0, 1 << 24},
		{"Predictions", c.Predictions, 0, 1 << 16},
	}
	for _, f := range ints {
		if f.v < f.lo || f.v > f.hi {
			return fmt.Errorf("scoring: %s is %d; it must be between %d and %d", f.name, f.v, f.lo, f.hi)
		}
	}
	durations := []struct {
		name   string
		v      time.Duration
		lo, hi time.Duration
	}{
		{"SpeculativeTTL", c.SpeculativeTTL, 2 * time.Second, 5 * time.Second},
		{"LoadStale", c.LoadStale, 100 * time.Millisecond, time.Minute},
		{"IdleHalfLife", c.IdleHalfLife, time.Second, time.Hour},
		{"SlowStart", c.SlowStart, 0, time.Hour},
		{"Prior.Base", c.Prior.Base, minBase, maxBase},
		{"Prior.PerKilo", c.Prior.PerKilo, minPerKilo, maxPerKilo},
		{"Prior.PerSeq", c.Prior.PerSeq, 0, maxPerSeq},
		{"Prior.Attention", c.Prior.Attention, 0, maxAttention},
	}
	for _, f := range durations {
		if f.v < f.lo || f.v > f.hi {
			return fmt.Errorf("scoring: %s is %s; it must be between %s and %s", f.name, f.v, f.lo, f.hi)
		}
	}
	if c.Strategy >= strategies {
		return fmt.Errorf("scoring: Strategy is %d; it must be one of %s", c.Strategy, strings.Join(strategyNames[:], ", "))
	}
	for _, f := range []struct {
		name string
		v    float64
	}{{"CPUCost", c.CPUCost}, {"DiskCost", c.DiskCost}} {
		if !(f.v >= 0 && f.v <= 1) {
			return fmt.Errorf("scoring: %s is %v; it must be between 0 and 1", f.name, f.v)
		}
	}
	return nil
}
