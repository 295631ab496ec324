package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluicegate/sluice/scoring/simworker"
	"github.com/sluicegate/sluice/scoring/simworker/model"
	"github.com/sluicegate/sluice/scoring/tokenize"
)

// simOptions are what `sluice simworker` may be told.
type simOptions struct {
	worker    simworker.Config // what all workers have in common
	count     int
	host      string
	port      int    // of the first worker; 0: free ports
	tokenizer string // folder; empty: the demo model's
	prefill   float64
	slow      []string // "INDEX=FACTOR"
	noEvents  bool
}

func newSimworkerCommand() *cobra.Command {
	opts := simOptions{worker: simworker.DefaultConfig(), count: 1, host: "127.0.0.1"}
	w := &opts.worker
	w.Model = demoModel
	opts.prefill = float64(time.Second / w.Timing.PrefillToken)
	cmd := &cobra.Command{
		Use:   "simworker",
		Short: "Run simulated vLLM workers, for benchmarks and tries",
		Long: "Run simulated vLLM workers in one process until SIGTERM or SIGINT. They speak the engine's HTTP API, publish\n" +
			"KV events with replay, keep a prefix cache with eviction and take the time of a modelled GPU; their text is\n" +
			"noise. Once all of them listen, one line of JSON with their addresses goes to standard output.",
		Args: cobra.NoArgs,
		RunE: command(func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return runSimworkers(ctx, opts, cmd.OutOrStdout(), newLogger(cmd.ErrOrStderr(), LogConfig{Level: "warn", Format: "text"}))
		}),
	}
	f := cmd.Flags()
	f.IntVar(&opts.count, "workers", opts.count, "how many workers")
	f.StringVar(&opts.host, "host", opts.host, "address to listen on")
	f.IntVar(&opts.port, "port", opts.port, "HTTP port of the first worker, the next ones follow; 0: free ports")
	f.StringVar(&w.Model, "model", w.Model, "served model name")
	f.StringVar(&opts.tokenizer, "tokenizer", opts.tokenizer, "folder with tokenizer.json and tokenizer_config.json (default: the demo model's)")
	f.BoolVar(&opts.noEvents, "no-events", false, "publish no KV events")
	f.BoolVar(&w.NoTopic, "no-topic", w.NoTopic, "publish events under the empty topic, as the engine does unless told otherwise")
	f.BoolVar(&w.EnablePromptTokensDetails, "enable-prompt-tokens-details", w.EnablePromptTokensDetails, "show cached tokens in usage, as the engine's flag does")
	f.BoolVar(&w.EnableScaleOut, "enable-scale-out", w.EnableScaleOut, "open the render routes, as the engine's flag does")
	f.IntVar(&w.Embeddings, "embeddings", w.Embeddings, "length of the vectors of a model that makes embeddings and generates nothing; 0: a model that generates")
	f.BoolVar(&w.ToolCalls, "tool-calls", w.ToolCalls, "call a tool whenever the model may choose one, as an engine with a tool parser does")
	f.BoolVar(&w.NoMessages, "no-messages", w.NoMessages, "have no /v1/messages, as older engines")
	f.BoolVar(&w.FaultAPI, "fault-api", w.FaultAPI, "open POST /sim/fault")
	f.IntVar(&w.BlockSize, "block-size", w.BlockSize, "tokens in a cache block")
	f.IntVar(&w.Blocks, "blocks", w.Blocks, "cache blocks of a worker")
	f.IntVar(&w.MaxModelLen, "max-model-len", w.MaxModelLen, "most tokens of prompt and answer")
	f.IntVar(&w.BatchTokens, "batch-tokens", w.BatchTokens, "token budget of a step")
	f.IntVar(&w.MaxSeqs, "max-seqs", w.MaxSeqs, "most requests in a step")
	f.BoolVar(&w.PriorityScheduling, "priority-scheduling", w.PriorityScheduling, "take requests by their priority, as the engine does with --scheduling-policy priority")
	f.IntVar(&w.OutputTokens, "output-tokens", w.OutputTokens, "mean length at which a text ends by itself; 0: only by max_tokens")
	f.Float64Var(&opts.prefill, "prefill-tps", opts.prefill, "prompt tokens computed in a second, attention and step aside")
	f.DurationVar(&w.Timing.Step, "step", w.Timing.Step, "time that every step takes")
	f.DurationVar(&w.Timing.DecodeSeq, "decode-seq", w.Timing.DecodeSeq, "what a decoding sequence adds to a step")
	f.DurationVar(&w.Timing.Context, "context", w.Timing.Context, "what reading 1,000 cached tokens adds to a step, for decoding sequences")
	f.DurationVar(&w.Timing.Attention, "attention", w.Timing.Attention, "time for each million pairs of a prompt token and a token before it")
	f.Float64Var(&w.Timing.Jitter, "jitter", w.Timing.Jitter, "how much step times vary: 0.1 is ten per cent up or down")
	f.Float64Var(&w.TimeScale, "time-scale", w.TimeScale, "how long all of it takes: 0.1 is ten times as fast")
	f.StringSliceVar(&opts.slow, "slow", opts.slow, "workers that are slower, as INDEX=FACTOR: 0=3 makes the first take three times as long")
	f.Uint64Var(&w.Seed, "seed", w.Seed, "seed of the noise; each worker adds its index")
	return cmd
}

// simListing is the line that tells where the workers are.
type simListing struct {
	Model   string         `json:"model"`
	Workers []simAddresses `json:"workers"`
}

type simAddresses struct {
	Name   string `json:"name"`
	URL    string `json:"url"`
	Events string `json:"events,omitempty"`
	Replay string `json:"replay,omitempty"`
}

// runSimworkers runs workers until ctx ends.
func runSimworkers(ctx context.Context, opts simOptions, out io.Writer, log *slog.Logger) (err error) {
	configs, err := opts.configs(log)
	if err != nil {
		return err
	}
	tok, closeTok, err := simworkerTokenizer(opts.tokenizer)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeTok()) }()
	listing := simListing{Model: opts.worker.Model}
	for _, cfg := range configs {
		w, err := simworker.Start(cfg, tok)
		if err != nil {
			return fmt.Errorf("cannot start the simulated worker %s: %w", cfg.Name, err)
		}
		defer w.Close()
		listing.Workers = append(listing.Workers, simAddresses{
			Name: cfg.Name, URL: w.URL(), Events: w.EventsEndpoint(), Replay: w.ReplayEndpoint(),
		})
	}
	if err := json.NewEncoder(out).Encode(listing); err != nil {
		return fmt.Errorf("cannot print the workers' addresses: %w", err)
	}
	<-ctx.Done()
	return nil
}

// configs returns one configuration a worker.
func (o *simOptions) configs(log *slog.Logger) ([]simworker.Config, error) {
	if o.count < 1 {
		return nil, &usageError{fmt.Sprintf("--workers is %d, should be at least 1", o.count)}
	}
	if !(o.prefill > 0) {
		return nil, &usageError{fmt.Sprintf("--prefill-tps is %v, should be above 0", o.prefill)}
	}
	factors, err := slowFactors(o.slow, o.count)
	if err != nil {
		return nil, err
	}
	configs := make([]simworker.Config, o.count)
	for i := range configs {
		cfg := o.worker
		cfg.Name, cfg.Seed, cfg.Log = fmt.Sprintf("sim-%d", i+1), cfg.Seed+uint64(i), log
		cfg.Timing.PrefillToken = time.Duration(float64(time.Second) / o.prefill)
		cfg.TimeScale *= factors[i]
		port := 0
		if o.port != 0 {
			port = o.port + i
		}
		free := net.JoinHostPort(o.host, "0")
		cfg.HTTPAddr = net.JoinHostPort(o.host, strconv.Itoa(port))
		cfg.EventsAddr, cfg.ReplayAddr = free, free
		if o.noEvents {
			cfg.EventsAddr, cfg.ReplayAddr = "", ""
		}
		if err := cfg.Validate(); err != nil {
			return nil, &usageError{strings.TrimPrefix(err.Error(), "simworker: ")}
		}
		configs[i] = cfg
	}
	return configs, nil
}

// slowFactors returns what each worker's times are multiplied by.
func slowFactors(slow []string, count int) ([]float64, error) {
	factors := make([]float64, count)
	for i := range factors {
		factors[i] = 1
	}
	for _, s := range slow {
		index, factor, ok := strings.Cut(s, "=")
		i, err1 := strconv.Atoi(index)
		v, err2 := strconv.ParseFloat(factor, 64)
		switch {
		case !ok || err1 != nil || err2 != nil:
			return nil, &usageError{fmt.Sprintf("--slow %s is not INDEX=FACTOR, as in 0=3", s)}
		case i < 0 || i >= count:
			return nil, &usageError{fmt.Sprintf("--slow %s: there is no worker %d, they count from 0 to %d", s, i, count-1)}
		case !(v > 0 && v <= 1000):
			return nil, &usageError{fmt.Sprintf("--slow %s: the factor should be above 0 and at most 1000", s)}
		}
		factors[i] = v
	}
	return factors, nil
}

// simworkerTokenizer loads the workers' tokenizer: that of dir, or the demo
// model's, or without native tokenizers one id a byte.
func simworkerTokenizer(dir string) (tok simworker.Tokenizer, closeTok func() error, err error) {
	files := model.FS
	load := func() (*tokenize.Tokenizer, error) { return tokenize.LoadFS(files, tokenize.Options{}) }
	size := func() (int, error) { return vocabularySize(files) }
	if dir != "" {
		load = func() (*tokenize.Tokenizer, error) { return tokenize.Load(dir, tokenize.Options{}) }
		size = func() (int, error) { return vocabularySize(os.DirFS(dir)) }
	}
	local, err := load()
	switch {
	case dir == "" && errors.Is(err, tokenize.ErrNoNative):
		return simworker.NewByteTokenizer(), func() error { return nil }, nil
	case err != nil:
		return nil, nil, err
	}
	n, err := size()
	if err != nil {
		return nil, nil, errors.Join(err, local.Close())
	}
	return &simTokenizer{local: local, size: n}, local.Close, nil
}
