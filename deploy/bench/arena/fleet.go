package main

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

// fleet is the simulated workers, all in one process of their own.
type fleet struct {
	proc    *process
	Workers []worker `json:"workers"`
}

type worker struct {
	Name   string `json:"name"`
	URL    string `json:"url"`
	Events string `json:"events"`
	Replay string `json:"replay"`
}

// startFleet starts cold workers for a workload.
func startFleet(ctx context.Context, e *env, w *workload) (*fleet, error) {
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	proc, err := startProcess(e.dir, "workers", in, nil, e.sluice, "simworker",
		"--workers", strconv.Itoa(e.workers), "--model", modelName, "--tokenizer", e.tokenizer,
		"--time-scale", fmt.Sprint(e.timeScale), "--output-tokens", "0", "--jitter", "0.05",
		"--slow", fmt.Sprintf("0=%v", w.slow),
		"--block-size", strconv.Itoa(blockSize), "--blocks", strconv.Itoa(w.blocks), "--max-model-len", strconv.Itoa(w.maxModelLen),
		// What one of the other routers needs to see tokens and events.
		"--enable-scale-out", "--no-topic")
	_ = in.Close()
	if err != nil {
		return nil, err
	}
	f := &fleet{proc: proc}
	if err := json.NewDecoder(io.LimitReader(out, 1<<20)).Decode(f); err != nil {
		proc.stop()
		return nil, fmt.Errorf("cannot read the workers' addresses: %w\n%s", err, proc.tail())
	}
	err = proc.waitFor(ctx, 10*time.Second, func(ctx context.Context) error {
		_, err := get(ctx, f.Workers[len(f.Workers)-1].URL+"/health")
		return err
	})
	if err != nil {
		proc.stop()
		return nil, err
	}
	return f, nil
}

// counters are a worker's own.
type counters struct {
	Prompt   float64 `json:"prompt_tokens"`
	Cached   float64 `json:"cached_tokens"`
	Finished float64 `json:"finished"`
	Preempt  float64 `json:"preemptions"`
}

func (c counters) minus(d counters) counters {
	return counters{c.Prompt - d.Prompt, c.Cached - d.Cached, c.Finished - d.Finished, c.Preempt - d.Preempt}
}

func (c counters) plus(d counters) counters {
	return counters{c.Prompt + d.Prompt, c.Cached + d.Cached, c.Finished + d.Finished, c.Preempt + d.Preempt}
}

// counters reads the counters of all workers.
func (f *fleet) counters(ctx context.Context) ([]counters, error) {
	all := make([]counters, len(f.Workers))
	for i, w := range f.Workers {
		text, err := get(ctx, w.URL+"/metrics")
		if err != nil {
			return nil, err
		}
		if all[i], err = parseCounters(text); err != nil {
			return nil, fmt.Errorf("%s: %w", w.Name, err)
		}
	}
	return all, nil
}

func parseCounters(text []byte) (counters, error) {
	var c counters
	for line := range bytes.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(string(line)), " ")
		if !ok || name == "" || name[0] == '#' {
			continue
		}
		name, _, _ = strings.Cut(name, "{")
		dst := map[string]*float64{
			"vllm:prompt_tokens_total": &c.Prompt, "vllm:prompt_tokens_cached_total": &c.Cached,
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
