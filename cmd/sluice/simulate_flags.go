package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sluicegate/sluice/scoring/simulate"
)

// simulateFlags are the flags of `sluice simulate`. Those that a profile sets are read only if they were
// given.
type simulateFlags struct {
	trace, workload        string
	requests               int
	rate, rateScale        float64
	traceSpread            time.Duration
	streams                int
	prefixes, prefixTokens int
	buckets                []string
	fresh, output, turns   string
	think                  time.Duration

	strategies []string
	profile    string
	workers    int
	slow       []string
	shared     float64

	blockSize, cacheBlocks, batchTokens, maxSeqs       int
	prefillTPS, decodeTPS                              float64
	step, prefillToken, decodeSeq, readKilo, attention time.Duration
	jitter                                             float64

	eventDelay, loadInterval time.Duration
	prior                    bool
	objective                time.Duration
	warmup                   int
	seed                     uint64
	format, plot             string

	qos      string
	tenants  []string
	overload float64
	said     float64
	returns  int

	given func(flag string) bool
}

// register declares the flags, in the order in which --help shows them.
func (f *simulateFlags) register(fs *pflag.FlagSet) {
	fs.SortFlags = false
	f.registerLoad(fs)
	f.registerFleet(fs)
	f.registerQoS(fs)
	fs.StringSliceVar(&f.strategies, "strategy", nil, "`NAMES` of strategies to compare, with commas between them (default all but oracle-foresight)")
	fs.DurationVar(&f.objective, "ttft-objective", 2*time.Second, "time to first token within which a request counts for goodput")
	fs.IntVar(&f.warmup, "warmup", 0, "requests at the start that are left out of times and goodput")
	fs.Uint64Var(&f.seed, "seed", 1, "seed of the load, of jitter and of random picks")
	fs.StringVar(&f.format, "format", "table", "table or json")
	fs.StringVar(&f.plot, "plot", "", "`FILE` for a plot of the times to first token, in SVG")
}

func (f *simulateFlags) registerLoad(fs *pflag.FlagSet) {
	fs.StringVar(&f.trace, "trace", "", "`FILE` with a trace")
	fs.Float64Var(&f.rateScale, "rate-scale", 1, "trace: how many times faster than recorded it arrives")
	fs.DurationVar(&f.traceSpread, "trace-spread", 0, "trace: spread arrivals over this time after their time stamp (3s undoes the rounding of Mooncake's)")
	fs.StringVar(&f.workload, "workload", "mixed", "`NAME` of a synthetic load: shared-prefix, mixed, multi-turn or independent")
	fs.IntVar(&f.requests, "requests", 2000, "number of requests; of a trace the first so many, and all unless given")
	fs.Float64Var(&f.rate, "rate", 20, "requests that arrive a second; multi-turn: conversations")
	fs.IntVar(&f.streams, "streams", 0, "requests under way at any time, instead of arrivals at a rate")
	fs.IntVar(&f.prefixes, "prefixes", 24, "shared-prefix: number of prefixes")
	fs.IntVar(&f.prefixTokens, "prefix-tokens", 3000, "shared-prefix: tokens of each; multi-turn: tokens that all conversations begin with")
	fs.StringSliceVar(&f.buckets, "buckets", nil, "mixed: `WEIGHT:PREFIXESxTOKENS` with commas between them (default 50:2x3000,30:8x2000,20:40x1000)")
	fs.StringVar(&f.fresh, "fresh", "", "`N or MIN..MAX` tokens of each prompt's own (default 64, mixed 16..600, multi-turn 50..500, independent 1500)")
	fs.StringVar(&f.output, "output", "", "`N or MIN..MAX` tokens of an answer (default 16, multi-turn 50..300)")
	fs.StringVar(&f.turns, "turns", "2..8", "multi-turn: `N or MIN..MAX` turns of a conversation")
	fs.DurationVar(&f.think, "think", 5*time.Second, "multi-turn: mean time from an answer to the next turn")
}

func (f *simulateFlags) registerFleet(fs *pflag.FlagSet) {
	fs.IntVar(&f.workers, "workers", 8, "number of workers")
	fs.StringVar(&f.profile, "profile", "", "`NAME` of the workers' size and speed: "+strings.Join(profileNames(), ", ")+
		" (default "+simulate.Profiles[0].Name+", for a trace "+simulate.Profiles[1].Name+")")
	fs.StringSliceVar(&f.slow, "slow", nil, "`WORKER=FACTOR` makes a worker, counted from 0, so many times slower")
	fs.Float64Var(&f.shared, "shared-cores", 0, "all workers compute on one machine, which runs so many of their steps at full speed at once, their fixed parts aside; 0 is a machine each")
	fs.IntVar(&f.blockSize, "block-size", 0, "tokens of a cache block (default by profile, as of all flags down to --attention)")
	fs.IntVar(&f.cacheBlocks, "cache-blocks", 0, "blocks of a worker's cache")
	fs.IntVar(&f.batchTokens, "batch-tokens", 0, "tokens of a step")
	fs.IntVar(&f.maxSeqs, "max-seqs", 0, "texts that run at once")
	fs.Float64Var(&f.prefillTPS, "prefill-tps", 0, "prompt tokens computed a second within a step, its fixed part and attention aside")
	fs.Float64Var(&f.decodeTPS, "decode-tps", 0, "tokens a second of a text that runs alone; sets --step")
	fs.DurationVar(&f.step, "step", 0, "fixed part of a step")
	fs.DurationVar(&f.prefillToken, "prefill-token", 0, "time of a prompt token; the inverse of --prefill-tps")
	fs.DurationVar(&f.decodeSeq, "decode-seq", 0, "what a running text adds to a step")
	fs.DurationVar(&f.readKilo, "context", 0, "what it adds for each 1,000 tokens before")
	fs.DurationVar(&f.attention, "attention", 0, "time of a million pairs of a prompt token and one before it")
	fs.Float64Var(&f.jitter, "jitter", 0, "share by which a step's time varies, from 0 to below 1")
	fs.DurationVar(&f.eventDelay, "event-delay", time.Millisecond, "how long cache events are on their way to the router")
	fs.DurationVar(&f.loadInterval, "load-interval", simulate.DefaultConfig().LoadInterval, "how often the router reads the workers' metrics; 0 is never")
	fs.BoolVar(&f.prior, "prior", false, "let the router start with the workers' true speed; it learns from its live defaults otherwise")
}

func profileNames() []string {
	var names []string
	for _, p := range simulate.Profiles {
		names = append(names, p.Name)
	}
	return names
}

// Bounds of flags, wide enough for whatever fits into memory.
const (
	maxSimRequests = 10_000_000
	maxSimTokens   = 1 << 24
	maxSimRate     = 1e6
)

// bound is what a flag's value must be.
type bound struct {
	flag   string
	value  float64
	lo, hi float64
	unit   string // of the bounds in messages: "s" makes them durations
}

// check reports the first flag whose value can't be used, or that does not go with another.
func (f *simulateFlags) check() error {
	if f.format != "table" && f.format != "json" {
		return &usageError{fmt.Sprintf("--format is %q, should be table or json", f.format)}
	}
	if err := f.checkPairs(); err != nil {
		return err
	}
	day := (24 * time.Hour).Seconds()
	for _, b := range []bound{
		{"requests", float64(f.requests), 1, maxSimRequests, ""},
		{"rate", f.rate, 1e-6, maxSimRate, ""},
		{"rate-scale", f.rateScale, 1e-6, maxSimRate, ""},
		{"trace-spread", f.traceSpread.Seconds(), 0, day, "s"},
		{"streams", float64(f.streams), 0, maxSimRequests, ""},
		{"prefixes", float64(f.prefixes), 1, maxSimRequests, ""},
		{"prefix-tokens", float64(f.prefixTokens), 0, maxSimTokens, ""},
		{"think", f.think.Seconds(), 0, day, "s"},
		{"workers", float64(f.workers), 1, simulate.MaxWorkers, ""},
		{"shared-cores", f.shared, 0, simulate.MaxWorkers, ""},
		{"event-delay", f.eventDelay.Seconds(), 0, 3600, "s"},
		{"load-interval", f.loadInterval.Seconds(), 0, 3600, "s"},
		{"ttft-objective", f.objective.Seconds(), 0, 3600, "s"},
		{"warmup", float64(f.warmup), 0, maxSimRequests, ""},
	} {
		if err := b.check(); err != nil {
			return err
		}
	}
	if err := f.checkQoS(); err != nil {
		return err
	}
	return f.checkEngine()
}

// checkEngine checks the flags that have a value only when they were given.
func (f *simulateFlags) checkEngine() error {
	for _, b := range []bound{
		{"block-size", float64(f.blockSize), 1, 1 << 14, ""},
		{"cache-blocks", float64(f.cacheBlocks), 2, 1 << 26, ""},
		{"batch-tokens", float64(f.batchTokens), 1, maxSimTokens, ""},
		{"max-seqs", float64(f.maxSeqs), 1, 1 << 20, ""},
		{"prefill-tps", f.prefillTPS, 1, 1e9, ""},
		{"decode-tps", f.decodeTPS, 0.01, 1e6, ""},
		{"step", f.step.Seconds(), 1e-6, 60, "s"},
		{"prefill-token", f.prefillToken.Seconds(), 0, 60, "s"},
		{"decode-seq", f.decodeSeq.Seconds(), 0, 60, "s"},
		{"context", f.readKilo.Seconds(), 0, 60, "s"},
		{"attention", f.attention.Seconds(), 0, 60, "s"},
		{"jitter", f.jitter, 0, 0.99, ""},
	} {
		if !f.given(b.flag) {
			continue
		}
		if err := b.check(); err != nil {
			return err
		}
	}
	return nil
}

func (b *bound) check() error {
	if b.value >= b.lo && b.value <= b.hi {
		return nil
	}
	show := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	if b.unit == "s" {
		show = func(v float64) string { return time.Duration(math.Round(v * float64(time.Second))).String() }
	}
	return &usageError{fmt.Sprintf("--%s is %s, should be between %s and %s", b.flag, show(b.value), show(b.lo), show(b.hi))}
}

// checkPairs reports flags that were given and mean nothing together.
func (f *simulateFlags) checkPairs() error {
	for _, p := range []struct {
		flag, other string
		why         string
	}{
		{"trace", "workload", "a trace is a load of its own"},
		{"trace", "rate", "a trace has times of its own: use --rate-scale"},
		{"streams", "rate", "requests arrive at a rate or when a stream is free"},
		{"streams", "rate-scale", "requests arrive when a stream is free"},
		{"prefill-tps", "prefill-token", "one is the inverse of the other"},
		{"decode-tps", "step", "one sets the other"},
	} {
		if f.given(p.flag) && f.given(p.other) {
			return &usageError{fmt.Sprintf("--%s and --%s do not go together: %s", p.flag, p.other, p.why)}
		}
	}
	traceOnly := []string{"rate-scale", "trace-spread"}
	syntheticOnly := []string{"prefixes", "prefix-tokens", "buckets", "fresh", "output", "turns", "think"}
	for _, flag := range traceOnly {
		if f.trace == "" && f.given(flag) {
			return &usageError{fmt.Sprintf("--%s needs --trace", flag)}
		}
	}
	for _, flag := range syntheticOnly {
		if f.trace != "" && f.given(flag) {
			return &usageError{fmt.Sprintf("--%s does not go with --trace: it shapes a synthetic load", flag)}
		}
	}
	return nil
}

// chosen reads --strategy.
func (f *simulateFlags) chosen() ([]simulate.Strategy, error) {
	if len(f.strategies) == 0 && f.queued() {
		return simulate.Strategies()[:1], nil // the live one
	}
	if len(f.strategies) == 0 {
		return simulate.Strategies(), nil
	}
	var chosen []simulate.Strategy
	for _, name := range f.strategies {
		s, err := simulate.ParseStrategy(name)
		if err != nil {
			return nil, &usageError{"--strategy: " + err.Error()}
		}
		chosen = append(chosen, s)
	}
	return chosen, nil
}

// config builds the fleet from the profile and what flags change of it.
func (f *simulateFlags) config() (*simulate.Config, error) {
	cfg := simulate.DefaultConfig()
	profile, err := f.chosenProfile()
	if err != nil {
		return nil, err
	}
	cfg.Engine, cfg.SharedCores = profile.Engine, profile.SharedCores
	if f.given("shared-cores") {
		cfg.SharedCores = f.shared
	}
	if err := f.tune(&cfg); err != nil {
		return nil, err
	}
	cfg.Workers, cfg.EventDelay, cfg.LoadInterval, cfg.Prior = f.workers, f.eventDelay, f.loadInterval, f.prior
	cfg.Objective, cfg.Warmup, cfg.Seed = f.objective, f.warmup, f.seed
	if cfg.Slow, err = f.slowWorkers(); err != nil {
		return nil, err
	}
	if cfg.QoS, err = f.classes(); err != nil {
		return nil, err
	}
	if err := cfg.Validate(); err != nil {
		return nil, &usageError{err.Error()}
	}
	return &cfg, nil
}

func (f *simulateFlags) chosenProfile() (*simulate.Profile, error) {
	name := f.profile
	switch {
	case name == "" && f.trace != "":
		return &simulate.Profiles[1], nil
	case name == "":
		return &simulate.Profiles[0], nil
	}
	for i := range simulate.Profiles {
		if simulate.Profiles[i].Name == name {
			return &simulate.Profiles[i], nil
		}
	}
	return nil, &usageError{fmt.Sprintf("--profile is %q, should be one of %s", name, strings.Join(profileNames(), ", "))}
}

// tune changes the profile's engine as flags say.
func (f *simulateFlags) tune(cfg *simulate.Config) error {
	e, t := &cfg.Engine, &cfg.Engine.Timing
	for _, s := range []struct {
		flag string
		to   *int
		v    int
	}{
		{"block-size", &e.BlockSize, f.blockSize}, {"cache-blocks", &e.Blocks, f.cacheBlocks},
		{"batch-tokens", &e.BatchTokens, f.batchTokens}, {"max-seqs", &e.MaxSeqs, f.maxSeqs},
	} {
		if f.given(s.flag) {
			*s.to = s.v
		}
	}
	for _, s := range []struct {
		flag string
		to   *time.Duration
		v    time.Duration
	}{
		{"step", &t.Step, f.step}, {"prefill-token", &t.PrefillToken, f.prefillToken}, {"decode-seq", &t.DecodeSeq, f.decodeSeq},
		{"context", &t.Context, f.readKilo}, {"attention", &t.Attention, f.attention},
	} {
		if f.given(s.flag) {
			*s.to = s.v
		}
	}
	if f.given("prefill-tps") {
		t.PrefillToken = time.Duration(math.Round(float64(time.Second) / f.prefillTPS))
	}
	if f.given("decode-tps") {
		t.Step = time.Duration(math.Round(float64(time.Second)/f.decodeTPS)) - t.DecodeSeq
		if t.Step < time.Microsecond {
			return &usageError{fmt.Sprintf("--decode-tps is %v, should be below %.0f: a running text alone takes %s of a step (--decode-seq)",
				f.decodeTPS, 1/(t.DecodeSeq+time.Microsecond).Seconds(), t.DecodeSeq)}
		}
	}
	if f.given("jitter") {
		t.Jitter = f.jitter
	}
	return nil
}

// slowWorkers reads --slow.
func (f *simulateFlags) slowWorkers() (map[int]float64, error) {
	slow := make(map[int]float64)
	for _, s := range f.slow {
		worker, factor, _ := strings.Cut(s, "=")
		w, err := strconv.Atoi(worker)
		x, err2 := strconv.ParseFloat(factor, 64)
		if err != nil || err2 != nil || w < 0 || w >= f.workers || !(x >= 0.001 && x <= 1000) {
			return nil, &usageError{fmt.Sprintf("--slow is %q, should be the number of a worker, 0 to %d, and a factor, 0.001 to 1000, as in 0=4", s, f.workers-1)}
		}
		slow[w] = x
	}
	return slow, nil
}
