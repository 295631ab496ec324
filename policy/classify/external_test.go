package classify

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"
)

// fake is an external detector with a fixed answer.
type fake struct {
	name     string
	revision string
	detect   func(ctx context.Context, text string) (map[string]int64, error)
}

func (f fake) Name() string     { return f.name }
func (f fake) Revision() string { return f.revision }
func (f fake) Detect(ctx context.Context, text string) (map[string]int64, error) {
	return f.detect(ctx, text)
}

// says is a detector that always answers the same.
func says(name string, hits map[string]int64, err error) fake {
	return fake{name: name, detect: func(context.Context, string) (map[string]int64, error) { return hits, err }}
}

// TestExternal goes through what external detectors answer, beside a built-in
// one that finds an address.
func TestExternal(t *testing.T) {
	late := fmt.Errorf("cannot ask: %w", context.DeadlineExceeded)
	broken := errors.New("cannot ask")
	type hits = map[string]int64
	for _, test := range []struct {
		name      string
		externals []External
		findings  hits
		detectors []string
		status    string
	}{
		{"hits", []External{says("x", hits{"phi": 2, "email": 1}, nil)}, hits{"email": 2, "phi": 2}, []string{"email", "x"}, StatusComplete},
		{"nothing", []External{says("x", nil, nil)}, hits{"email": 1}, []string{"email", "x"}, StatusComplete},
		{"no hits, negative hits", []External{says("x", hits{"phi": 0, "a": -3}, nil)}, hits{"email": 1}, []string{"email", "x"}, StatusComplete},
		{"unmapped", []External{says("x", hits{"": 4}, nil)}, hits{"email": 1}, []string{"email", "x"}, StatusComplete},
		{"failure", []External{says("x", nil, broken)}, hits{"email": 1}, []string{"email"}, StatusUnavailable},
		{"failure with hits", []External{says("x", hits{"phi": 1}, broken)}, hits{"email": 1, "phi": 1}, []string{"email"}, StatusUnavailable},
		{"time-out", []External{says("x", nil, late)}, hits{"email": 1}, []string{"email"}, StatusTimeout},
		{"failure and time-out", []External{says("x", nil, late), says("y", nil, broken), says("z", hits{"phi": 1}, nil)}, hits{"email": 1, "phi": 1}, []string{"email", "z"}, StatusUnavailable},
		{"malformed label", []External{says("x", hits{"PHI": 1}, nil)}, hits{"email": 1}, []string{"email"}, StatusUnavailable},
		{"overflow", []External{says("x", hits{"email": 1<<63 - 1}, nil)}, hits{"email": 1<<63 - 1}, []string{"email", "x"}, StatusComplete},
		{"panic", []External{fake{name: "x", detect: func(context.Context, string) (hits, error) { panic("of the detector") }}}, hits{"email": 1}, []string{"email"}, StatusUnavailable},
	} {
		cfg := Config{MaxBytes: 1000, Budget: time.Minute, Builtin: []Builtin{{Email, "email"}}, External: test.externals}
		got := scanText(mustNew(t, cfg), "a@example.com")
		if !maps.Equal(got.Findings, test.findings) || !slices.Equal(got.Detectors, test.detectors) || got.ScanStatus != test.status {
			t.Errorf("%s: %+v, want %v, %v and %s", test.name, got, test.findings, test.detectors, test.status)
		}
		if want := slices.Sorted(maps.Keys(test.findings)); !slices.Equal(got.Labels, want) {
			t.Errorf("%s: labels are %v, want %v", test.name, got.Labels, want)
		}
	}
}

// TestExternalAlone checks a classifier without detectors of its own.
func TestExternalAlone(t *testing.T) {
	c := mustNew(t, Config{MaxBytes: 100, Budget: time.Minute, External: []External{says("x", map[string]int64{"phi": 1}, nil)}})
	if got := scanText(c, "text"); got.ScanStatus != StatusComplete || got.Findings["phi"] != 1 {
		t.Errorf("the scan gives %+v", got)
	}
}

// TestExternalText checks which text external detectors get.
func TestExternalText(t *testing.T) {
	var text string
	keep := fake{name: "x", detect: func(_ context.Context, s string) (map[string]int64, error) { text = s; return nil, nil }}
	c := mustNew(t, Config{MaxBytes: 20, Budget: time.Minute, External: []External{keep}})
	f := func(body, want string) {
		t.Helper()
		if scanBody(c, body); text != want {
			t.Errorf("%s gives the text %q, want %q", body, text, want)
		}
	}
	f(`{"model":"m","messages":[{"role":"user","content":"one"},{"role":"user","content":[{"type":"text","text":"two"},{"type":"text","text":"three"}]}]}`, "one\ntwo\nthree")
	f(`{"prompt":"{\"a\":\"b\"}"}`, `{"a":"b"}`)
	f(`{"prompt":"ＡＢ\u200b"}`, "ＡＢ\u200b")
	f(`{"prompt":"0123456789012345678901234"}`, "01234567890123456789")
	f(`{"prompt":"","x":["",""]}`, "x")
	f(`{}`, "")
}

// TestExternalsRunSideBySide has each detector wait for the other.
func TestExternalsRunSideBySide(t *testing.T) {
	var both sync.WaitGroup
	both.Add(2)
	meet := func(context.Context, string) (map[string]int64, error) {
		both.Done()
		both.Wait()
		return map[string]int64{"met": 1}, nil
	}
	c := mustNew(t, Config{MaxBytes: 100, Budget: time.Minute, External: []External{fake{name: "x", detect: meet}, fake{name: "y", detect: meet}}})
	if got := scanText(c, "text").Findings["met"]; got != 2 {
		t.Errorf("%d detectors met, want 2", got)
	}
}

// TestExternalContext checks that the caller's context reaches the detectors.
func TestExternalContext(t *testing.T) {
	wait := fake{name: "x", detect: func(ctx context.Context, _ string) (map[string]int64, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	c := mustNew(t, Config{MaxBytes: 100, Budget: time.Minute, External: []External{wait}})
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if got := c.Scan(ctx, &Request{Body: []byte(`{"prompt":"x"}`)}).ScanStatus; got != StatusTimeout {
		t.Errorf("the scan is %s, want timeout", got)
	}
}

// TestStats checks the counters after scans of several kinds.
func TestStats(t *testing.T) {
	answers := make(chan error, 3)
	x := fake{name: "x", detect: func(context.Context, string) (map[string]int64, error) {
		return map[string]int64{"": 2}, <-answers
	}}
	c := mustNew(t, Config{MaxBytes: 100, Budget: time.Minute, Builtin: []Builtin{{Email, "pii"}}, External: []External{x}})
	answers <- nil
	answers <- context.DeadlineExceeded
	answers <- errors.New("cannot ask")
	scanBody(c, `{"prompt":"a@example.com b@example.com"}`)
	scanBody(c, `{"prompt":"x"}`)
	scanBody(c, `{"prompt":"x"}`)
	scanBody(c, ``)
	want := Stats{
		Scans:    map[string]uint64{StatusComplete: 2, StatusTimeout: 1, StatusUnavailable: 1},
		Bytes:    29,
		Hits:     map[string]uint64{"pii": 2},
		Unmapped: map[string]uint64{"x": 6},
		Failures: map[string]uint64{"x": 1},
		Timeouts: map[string]uint64{"x": 1},
	}
	got := c.Stats()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the counters are %v, want %v", got, want)
	}
	got.Hits["pii"] = 99
	if c.Stats().Hits["pii"] != 2 {
		t.Error("a change to a copy changes the counters")
	}
}

// TestRevision lists what changes the revision and what does not.
func TestRevision(t *testing.T) {
	base := func() Config {
		cfg := DefaultConfig()
		cfg.Custom = []Custom{{"a", "l", []string{"x"}, []string{"y"}}, {"b", "l", nil, []string{"z"}}}
		cfg.External = []External{fake{name: "x", revision: "1"}, fake{name: "y"}}
		return cfg
	}
	rev := func(edit func(*Config)) string {
		cfg := base()
		edit(&cfg)
		return mustNew(t, cfg).Revision()
	}
	want := rev(func(*Config) {})
	for name, edit := range map[string]func(*Config){
		"order":  func(c *Config) { slices.Reverse(c.Builtin); slices.Reverse(c.Custom); slices.Reverse(c.External) },
		"budget": func(c *Config) { c.Budget *= 2; c.MaxBytes *= 2 },
	} {
		if got := rev(edit); got != want {
			t.Errorf("%s changes the revision", name)
		}
	}
	for name, edit := range map[string]func(*Config){
		"detector off":      func(c *Config) { c.Builtin = c.Builtin[1:] },
		"label":             func(c *Config) { c.Builtin[0].Label = "pci" },
		"pattern":           func(c *Config) { c.Custom[0].Patterns = []string{"xx"} },
		"keyword":           func(c *Config) { c.Custom[1].Keywords = []string{"zz"} },
		"external":          func(c *Config) { c.External = c.External[:1] },
		"external revision": func(c *Config) { c.External[0] = fake{name: "x", revision: "2"} },
	} {
		if got := rev(edit); got == want {
			t.Errorf("%s does not change the revision", name)
		}
	}
}
