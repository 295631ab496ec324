package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sluicegate/sluice/deploy/bench/internal/rig"
)

// env is what all runs share.
type env struct {
	sluice, sglang, vllm string // the program, and two environments
	tokenizer            string // folder of the model's tokenizer
	dir                  string // for logs and files of runs
	out                  string // for results
	workers              int
	timeScale            float64
	warm, measured       time.Duration
	streams              int    // of the capacity run, a worker
	cold                 bool   // no slow start
	more                 string // sections that are added to Sluice's configuration
}

const (
	modelName = "arena"
	blockSize = 16
)

// result is one run of one router.
type result struct {
	Workload string `json:"workload"`
	Router   string `json:"router"`
	// Load is per cent of the capacity, Rate requests a second.
	Load int     `json:"load"`
	Rate float64 `json:"rate"`
	Rep  int     `json:"rep"`

	Requests int    `json:"requests"` // of the measured time
	Errors   int    `json:"errors"`
	Error    string `json:"first_error,omitempty"`
	// Failed says why there is no result; all else but what was asked is 0.
	Failed string   `json:"failed,omitempty"`
	TTFT   quantile `json:"ttft_ms"`
	Total  quantile `json:"total_ms"`
	Lag    quantile `json:"lag_ms"` // how late requests were sent

	// By the workers' own counters, from the beginning of the measured time.
	Hit       float64 `json:"hit_ratio"`
	Computed  float64 `json:"computed_tokens"`
	Preempted float64 `json:"preemptions"`
	PerWorker []int   `json:"finished_per_worker"`

	// CPU is seconds a second of the whole run; all of the machine's cores is
	// MachineCores.
	RouterCPU    float64 `json:"router_cpu"`
	WorkersCPU   float64 `json:"workers_cpu"`
	LoadCPU      float64 `json:"generator_cpu"`
	MachineCPU   float64 `json:"machine_cpu"`
	MachineCores float64 `json:"machine_cores"`
	RouterRSS    int64   `json:"router_rss_bytes"`
}

// capacity measures the requests a second that the fleet can serve at most:
// each worker serves the groups that are its own, by direct requests, and is
// always busy. Groups are dealt out so that all have the same work.
func (e *env) capacity(ctx context.Context, w *workload, seed uint64) (float64, error) {
	f, err := startFleet(ctx, e, w)
	if err != nil {
		return 0, err
	}
	defer f.Proc.Stop()
	// About twice what can be served in the time, so that none comes twice.
	requests := w.generate(100/e.timeScale*float64(e.workers)/8, e.warm+e.measured, seed)
	speeds := make([]float64, e.workers)
	for i := range speeds {
		speeds[i] = 1
	}
	speeds[0] = 1 / w.slow
	shares := deal(requests, speeds)
	var senders []*rig.Sender
	for i, u := range f.URLs() {
		if len(shares[i]) == 0 {
			return 0, fmt.Errorf("worker %d of the capacity run got no request", i)
		}
		s := rig.NewSender(u)
		defer s.Close()
		senders = append(senders, s)
	}
	return closedLoop(ctx, senders, shares, e.streams, e.warm, e.measured)
}

// deal gives whole groups to workers, largest first, each to the one that
// would be done with it soonest, and returns the requests of each in order.
func deal(requests []request, speeds []float64) [][]request {
	work := make(map[int]int)
	for i := range requests {
		work[requests[i].group] += requests[i].prompt
	}
	groups := make([]int, 0, len(work))
	for g := range work {
		groups = append(groups, g)
	}
	slices.SortFunc(groups, func(a, b int) int {
		if work[a] != work[b] {
			return work[b] - work[a]
		}
		return a - b
	})
	owner := make(map[int]int)
	load := make([]float64, len(speeds))
	for _, g := range groups {
		best := 0
		for i := range speeds {
			if (load[i]+float64(work[g]))/speeds[i] < (load[best]+float64(work[g]))/speeds[best] {
				best = i
			}
		}
		owner[g] = best
		load[best] += float64(work[g])
	}
	shares := make([][]request, len(speeds))
	for _, r := range requests {
		shares[owner[r.group]] = append(shares[owner[r.group]], r)
	}
	return shares
}

// slowStart spreads what comes in the first half of warm over all of it, so
// that caches fill at half the load. Cold caches at a load near capacity are a
// state of their own, which some routers never leave.
func slowStart(requests []request, warm time.Duration) []request {
	for i := range requests {
		if at := requests[i].at; at < warm/2 {
			requests[i].at = 2 * at
		} else {
			requests[i].at = at + warm - warm/2
		}
	}
	return requests
}

// run measures one router at one rate, before cold workers.
func (e *env) run(ctx context.Context, w *workload, k routerKind, rate float64, seed uint64) (*result, error) {
	requests := w.generate(rate, e.warm+e.measured, seed)
	if !e.cold {
		requests = slowStart(w.generate(rate, e.warm/2+e.measured, seed), e.warm)
	}
	f, err := startFleet(ctx, e, w)
	if err != nil {
		return nil, err
	}
	defer f.Proc.Stop()
	r, err := k.start(ctx, e, f, w)
	if err != nil {
		return nil, err
	}
	defer r.proc.Stop()
	s := rig.NewSender(r.url)
	defer s.Close()

	var mu sync.Mutex
	var before []rig.Counters
	var markErr error
	start, begin, err := e.meter(r, f)
	if err != nil {
		return nil, err
	}
	outcomes := openLoop(ctx, s, r.key, requests, e.warm, func() {
		mu.Lock()
		defer mu.Unlock()
		before, markErr = f.Counters(ctx)
	})
	end, err := start(begin)
	if err != nil {
		return nil, err
	}
	mu.Lock()
	defer mu.Unlock()
	if markErr != nil {
		return nil, markErr
	}
	after, err := f.Counters(ctx)
	if err != nil {
		return nil, err
	}
	res := end
	res.Workload, res.Router, res.Rate = w.name, k.name, rate
	res.count(outcomes, e.warm)
	res.countWorkers(before, after)
	return res, e.keepDebug(ctx, r, w, rate)
}

// meter notes what has been used so far; the function it returns gives what
// was used since.
func (e *env) meter(r *router, f *rig.Fleet) (since func(time.Time) (*result, error), now time.Time, err error) {
	read := func() (cpu [4]time.Duration, all time.Duration, err error) {
		var self syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
			return cpu, all, err
		}
		cpu[0], cpu[1] = r.proc.CPU(), f.Proc.CPU()
		cpu[2] = time.Duration(self.Utime.Nano() + self.Stime.Nano())
		cpu[3], all, err = rig.MachineBusy()
		return cpu, all, err
	}
	cpu0, all0, err := read()
	if err != nil {
		return nil, now, err
	}
	return func(begin time.Time) (*result, error) {
		cpu1, all1, err := read()
		if err != nil {
			return nil, err
		}
		per := func(d time.Duration) float64 { return d.Seconds() / time.Since(begin).Seconds() }
		return &result{
			RouterCPU: per(cpu1[0] - cpu0[0]), WorkersCPU: per(cpu1[1] - cpu0[1]), LoadCPU: per(cpu1[2] - cpu0[2]),
			MachineCPU: per(cpu1[3] - cpu0[3]), MachineCores: per(all1 - all0), RouterRSS: r.proc.PeakRSS(),
		}, nil
	}, time.Now(), nil
}

// count fills in what came of the requests that were due after warm.
func (res *result) count(outcomes []rig.Outcome, warm time.Duration) {
	var ttft, total, lag []time.Duration
	for _, o := range outcomes {
		if o.At < warm {
			continue
		}
		res.Requests++
		if o.Err != nil {
			// Else a router that refuses at once would look fast.
			o.First, o.Total = max(o.First, drainTime), max(o.Total, drainTime)
		}
		ttft, total, lag = append(ttft, o.First), append(total, o.Total), append(lag, o.Lag)
		if o.Err != nil {
			res.Errors++
			if res.Error == "" {
				res.Error = o.Err.Error()
			}
		}
	}
	res.TTFT, res.Total, res.Lag = quantiles(ttft), quantiles(total), quantiles(lag)
}

// countWorkers fills in what the workers counted.
func (res *result) countWorkers(before, after []rig.Counters) {
	var sum rig.Counters
	for i := range after {
		d := after[i].Minus(before[i])
		sum = sum.Plus(d)
		res.PerWorker = append(res.PerWorker, int(d.Finished))
	}
	res.Computed, res.Preempted = sum.Prompt-sum.Cached, sum.Preempt
	if sum.Prompt > 0 {
		res.Hit = sum.Cached / sum.Prompt
	}
}

// keepDebug keeps what a router says about its own decisions.
func (e *env) keepDebug(ctx context.Context, r *router, w *workload, rate float64) error {
	pages := map[string]string{"metrics.txt": "/metrics"}
	if isSluice(r.name) {
		pages["predictions.json"], pages["workers.json"] = "/debug/predictions", "/debug/workers"
	}
	for name, path := range pages {
		text, err := rig.Get(ctx, r.debug+path, r.token, nil)
		if err != nil {
			return fmt.Errorf("cannot keep %s of %s: %w", path, r.name, err)
		}
		file := fmt.Sprintf("%s-%s-%.1f-%s", w.name, r.name, rate, name)
		if err := os.WriteFile(filepath.Join(e.out, file), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}
