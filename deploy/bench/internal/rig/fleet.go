package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// Fleet is simulated workers, all in one process of their own.
type Fleet struct {
	Proc    *Process `json:"-"`
	Workers []Worker `json:"workers"`
}

// Worker is where a simulated worker is reached.
type Worker struct {
	Name   string `json:"name"`
	URL    string `json:"url"`
	Events string `json:"events"`
	Replay string `json:"replay"`
}

// StartFleet starts cold workers with the flags of 'sluice simworker'. The
// caller stops Proc.
func StartFleet(ctx context.Context, dir, sluice string, flags ...string) (*Fleet, error) {
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	proc, err := Start(dir, "workers", in, nil, append([]string{sluice, "simworker"}, flags...)...)
	_ = in.Close()
	if err != nil {
		return nil, err
	}
	f := &Fleet{Proc: proc}
	if err := json.NewDecoder(io.LimitReader(out, 1<<20)).Decode(f); err != nil || len(f.Workers) == 0 {
		proc.Stop()
		return nil, fmt.Errorf("cannot read the workers' addresses: %w\n%s", err, proc.Tail())
	}
	err = proc.WaitFor(ctx, 10*time.Second, func(ctx context.Context) error {
		_, err := Get(ctx, f.Workers[len(f.Workers)-1].URL+"/health", "", nil)
		return err
	})
	if err != nil {
		proc.Stop()
		return nil, err
	}
	return f, nil
}

// URLs returns the workers' base URLs.
func (f *Fleet) URLs() []string {
	var out []string
	for _, w := range f.Workers {
		out = append(out, w.URL)
	}
	return out
}

// Counters are a worker's own.
type Counters struct {
	Prompt   float64 `json:"prompt_tokens"`
	Cached   float64 `json:"cached_tokens"`
	Output   float64 `json:"output_tokens"`
	Finished float64 `json:"finished"`
	Preempt  float64 `json:"preemptions"`
}

// Minus returns c less d.
func (c Counters) Minus(d Counters) Counters {
	return Counters{c.Prompt - d.Prompt, c.Cached - d.Cached, c.Output - d.Output, c.Finished - d.Finished, c.Preempt - d.Preempt}
}

// Plus returns the sum.
func (c Counters) Plus(d Counters) Counters {
	return Counters{c.Prompt + d.Prompt, c.Cached + d.Cached, c.Output + d.Output, c.Finished + d.Finished, c.Preempt + d.Preempt}
}

// Counters reads the counters of all workers.
func (f *Fleet) Counters(ctx context.Context) ([]Counters, error) {
	all := make([]Counters, len(f.Workers))
	for i, w := range f.Workers {
		text, err := Get(ctx, w.URL+"/metrics", "", nil)
		if err != nil {
			return nil, err
		}
		if all[i], err = ParseCounters(text); err != nil {
			return nil, fmt.Errorf("%s: %w", w.Name, err)
		}
	}
	return all, nil
}

// ParseCounters reads a worker's metrics. Series of one name are added up.
func ParseCounters(text []byte) (Counters, error) {
	var c Counters
	for line := range bytes.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(string(line)), " ")
		if !ok || name == "" || name[0] == '#' {
			continue
		}
		name, _, _ = strings.Cut(name, "{")
		dst := map[string]*float64{
			"vllm:prompt_tokens_total": &c.Prompt, "vllm:prompt_tokens_cached_total": &c.Cached, "vllm:generation_tokens_total": &c.Output,
			"vllm:request_success_total": &c.Finished, "vllm:num_preemptions_total": &c.Preempt,
		}[name]
		if dst == nil {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return c, fmt.Errorf("cannot read %s: %w", name, err)
		}
		*dst += v
	}
	return c, nil
}
