package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/scoring/simulate"
)

// simulateFlags are the flags of `sluice simulate`. Those whose default depends on the profile or the
// workload are read only if they were given.
type simulateFlags struct {
	trace, workload string
	requests        int
	rate, rateScale float64
	streams         int
	prefixes        int
	prefixTokens    int
	fresh, output   string
	turns           string
	think           time.Duration
	strategies      []string
	profile         string
	workers         int
	slow            []string
	sharedCores     float64
	blockSize       int
	cacheBlocks     int
	batchTokens     int
	maxSeqs         int
	prefillTPS      float64
	decodeTPS       float64
	step            time.Duration
	prefillToken    time.Duration
	decodeSeq       time.Duration
	context         time.Duration
	attention       time.Duration
	jitter          float64
	eventDelay      time.Duration
	loadInterval    time.Duration
	prior           bool
	objective       time.Duration
	warmup          int
	seed            uint64
	format, plot    string
	given           func(flag string) bool
}

const simulateLong = `Route a load over a simulated fleet in virtual time, one routing strategy against another.

The load is a trace (--trace FILE, in Mooncake's format: one JSON object a line with timestamp in ms,
input_length, output_length and hash_ids, one per 512 prompt tokens) or synthetic (--workload NAME):

  shared-prefix  --prefixes prompts of --prefix-tokens, each followed by --fresh tokens
  mixed          half of the prompts begin with one of 2 prefixes of 3,000 tokens, 30 % with one of 8 of
                 2,000, 20 % with one of 40 of 1,000
  multi-turn     conversations of --turns turns, the next one --think after the answer
  independent    prompts that share nothing

Requests arrive in a Poisson process of --rate a second, or --streams of them are under way at any time.
A trace has times of its own, which --rate-scale divides.

The workers are the simulated engine of 'sluice demo': steps with a token budget, a block cache with
eviction, cache events. The router is the live one; it learns of the workers only what it would learn of
real ones. Strategies: ttft (the live default), random, round-robin, least-loaded, prefix-only, and
oracle, which sees the workers' true state and takes the least true TTFT.`

func newSimulateCommand() *cobra.Command {
	var f simulateFlags
	cmd := &cobra.Command{
		Use:   "simulate [--trace FILE | --workload NAME]",
		Short: "Route a load over a simulated fleet in virtual time, strategy against strategy",
		Long:  simulateLong,
		Example: "  sluice simulate --workload mixed --workers 4 --rate 30\n" +
			"  sluice simulate --trace conversation_trace.jsonl --rate-scale 2 --strategy ttft,oracle --plot ttft.svg\n" +
			"  sluice simulate --workload shared-prefix --streams 32 --slow 0=4 --format json",
		Args: cobra.NoArgs,
		RunE: command(func(cmd *cobra.Command, _ []string) error {
			f.given = cmd.Flags().Changed
			return runSimulate(cmd.OutOrStdout(), &f)
		}),
	}
	f.register(cmd)
	return cmd
}

func (f *simulateFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&f.trace, "trace", "", "`FILE` with a trace")
	fs.StringVar(&f.workload, "workload", "mixed", "synthetic load: shared-prefix, mixed, multi-turn or independent")
	fs.IntVar(&f.requests, "requests", 2000, "number of requests (default with --trace: all)")
	fs.Float64Var(&f.rate, "rate", 20, "requests (multi-turn: conversations) a second")
	fs.Float64Var(&f.rateScale, "rate-scale", 1, "how many times faster than recorded a trace arrives")
	fs.IntVar(&f.streams, "streams", 0, "requests under way at any time, instead of arrivals at a rate")
	fs.IntVar(&f.prefixes, "prefixes", 24, "shared-prefix: number of prefixes")
	fs.IntVar(&f.prefixTokens, "prefix-tokens", 3000, "shared-prefix: their length; multi-turn: that of the common system prompt")
	fs.StringVar(&f.fresh, "fresh", "", "`N or MIN..MAX` prompt tokens of each request's own (default by workload)")
	fs.StringVar(&f.output, "output", "", "`N or MIN..MAX` tokens of an answer (default by workload)")
	fs.StringVar(&f.turns, "turns", "2..8", "multi-turn: `N or MIN..MAX` turns of a conversation")
	fs.DurationVar(&f.think, "think", 5*time.Second, "multi-turn: mean time from an answer to the next turn")
	fs.StringSliceVar(&f.strategies, "strategy", nil, "`NAMES` to compare, separated by commas (default all)")
	fs.StringVar(&f.profile, "profile", "", "`NAME` of the workers' size and speed: "+profileNames()+" (default "+simulate.Profiles[0].Name+", with --trace "+simulate.Profiles[1].Name+")")
	fs.IntVar(&f.workers, "workers", 8, "number of workers")
	fs.StringSliceVar(&f.slow, "slow", nil, "`WORKER=FACTOR` makes a worker, counted from 0, so many times slower")
	fs.Float64Var(&f.sharedCores, "shared-cores", 0, "all workers compute on one machine that runs so many of their steps at full speed at once; 0 is one machine each")
	fs.IntVar(&f.blockSize, "block-size", 0, "tokens of a cache block (default by profile, like all that follow to --attention)")
	fs.IntVar(&f.cacheBlocks, "cache-blocks", 0, "blocks of a worker's cache")
	fs.IntVar(&f.batchTokens, "batch-tokens", 0, "tokens of a step")
	fs.IntVar(&f.maxSeqs, "max-seqs", 0, "sequences that run at once")
	fs.Float64Var(&f.prefillTPS, "prefill-tps", 0, "prompt tokens computed a second within a step, without --step and --attention")
	fs.Float64Var(&f.decodeTPS, "decode-tps", 0, "tokens a second of a text that is alone: sets --step")
	fs.DurationVar(&f.step, "step", 0, "time of an empty step")
	fs.DurationVar(&f.prefillToken, "prefill-token", 0, "time of a prompt token: the inverse of --prefill-tps")
	fs.DurationVar(&f.decodeSeq, "decode-seq", 0, "time that a running text adds to a step")
	fs.DurationVar(&f.context, "context", 0, "time to read 1,000 cached tokens for it")
	fs.DurationVar(&f.attention, "attention", 0, "time of a million pairs of a prompt token with one before it")
	fs.Float64Var(&f.jitter, "jitter", 0, "share by which steps vary, 0 to 1")
	fs.DurationVar(&f.eventDelay, "event-delay", time.Millisecond, "time that cache events take to the router")
	fs.DurationVar(&f.loadInterval, "load-interval", time.Second, "how often the router reads the workers' metrics; 0 is never")
	fs.BoolVar(&f.prior, "prior", false, "the router starts with the workers' true speed instead of learning it from its live defaults")
	fs.DurationVar(&f.objective, "ttft-objective", 2*time.Second, "TTFT within which a request counts for goodput")
	fs.IntVar(&f.warmup, "warmup", 0, "requests at the start that are left out of the figures")
	fs.Uint64Var(&f.seed, "seed", 1, "seed of the load, the jitter and random picks")
	fs.StringVar(&f.format, "format", "table", "table or json")
	fs.StringVar(&f.plot, "plot", "", "`FILE` for an SVG plot of the TTFT distributions")
}

func profileNames() string {
	var names []string
	for _, p := range simulate.Profiles {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}

func runSimulate(out io.Writer, f *simulateFlags) error {
	if f.format != "table" && f.format != "json" {
		return &usageError{fmt.Sprintf("--format is %q, should be table or json", f.format)}
	}
	strategies, err := f.chosen()
	if err != nil {
		return err
	}
	cfg, err := f.config()
	if err != nil {
		return err
	}
	plan, err := f.plan()
	if err != nil {
		return err
	}
	report := simulate.Report{
		Workload: plan.Name, Requests: len(plan.Requests), Workers: cfg.Workers, Seed: cfg.Seed,
		Objective: float64(cfg.Objective) / float64(time.Millisecond),
	}
	if report.Results, err = runAll(cfg, plan, strategies); err != nil {
		return err
	}
	if f.format == "json" {
		return report.WriteJSON(out)
	}
	return report.WriteTable(out)
}

// runAll runs the strategies, as many at once as there are processors. Runs share nothing that they change,
// so the results do not depend on it.
func runAll(cfg *simulate.Config, plan *simulate.Plan, strategies []simulate.Strategy) ([]*simulate.Result, error) {
	results := make([]*simulate.Result, len(strategies))
	errs := make([]error, len(strategies))
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	var all sync.WaitGroup
	for i, s := range strategies {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			results[i], errs[i] = simulate.Run(cfg, plan, s)
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err // all fail alike: of the configuration or the plan
		}
	}
	return results, nil
}

func (f *simulateFlags) chosen() ([]simulate.Strategy, error) {
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

// config builds the fleet from the profile and what the flags change of it.
func (f *simulateFlags) config() (*simulate.Config, error) {
	cfg := simulate.DefaultConfig()
	name := f.profile
	switch {
	case name == "" && f.trace != "":
		name = simulate.Profiles[1].Name
	case name == "":
		name = simulate.Profiles[0].Name
	}
	found := false
	for _, p := range simulate.Profiles {
		if p.Name == name {
			cfg.Engine, cfg.SharedCores, found = p.Engine, p.SharedCores, true
		}
	}
	if !found {
		return nil, &usageError{fmt.Sprintf("--profile is %q, should be one of %s", name, profileNames())}
	}
	e, t := &cfg.Engine, &cfg.Engine.Timing
	set := func(flag string, to func()) {
		if f.given(flag) {
			to()
		}
	}
	set("shared-cores", func() { cfg.SharedCores = f.sharedCores })
	set("block-size", func() { e.BlockSize = f.blockSize })
	set("cache-blocks", func() { e.Blocks = f.cacheBlocks })
	set("batch-tokens", func() { e.BatchTokens = f.batchTokens })
	set("max-seqs", func() { e.MaxSeqs = f.maxSeqs })
	set("decode-seq", func() { t.DecodeSeq = f.decodeSeq })
	set("decode-tps", func() { t.Step = time.Duration(float64(time.Second)/f.decodeTPS) - t.DecodeSeq })
	set("step", func() { t.Step = f.step })
	set("prefill-tps", func() { t.PrefillToken = time.Duration(float64(time.Second) / f.prefillTPS) })
	set("prefill-token", func() { t.PrefillToken = f.prefillToken })
	set("context", func() { t.Context = f.context })
	set("attention", func() { t.Attention = f.attention })
	set("jitter", func() { t.Jitter = f.jitter })
	cfg.Workers, cfg.EventDelay, cfg.LoadInterval, cfg.Prior = f.workers, f.eventDelay, f.loadInterval, f.prior
	cfg.Objective, cfg.Warmup, cfg.Seed = f.objective, f.warmup, f.seed
	var err error
	if cfg.Slow, err = f.slowWorkers(); err != nil {
		return nil, err
	}
	return &cfg, nil
}

// slowWorkers reads --slow.
func (f *simulateFlags) slowWorkers() (map[int]float64, error) {
	slow := make(map[int]float64)
	for _, s := range f.slow {
		worker, factor, ok := strings.Cut(s, "=")
		w, err := strconv.Atoi(worker)
		x, err2 := strconv.ParseFloat(factor, 64)
		if !ok || err != nil || err2 != nil {
			return nil, &usageError{fmt.Sprintf("--slow is %q, should be a worker's number and a factor, like 0=4", s)}
		}
		slow[w] = x
	}
	return slow, nil
}

// plan reads the trace or makes the synthetic load.
func (f *simulateFlags) plan() (*simulate.Plan, error) {
	if f.trace != "" {
		return f.tracePlan()
	}
	a := simulate.Arrivals{Rate: f.rate, Streams: f.streams}
	prefixed := simulate.Prefixed{Name: f.workload, Requests: f.requests, FreshMin: 16, FreshMax: 600, OutputMin: 16, OutputMax: 16}
	switch f.workload {
	case "shared-prefix":
		prefixed.Buckets = []simulate.Bucket{{Weight: 1, Prefixes: f.prefixes, Tokens: f.prefixTokens}}
		prefixed.FreshMin, prefixed.FreshMax = 64, 64
	case "mixed":
		prefixed.Buckets = simulate.Mixed()
	case "independent":
		prefixed.FreshMin, prefixed.FreshMax = 1500, 1500
	case "multi-turn":
		m := simulate.MultiTurn{
			Name: f.workload, Requests: f.requests, System: f.prefixTokens, FreshMin: 50, FreshMax: 500, OutputMin: 50, OutputMax: 300, Think: f.think,
		}
		if err := f.ranges(&m.FreshMin, &m.FreshMax, &m.OutputMin, &m.OutputMax); err != nil {
			return nil, err
		}
		if err := span("--turns", f.turns, &m.TurnsMin, &m.TurnsMax); err != nil {
			return nil, err
		}
		return m.Plan(a, f.seed), nil
	default:
		return nil, &usageError{fmt.Sprintf("--workload is %q, should be shared-prefix, mixed, multi-turn or independent", f.workload)}
	}
	if err := f.ranges(&prefixed.FreshMin, &prefixed.FreshMax, &prefixed.OutputMin, &prefixed.OutputMax); err != nil {
		return nil, err
	}
	return prefixed.Plan(a, f.seed), nil
}

func (f *simulateFlags) tracePlan() (*simulate.Plan, error) {
	file, err := os.Open(f.trace)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	limit := 0
	if f.given("requests") {
		limit = f.requests
	}
	p, err := simulate.ReadTrace(f.trace, file, limit)
	if err != nil {
		return nil, err
	}
	for i := range p.Requests {
		p.Requests[i].At = time.Duration(float64(p.Requests[i].At) / f.rateScale)
	}
	p.Streams = f.streams
	return p, nil
}

// ranges reads --fresh and --output into the given bounds, which stay as they are if a flag was not given.
func (f *simulateFlags) ranges(freshMin, freshMax, outputMin, outputMax *int) error {
	if err := span("--fresh", f.fresh, freshMin, freshMax); err != nil {
		return err
	}
	return span("--output", f.output, outputMin, outputMax)
}

// span reads "N" or "MIN..MAX", with N at least 1; nothing leaves the bounds as they are.
func span(flag, s string, lo, hi *int) error {
	if s == "" {
		return nil
	}
	first, last, two := strings.Cut(s, "..")
	if !two {
		last = first
	}
	a, err := strconv.Atoi(first)
	b, err2 := strconv.Atoi(last)
	if err != nil || err2 != nil || a < 1 || b < a || b > 1<<24 {
		return &usageError{fmt.Sprintf("%s is %q, should be a number of at least 1, or two of them in order as in 16..600", flag, s)}
	}
	*lo, *hi = a, b
	return nil
}
