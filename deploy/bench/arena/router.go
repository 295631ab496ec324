package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// router is one of those that are compared, before a fleet.
type router struct {
	name  string
	proc  *process
	url   string
	key   string
	debug string // base of the debug pages, empty if there are none
}

// routerKind starts a router of one kind before workers.
type routerKind struct {
	name  string
	start func(ctx context.Context, e *env, f *fleet, w *workload) (*router, error)
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

func loopback(port int) string { return "http://127.0.0.1:" + strconv.Itoa(port) }

// startOther starts a router that is told its workers by flags and says by
// /health that it is ready.
func startOther(ctx context.Context, e *env, name string, args func(port, metrics int) []string) (*router, error) {
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	proc, err := startProcess(e.dir, name, nil, nil, args(ports[0], ports[1])...)
	if err != nil {
		return nil, err
	}
	r := &router{name: name, proc: proc, url: loopback(ports[0]), debug: loopback(ports[1])}
	err = proc.waitFor(ctx, routerPatience, func(ctx context.Context) error {
		_, err := get(ctx, r.url+"/health")
		return err
	})
	if err != nil {
		proc.stop()
		return nil, err
	}
	return r, nil
}

// urls returns the workers' base URLs.
func (f *fleet) urls() []string {
	var out []string
	for _, w := range f.Workers {
		out = append(out, w.URL)
	}
	return out
}

func startSGLang(policy string) func(context.Context, *env, *fleet, *workload) (*router, error) {
	return func(ctx context.Context, e *env, f *fleet, _ *workload) (*router, error) {
		return startOther(ctx, e, "sglang-"+policy, func(port, metrics int) []string {
			args := []string{filepath.Join(e.sglang, "bin", "sglang-router"), "launch", "--policy", policy,
				"--host", "127.0.0.1", "--port", strconv.Itoa(port), "--prometheus-host", "127.0.0.1", "--prometheus-port", strconv.Itoa(metrics),
				"--worker-startup-check-interval", "1", "--log-level", "warn", "--worker-urls"}
			return append(args, f.urls()...)
		})
	}
}

func startVLLM(policy string) func(context.Context, *env, *fleet, *workload) (*router, error) {
	return func(ctx context.Context, e *env, f *fleet, _ *workload) (*router, error) {
		return startOther(ctx, e, "vllm-"+policy, func(port, metrics int) []string {
			args := []string{filepath.Join(e.vllm, "bin", "vllm-router"), "--policy", policy,
				"--host", "127.0.0.1", "--port", strconv.Itoa(port), "--prometheus-host", "127.0.0.1", "--prometheus-port", strconv.Itoa(metrics),
				"--worker-startup-check-interval", "1", "--log-level", "warning"}
			if policy == "kv_aware" {
				args = append(args, "--kv-event-model", modelName, "--kv-event-block-size", strconv.Itoa(blockSize))
				for _, w := range f.Workers {
					args = append(args, "--kv-event-source", w.URL+"="+w.Events, "--kv-event-replay-source", w.URL+"="+w.Replay)
				}
			}
			return append(append(args, "--worker-urls"), f.urls()...)
		})
	}
}

// policyFile admits one tenant with limits that no run reaches, so that all of
// them are counted and none refuses.
const policyFile = `apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: bench }
spec:
  description: Class and limits of the benchmark's tenant.
  failurePolicy: Fail
  validations:
    - { name: few-choices, expression: request.n <= 4, reason: Invalid, message: n may be at most 4 }
  effects:
    - { name: gold, when: tenant.tier == 'gold', qos: { class: interactive } }
  limits:
    - { name: tokens, unit: tokens, window: 1m, limit: "1000000000", key: [tenant.id], onStoreError: Local }
    - { name: requests, unit: requests, window: 1m, limit: "10000000", key: [tenant.id], onStoreError: Local }
    - { name: concurrency, unit: concurrency, limit: "100000", key: [tenant.id], onStoreError: Local }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: bench }
spec: { policyName: bench, actions: [Deny] }
`

// startSluice starts the gateway as one would run it: keys, a policy with
// limits, prices, a ledger, events found by asking the workers.
func startSluice(strategy string) func(context.Context, *env, *fleet, *workload) (*router, error) {
	return func(ctx context.Context, e *env, f *fleet, w *workload) (*router, error) {
		name := "sluice"
		if strategy != "ttft" {
			name += "-" + strategy
		}
		dir, err := os.MkdirTemp(e.dir, "sluice-")
		if err != nil {
			return nil, err
		}
		ports, err := freePorts(2)
		if err != nil {
			return nil, err
		}
		key, err := writeSluiceFiles(e, dir, sluiceConfig(e, f, w, strategy, ports))
		if err != nil {
			return nil, err
		}
		proc, err := startProcess(e.dir, name, nil, nil, e.sluice, "serve", "-c", filepath.Join(dir, "sluice.yaml"))
		if err != nil {
			return nil, err
		}
		r := &router{name: name, proc: proc, url: loopback(ports[0]), debug: loopback(ports[1]), key: key}
		if err := proc.waitFor(ctx, routerPatience, func(ctx context.Context) error { return sluiceReady(ctx, r, len(f.Workers)) }); err != nil {
			proc.stop()
			return nil, err
		}
		return r, nil
	}
}

func sluiceConfig(e *env, f *fleet, w *workload, strategy string, ports []int) string {
	var sb strings.Builder
	fmt.Fprintf(&sb, `listen:
  public: { address: "127.0.0.1:%d" }
  admin: { address: "127.0.0.1:%d" }
tenants: { file: tenants.yaml }
policy: { dir: policies }
cacheIsolation: { default: tenant, keyFile: cache.key }
models:
  - { name: %s, tokenizer: %q, contextLength: %d, defaultMaxTokens: 64 }
pools:
  - name: arena
    models: [%s]
    cacheSalt: [chat, completion]
    workers:
`, ports[0], ports[1], modelName, e.tokenizer, w.maxModelLen, modelName)
	for _, worker := range f.Workers {
		fmt.Fprintf(&sb, "      - { name: %s, url: %q }\n", worker.Name, worker.URL)
	}
	if strategy != "ttft" {
		fmt.Fprintf(&sb, "scoring: { strategy: %s }\n", strategy)
	}
	sb.WriteString(`prices: { file: prices.yaml }
ledger: { path: ledger.db }
drain: { delay: 0s, deadline: 2s }
log: { level: warn, format: json }
`)
	return sb.String()
}

var keyPattern = regexp.MustCompile(`slk_[A-Za-z0-9_-]+`)

// writeSluiceFiles writes what the configuration names, and returns an API key.
func writeSluiceFiles(e *env, dir, config string) (key string, err error) {
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return "", err
	}
	if err := os.Mkdir(filepath.Join(dir, "policies"), 0o700); err != nil {
		return "", err
	}
	for name, text := range map[string]string{
		"sluice.yaml":         config,
		"policies/bench.yaml": policyFile,
		"cache.key":           string(secret),
		"tenants.yaml":        "tenants:\n  - id: bench\n    team: bench\n    tier: gold\n",
		"prices.yaml":         "prices:\n  - { model: " + modelName + ", currency: EUR, input: 500000, cachedInput: 50000, output: 1500000, validFrom: 2026-01-01 }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	out, err := exec.Command(e.sluice, "keys", "create", "--tenants", filepath.Join(dir, "tenants.yaml"), "--tenant", "bench").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("cannot create a key: %w\n%s", err, out)
	}
	if key = string(keyPattern.Find(out)); key == "" {
		return "", fmt.Errorf("cannot find the key in what sluice keys create printed")
	}
	return key, nil
}

// sluiceReady says whether the gateway serves and follows all workers' events.
func sluiceReady(ctx context.Context, r *router, workers int) error {
	if _, err := get(ctx, r.url+"/readyz"); err != nil {
		return err
	}
	text, err := get(ctx, r.debug+"/debug/workers")
	if err != nil {
		return err
	}
	var page struct {
		Workers []struct {
			Events []struct {
				Connected bool `json:"connected"`
			} `json:"events"`
		} `json:"workers"`
	}
	if err := json.Unmarshal(text, &page); err != nil {
		return fmt.Errorf("cannot read /debug/workers: %w", err)
	}
	connected := 0
	for _, w := range page.Workers {
		if len(w.Events) > 0 && w.Events[0].Connected {
			connected++
		}
	}
	if connected < workers {
		return fmt.Errorf("%d of %d workers' events are connected", connected, workers)
	}
	return nil
}
