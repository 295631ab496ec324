package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
)

// TestViewsComeFromTheWorkers starts a second gateway before workers that have
// served a first one. What it knows of their caches can only come from their
// events: it sends a known prompt to the worker that holds it, and says of each
// prompt how much the engine then finds cached. Another tenant's salt leads
// nowhere, in the view as in the engine.
func TestViewsComeFromTheWorkers(t *testing.T) {
	d, first := startStack(t)
	ctx := context.Background()
	prefix := words(11, 600)
	home, err := newTour(d, first, io.Discard).ask(ctx, "acme", user(prefix+"one"))
	if err != nil || home.status != 200 {
		t.Fatalf("%v %+v", err, home)
	}
	cfg := *d.cfg
	cfg.Ledger.Path = filepath.Join(t.TempDir(), "second.db")
	second := serveApp(t, &cfg, slog.New(slog.DiscardHandler))
	tour := newTour(d, second, io.Discard)
	for _, c := range []struct {
		tenant string
		held   bool
	}{{"acme", true}, {"globex", false}} {
		got, err := tour.ask(ctx, c.tenant, user(prefix+"two"))
		if err != nil || got.status != 200 {
			t.Fatalf("%v %+v", err, got)
		}
		picks := second.fleet.Predictions()
		pick := picks[len(picks)-1]
		for _, w := range pick.Candidates {
			if w.Worker == pick.Winner && w.Cached != got.usage.Details.Cached {
				t.Errorf("%s: the view has %d tokens, the engine %d", c.tenant, w.Cached, got.usage.Details.Cached)
			}
		}
		if held := got.usage.Details.Cached > 500; held != c.held || held && got.worker() != home.worker() {
			t.Errorf("%s: %d tokens cached on %s; the prompt is on %s", c.tenant, got.usage.Details.Cached, got.worker(), home.worker())
		}
	}
}

// TestFirstTokensAreReported: a stream's first token reaches the scorer, which
// learns from it, and the metrics.
func TestFirstTokensAreReported(t *testing.T) {
	d, a := startStack(t)
	body := user("hello")
	body["stream"] = true
	if got, err := newTour(d, a, io.Discard).ask(context.Background(), "acme", body); err != nil || got.status != 200 {
		t.Fatalf("%v %+v", err, got)
	}
	if n := a.fleet.Stats().FirstTokens; n != 1 {
		t.Errorf("the scorer saw %d first tokens, want 1", n)
	}
	text := metricsText(t, a)
	for _, line := range []string{
		"sluice_route_prediction_error_ratio_count 1",
		`sluice_ttft_seconds_count{class="interactive",model="demo-chat",pool="general"} 1`,
		`sluice_ttft_upstream_seconds_count{class="interactive",model="demo-chat",pool="general"} 1`,
		`sluice_route_prediction_relative_error{percentile="50"}`,
	} {
		if !strings.Contains(text, "\n"+line) {
			t.Errorf("the metrics lack %s", line)
		}
	}
}

// TestServeOverTLS serves the public listener with the configured certificate
// and least version, and nothing in clear text.
func TestServeOverTLS(t *testing.T) {
	cert := gatewaytest.NewCertificate(t)
	d, a := startStack(t, func(cfg *Config) {
		cfg.Listen.Public.TLS = TLSConfig{CertFile: cert.CertFile, KeyFile: cert.KeyFile, MinVersion: "1.3"}
	})
	tour := newTour(d, a, io.Discard)
	transport := &http.Transport{TLSClientConfig: cert.Client}
	defer transport.CloseIdleConnections()
	tour.client.Transport = transport
	if got, err := tour.ask(t.Context(), "acme", user("hello")); err != nil || got.status != 200 {
		t.Errorf("over TLS: %v %+v", err, got)
	}
	old := cert.Client.Clone()
	old.MaxVersion = tls.VersionTLS12
	if conn, err := tls.Dial("tcp", a.public.Addr().String(), old); err == nil {
		conn.Close()
		t.Error("TLS 1.2 was spoken below the least version")
	}
	clear := gatewaytest.Dial(t, a.public.Addr().String())
	_ = clear.Write(gatewaytest.RequestText("GET", "/healthz", ""))
	if got := clear.Closed(); strings.Contains(got, "HTTP/1.1 200") {
		t.Errorf("clear text got %q", got)
	}
}

// TestReadiness follows the workers: with none of them ready there is a reason
// and requests are told when to come again.
func TestReadiness(t *testing.T) {
	d, a := startStack(t)
	readyz := func() (int, string) {
		resp, err := http.Get(a.baseURL() + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	if status, text := readyz(); status != 200 || text != `{"status":"ready"}` {
		t.Errorf("with workers: %d %s", status, text)
	}
	for _, w := range d.workers {
		w.Kill()
	}
	soon(t, "the gateway to be unready", stackPatience, func() bool { status, _ := readyz(); return status == 503 })
	if _, text := readyz(); text != `{"status":"not_ready","reasons":["no_worker"]}` {
		t.Errorf("without workers: %s", text)
	}
	got, err := newTour(d, a, io.Discard).ask(t.Context(), "acme", user("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if got.status != 503 || got.code != "unavailable" || got.header.Get("Retry-After") == "" {
		t.Errorf("a request got %+v", got)
	}
	if text := metricsText(t, a); !strings.Contains(text, `sluice_degraded{part="worker",reason="not_ready"} 3`) {
		t.Error("the metrics don't count the workers that are not ready")
	}
}

// TestUnreadableRequestsAreCounted sends what is no HTTP.
func TestUnreadableRequestsAreCounted(t *testing.T) {
	_, a := startStack(t)
	c := gatewaytest.Dial(t, a.public.Addr().String())
	if err := c.Write("GET / HTTP/1.1\r\nHost: a\r\nHost : b\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if got := c.Closed(); !strings.HasPrefix(got, "HTTP/1.1 400") {
		t.Errorf("got %q", got)
	}
	if text := metricsText(t, a); !strings.Contains(text, `sluice_http_framing_rejections_total{reason="invalid_request"} 1`) {
		t.Error("it is not counted")
	}
}

// TestDemoSays runs the command lines that the demo prints: each does what
// the line above it promises.
func TestDemoSays(t *testing.T) {
	d, a := startQueuedStack(t)
	var out bytes.Buffer
	d.say(&out, a)
	for _, key := range d.keys {
		if !strings.Contains(out.String(), key) {
			t.Error("a tenant's key is not shown")
		}
	}
	var lines []string
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "curl ") {
			lines = append(lines, line)
		}
	}
	if len(lines) != 5 {
		t.Fatalf("%d command lines, want 5:\n%s", len(lines), out.String())
	}
	stream, _ := curl(t, lines[0])
	if stream.StatusCode != 200 || !strings.HasPrefix(stream.Header.Get("Content-Type"), "text/event-stream") {
		t.Errorf("the stream: %d %v", stream.StatusCode, stream.Header)
	}
	if restricted, _ := curl(t, lines[1]); restricted.StatusCode != 200 || restricted.Header.Get("x-sluice-worker") != "restricted-1" {
		t.Errorf("restricted data: %d %v", restricted.StatusCode, restricted.Header)
	}
	if denied, body := curl(t, lines[2]); denied.StatusCode != 403 || !strings.Contains(body, "policy_denied") {
		t.Errorf("the denial: %d %s", denied.StatusCode, body)
	}
	if queue, body := curl(t, lines[3]); queue.StatusCode != 200 || !strings.Contains(body, `"batch"`) {
		t.Errorf("the queue: %d %s", queue.StatusCode, body)
	}
	predictions, body := curl(t, lines[4])
	var page struct{ Picks []pickPage }
	if err := json.Unmarshal([]byte(body), &page); err != nil || predictions.StatusCode != 200 || len(page.Picks) != 2 {
		t.Errorf("the predictions: %d %v %s", predictions.StatusCode, err, body)
	}
}

// curl sends what a command line of curl would.
func curl(t *testing.T, line string) (*http.Response, string) {
	t.Helper()
	var url, data string
	method, header := http.MethodGet, make(http.Header)
	words := shellWords(strings.TrimSpace(line))
	for i := 1; i < len(words); i++ {
		switch words[i] {
		case "-s", "-i", "-N":
		case "-H":
			i++
			name, value, _ := strings.Cut(words[i], ": ")
			header.Set(name, value)
		case "-d":
			i++
			method, data = http.MethodPost, words[i]
		default:
			url = words[i]
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = header
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// shellWords splits a line at spaces outside single quotes.
func shellWords(line string) (words []string) {
	quoted := false
	for _, word := range strings.FieldsFunc(line, func(r rune) bool {
		if r == '\'' {
			quoted = !quoted
		}
		return r == ' ' && !quoted
	}) {
		words = append(words, strings.ReplaceAll(word, "'", ""))
	}
	return words
}

// TestShadowBindings: a binding that only audits is judged and counted, and the
// request is served as if it weren't there.
func TestShadowBindings(t *testing.T) {
	d, a := startStack(t, func(cfg *Config) {
		shadow := `apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: tool-use-rehearsal }
spec: { policyName: tool-use, actions: [Audit], params: { tiers_without_tools: [silver] } }
`
		if err := os.WriteFile(filepath.Join(cfg.Policy.Dir, "rehearsal.yaml"), []byte(shadow), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	body := user("hello")
	body["tools"] = []any{map[string]any{"type": "function", "function": map[string]any{"name": "search"}}}
	body["tool_choice"] = "none"
	got, err := newTour(d, a, io.Discard).ask(t.Context(), "globex", body)
	if err != nil || got.status != 200 || got.header.Get("Warning") != "" {
		t.Fatalf("%v %+v", err, got)
	}
	line := `sluice_policy_decisions_total{decision="would_deny",policy="tool-use",rule="tier-has-tools"} 1`
	soon(t, "the metrics to have "+line, stackPatience, func() bool { return strings.Contains(metricsText(t, a), "\n"+line+"\n") })
}
