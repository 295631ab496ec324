package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sluicegate/sluice/deploy/bench/internal/rig"
)

// cell is one thing to measure.
type cell struct {
	name   string
	tokens int           // of an answer
	gap    time.Duration // between the events of a stream
	// measure runs it once on a system.
	measure func(ctx context.Context, p *plan, s *system, seed uint64) ([]*figure, error)
}

// figure is one number of values under one name.
type figure struct {
	Cell   string  `json:"cell"`
	System string  `json:"system"`
	Round  int     `json:"round"`
	At     string  `json:"at,omitempty"` // the rate, or how many at once
	Sample *sample `json:"sample,omitempty"`
	// CPU is what the system has used for a request, in microseconds; RSS what it
	// holds, in bytes.
	CPU float64 `json:"cpu_us,omitempty"`
	RSS int64   `json:"rss,omitempty"`
	// Others is the share of the machine that programs used which are no part of
	// the measurement, and the hypervisor for other machines.
	Others float64 `json:"others"`
}

// kilobyte is a small chat, large the body of a long context.
const kilobyte, large = 1 << 10, 220_000

// limit is the 99th percentile within which a rate counts as served.
const limit = 50 * time.Millisecond

var allCells = []cell{
	{name: "latency", tokens: 16, measure: latency(false)},
	{name: "latency-stream", tokens: 16, measure: latency(true)},
	{name: "peak", tokens: 16, measure: peak(false)},
	{name: "peak-stream", tokens: 16, measure: peak(true)},
	{name: "bodies", tokens: 16, measure: bodies},
	{name: "memory", tokens: 600, gap: time.Second, measure: memory},
}

// run measures every cell on every system in turns: round after round, so that
// what drifts on the machine drifts for all.
func (p *plan) run(ctx context.Context, e *env, r *report) error {
	for _, name := range p.cells {
		for _, c := range allCells {
			if c.name != name {
				continue
			}
			if err := p.runCell(ctx, e, r, &c); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
		}
	}
	return nil
}

func (p *plan) runCell(ctx context.Context, e *env, r *report, c *cell) error {
	if err := e.startEngine(ctx, c.tokens, c.gap); err != nil {
		return err
	}
	defer e.engine.Stop()
	rounds := p.rounds
	if c.name == "memory" {
		rounds = 1
	}
	running := make(map[string]*system)
	defer func() {
		for _, s := range running {
			if s.proc != nil {
				s.proc.Stop()
			}
		}
	}()
	for _, name := range p.systems {
		if c.name == "memory" && name == "direct" {
			continue
		}
		s, err := starters[name](ctx, e, e.enginePlain)
		if err != nil {
			r.absent(c.name, name, err)
			fmt.Fprintf(os.Stderr, "%s %s: %v\n", c.name, name, err)
			continue
		}
		running[name] = s
	}
	for round := 1; round <= rounds; round++ {
		for _, name := range p.systems {
			s := running[name]
			if s == nil {
				continue
			}
			done := p.observe(ctx, e, s, c, round)
			others := e.watchOthers(s)
			figures, err := c.measure(ctx, p, s, uint64(round))
			share := others()
			done()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				r.absent(c.name, name, err)
				fmt.Fprintf(os.Stderr, "%s %s: %v\n", c.name, name, err)
				continue
			}
			for _, f := range figures {
				f.Cell, f.System, f.Round, f.Others = c.name, name, round, share
				r.Figures = append(r.Figures, f)
				fmt.Fprintln(os.Stderr, f.line())
			}
		}
	}
	return nil
}

// watchOthers starts to watch what programs use that are no part of the
// measurement of s. The function that it returns gives their share of the machine
// since then.
func (e *env) watchOthers(s *system) func() float64 {
	used := func() (others, all time.Duration) {
		busy, all, err := rig.MachineBusy()
		var own syscall.Rusage
		if err = errors.Join(err, syscall.Getrusage(syscall.RUSAGE_SELF, &own)); err != nil {
			return 0, 0
		}
		busy -= time.Duration(own.Utime.Nano()+own.Stime.Nano()) + e.engine.CPU()
		if s.proc != nil {
			busy -= s.proc.CPU()
		}
		return busy, all
	}
	others, all := used()
	return func() float64 {
		now, end := used()
		return max(0, float64(now-others)/float64(max(1, end-all)))
	}
}

// observe scrapes the metrics of a system that has some, as a monitoring server
// would, and takes profiles in the first round if they are asked for. The
// function that it returns ends that and waits for it.
func (p *plan) observe(ctx context.Context, e *env, s *system, c *cell, round int) func() {
	if s.admin == "" {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(5 * time.Second)
		defer tick.Stop()
		if e.profiles != "" && round == 1 {
			p.profile(ctx, e, s, c)
		}
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if _, err := rig.Get(ctx, s.admin+"/metrics", s.token, nil); err != nil && ctx.Err() == nil {
					fmt.Fprintf(os.Stderr, "cannot scrape the metrics of %s: %v\n", s.name, err)
				}
			}
		}
	}()
	return func() { cancel(); <-done }
}

// profile keeps profiles of a system, one after another.
func (p *plan) profile(ctx context.Context, e *env, s *system, c *cell) {
	seconds := max(1, int(p.seconds.Seconds())/5)
	select { // past the handshakes
	case <-ctx.Done():
		return
	case <-time.After(500 * time.Millisecond):
	}
	for _, name := range []string{"trace", "profile", "mutex", "block", "allocs"} {
		url := fmt.Sprintf("%s/debug/pprof/%s?seconds=%d", s.admin, name, seconds)
		text, err := rig.Get(ctx, url, s.token, nil)
		if err == nil {
			err = os.MkdirAll(e.profiles, 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(e.profiles, c.name+"-"+s.name+"-"+name+".pb.gz"), text, 0o644)
		}
		if err != nil && ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "cannot profile %s: %v\n", s.name, err)
		}
	}
}

// metered runs load and adds what the system used for a request.
func metered(s *system, load func() (*sample, error)) (*figure, error) {
	var before time.Duration
	if s.proc != nil {
		before = s.proc.CPU()
	}
	got, err := load()
	if err != nil {
		return nil, err
	}
	f := &figure{Sample: got}
	if s.proc != nil && got.Requests > 0 {
		f.CPU = micros(s.proc.CPU()-before) / float64(got.Requests)
		f.RSS = s.proc.RSS()
	}
	return f, nil
}

func latency(stream bool) func(context.Context, *plan, *system, uint64) ([]*figure, error) {
	return func(ctx context.Context, p *plan, s *system, seed uint64) ([]*figure, error) {
		j := job{stream: stream, bytes: kilobyte, patience: 10 * time.Second}
		rate := p.rate
		if s.name == "litellm" {
			rate = min(rate, 50) // a thousand would only show how its queue grows
		}
		f, err := metered(s, func() (*sample, error) {
			return openLoop(ctx, &s.target, j, schedule(rate, p.seconds, p.poisson, seed), 32, seed)
		})
		if err != nil {
			return nil, err
		}
		f.At = fmt.Sprintf("%.0f/s", rate)
		return []*figure{f}, nil
	}
}

// peak looks for the highest rate of which at least 99 % are served within the limit at
// the 99th percentile, from the intended instant on.
func peak(stream bool) func(context.Context, *plan, *system, uint64) ([]*figure, error) {
	return func(ctx context.Context, p *plan, s *system, seed uint64) ([]*figure, error) {
		j := job{stream: stream, bytes: kilobyte, patience: 10 * time.Second}
		span := max(p.seconds/8, 2*time.Second)
		// Where a closed loop comes out is where the search begins.
		guess, err := closedLoop(ctx, &s.target, j, 64, span, seed)
		if err != nil {
			return nil, err
		}
		var best *figure
		low, high := 0.3*guess.Rate, 1.3*guess.Rate
		for range 5 {
			rate := (low + high) / 2
			f, err := metered(s, func() (*sample, error) {
				return openLoop(ctx, &s.target, j, schedule(rate, span, true, seed), 256, seed)
			})
			if err != nil {
				return nil, err
			}
			served := f.Sample.Failed == 0 && f.Sample.Last.P99 < micros(limit) && f.Sample.Rate > 0.97*rate
			if served {
				low, best = rate, f
			} else {
				high = rate
			}
		}
		if best == nil {
			return nil, fmt.Errorf("no rate from %.0f/s on was served", 0.3*guess.Rate)
		}
		best.At = "open loop"
		return []*figure{best, {At: "closed loop, 64", Sample: guess}}, nil
	}
}

// bodies sends large ones, so many at once.
func bodies(ctx context.Context, p *plan, s *system, seed uint64) ([]*figure, error) {
	var out []*figure
	for _, n := range []int{20, 50, 100, 200} {
		j := job{bytes: large, patience: 20 * time.Second}
		f, err := metered(s, func() (*sample, error) {
			return closedLoop(ctx, &s.target, j, n, max(p.seconds/6, 2*time.Second), seed)
		})
		if err != nil {
			return nil, err
		}
		f.At = fmt.Sprintf("%d at once", n)
		out = append(out, f)
	}
	return out, nil
}

// memory holds streams open and reads what the system then holds.
func memory(ctx context.Context, p *plan, s *system, _ uint64) ([]*figure, error) {
	idle := &figure{At: "idle", RSS: s.proc.RSS()}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	held := &figure{At: fmt.Sprintf("%d streams", p.streams)}
	j := job{stream: true, bytes: kilobyte, patience: 5 * time.Minute}
	err := hold(ctx, &s.target, j, p.streams, func() {
		// Some seconds, so that what opening them took is given back.
		for range 10 {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			held.RSS = s.proc.RSS()
		}
		cancel()
	})
	if err != nil {
		return nil, err
	}
	return []*figure{idle, held}, nil
}
