package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluicegate/sluice/deploy/bench/internal/rig"
)

const modelName = "bench"

// system is one way from the load to the engine.
type system struct {
	name   string
	proc   *rig.Process // nil: direct
	target target
	admin  string // base of the admin listener, if it has one
	token  string
}

// starter starts a system before the engine at worker, a host:port.
type starter func(ctx context.Context, e *env, worker string) (*system, error)

var starters = map[string]starter{
	"direct": startDirect, "sluice-tokenizer": startSluiceTokenizer,
	"envoy": startEnvoy, "sglang": startSGLang, "litellm": startLiteLLM,
}

// patience is how long a system may take to start.
const patience = 90 * time.Second

// ready waits until a system serves a request.
func (e *env) ready(ctx context.Context, s *system) (*system, error) {
	j := job{bytes: 300, patience: 5 * time.Second}
	err := s.proc.WaitFor(ctx, patience, func(context.Context) error {
		c, err := dial(s.target.addr, s.target.tls)
		if err != nil {
			return err
		}
		defer c.nc.Close()
		a, err := c.do(s.target.requests(j, 1, 1)[0], j.patience, nil)
		if err == nil && a.status != 200 {
			err = fmt.Errorf("status %d", a.status)
		}
		return err
	})
	if err != nil {
		s.proc.Stop()
		return nil, err
	}
	return s, nil
}

func startDirect(_ context.Context, e *env, _ string) (*system, error) {
	return &system{name: "direct", target: target{addr: e.engineTLS, tls: e.tls()}}, nil
}

// rules makes a policy with twenty rules, limits among them that no run reaches:
// all are judged and counted, none refuses.
func rules() string {
	var sb strings.Builder
	sb.WriteString(`apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: bench }
spec:
  failurePolicy: Fail
  variables:
    - { name: gold, expression: tenant.tier == 'gold' }
  validations:
    - { name: few-choices, expression: request.n <= 4, reason: Invalid, message: n may be at most 4 }
    - { name: known-model, expression: "request.model in ['bench', 'bench-2']", message: the model is not for this tenant }
    - { name: no-images, expression: request.image_count == 0, message: images are not allowed }
    - { name: short-output, expression: request.max_tokens.orValue(16) <= 4096, reason: Invalid, message: max_tokens may be at most 4096 }
    - { name: short-input, expression: request.input_tokens_estimate < 200000, reason: Invalid, message: the prompt is too long }
    - { name: few-messages, expression: request.message_count <= 200, reason: Invalid, message: there are too many messages }
    - { name: tools, expression: "request.tool_names.all(t, !(t in ['shell', 'exec', 'browser']))", message: a tool is not allowed }
    - { name: from-inside, expression: "!request.source_ip.startsWith('203.0.113.')", message: the address is not allowed }
    - { name: has-team, expression: "tenant.team != ''", message: the tenant has no team }
    - { name: known-tier, expression: "tenant.tier in ['gold', 'silver', 'bronze']", message: the tier has no allowance }
    - { name: working-key, expression: "principal.kind in ['api_key', 'jwt', 'mtls']", message: the credential is of a kind that is not allowed }
    - { name: small-body, expression: request.body_bytes < 33554432, reason: Invalid, message: the body is too large }
  effects:
    - { name: gold, when: variables.gold, qos: { class: interactive, ttftTarget: 800ms } }
    - { name: bronze, when: tenant.tier == 'bronze', qos: { class: batch, preemptible: true } }
    - { name: cap, mutate: { max_tokens: "2048" } }
    - { name: european, when: "tenant.labels[?'zone'].orValue('') == 'eu'", addLabels: [eu] }
    - { name: streams, when: request.stream, addLabels: [stream] }
  limits:
    - { name: tokens, unit: tokens, window: 1m, limit: "1000000000", key: [tenant.id], onStoreError: Local }
    - { name: requests, unit: requests, window: 1m, limit: "10000000", key: [tenant.id], onStoreError: Local }
    - { name: concurrency, unit: concurrency, limit: "100000", key: [tenant.id], onStoreError: Local }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: bench }
spec: { policyName: bench, actions: [Deny] }
`)
	return sb.String()
}

// variant is Sluice with something different from how one would run it: what a
// part costs shows where it is left out.
type variant struct {
	env    []string                   // of the process
	config func(config string) string // edits the configuration; nil for none
	rules  func() string              // in place of the twenty; nil for those
	plain  bool                       // without TLS
	dir    string                     // where its files are, "" for where everything is
}

// instead edits a configuration.
func instead(of, part string) func(string) string {
	return func(config string) string {
		if !strings.Contains(config, of) {
			panic("BUG: the configuration has no " + of)
		}
		return strings.Replace(config, of, part, 1)
	}
}

var variants = map[string]variant{
	"sluice":         {},
	"sluice-commit":  {config: instead("ledger.db", "ledger.db, commitEvery: 50ms")}, // rows go to the database together
	"sluice-nogc":    {env: []string{"GOGC=off", "GOMEMLIMIT=2GiB"}},
	"sluice-shm":     {dir: "/dev/shm"}, // flushes cost nothing there
	"sluice-norules": {rules: oneRule},
	"sluice-nolog":   {config: instead("level: info", "level: error")},
	"sluice-plain":   {plain: true},
}

func init() {
	for name, v := range variants {
		starters[name] = func(ctx context.Context, e *env, worker string) (*system, error) {
			return startGateway(ctx, e, name, worker, "", v)
		}
	}
}

func oneRule() string {
	all := rules()
	head, _, _ := strings.Cut(all, "  validations:")
	_, tail, _ := strings.Cut(all, "---")
	return head + "  validations:\n    - { name: few-choices, expression: request.n <= 4, message: n may be at most 4 }\n---" + tail
}

func startSluiceTokenizer(ctx context.Context, e *env, worker string) (*system, error) {
	return startGateway(ctx, e, "sluice-tokenizer", worker, fmt.Sprintf(", tokenizer: %q", e.tokenizer), variant{})
}

// startGateway starts Sluice as one would run it: TLS, keys, a policy with
// limits, prices, a ledger, metrics, the access log.
func startGateway(ctx context.Context, e *env, name, worker, tokenizer string, v variant) (*system, error) {
	config := fmt.Sprintf(`tenants: { file: tenants.yaml }
policy: { dir: policies }
cacheIsolation: { default: tenant, keyFile: cache.key }
models:
  - { name: bench, contextLength: 131072, defaultMaxTokens: 64%s }
pools:
  - { name: bench, models: [bench], cacheSalt: [chat, completion], workers: [{ name: stub, url: "http://%s", events: none }] }
prices: { file: prices.yaml }
ledger: { path: ledger.db }
limits: { connectionsPerAddress: 8000 }
metrics: { tenants: [bench] }
drain: { delay: 0s, deadline: 3s }
log: { level: info, format: json }
`, tokenizer, worker)
	if v.config != nil {
		config = v.config(config)
	}
	policy := rules
	if v.rules != nil {
		policy = v.rules
	}
	listenTLS, clientTLS := fmt.Sprintf("{ certFile: %q, keyFile: %q }", e.certFile, e.keyFile), e.tls()
	if v.plain {
		listenTLS, clientTLS = "", nil
	}
	dir := e.dir
	if v.dir != "" {
		var err error
		if dir, err = os.MkdirTemp(v.dir, "edge-"); err != nil {
			return nil, err
		}
		e.dirs = append(e.dirs, dir)
	}
	g, err := rig.StartGateway(rig.GatewaySpec{
		Sluice: e.sluice, Name: name, Dir: dir, Env: v.env, Tenants: []string{"bench"},
		TLS: listenTLS, Config: config,
		Files: map[string]string{
			"policies/bench.yaml": policy(), "prices.yaml": rig.Prices(modelName),
			"tenants.yaml": "tenants:\n  - id: bench\n    team: bench\n    tier: gold\n    labels: { zone: eu }\n",
		},
	})
	if err != nil {
		return nil, err
	}
	return e.ready(ctx, &system{
		name: name, proc: g.Proc, admin: "http://" + g.Admin, token: g.Token,
		target: target{addr: g.Public, tls: clientTLS, key: g.Keys["bench"]},
	})
}

// startEnvoy starts Envoy as a plain proxy: TLS on one side, kept connections
// on the other, no filter but its router, no access log.
func startEnvoy(ctx context.Context, e *env, worker string) (*system, error) {
	addrs, err := rig.FreePorts(2)
	if err != nil {
		return nil, err
	}
	host, port, _ := strings.Cut(worker, ":")
	config := strings.NewReplacer("@PORT@", rig.Port(addrs[0]), "@CERT@", e.certFile, "@KEY@", e.keyFile, "@WORKER_HOST@", host, "@WORKER_PORT@", port).Replace(envoyConfig)
	file := filepath.Join(e.dir, "envoy.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	proc, err := rig.Start(e.dir, "envoy", nil, nil, filepath.Join(e.envoy, "bin", "envoy"), "-c", file, "--concurrency", "2", "-l", "warning", "--disable-hot-restart")
	if err != nil {
		return nil, err
	}
	return e.ready(ctx, &system{name: "envoy", proc: proc, target: target{addr: addrs[0], tls: e.tls()}})
}

const envoyConfig = `static_resources:
  listeners:
  - address: { socket_address: { address: 127.0.0.1, port_value: @PORT@ } }
    filter_chains:
    - transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          common_tls_context:
            alpn_protocols: [http/1.1]
            tls_certificates: [{ certificate_chain: { filename: @CERT@ }, private_key: { filename: @KEY@ } }]
      filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          codec_type: HTTP1
          stream_idle_timeout: 300s
          route_config:
            virtual_hosts:
            - { name: all, domains: ["*"], routes: [{ match: { prefix: / }, route: { cluster: engine, timeout: 0s } }] }
          http_filters:
          - { name: envoy.filters.http.router, typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router } }
  clusters:
  - name: engine
    type: STATIC
    connect_timeout: 2s
    circuit_breakers: { thresholds: [{ max_connections: 10000, max_pending_requests: 10000, max_requests: 10000 }] }
    load_assignment:
      cluster_name: engine
      endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: @WORKER_HOST@, port_value: @WORKER_PORT@ } } } }] }]
`

// startSGLang starts the router with TLS and one worker, its own policy by
// default.
func startSGLang(ctx context.Context, e *env, worker string) (*system, error) {
	addrs, err := rig.FreePorts(2)
	if err != nil {
		return nil, err
	}
	port, metrics := rig.Port(addrs[0]), rig.Port(addrs[1])
	proc, err := rig.Start(e.dir, "sglang", nil, nil, filepath.Join(e.sglang, "bin", "sglang-router"), "launch",
		"--host", "127.0.0.1", "--port", port, "--prometheus-host", "127.0.0.1", "--prometheus-port", metrics,
		"--tls-cert-path", e.certFile, "--tls-key-path", e.keyFile, "--max-concurrent-requests", "10000",
		"--worker-startup-check-interval", "1", "--log-level", "warn", "--worker-urls", "http://"+worker)
	if err != nil {
		return nil, err
	}
	return e.ready(ctx, &system{name: "sglang", proc: proc, target: target{addr: addrs[0], tls: e.tls()}})
}

// startLiteLLM starts LiteLLM's proxy with one process, without a database and
// with a master key.
func startLiteLLM(ctx context.Context, e *env, worker string) (*system, error) {
	addrs, err := rig.FreePorts(1)
	if err != nil {
		return nil, err
	}
	config := "model_list:\n  - model_name: bench\n    litellm_params: { model: hosted_vllm/bench, api_base: \"http://" + worker + "/v1\", api_key: none }\n" +
		"general_settings: { master_key: sk-bench }\n"
	file := filepath.Join(e.dir, "litellm.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	proc, err := rig.Start(e.dir, "litellm", nil, []string{"LITELLM_LOG=ERROR", "LITELLM_TELEMETRY=False"}, filepath.Join(e.litellm, "bin", "litellm"),
		"--config", file, "--host", "127.0.0.1", "--port", rig.Port(addrs[0]), "--ssl_certfile_path", e.certFile, "--ssl_keyfile_path", e.keyFile, "--num_workers", "1")
	if err != nil {
		return nil, err
	}
	return e.ready(ctx, &system{name: "litellm", proc: proc, target: target{addr: addrs[0], tls: e.tls(), key: "sk-bench"}})
}

func (e *env) tls() *tls.Config {
	return &tls.Config{RootCAs: e.roots, ServerName: "bench.test", MinVersion: tls.VersionTLS12, ClientSessionCache: tls.NewLRUClientSessionCache(64)}
}
