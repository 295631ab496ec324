package replay

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/policy/decisionlog"
)

// TestWrittenLogs: what the decision log writes is read back: the same set
// changes nothing, whatever the log hides, as long as no rule needs it.
func TestWrittenLogs(t *testing.T) {
	const known = "\n  validations: [{ name: known, expression: \"request.user.orValue('') != 'mallory'\" }]"
	f := func(name string, edit func(*decisionlog.Config), same, changed, undecided int, what What) {
		t.Run(name, func(t *testing.T) {
			cfg := decisionlog.DefaultConfig()
			cfg.Path = filepath.Join(t.TempDir(), "decisions.jsonl")
			edit(&cfg)
			before := set(t, testConfig(), fewChoices, known, limited)
			writeLog(t, cfg, before)
			log := Log{cfg.Path, func() (io.ReadCloser, error) { return os.Open(cfg.Path) }}
			for i, candidate := range []*policy.Set{before, set(t, testConfig(), "\n  validations: [{ name: few, expression: \"request.n < 9 && tenant.tier == 'gold'\" }]", "\n  validations: [{ name: known, expression: \"true\" }]", limited)} {
				r, err := Run(t.Context(), []Log{log}, nil, candidate, Options{})
				if err != nil {
					t.Fatal(err)
				}
				if r.Broken+r.Truncated > 0 || r.Decisions != 3 || r.Others != 3 {
					t.Fatalf("%+v", r)
				}
				if i == 0 {
					if got := r.Decisions - r.Changed - r.Undecided; got != same {
						t.Errorf("the same set: %d unchanged, want %d:\n%s", got, same, summary(r))
					}
					continue
				}
				if r.Changed != changed || r.Undecided != undecided || r.Changes[0].What != what {
					t.Errorf("another set: %d changed, %d indeterminate, want %d and %d, first %s:\n%s", r.Changed, r.Undecided, changed, undecided, what, summary(r))
				}
			}
		})
	}
	// The third request is refused for its choices, whoever makes it.
	f("plain", func(c *decisionlog.Config) { c.Plain = []string{"user", "session_id", "source_ip"} }, 3, 1, 0, DenyToAllow)
	f("hashed", func(c *decisionlog.Config) { c.HashKey = []byte("a key of the tests with 32 bytes!") }, 1, 1, 0, DenyToAllow)
	f("withheld", func(*decisionlog.Config) {}, 1, 1, 0, DenyToAllow)
	f("masked", func(c *decisionlog.Config) { c.Mask = []string{"/input/tenant/tier"} }, 1, 0, 3, Indeterminate)
	f("erased", func(c *decisionlog.Config) { c.Drop = []string{"/input/tenant/tier", "/input/request/headers"} }, 1, 0, 3, Indeterminate)
	f("all masked", func(c *decisionlog.Config) { c.Mask = []string{"/input"} }, 0, 0, 3, Indeterminate)
}

// writeLog decides three requests and logs them as a gateway does.
func writeLog(t *testing.T, cfg decisionlog.Config, s *policy.Set) {
	t.Helper()
	log, err := decisionlog.Open(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- log.Run(ctx) }()
	user := "alice"
	for i, n := range []int64{1, 2, 5} {
		in := &policy.Input{
			Now: testTime, Lazy: lazy(true), Tenant: policy.TenantInput{ID: "t1", Tier: "gold"},
			Principal: policy.PrincipalInput{Kind: "api_key", ID: "key:k"},
			Request:   policy.RequestInput{Operation: "chat", Model: "m", N: n, User: &user, SourceIP: "10.0.0.1"},
		}
		d := s.Decide(context.Background(), in)
		id := []string{"a", "b", "c"}[i]
		log.Decided(id, "r", testTime, in, d)
		log.Settled(id, testTime, "completed", "a", 0, policy.Usage{}, d, d.Charges(policy.Usage{}), nil)
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
