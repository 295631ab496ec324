// Command arena compares routers before simulated workers: the same requests,
// at the same moments, through each router as a real process. make bench-arena
// runs it; docs/0012-bench-arena.md says what it measures and how far to trust it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluicegate/sluice/deploy/bench/internal/rig"
	"github.com/sluicegate/sluice/scoring/simworker/model"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := arena(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "arena:", err)
		os.Exit(1)
	}
}

// plan is what to measure.
type plan struct {
	env       env
	workloads []*workload
	kinds     []routerKind
	loads     []int
	reps      int
	seed      uint64
	capacity  map[string]float64 // by workload; measured where absent
}

// report is the file of results.
type report struct {
	Started   time.Time          `json:"started"`
	Arguments []string           `json:"arguments"`
	Capacity  map[string]float64 `json:"capacity"`
	Results   []*result          `json:"results"`
}

func arena(ctx context.Context, args []string) (err error) {
	p, err := parsePlan(args)
	if err != nil {
		return err
	}
	if p.env.dir, err = os.MkdirTemp("", "arena-"); err != nil {
		return err
	}
	defer func() {
		// After a failure the logs are needed.
		if err == nil {
			err = os.RemoveAll(p.env.dir)
		}
	}()
	p.env.tokenizer = filepath.Join(p.env.dir, "tokenizer")
	if err := os.CopyFS(p.env.tokenizer, model.FS); err != nil {
		return err
	}
	if err := os.MkdirAll(p.env.out, 0o755); err != nil {
		return err
	}
	rep := &report{Started: time.Now(), Arguments: args, Capacity: p.capacity}
	err = p.measure(ctx, rep)
	return errors.Join(err, rep.write(p.env.out))
}

// measure runs everything, and keeps what it has after each run.
func (p *plan) measure(ctx context.Context, rep *report) error {
	for _, w := range p.workloads {
		if p.capacity[w.name] == 0 {
			c, err := p.env.capacity(ctx, w, p.seed+1e6)
			if err != nil {
				return fmt.Errorf("capacity of %s: %w", w.name, err)
			}
			p.capacity[w.name] = c
		}
		fmt.Printf("capacity of %s: %.1f requests/s\n", w.name, p.capacity[w.name])
	}
	n, failed := 0, 0
	for rep1 := range p.reps {
		for _, w := range p.workloads {
			for _, load := range p.loads {
				rate := p.capacity[w.name] * float64(load) / 100
				for i := range p.kinds {
					// Rotated, so that no router always comes first.
					k := p.kinds[(i+n)%len(p.kinds)]
					res, err := p.env.run(ctx, w, k, rate, p.seed+uint64(rep1))
					if ctx.Err() != nil {
						return fmt.Errorf("%s, %s at %d %%: %w", k.name, w.name, load, err)
					}
					if err != nil {
						// A router that does not work costs its own rows and no others.
						failed++
						fmt.Printf("%-6s %3d %% rep %d %-19s FAILED: %v\n", w.name, load, rep1+1, k.name, err)
						res = &result{Workload: w.name, Router: k.name, Rate: rate, Failed: err.Error()}
					}
					res.Load, res.Rep = load, rep1+1
					rep.Results = append(rep.Results, res)
					if err != nil {
						continue
					}
					fmt.Printf("%-6s %3d %% rep %d %-19s mean %6.0f p50 %6.0f p90 %6.0f p99 %6.0f ms, hit %4.1f %%, errors %d/%d, router CPU %.2f, workers %.2f, generator %.2f, machine %.2f of %.0f\n",
						w.name, load, res.Rep, k.name, res.TTFT.Mean, res.TTFT.P50, res.TTFT.P90, res.TTFT.P99, 100*res.Hit,
						res.Errors, res.Requests, res.RouterCPU, res.WorkersCPU, res.LoadCPU, res.MachineCPU, res.MachineCores)
					if res.Error != "" {
						fmt.Printf("       first error: %s\n", res.Error)
					}
					if err := rep.write(p.env.out); err != nil {
						return err
					}
				}
				n++
			}
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d runs failed; the others are in the report", failed)
	}
	return nil
}

// write writes the results as JSON and as tables.
func (r *report) write(dir string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "arena.json"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "arena.md"))
	if err != nil {
		return err
	}
	writeTable(f, cells(r.Results))
	return f.Close()
}

func parsePlan(args []string) (*plan, error) {
	p := &plan{capacity: make(map[string]float64)}
	fs := flag.NewFlagSet("arena", flag.ContinueOnError)
	fs.StringVar(&p.env.sluice, "sluice", "bin/sluice", "the sluice program")
	fs.StringVar(&p.env.sglang, "sglang", "", "environment with sglang-router")
	fs.StringVar(&p.env.vllm, "vllm", "", "environment with vllm-router")
	fs.StringVar(&p.env.out, "out", ".cache/bench/arena", "folder for results")
	fs.IntVar(&p.env.workers, "workers", 8, "simulated workers")
	fs.Float64Var(&p.env.timeScale, "time-scale", 0.5, "how long the simulated GPUs take; 1 is the modelled one")
	fs.DurationVar(&p.env.warm, "warm", 15*time.Second, "time before the measured one, at half the load")
	fs.DurationVar(&p.env.measured, "measure", 40*time.Second, "measured time of a run")
	fs.IntVar(&p.env.streams, "streams", 16, "requests that keep a worker busy in the capacity run")
	fs.BoolVar(&p.env.cold, "cold", false, "the warm-up is at the full load, too: who recovers from cold caches?")
	fs.IntVar(&p.reps, "reps", 3, "repetitions, each with other requests")
	fs.Uint64Var(&p.seed, "seed", 1, "seed of the requests")
	routers := fs.String("routers", "sluice,sglang-cache_aware,sglang-round_robin,vllm-kv_aware,vllm-cache_aware", "routers, of these and sluice-round-robin")
	workloads := fs.String("workloads", "mixed,trace,burst,slow", "workloads")
	loads := fs.String("loads", "60,80,95", "per cent of the capacity")
	trace := fs.String("trace", "../shared/traces/mooncake-conversation-4k.jsonl", "the trace of the trace workload")
	more := fs.String("more", "", "file with further sections of Sluice's configuration")
	capacity := fs.String("capacity", "", "capacities that are known, as in mixed=52.1,trace=30")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if p.env.workers < 1 || p.reps < 1 || p.env.streams < 1 || !(p.env.timeScale > 0) || p.env.measured <= 0 || p.env.warm < 0 {
		return nil, errors.New("-workers, -reps, -streams, -time-scale and -measure must be above 0, -warm not below")
	}
	if *more != "" {
		text, err := os.ReadFile(*more)
		if err != nil {
			return nil, fmt.Errorf("cannot read -more: %w", err)
		}
		p.env.more = string(text)
	}
	return p, p.choose(*routers, *workloads, *loads, *trace, *capacity)
}

// choose fills in the lists.
func (p *plan) choose(routers, workloads, loads, trace, capacity string) error {
	for name := range strings.SplitSeq(routers, ",") {
		i := slices.IndexFunc(kinds, func(k routerKind) bool { return k.name == name })
		if i < 0 {
			return fmt.Errorf("-routers: there is no router %q", name)
		}
		p.kinds = append(p.kinds, kinds[i])
	}
	for s := range strings.SplitSeq(loads, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > 200 {
			return fmt.Errorf("-loads: %q is no percentage from 1 to 200", s)
		}
		p.loads = append(p.loads, n)
	}
	text, err := rig.NewWords(model.FS, modelName)
	if err != nil {
		return err
	}
	var rows []traceRow
	if slices.Contains(strings.Split(workloads, ","), "trace") {
		if rows, err = readTrace(trace); err != nil {
			return err
		}
	}
	all := newWorkloads(words{text}, rows)
	for name := range strings.SplitSeq(workloads, ",") {
		if all[name] == nil {
			return fmt.Errorf("-workloads: there is no workload %q", name)
		}
		p.workloads = append(p.workloads, all[name])
	}
	if capacity == "" {
		return nil
	}
	for pair := range strings.SplitSeq(capacity, ",") {
		name, value, _ := strings.Cut(pair, "=")
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || !(v > 0) || all[name] == nil {
			return fmt.Errorf("-capacity: %q is not WORKLOAD=REQUESTS", pair)
		}
		p.capacity[name] = v
	}
	return nil
}
