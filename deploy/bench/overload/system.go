package main

import (
	"context"
	"embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sluicegate/sluice/deploy/bench/internal/rig"
)

//go:embed policies
var policies embed.FS

const modelName = "overload"

// env is what all runs share.
type env struct {
	sluice, dir, tokenizer string
	scale                  float64
	workers                int
	qos                    string // the section of the gateway's configuration
	patient                string // the same for the yardstick
}

// system is cold workers and a gateway before them.
type system struct {
	fleet   *rig.Fleet
	gateway *rig.Gateway
}

func (s *system) stop() {
	if s.gateway != nil {
		s.gateway.Proc.Stop()
	}
	s.fleet.Proc.Stop()
}

// patience is how long the gateway may take to start.
const patience = 60 * time.Second

// start starts a system. Its caller stops it.
func (e *env) start(ctx context.Context, qos string, seed uint64) (*system, error) {
	fleet, err := rig.StartFleet(ctx, e.dir, e.sluice,
		"--workers", strconv.Itoa(e.workers), "--model", modelName, "--tokenizer", e.tokenizer, "--time-scale", fmt.Sprint(e.scale),
		"--output-tokens", "0", "--jitter", "0.05", "--seed", strconv.FormatUint(seed, 10))
	if err != nil {
		return nil, err
	}
	s := &system{fleet: fleet}
	policy, err := policies.ReadFile("policies/tiers.yaml")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	tenants, names := directory()
	s.gateway, err = rig.StartGateway(rig.GatewaySpec{
		Sluice: e.sluice, Name: "sluice", Dir: e.dir, Config: e.config(fleet, qos), Tenants: names,
		Files: map[string]string{"policies/tiers.yaml": string(policy), "tenants.yaml": tenants, "prices.yaml": rig.Prices(modelName)},
	})
	if err == nil {
		err = s.gateway.Proc.WaitFor(ctx, patience, func(ctx context.Context) error { return s.gateway.Ready(ctx, e.workers) })
	}
	if err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (e *env) config(f *rig.Fleet, qos string) string {
	var names []string
	for _, c := range classes {
		names = append(names, c.name)
	}
	return fmt.Sprintf(`tenants: { file: tenants.yaml }
policy: { dir: policies, classes: [%s] }
cacheIsolation: { default: tenant, keyFile: cache.key }
models:
  - { name: %s, tokenizer: %q, contextLength: 8192, defaultMaxTokens: 64 }
pools:
  - name: pool
    models: [%s]
    cacheSalt: [chat, completion]
    workers:
%s%sprices: { file: prices.yaml }
ledger: { path: ledger.db }
limits: { connectionsPerAddress: 16000 }
drain: { delay: 0s, deadline: 3s }
log: { level: warn, format: json }
`, strings.Join(names, ", "), modelName, e.tokenizer, modelName, rig.WorkerList(f.Workers), qos)
}

// qosSection is the classes as the gateway is told of them: their times are real
// ones, so the model's times the scale. For the yardstick all are as patient as the
// last one: nobody is refused, and workers are kept as full as any class may.
func qosSection(scale float64, patient bool) string {
	var sb strings.Builder
	sb.WriteString("qos:\n  classes:\n")
	real := func(d time.Duration) time.Duration { return time.Duration(float64(d) * scale).Round(time.Millisecond) }
	for _, c := range classes {
		if last := classes[len(classes)-1]; patient {
			c.target, c.maxWait = last.target, last.maxWait
		}
		fmt.Fprintf(&sb, "    %s: { target: %v, maxWait: %v, share: %v }\n", c.name, real(c.target), real(c.maxWait), c.share)
	}
	return sb.String()
}

// queued is how many requests wait at the gateway, by its own gauge, once it has
// had a few seconds to see that their clients are gone.
func (s *system) queued(ctx context.Context) (float64, error) {
	for deadline := time.Now().Add(5 * time.Second); ; {
		text, err := s.gateway.Page(ctx, "/metrics")
		if err != nil {
			return 0, err
		}
		left, err := sumOf(string(text), "sluice_queue_depth")
		if err != nil || left == 0 || time.Now().After(deadline) || !sleep(ctx, 200*time.Millisecond) {
			return left, err
		}
	}
}

// sumOf adds up the series of one name in a page of metrics.
func sumOf(text, name string) (float64, error) {
	sum := 0.0
	for line := range strings.Lines(text) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if base, _, _ := strings.Cut(series, "{"); !ok || base != name {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("cannot read %s: %w", name, err)
		}
		sum += v
	}
	return sum, nil
}
