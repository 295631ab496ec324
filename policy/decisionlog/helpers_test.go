package decisionlog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/sluicegate/sluice/policy"
)

// testSet has a policy that denies the model "denied", one that warns of "warned",
// one that only audits "audited", one with Audit beside Deny for "noted", and a
// limit. The conditions are such that none can be told without evaluating it.
func testSet(t testing.TB) *policy.Set {
	t.Helper()
	const text = `
apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: %[1]s }
spec:
  matchConditions: [{ name: m, expression: "request.model.contains('%[2]s')" }]
  validations: [{ name: v, expression: "%[3]s", message: not this model }]
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: %[1]s-b }
spec: { policyName: %[1]s, actions: [%[4]s] }
---
`
	const limited = `
apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: limited }
spec:
  limits: [{ name: l, unit: tokens, window: 1m, limit: 5000, key: [tenant.id] }]
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: limited-b }
spec: { policyName: limited, actions: [Deny] }
`
	all := fmt.Sprintf(text, "denies", "denied", "false", "Deny") + fmt.Sprintf(text, "warns", "warned", "false", "Warn") +
		fmt.Sprintf(text, "audits", "audited", "false", "Audit") + fmt.Sprintf(text, "notes", "noted", "true", "Deny, Audit") +
		fmt.Sprintf(text, "errs", "erring", "tenant.labels['none'] == ''", "Deny") + limited
	models := []string{"m", "denied", "warned", "audited", "noted", "erring"}
	set, err := policy.Load(policy.Config{
		Pools: []policy.Pool{{Name: "a", Models: models, Salted: []string{"*"}}}, Claims: map[string]string{"dept": "string", "score": "double"},
	}, fstest.MapFS{"p.yaml": {Data: []byte(all)}})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// testInput is a request for a model.
func testInput(model string) *policy.Input {
	user, session, tokens := "u-1", "s-1", int64(100)
	return &policy.Input{
		Request: policy.RequestInput{
			Operation: "chat", Dialect: "openai", Method: "POST", Path: "/v1/chat/completions", Model: model, RequestedModel: model,
			N: 1, MaxTokens: &tokens, InputTokensEstimate: 50, BodyBytes: 200, MessageCount: 1, Modalities: []string{"text"},
			SessionID: &session, User: &user, Headers: map[string]string{"x-app": "demo"}, SourceIP: "10.20.1.7",
		},
		Principal: policy.PrincipalInput{Kind: "api_key", ID: "key:k1", Groups: []string{"devs", "ops"}, Claims: map[string]any{"dept": "red"}},
		Tenant:    policy.TenantInput{ID: "t1", Team: "search", Tier: "gold", Labels: map[string]string{"env": "prod"}},
		Now:       testTime,
		Lazy:      lazy{},
	}
}

// lazy counts 50 tokens and finds nothing.
type lazy struct{}

func (lazy) InputTokens(context.Context) (int64, bool, error) { return 50, true, nil }

func (lazy) Content(context.Context) (policy.Content, error) {
	return policy.Content{ScanStatus: "complete"}, nil
}

var testTime = time.Date(2026, 3, 10, 12, 0, 0, 123456000, time.UTC)

// testLog is a log in a folder of its own, which is not running.
func testLog(t testing.TB, change func(c *Config)) *Log {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Path, cfg.Gateway = filepath.Join(t.TempDir(), "decisions.jsonl"), "gw-1"
	cfg.HashKey = []byte("a key of the tests, 32 bytes long")
	if change != nil {
		change(&cfg)
	}
	l, err := Open(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// finish runs a log until all that was recorded is written.
func finish(t testing.TB, l *Log) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

// line is a record as a reader sees it.
type line struct {
	Type       string   `json:"type"`
	DecisionID string   `json:"decision_id"`
	Verdict    string   `json:"verdict"`
	Dropped    int      `json:"dropped"`
	Masked     []string `json:"masked"`
	Erased     []string `json:"erased"`
	text       string
}

// readLines reads a file of records, compressed or not. Every line must be a
// record.
func readLines(t testing.TB, path string) []line {
	t.Helper()
	var out []line
	for text := range strings.SplitSeq(strings.TrimSuffix(string(readFile(t, path)), "\n"), "\n") {
		if text == "" {
			continue
		}
		l := line{text: text}
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%s: %v: %q", path, err, text)
		}
		out = append(out, l)
	}
	return out
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var r io.Reader = bufio.NewReader(f)
	if strings.HasSuffix(path, ".gz") {
		if r, err = gzip.NewReader(r); err != nil {
			t.Fatal(err)
		}
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// summary writes types and ids, as in "decision:1 settlement:1".
func summary(lines []line) string {
	var b bytes.Buffer
	for i, l := range lines {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%s:%s", l.Type, l.DecisionID)
	}
	return b.String()
}
