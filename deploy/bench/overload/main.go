// Command overload measures what classes of service are worth when twice as much
// is asked for as the workers can do: twenty tenants with keys and policies, one of
// them flooding, through a gateway as a real process before simulated workers.
// make bench-overload runs it; docs/0038-qos-figures.md has figures.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sluicegate/sluice/deploy/bench/internal/rig"
	"github.com/sluicegate/sluice/scoring/simworker/model"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := overload(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "overload:", err)
		os.Exit(1)
	}
}

// plan is what to measure.
type plan struct {
	env        env
	words      *rig.Words
	runs       []string
	out        string
	capacity   float64 // work a second of the model's time; 0: to be measured
	factor     float64
	streams    int
	warm, span time.Duration // real
	flood      time.Duration // measured time of the run with the flood
	seed       uint64
}

// allRuns in the order in which they are measured: one class alone in a closed loop,
// which is the yardstick; 0.7 of its capacity; the overload without the flooding
// tenant; the overload.
var allRuns = []string{"one", "light", "calm", "flood"}

func parsePlan(args []string) (*plan, error) {
	p := &plan{}
	fs := flag.NewFlagSet("overload", flag.ContinueOnError)
	fs.StringVar(&p.env.sluice, "sluice", "bin/sluice", "the gateway")
	fs.StringVar(&p.out, "out", ".cache/bench/overload", "folder for results")
	fs.IntVar(&p.env.workers, "workers", 6, "simulated workers")
	fs.Float64Var(&p.env.scale, "time-scale", 0.4, "how long the simulated GPUs take; 1 is the modelled one")
	fs.Float64Var(&p.factor, "overload", 2, "what all tenants ask for together, in capacities")
	fs.Float64Var(&p.capacity, "capacity", 0, "tokens of work a second of the model's time, where known; 0: measure it")
	fs.IntVar(&p.streams, "streams", 48, "requests that keep a worker busy in the closed loop")
	fs.DurationVar(&p.warm, "warm", 20*time.Second, "time before the measured one")
	fs.DurationVar(&p.span, "measure", 60*time.Second, "measured time of the other runs")
	fs.DurationVar(&p.flood, "flood", 5*time.Minute, "measured time of the runs with and without the flood")
	fs.Uint64Var(&p.seed, "seed", 1, "seed of the requests")
	runs := fs.String("runs", strings.Join(allRuns, ","), "what to measure")
	qos := fs.String("qos", "", "file with the gateway's qos section, in place of the benchmark's own; one with qos: { enabled: false } for none")
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if p.env.workers < 1 || p.streams < 1 || !(p.env.scale > 0) || !(p.factor > 0) || p.capacity < 0 || p.span <= 0 || p.flood <= 0 || p.warm < 0 {
		return nil, errors.New("-workers, -streams, -time-scale, -overload, -measure and -flood must be above 0, -capacity and -warm not below")
	}
	for name := range strings.SplitSeq(*runs, ",") {
		if !slices.Contains(allRuns, name) {
			return nil, fmt.Errorf("-runs: there is no run %q; there are %s", name, strings.Join(allRuns, ", "))
		}
		p.runs = append(p.runs, name)
	}
	if p.capacity == 0 && !slices.Contains(p.runs, "one") {
		return nil, errors.New("-runs leaves out one, which measures the capacity, so -capacity must say it")
	}
	p.env.qos, p.env.patient = qosSection(p.env.scale, false), qosSection(p.env.scale, true)
	if *qos != "" {
		text, err := os.ReadFile(*qos)
		if err != nil {
			return nil, fmt.Errorf("cannot read the qos section: %w", err)
		}
		p.env.qos, p.env.patient = string(text), string(text)
	}
	words, err := rig.NewWords(model.FS, modelName)
	p.words = words
	return p, err
}

func overload(ctx context.Context, args []string) (err error) {
	p, err := parsePlan(args)
	if err != nil {
		return err
	}
	if p.env.dir, err = os.MkdirTemp("", "overload-"); err != nil {
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
	if err := os.MkdirAll(p.out, 0o755); err != nil {
		return err
	}
	r := &report{Started: time.Now().UTC(), Arguments: args, Machine: rig.Machine(), Commit: commit(ctx), Scale: p.env.scale, Capacity: p.capacity}
	for _, name := range allRuns {
		if !slices.Contains(p.runs, name) {
			continue
		}
		f, err := p.measure(ctx, r, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		r.Runs = append(r.Runs, f)
		if name == "one" && p.capacity == 0 {
			r.Capacity = f.Work
		}
		r.judge()
		if err := r.write(p.out); err != nil {
			return err
		}
	}
	r.print(os.Stdout)
	return nil
}

// measure runs one of them on a system of its own.
func (p *plan) measure(ctx context.Context, r *report, name string) (*figures, error) {
	qos := p.env.qos
	if name == "one" {
		qos = p.env.patient
	}
	s, err := p.env.start(ctx, qos, p.seed)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	sender := rig.NewSender("http://" + s.gateway.Public)
	defer sender.Close()
	l := &load{sender: sender, keys: s.gateway.Keys, length: p.warm + p.span}
	meter, err := startMeter(s)
	if err != nil {
		return nil, err
	}
	before, err := s.fleet.Counters(ctx)
	if err != nil {
		return nil, err
	}
	// A real second has 1/scale seconds of the model's.
	capacity, factor := r.Capacity/p.env.scale, 0.0
	var records []record
	if name == "one" {
		records = l.closed(ctx, p.words, p.streams*p.env.workers, p.seed)
	} else {
		all := tenants()
		factor = p.factor
		switch name {
		case "light":
			factor = 0.7
		case "calm":
			l.length = p.warm + p.flood
			all = slices.DeleteFunc(all, func(t tenant) bool { return t.floods })
		case "flood":
			l.length = p.warm + p.flood
		}
		// All that is let in ends, or is given up, within the last class's patience.
		last := classes[len(classes)-1].maxWait
		ended, cancel := context.WithTimeout(ctx, l.length+time.Duration(float64(last+2*time.Minute)*p.env.scale))
		records = l.play(ended, arrivals(p.words, all, capacity, factor/2, l.length, p.seed))
		cancel()
		factor *= parts(all) / 2
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	f := figure(name, factor, records, p.warm, l.length, p.env.scale)
	f.CPU = meter.used()
	if f.Left, err = s.queued(ctx); err != nil {
		return nil, err
	}
	after, err := s.fleet.Counters(ctx)
	if err != nil {
		return nil, err
	}
	for i := range after {
		f.Preempted += after[i].Minus(before[i]).Preempt
	}
	return f, keep(filepath.Join(p.out, name+".jsonl"), records)
}

// keep writes the records, one a line.
func keep(path string, records []record) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(file)
	enc := json.NewEncoder(w)
	for i := range records {
		if err := enc.Encode(&records[i]); err != nil {
			return errors.Join(err, file.Close())
		}
	}
	return errors.Join(w.Flush(), file.Close())
}

// meter tells what processors were used for.
type meter struct {
	s     *system
	began time.Time
	at    map[string]time.Duration
}

func startMeter(s *system) (*meter, error) {
	m := &meter{s: s, began: time.Now()}
	var err error
	m.at, err = m.read()
	return m, err
}

func (m *meter) read() (map[string]time.Duration, error) {
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		return nil, err
	}
	busy, _, err := rig.MachineBusy()
	return map[string]time.Duration{
		"gateway": m.s.gateway.Proc.CPU(), "workers": m.s.fleet.Proc.CPU(),
		"load": time.Duration(self.Utime.Nano() + self.Stime.Nano()), "machine": busy,
	}, err
}

// used is processors on average, by whom; what others used is what is left of the
// machine's.
func (m *meter) used() map[string]float64 {
	now, err := m.read()
	if err != nil {
		return nil
	}
	used := make(map[string]float64)
	for k, v := range now {
		used[k] = (v - m.at[k]).Seconds() / time.Since(m.began).Seconds()
	}
	used["others"] = max(0, used["machine"]-used["gateway"]-used["workers"]-used["load"])
	delete(used, "machine")
	return used
}

// commit names what was measured, as far as git knows.
func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=12").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
