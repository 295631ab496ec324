package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/scoring/simworker"
	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/secretstest"
)

// stackPatience bounds every wait of these tests: what takes longer never comes.
const stackPatience = time.Minute

// TestDemoTour plays `sluice demo --check` on workers ten times as fast.
func TestDemoTour(t *testing.T) {
	var out, diag bytes.Buffer
	opts := demoOptions{public: "127.0.0.1:0", admin: "127.0.0.1:0", timeScale: 0.1}
	if err := runDemo(context.Background(), opts, true, &out, &diag); err != nil {
		t.Fatalf("%v\n%s%s", err, out.String(), diag.String())
	}
	if got := strings.Count(out.String(), "ok    "); got != 11 {
		t.Errorf("want 11 steps:\n%s", out.String())
	}
	if strings.Contains(diag.String(), "slk_") || strings.Contains(diag.String(), "rivers") {
		t.Errorf("the log holds a key or a prompt:\n%s", diag.String())
	}
}

// startStack runs the demo's platform for a test: real workers, a real ledger,
// the gateway as `serve` wires it. change, if given, edits the configuration.
func startStack(t testing.TB, change ...func(*Config)) (*demo, *app) {
	t.Helper()
	return startStackOf(t, demoOptions{}, change...)
}

// startQueuedStack is startStack with the queue that the demo has.
func startQueuedStack(t testing.TB) (*demo, *app) {
	t.Helper()
	return startStackOf(t, demoOptions{queue: true})
}

func startStackOf(t testing.TB, opts demoOptions, change ...func(*Config)) (*demo, *app) {
	t.Helper()
	opts.public, opts.admin, opts.timeScale = "127.0.0.1:0", "127.0.0.1:0", 0.1
	var diag bytes.Buffer
	secrets := new(secretstest.Secrets)
	log := secrets.Log(t, newLogger(&diag, LogConfig{Level: "warn", Format: "text"}))
	d, err := newDemo(opts, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close the demo: %v", err)
		}
		if t.Failed() {
			t.Log(diag.String())
		}
	})
	addKeys(secrets, d)
	for _, f := range change {
		f(d.cfg)
	}
	a := serveApp(t, d.cfg, log)
	t.Cleanup(func() { noSecretTold(t, secrets, a) }) // while it still serves
	return d, a
}

// serveApp runs a gateway for a test and waits until it knows the demo's
// workers and what they hold.
func serveApp(t testing.TB, cfg *Config, log *slog.Logger, opts ...appOption) *app {
	t.Helper()
	a, err := newApp(cfg, log, opts...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- a.serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		if err := a.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := a.waitReady(ctx, len(demoWorkers)); err != nil {
		t.Fatal(err)
	}
	return a
}

// rows reads the ledger's rows of now.
func rows(t *testing.T, a *app) (out []*tenancy.Row) {
	t.Helper()
	now := time.Now()
	for row, err := range a.ledger.Rows(context.Background(), now.Add(-time.Hour), now.Add(time.Hour)) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, row)
	}
	return out
}

func soon(t *testing.T, what string, within time.Duration, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(start) > within {
			t.Fatalf("waited %v in vain for %s", within, what)
		}
	}
}

// metricsText scrapes the admin listener.
func metricsText(t *testing.T, a *app) string {
	t.Helper()
	resp, err := http.Get("http://" + a.admin.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("metrics: %d %v", resp.StatusCode, err)
	}
	return string(text)
}

// TestClientLeavesTheWholeStack kills a client in each phase in which a worker
// has its request: the simulated engine is free long before its answer would have been
// whole, the gauges go back to zero, and the ledger has one row.
func TestClientLeavesTheWholeStack(t *testing.T) {
	for _, c := range []struct {
		name   string
		stream bool
		stall  bool // the engine stands still, so the prompt is never read
		events int
		phase  tenancy.Phase
	}{
		{"prefill", true, true, 0, tenancy.PhasePrefill},
		{"mid-stream", true, false, 3, tenancy.PhaseStream},
		{"not streaming", false, false, 0, tenancy.PhaseResponse},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, a := startStack(t)
			if c.stall {
				for _, w := range d.workers {
					w.SetFault(simworker.Fault{Stall: -1})
				}
			}
			client := gatewaytest.Dial(t, a.public.Addr().String())
			client.Send("POST", "/v1/chat/completions",
				fmt.Sprintf(`{"model":"demo-chat","stream":%v,"ignore_eos":true,"max_tokens":8000,"messages":[{"role":"user","content":"a long story, please"}]}`, c.stream),
				"Authorization: Bearer "+d.keys["globex"])
			soon(t, "a worker to have the request", stackPatience, func() bool { return open(d) == 1 })
			reserved := regexp.MustCompile(`sluice_tenant_reserved_tokens\{model="demo-chat",tenant="globex"\} [1-9]`)
			if !reserved.MatchString(metricsText(t, a)) {
				t.Error("the metrics show no reserved tokens while the request runs")
			}
			if c.events > 0 {
				events := gatewaytest.NewEventReader(client.Head().Body)
				for range c.events {
					if _, err := events.Next(); err != nil {
						t.Fatal(err)
					}
				}
			}
			client.Leave(gatewaytest.FIN)
			soon(t, "the worker to be free", stackPatience, func() bool { return open(d) == 0 && busy(d) == 0 })
			soon(t, "the request to be settled", stackPatience, func() bool { return a.gateway.InFlight() == 0 })
			got := rows(t, a)
			if len(got) != 1 || got[0].Outcome != tenancy.OutcomeClientAborted || got[0].Phase != c.phase || got[0].InputTokens == 0 {
				t.Fatalf("rows: %+v", got)
			}
			for _, gauge := range []string{
				`sluice_http_requests_in_flight{route="/v1/chat/completions"} 0`, `sluice_ratelimit_open_reservations 0`, `sluice_ledger_open_intents 0`,
				`sluice_client_disconnects_total{phase="` + string(c.phase) + `"} 1`,
				`sluice_tenant_reserved_tokens{model="demo-chat",tenant="globex"} 0`,
			} {
				soon(t, "the metrics to say "+gauge, stackPatience, func() bool { return strings.Contains(metricsText(t, a), gauge+"\n") })
			}
			for _, w := range a.fleet.Snapshot(time.Now()) {
				if w.InFlight != 0 || w.Ahead != 0 {
					t.Errorf("worker %s is left with %d requests and %d tokens ahead", w.Worker.Name, w.InFlight, w.Ahead)
				}
			}
		})
	}
}

// open is how many requests have a handler in a worker, busy how many its
// engine holds.
func open(d *demo) (n int) {
	for _, w := range d.workers {
		n += w.Stats().Open
	}
	return n
}

func busy(d *demo) (n int) {
	for _, w := range d.workers {
		s := w.Stats()
		n += s.Running + s.Waiting
	}
	return n
}

// TestKilledWorker ends a worker abruptly: requests go on elsewhere, it is
// noticed, and its view is dropped.
func TestKilledWorker(t *testing.T) {
	d, a := startStack(t)
	tour := newTour(d, a, io.Discard)
	ctx := context.Background()
	first, err := tour.ask(ctx, "acme", user(words(1, 500)))
	if err != nil || first.status != 200 {
		t.Fatalf("%v %+v", err, first)
	}
	victim := first.worker()
	held := func() int {
		for _, w := range a.fleet.Snapshot(time.Now()) {
			if w.Worker.Name == victim && len(w.Views) > 0 {
				return w.Views[0].GPU
			}
		}
		return 0
	}
	soon(t, "the view of "+victim, stackPatience, func() bool { return held() > 0 })
	d.workers[victim].Kill()
	for i := range 6 {
		next, err := tour.ask(ctx, "acme", user(words(1, 500)+fmt.Sprint(i)))
		if err != nil || next.status != 200 || next.worker() == victim {
			t.Fatalf("request %d after the kill: %v %+v", i, err, next)
		}
	}
	soon(t, "the view to be dropped", stackPatience, func() bool { return held() == 0 })
	soon(t, "the metrics to say so", stackPatience, func() bool {
		text := metricsText(t, a)
		return strings.Contains(text, `sluice_worker_ready{pool="general",worker="`+victim+`"} 0`) &&
			strings.Contains(text, `sluice_degraded{part="worker",reason="not_ready"} 1`)
	})
}

// TestMetricsAreWellFormed lints what is exported after every kind of request.
func TestMetricsAreWellFormed(t *testing.T) {
	d, a := startQueuedStack(t)
	if err := newTour(d, a, t.Output()).play(context.Background()); err != nil {
		t.Fatal(err)
	}
	text := metricsText(t, a)
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, secret := range []string{"slk_", "initech", "rivers"} {
		if strings.Contains(text, secret) {
			t.Errorf("the metrics hold %q", secret)
		}
	}
	if !strings.Contains(text, `tenant="other"`) || !strings.Contains(text, `tenant="acme"`) {
		t.Error("tenants are not folded by the allowlist")
	}
}

// TestDebugPages reads both pages after a few requests.
func TestDebugPages(t *testing.T) {
	d, a := startStack(t)
	tour := newTour(d, a, io.Discard)
	for range 2 {
		if got, err := tour.ask(context.Background(), "acme", user(words(3, 300))); err != nil || got.status != 200 {
			t.Fatalf("%v %+v", err, got)
		}
	}
	page := func(path string, into any) {
		t.Helper()
		resp := askAdmin(t, a, http.MethodGet, path)
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(into); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %v", path, resp.StatusCode, err)
		}
	}
	var predictions struct{ Picks []pickPage }
	page("/debug/predictions", &predictions)
	if len(predictions.Picks) != 2 {
		t.Fatalf("%d picks, want 2", len(predictions.Picks))
	}
	second := predictions.Picks[1]
	if second.Winner != predictions.Picks[0].Winner || second.Outcome != "completed" || len(second.Candidates) != 2 {
		t.Errorf("the second pick: %+v", second)
	}
	for _, c := range second.Candidates {
		if (c.Worker == second.Winner) != (c.Cached > 0) {
			t.Errorf("candidate %+v, the winner is %s", c, second.Winner)
		}
	}
	var workers struct{ Workers []workerPage }
	page("/debug/workers", &workers)
	if len(workers.Workers) != len(demoWorkers) {
		t.Fatalf("%d workers", len(workers.Workers))
	}
	for _, w := range workers.Workers {
		if !w.Health.Ready || len(w.Views) != 1 || len(w.Events) != 1 || !w.Events[0].Connected || w.Load.InFlight != 0 {
			t.Errorf("worker %+v", w)
		}
	}
}
