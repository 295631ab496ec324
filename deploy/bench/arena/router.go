package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sluicegate/sluice/deploy/bench/internal/rig"
)

// router is one of those that are compared, before a fleet.
type router struct {
	name  string
	proc  *rig.Process
	url   string
	key   string
	debug string // base of the debug pages
	token string // for them, where one is needed
}

// routerKind starts a router of one kind before workers.
type routerKind struct {
	name  string
	start func(ctx context.Context, e *env, f *rig.Fleet, w *workload) (*router, error)
}

// kinds are all routers that can be compared, Sluice first.
var kinds = []routerKind{
	{"sluice", startSluice("ttft")},
	{"sluice-round-robin", startSluice("round-robin")},
	{"sglang-cache_aware", startSGLang("cache_aware")},
	{"sglang-round_robin", startSGLang("round_robin")},
	{"vllm-kv_aware", startVLLM("kv_aware")},
	{"vllm-cache_aware", startVLLM("cache_aware")},
}

// isSluice says whether a router is ours, whatever its strategy.
func isSluice(name string) bool { return strings.HasPrefix(name, "sluice") }

const routerPatience = 60 * time.Second

// startOther starts a router that is told its workers by flags and says by
// /health that it is ready.
func startOther(ctx context.Context, e *env, name string, args func(port, metrics string) []string) (*router, error) {
	addrs, err := rig.FreePorts(2)
	if err != nil {
		return nil, err
	}
	proc, err := rig.Start(e.dir, name, nil, nil, args(rig.Port(addrs[0]), rig.Port(addrs[1]))...)
	if err != nil {
		return nil, err
	}
	r := &router{name: name, proc: proc, url: "http://" + addrs[0], debug: "http://" + addrs[1]}
	err = proc.WaitFor(ctx, routerPatience, func(ctx context.Context) error {
		_, err := rig.Get(ctx, r.url+"/health", "", nil)
		return err
	})
	if err != nil {
		proc.Stop()
		return nil, err
	}
	return r, nil
}

func startSGLang(policy string) func(context.Context, *env, *rig.Fleet, *workload) (*router, error) {
	return func(ctx context.Context, e *env, f *rig.Fleet, _ *workload) (*router, error) {
		return startOther(ctx, e, "sglang-"+policy, func(port, metrics string) []string {
			args := []string{filepath.Join(e.sglang, "bin", "sglang-router"), "launch", "--policy", policy,
				"--host", "127.0.0.1", "--port", port, "--prometheus-host", "127.0.0.1", "--prometheus-port", metrics,
				"--worker-startup-check-interval", "1", "--log-level", "warn", "--worker-urls"}
			return append(args, f.URLs()...)
		})
	}
}

func startVLLM(policy string) func(context.Context, *env, *rig.Fleet, *workload) (*router, error) {
	return func(ctx context.Context, e *env, f *rig.Fleet, _ *workload) (*router, error) {
		return startOther(ctx, e, "vllm-"+policy, func(port, metrics string) []string {
			args := []string{filepath.Join(e.vllm, "bin", "vllm-router"), "--policy", policy,
				"--host", "127.0.0.1", "--port", port, "--prometheus-host", "127.0.0.1", "--prometheus-port", metrics,
				"--worker-startup-check-interval", "1", "--log-level", "warning"}
			if policy == "kv_aware" {
				args = append(args, "--kv-event-model", modelName, "--kv-event-block-size", strconv.Itoa(blockSize))
				for _, w := range f.Workers {
					args = append(args, "--kv-event-source", w.URL+"="+w.Events, "--kv-event-replay-source", w.URL+"="+w.Replay)
				}
			}
			return append(append(args, "--worker-urls"), f.URLs()...)
		})
	}
}

// startSluice starts the gateway as one would run it: keys, a policy with
// limits, prices, a ledger, events found by asking the workers.
func startSluice(strategy string) func(context.Context, *env, *rig.Fleet, *workload) (*router, error) {
	return func(ctx context.Context, e *env, f *rig.Fleet, w *workload) (*router, error) {
		name := "sluice"
		if strategy != "ttft" {
			name += "-" + strategy
		}
		g, err := rig.StartGateway(rig.GatewaySpec{
			Sluice: e.sluice, Name: name, Dir: e.dir, Config: sluiceConfig(e, f, w, strategy), Tenants: []string{"bench"},
			Files: map[string]string{
				"policies/bench.yaml": rig.BenchPolicy(), "prices.yaml": rig.Prices(modelName),
				"tenants.yaml": "tenants:\n  - id: bench\n    team: bench\n    tier: gold\n",
			},
		})
		if err != nil {
			return nil, err
		}
		if err := g.Proc.WaitFor(ctx, routerPatience, func(ctx context.Context) error { return g.Ready(ctx, len(f.Workers)) }); err != nil {
			g.Proc.Stop()
			return nil, err
		}
		return &router{name: name, proc: g.Proc, url: "http://" + g.Public, debug: "http://" + g.Admin, key: g.Keys["bench"], token: g.Token}, nil
	}
}

func sluiceConfig(e *env, f *rig.Fleet, w *workload, strategy string) string {
	return fmt.Sprintf(`tenants: { file: tenants.yaml }
policy: { dir: policies }
cacheIsolation: { default: tenant, keyFile: cache.key }
models:
  - { name: %s, tokenizer: %q, contextLength: %d, defaultMaxTokens: 64 }
pools:
  - name: arena
    models: [%s]
    cacheSalt: [chat, completion]
    workers:
%sscoring: { strategy: %s }
%sprices: { file: prices.yaml }
ledger: { path: ledger.db }
drain: { delay: 0s, deadline: 2s }
log: { level: warn, format: json }
`, modelName, e.tokenizer, w.maxModelLen, modelName, rig.WorkerList(f.Workers), strategy, e.more)
}
