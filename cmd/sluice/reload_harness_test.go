package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sluicegate/sluice/tenancy/secretstest"
)

// quota is a policy that limits what acme may ask for in an hour, and a rule that refuses a model family,
// so that its revision can be told from that of others.
func quota(requests int, rule string) string {
	return fmt.Sprintf(`apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: quota }
spec:
  validations:
    - { name: %s, expression: "request.model_family != 'none'", message: no such family }
  limits:
    - { name: hourly, unit: requests, limit: "%d", window: 1h, key: ["tenant.id"] }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: quota }
spec: { policyName: quota, actions: [Deny], selector: { tenants: [globex] } }
`, rule, requests)
}

// syncBuffer is a log that is read while it is written.
type syncBuffer struct {
	mu  sync.Mutex // protects buf
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// held is the memory that it takes, in bytes.
func (b *syncBuffer) held() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Cap()
}

// about returns the lines that hold a word.
func (b *syncBuffer) about(word string) (text string) {
	for line := range strings.Lines(b.String()) {
		if strings.Contains(line, word) {
			text += line
		}
	}
	return text
}

// reloading is a running gateway whose files a test changes.
type reloading struct {
	*testing.T
	d       *demo
	a       *app
	tour    *tour
	hangups chan struct{}
	log     *syncBuffer
	secrets *secretstest.Secrets
}

// startReloading runs the demo's platform from its files. edit changes the files before the start.
func startReloading(t *testing.T, edit ...func(dir string)) *reloading {
	t.Helper()
	secrets := new(secretstest.Secrets)
	r := &reloading{T: t, hangups: make(chan struct{}, 1), log: &syncBuffer{}, secrets: secrets}
	log := secrets.Log(t, newLogger(r.log, LogConfig{Level: "info", Format: "text"}))
	var err error
	r.d, err = newDemo(demoOptions{public: "127.0.0.1:0", admin: "127.0.0.1:0", timeScale: 0.1}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.d.Close(); err != nil {
			t.Errorf("close the demo: %v", err)
		}
		if t.Failed() {
			t.Log(r.log.about("reload"))
		}
	})
	for _, f := range edit {
		f(r.d.dir)
	}
	file := filepath.Join(r.d.dir, "sluice.yaml")
	if r.d.cfg, _, err = LoadConfig(file); err != nil {
		t.Fatal(err)
	}
	addKeys(secrets, r.d)
	r.a = serveApp(t, r.d.cfg, log, reloadFrom(file, r.hangups))
	t.Cleanup(func() { noSecretTold(t, secrets, r.a) })
	r.tour = newTour(r.d, r.a, io.Discard)
	return r
}

// unwatched turns off the watch, so that a test alone says when files are read.
func unwatched(dir string) { editConfig(dir, "reload: { watch: false }\n") }

func editConfig(dir, more string) {
	file := filepath.Join(dir, "sluice.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	if err := os.WriteFile(file, append(text, more...), 0o600); err != nil {
		panic(err)
	}
}

// policy writes a file of policies.
func (r *reloading) policy(name, text string) {
	r.Helper()
	write(r.T, filepath.Join(r.d.dir, "policies"), map[string]string{name: text})
}

// reload calls the admin listener.
func (r *reloading) reload() (int, attemptPage) {
	r.Helper()
	resp := askAdmin(r.T, r.a, http.MethodPost, "/admin/reload")
	defer resp.Body.Close()
	var page attemptPage
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil {
		r.Fatalf("%d %v", resp.StatusCode, err)
	}
	return resp.StatusCode, page
}

// status reads /debug/policies.
func (r *reloading) status() (page policiesPage) {
	r.Helper()
	resp := askAdmin(r.T, r.a, http.MethodGet, "/debug/policies")
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil || resp.StatusCode != 200 {
		r.Fatalf("%d %v", resp.StatusCode, err)
	}
	return page
}

// readyz returns the body of /readyz.
func (r *reloading) readyz() string {
	r.Helper()
	resp, err := http.Get(r.a.baseURL() + "/readyz")
	if err != nil {
		r.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.Fatal(err)
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, text)
}

// ask sends a request of a tenant and returns its status and the revision that judged it.
func (r *reloading) ask(tenant string) (status int, revision string) {
	r.Helper()
	got, err := r.tour.ask(r.Context(), tenant, user("hello"))
	if err != nil {
		r.Fatal(err)
	}
	revision, _, _ = strings.Cut(got.header.Get("x-sluice-policy"), " ")
	return got.status, revision
}

// wantMetrics fails unless the metrics have the lines.
func (r *reloading) wantMetrics(lines ...string) {
	r.Helper()
	text := metricsText(r.T, r.a)
	for _, line := range lines {
		if !strings.Contains(text, "\n"+line+"\n") {
			r.Errorf("the metrics lack %s", line)
		}
	}
}
