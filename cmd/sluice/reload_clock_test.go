package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicegate/sluice/policy"
)

// dearRequests refuses what is estimated to cost more than 100 micro-units.
const dearRequests = `apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: dear }
spec:
  limits:
    - { name: by-request, unit: cost, limit: "100", window: 1h, key: ["tenant.id"] }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: dear }
spec: { policyName: dear, actions: [Deny] }
`

// clockRig is a reloader without a gateway, whose clock is that of the bubble that it runs in.
type clockRig struct {
	*reloader
	dir       string
	installed []*generation
}

// newClockRig loads the files of the scripts with prices and policies of the test's own, and reads them again
// only when there is another cause to. edit changes the configuration.
func newClockRig(t *testing.T, prices string, edit ...func(*Config)) *clockRig {
	t.Helper()
	rig := &clockRig{dir: t.TempDir()}
	if err := os.CopyFS(rig.dir, os.DirFS("testdata/script/files")); err != nil {
		t.Fatal(err)
	}
	write(t, rig.dir, map[string]string{"prices.yaml": prices, "dear/dear.yaml": dearRequests})
	cfg, _, err := LoadConfig(filepath.Join(rig.dir, "sluice.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Policy.Dir, cfg.Reload = filepath.Join(rig.dir, "dear"), ReloadConfig{Poll: time.Hour}
	for _, f := range edit {
		f(cfg)
	}
	log := slog.New(slog.DiscardHandler)
	base, err := newLasting(cfg, time.Now(), log)
	if err != nil {
		t.Fatal(err)
	}
	first, err := base.generation(cfg, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	install := func(_, fresh *generation) { rig.installed = append(rig.installed, fresh) }
	rig.reloader = newReloader("", first, sourcesOf("", cfg).fingerprint(), base, install, nil, log)
	return rig
}

// start runs the reloader until the test ends.
func (r *clockRig) start(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.Run(ctx)
	}()
	t.Cleanup(func() { stop(); <-ended })
}

// tenTokens is what is found out late of a request.
type tenTokens struct{}

// InputTokens implements policy.Lazy.
func (tenTokens) InputTokens(context.Context) (int64, bool, error) { return 10, true, nil }

// Content implements policy.Lazy.
func (tenTokens) Content(context.Context) (policy.Content, error) {
	return policy.Content{ScanStatus: "complete"}, nil
}

// cost is what a request for 10 tokens after 10 is estimated to cost now.
func (r *clockRig) cost(t *testing.T) string {
	t.Helper()
	ten := int64(10)
	in := &policy.Input{Now: time.Now(), Lazy: tenTokens{}}
	in.Request.Operation, in.Request.Model, in.Request.RequestedModel, in.Request.N, in.Request.InputTokensEstimate = "chat", "tiny", "tiny", 1, 10
	in.Request.MaxTokens = &ten
	in.Request.Prompts = 1
	in.Tenant.ID, in.Principal.ID, in.Principal.Kind = "acme", "key:a", "api_key"
	d := r.generation().state.Policies.(*policy.Set).Decide(t.Context(), in)
	limits := d.Limits
	if len(limits) != 1 {
		return fmt.Sprintf("%v %s %s %+v", d.Allow, d.Rule, d.Reason, d.Errors)
	}
	return fmt.Sprint(limits[0].Estimate)
}

// A price that begins to hold is in force for estimates at that moment, without anything having changed on
// the disk; a price that can't be loaded is tried again.
func TestPricesChangeInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now().UTC()
		day := func(n int) string { return start.AddDate(0, 0, n).Format(time.DateOnly) }
		r := newClockRig(t, fmt.Sprintf(`currency: EUR
prices:
  - { model: tiny, input: 1000000, output: 1000000, validTo: %s }
  - { model: tiny, input: 2000000, output: 2000000, validFrom: %s, validTo: %s }
  - { model: tiny, input: 3000000, output: 3000000, validFrom: %s }
`, day(2), day(2), day(5), day(5)))
		r.start(t)
		want := func(when string, cost string) {
			t.Helper()
			synctest.Wait()
			if got := r.cost(t); got != cost {
				t.Errorf("%s: a request costs %s, want %s", when, got, cost)
			}
		}
		want("at first", "20")
		at := func(n int) time.Duration {
			return time.Until(start.Truncate(24*time.Hour).AddDate(0, 0, n))
		}
		time.Sleep(at(2) - time.Millisecond)
		want("just before", "20")
		time.Sleep(time.Millisecond)
		want("from then on", "40")
		if n := len(r.installed); n != 1 || r.last.cause != causePrices {
			t.Errorf("%d reloads, the last by %q", n, r.last.cause)
		}
		// Broken files keep the reload from happening; the old prices stay until they are mended.
		write(t, r.dir, map[string]string{"dear/broken.yaml": "kind: Nonsense\n"})
		time.Sleep(at(5))
		want("with broken files", "40")
		if !r.failing() {
			t.Error("nothing says so")
		}
		mustRemove(t, filepath.Join(r.dir, "dear/broken.yaml"))
		time.Sleep(priceRetry)
		want("mended", "60")
		time.Sleep(100 * 24 * time.Hour)
		if n := len(r.installed); n != 2 {
			t.Errorf("%d reloads although no price changes any more", n)
		}
	})
}

// Files that never hold still are not loaded half: the attempt fails, and says why.
func TestFilesThatNeverSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newClockRig(t, "currency: EUR\nprices: []\n")
		var n atomic.Int64
		var still atomic.Bool
		r.now = func() time.Time { // is asked in the middle of each load
			if !still.Load() {
				write(t, r.dir, map[string]string{"dear/dear.yaml": dearRequests + fmt.Sprintf("# %d\n", n.Add(1))})
			}
			return time.Now()
		}
		r.start(t)
		a, err := r.Reload(t.Context(), causeAdmin)
		if err != nil || !errors.Is(a.err, errUnstable) || a.number != 1 {
			t.Errorf("%v %+v", err, a)
		}
		if _, print := r.watched(); print != (fingerprint{}) {
			t.Error("a state that was never loaded counts as known")
		}
		still.Store(true)
		if a, err := r.Reload(t.Context(), causeAdmin); err != nil || a.err != nil || a.number != 2 {
			t.Errorf("once they hold still: %v %+v", err, a)
		}
	})
}

// A bug in what is loaded fails the reload and nothing else, and the log has its place but not its text.
func TestPanicInAReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log syncBuffer
		r := newClockRig(t, "currency: EUR\nprices: []\n")
		r.log = newLogger(&log, LogConfig{Level: "info", Format: "text"})
		good := r.base
		r.base = nil // is not to be without
		r.start(t)
		a, err := r.Reload(t.Context(), causeAdmin)
		if err != nil || a.err == nil || !strings.HasPrefix(a.err.Error(), "BUG: ") || a.number != 1 {
			t.Errorf("%v %+v", err, a)
		}
		if !strings.Contains(log.String(), "generation.go") {
			t.Errorf("the log lacks the place:\n%s", log.String())
		}
		r.base = good
		if a, err := r.Reload(t.Context(), causeAdmin); err != nil || a.err != nil {
			t.Errorf("afterwards: %v %+v", err, a)
		}
	})
}

// What every generation has in common is the same in each: the pools' keys, and the key of clients' salts.
func TestWhatLasts(t *testing.T) {
	r := newClockRig(t, "currency: EUR\nprices: []\n", func(cfg *Config) { cfg.CacheIsolation = CacheIsolationConfig{Default: "none"} })
	first := r.generation()
	second, err := r.base.generation(first.cfg, first, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if string(first.state.CacheKey) != string(second.state.CacheKey) || len(second.state.CacheKey) < minKeyBytes {
		t.Error("the key of clients' salts has changed")
	}
	if second.number != 2 || second.state.Generation != 2 {
		t.Errorf("got generation %d", second.number)
	}
}
