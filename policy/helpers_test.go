package policy

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// testConfig is the configuration that most tests compile against.
func testConfig() Config {
	return Config{
		Pools: []Pool{
			{Name: "a", Models: []string{"m", "big"}, Labels: map[string]string{"zone": "eu"}, Salted: []string{"*"}},
			{Name: "b", Models: []string{"m"}, Labels: map[string]string{"zone": "us"}, Salted: []string{"*"}},
			{Name: "c", Models: []string{"m"}, Labels: map[string]string{"zone": "eu", "gpu": "h100"}, Salted: []string{"chat", "responses"}},
		},
		Claims: map[string]string{"clearance": "int", "regions": "list(string)", "admin": "bool", "score": "double", "dept": "string"},
		Prices: map[string]Price{"m": {Input: 200_000, CachedInput: 20_000, Output: 600_000}},
	}
}

// fsOf makes a file system of texts by name.
func fsOf(files map[string]string) fstest.MapFS {
	out := fstest.MapFS{}
	for name, text := range files {
		out[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return out
}

func load(cfg Config, text string) (*Set, error) {
	return Load(cfg, fsOf(map[string]string{"p.yaml": text}))
}

func mustLoad(t testing.TB, cfg Config, text string) *Set {
	t.Helper()
	s, err := load(cfg, text)
	if err != nil {
		t.Fatalf("cannot load:\n%v\n%s", err, text)
	}
	return s
}

// policyText writes a policy with the given spec (indented by two) and a
// binding with the given actions.
func policyText(name, spec, actions string) string {
	return "apiVersion: sluice/v1alpha1\nkind: AdmissionPolicy\nmetadata: { name: " + name + " }\nspec:\n" + spec +
		"\n---\napiVersion: sluice/v1alpha1\nkind: AdmissionPolicyBinding\nmetadata: { name: " + name + "-b }\nspec: { policyName: " + name + ", actions: [" + actions + "] }\n---\n"
}

// testInput is a request that every field of has a value.
func testInput() *Input {
	str := func(s string) *string { return &s }
	tokens := int64(1000)
	return &Input{
		Request: RequestInput{
			Operation: "chat", Dialect: "openai", Method: "POST", Path: "/v1/chat/completions", Model: "m", RequestedModel: "alias", ModelFamily: "fam",
			Stream: true, N: 1, MaxTokens: &tokens, InputTokensEstimate: 90, BodyBytes: 400, MessageCount: 2, ImageCount: 1,
			ToolNames: []string{"search", "shell"}, Modalities: []string{"text", "image"}, SessionID: str("s-1"), User: str("u-1"),
			Headers: map[string]string{"x-app": "demo"}, SourceIP: "10.20.1.7",
		},
		Principal: PrincipalInput{
			Kind: "jwt", ID: "jwt:iss:sub", Subject: "sub", Issuer: "iss", Groups: []string{"devs", "ops"}, Scopes: []string{"infer"},
			KeyID: str("k1"), SPIFFEID: str("spiffe://x/y"),
			Claims: map[string]any{"clearance": float64(3), "regions": []any{"eu", "us"}, "admin": true, "score": 1.5, "dept": "red"},
		},
		Tenant:         TenantInput{ID: "t1", Team: "search", Tier: "gold", Labels: map[string]string{"env": "prod"}},
		Now:            time.Date(2026, 3, 10, 12, 0, 0, 0, time.FixedZone("x", 3600)),
		DeclaredLabels: []string{"internal"},
		Lazy:           &fakeLazy{tokens: 900, exact: true, content: Content{Labels: []string{"pii"}, Findings: map[string]int64{"pii": 2}, Detectors: []string{"email"}, ScanStatus: "complete"}},
	}
}

// fakeLazy counts its calls.
type fakeLazy struct {
	tokens               int64
	exact                bool
	content              Content
	err                  error
	panics               bool
	delay                time.Duration
	tokenCalls, scanCall int
}

func (f *fakeLazy) InputTokens(context.Context) (int64, bool, error) {
	f.tokenCalls++
	time.Sleep(f.delay)
	if f.panics {
		panic("boom")
	}
	return f.tokens, f.exact, f.err
}

func (f *fakeLazy) Content(context.Context) (Content, error) {
	f.scanCall++
	time.Sleep(f.delay)
	if f.panics {
		panic("boom")
	}
	return f.content, f.err
}

var errFake = errors.New("scanner is down")

func rules(refs []RuleRef) string {
	var out []string
	for _, r := range refs {
		out = append(out, r.Rule)
	}
	return strings.Join(out, " ")
}

// shadow runs the decision's rehearsal at once and adds its outcome to d, so
// that a test sees all of a decision in one place.
func shadow(ctx context.Context, in *Input, d *Decision) {
	r := d.Rehearsal()
	if r == nil {
		return
	}
	r.Run(ctx, in.Lazy)
	d.would = append(d.would, r.d.would...)
	d.failed = append(d.failed, r.d.failed...)
	d.notes = append(d.notes, r.d.notes...)
	d.Fired = append(d.Fired, r.d.Fired...)
	d.Limits = append(d.Limits, r.d.Limits...)
	d.kept = append(d.kept, r.d.kept...)
	d.LogInFull = d.LogInFull || r.d.LogInFull
	d.sortLists()
	cost := r.Outcome().Cost
	d.Cost.ShadowUnits += cost.ShadowUnits
	d.Cost.Expressions += cost.Expressions
}
