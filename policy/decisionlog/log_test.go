package decisionlog

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/policy"
)

// leftOut is a share that keeps no plain allow.
func leftOut(c *Config) { c.Sample = map[string]float64{"allow": 0} }

func TestRecords(t *testing.T) {
	l := testLog(t, nil)
	set, in := testSet(t), testInput("m")
	d := set.Decide(t.Context(), in)
	if !l.Decided("id-1", "r-1", testTime, in, d) {
		t.Error("the record was not kept")
	}
	l.Rehearsed("id-1", testTime.Add(time.Second), policy.RehearsalOutcome{LogInFull: true, WouldDeny: []policy.RuleRef{{Rule: "audits/v", Binding: "audits-b"}}})
	u := policy.Usage{InputTokens: 40, OutputTokens: 7, Complete: true}
	l.Settled("id-1", testTime.Add(2*time.Second), "completed", "a", 1500*time.Millisecond, u, d, d.Charges(u), []int64{4953})
	finish(t, l)
	lines := readLines(t, l.cfg.Path)
	if got, want := summary(lines), "decision:id-1 shadow:id-1 settlement:id-1"; got != want {
		t.Fatalf("lines %s, want %s", got, want)
	}
	mac := hmac.New(sha256.New, l.cfg.HashKey)
	mac.Write([]byte("sluice decision log\x00u-1"))
	for _, part := range []string{
		`{"type":"decision","decision_id":"id-1","request_id":"r-1","timestamp":"2026-03-10T12:00:00.123456Z","revision":"` + set.Revision() + `","gateway":"gw-1",`,
		`"user":"hmac:` + hex.EncodeToString(mac.Sum(nil)[:16]) + `"`, `"headers":{"x-app":"demo"}`, `"claims":{"dept":"red","score":null}`, `"verdict":"allow"`,
		`"limits":[{"rule":"limited/l","binding":"limited-b","enforced":true,"limit":5000,"reserved":150}]`,
	} {
		if !strings.Contains(lines[0].text, part) {
			t.Errorf("the decision lacks %s: %s", part, lines[0].text)
		}
	}
	if want := `{"type":"shadow","decision_id":"id-1","timestamp":"2026-03-10T12:00:01.123456Z","wouldDeny":[{"rule":"audits/v","binding":"audits-b"}],"errors":[],"effects":[],"annotations":{},"shadow_units":0}`; lines[1].text != want {
		t.Errorf("got  %s\nwant %s", lines[1].text, want)
	}
	if want := `{"type":"settlement","decision_id":"id-1","timestamp":"2026-03-10T12:00:02.123456Z","outcome":"completed","pool":"a","queue_ms":1500,"usage":{"input_tokens":40,"cached_input_tokens":0,"output_tokens":7,"reasoning_tokens":0,"complete":true},` +
		`"limits":[{"rule":"limited/l","binding":"limited-b","enforced":true,"limit":5000,"reserved":150,"charged":47,"available":4953}]}`; lines[2].text != want {
		t.Errorf("got  %s\nwant %s", lines[2].text, want)
	}
	s := l.Stats()
	if s.Written != (Counts{1, 1, 1}) || s.Dropped != (Counts{}) || s.Queued != 0 || s.QueuedBytes != 0 || int(s.Bytes) != len(readFile(t, l.cfg.Path)) {
		t.Errorf("stats %+v", s)
	}
}

// TestSampling: a share of plain allows is left out, and nothing else is.
func TestSampling(t *testing.T) {
	set := testSet(t)
	for model, want := range map[string]bool{"m": false, "denied": true, "warned": true, "noted": true, "erring": true} {
		l := testLog(t, leftOut)
		in := testInput(model)
		d := set.Decide(t.Context(), in)
		// A set with a binding that only audits may still turn the record into one to
		// keep, which the rehearsal decides.
		kept := l.Decided("id", "", testTime, in, d)
		l.Rehearsed("id", testTime, policy.RehearsalOutcome{})
		l.Settled("id", testTime, "completed", "a", 0, policy.Usage{}, d, nil, nil)
		finish(t, l)
		got := summary(readLines(t, l.cfg.Path))
		if want && (!kept || got != "decision:id settlement:id") || !want && got != "" {
			t.Errorf("%s: kept %v, lines %q", model, kept, got)
		}
		if s := l.Stats(); s.Held != 0 || (s.SampledOut == 1) == want {
			t.Errorf("%s: %+v", model, s)
		}
	}
}

// TestRehearsalKeepsDecision: a decision that sampling leaves out is written in
// full once a binding that only audits matches.
func TestRehearsalKeepsDecision(t *testing.T) {
	set := testSet(t)
	l := testLog(t, leftOut)
	for _, model := range []string{"audited", "m"} {
		in := testInput(model)
		d := set.Decide(t.Context(), in)
		r := d.Rehearsal()
		if !l.Decided(model, "", testTime, in, d) {
			t.Errorf("%s: the caller need not settle", model)
		}
		r.Run(t.Context(), nil)
		l.Rehearsed(model, testTime, r.Outcome())
		l.Settled(model, testTime, "completed", "a", 0, policy.Usage{}, d, nil, nil)
	}
	finish(t, l)
	lines := readLines(t, l.cfg.Path)
	if got, want := summary(lines), "decision:audited shadow:audited settlement:audited"; got != want {
		t.Errorf("lines %s, want %s", got, want)
	}
	if !strings.Contains(lines[1].text, `"rule":"audits/v"`) {
		t.Errorf("shadow %s", lines[1].text)
	}
	if s := l.Stats(); s.SampledOut != 1 || s.Written != (Counts{1, 1, 1}) || s.Held != 0 {
		t.Errorf("%+v", s)
	}
}

// TestLeftOutRehearsal: a decision whose rehearsal found no room is kept, since one
// of its bindings may have matched, and the log says that it was left out.
func TestLeftOutRehearsal(t *testing.T) {
	set, in := testSet(t), testInput("m")
	l := testLog(t, leftOut)
	d := set.Decide(t.Context(), in)
	l.Decided("id", "", testTime, in, d)
	l.Rehearsed("id", testTime, policy.RehearsalOutcome{LeftOut: true})
	l.Settled("id", testTime, "completed", "a", 0, policy.Usage{}, d, nil, nil)
	finish(t, l)
	lines := readLines(t, l.cfg.Path)
	if got, want := summary(lines), "decision:id shadow:id settlement:id"; got != want {
		t.Fatalf("lines %s, want %s", got, want)
	}
	if !strings.Contains(lines[1].text, `"left_out":true`) {
		t.Errorf("shadow %s", lines[1].text)
	}
}

// TestSkippedRehearsal: without an outcome a held record goes with its
// settlement.
func TestSkippedRehearsal(t *testing.T) {
	set, in := testSet(t), testInput("audited")
	l := testLog(t, leftOut)
	d := set.Decide(t.Context(), in)
	l.Decided("id", "", testTime, in, d)
	if s := l.Stats(); s.Held != 1 {
		t.Errorf("%+v", s)
	}
	l.Settled("id", testTime, "completed", "a", 0, policy.Usage{}, d, nil, nil)
	if s := l.Stats(); s.Held != 0 || s.Queued != 0 || s.SampledOut != 1 {
		t.Errorf("%+v", s)
	}
	finish(t, l)
}

// TestHeldRecordsAreBounded: the oldest are written rather than lost.
func TestHeldRecordsAreBounded(t *testing.T) {
	set, in := testSet(t), testInput("m")
	l := testLog(t, func(c *Config) { leftOut(c); c.Queue = 5 })
	for i := range 7 {
		l.Decided(fmt.Sprint(i), "", testTime, in, set.Decide(t.Context(), in))
	}
	if s := l.Stats(); s.Held != 5 || s.Queued != 2 {
		t.Errorf("%+v", s)
	}
	// What was crowded out has its settlement, and is written once; what was not goes.
	d := set.Decide(t.Context(), in)
	l.Rehearsed("1", testTime, policy.RehearsalOutcome{LogInFull: true})
	for i := range 7 {
		l.Settled(fmt.Sprint(i), testTime, "completed", "a", 0, policy.Usage{}, d, nil, nil)
	}
	finish(t, l)
	if got, want := summary(readLines(t, l.cfg.Path)), "decision:0 decision:1 shadow:1 settlement:0 settlement:1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if s := l.Stats(); s.Held != 0 || s.SampledOut != 5 {
		t.Errorf("%+v", s)
	}
}

// TestWrittenIDsAreBounded: beyond the bound the oldest are forgotten.
func TestWrittenIDsAreBounded(t *testing.T) {
	h := newHeld(2, 1<<20)
	for i := range 30 {
		h.put(fmt.Sprint(i), []byte("x"))
	}
	if n := len(h.byID); n != 2+2*writtenPerRecord {
		t.Errorf("%d ids", n)
	}
	if was, _ := h.settle("11"); was {
		t.Error("the oldest is remembered")
	}
	if was, kept := h.settle("12"); !was || !kept {
		t.Errorf("the last within the bound: %v %v", was, kept)
	}
	if was, kept := h.settle("28"); !was || kept {
		t.Errorf("one that waits: %v %v", was, kept)
	}
}

func TestHeldBytesAreBounded(t *testing.T) {
	h := newHeld(100, 10)
	if out := h.put("a", []byte("123456")); out != nil {
		t.Errorf("%q", out)
	}
	if out := h.put("b", []byte("123456")); len(out) != 1 || h.len() != 1 {
		t.Errorf("%q", out)
	}
	if out := h.put("c", make([]byte, 100)); len(out) != 1 || h.len() != 1 {
		t.Errorf("one that is too large by itself is held alone: %q", out)
	}
	if h.keep("c"); h.bytes != 0 {
		t.Errorf("%d bytes", h.bytes)
	}
	if was, kept := h.settle("c"); !was || !kept || h.bytes != 0 || h.len() != 0 {
		t.Error(was, kept, h.bytes)
	}
	if h.keep("c") != nil {
		t.Error("a settled record is held")
	}
}

// TestSampler: the share is met, and the choice for an id is part of the
// format, since replicas and releases must agree about it.
func TestSampler(t *testing.T) {
	const n = 200_000
	for _, share := range []float64{0, 0.001, 0.1, 0.5, 1} {
		s, kept := newSampler(share), 0
		for i := range n {
			if s.keeps(fmt.Sprintf("0197c2d4-7a10-7cc3-9a53-%012x", i)) {
				kept++
			}
		}
		if sigma := math.Sqrt(n * share * (1 - share)); math.Abs(float64(kept)-n*share) > 5*sigma {
			t.Errorf("share %v keeps %d of %d", share, kept, n)
		}
	}
	for id, want := range map[string]uint64{"": 0xf52a15e9a9b5e89b, "0197c2d4-7a10-7cc3-9a53-1f0a9b6f2e11": 0x58d526d8fcc9b64c} {
		if got := hashID(id); got != want {
			t.Errorf("hash of %q is %#x, want %#x", id, got, want)
		}
	}
}

func TestIdentifiers(t *testing.T) {
	set, in := testSet(t), testInput("denied")
	write := func(change func(c *Config)) string {
		l := testLog(t, change)
		l.Decided("id", "", testTime, in, set.Decide(t.Context(), in))
		finish(t, l)
		text, _, _ := strings.Cut(readLines(t, l.cfg.Path)[0].text, `,"duration_us"`)
		return text
	}
	hashed := write(nil)
	for _, clear := range []string{"u-1", "s-1", "10.20.1.7"} {
		if strings.Contains(hashed, `"`+clear+`"`) {
			t.Errorf("%s is in the clear: %s", clear, hashed)
		}
	}
	if strings.Count(hashed, `"hmac:`) != 3 || write(nil) != hashed {
		t.Errorf("hashes: %s", hashed)
	}
	if other := write(func(c *Config) { c.HashKey = []byte("another key of the tests, 32 bytes") }); other == hashed {
		t.Error("another key gives the same hashes")
	}
	if none := write(func(c *Config) { c.HashKey = nil }); strings.Count(none, `:"hmac:"`) != 3 || strings.Contains(none, "u-1") {
		t.Errorf("without a key: %s", none)
	}
	plain := write(func(c *Config) { c.Plain = []string{"user", "session_id", "source_ip"} })
	for _, want := range []string{`"user":"u-1"`, `"session_id":"s-1"`, `"source_ip":"10.20.1.7"`} {
		if !strings.Contains(plain, want) {
			t.Errorf("no %s in %s", want, plain)
		}
	}
	one := write(func(c *Config) { c.Plain = []string{"source_ip"} })
	if !strings.Contains(one, `"source_ip":"10.20.1.7"`) || strings.Contains(one, `"u-1"`) {
		t.Error(one)
	}
	in.Request.User, in.Request.SessionID = nil, nil
	if absent := write(func(c *Config) { c.Plain = []string{"user"} }); strings.Contains(absent, `"user"`) || strings.Contains(absent, `"session_id"`) {
		t.Error(absent)
	}
}

// TestNoSecrets: credentials do not reach the file even where the configuration
// lets policies read them, and what a value that can't be encoded holds does
// not either.
func TestNoSecrets(t *testing.T) {
	set, in := testSet(t), testInput("erring")
	for _, name := range credentialHeaders {
		in.Request.Headers[name] = "MARK-credential"
	}
	in.Principal.Claims["undeclared"] = "MARK-claim"
	in.Principal.Claims["dept"] = func() string { return "MARK-function" }
	var logged strings.Builder
	l := testLog(t, nil)
	l.log = slog.New(slog.NewTextHandler(&logged, nil))
	d := set.Decide(t.Context(), in)
	if len(d.Errors) == 0 || d.Errors[0].Detail == "" { // it can hold values of the input
		t.Fatal("the policy did not fail")
	}
	if !l.Decided("id", "", testTime, in, d) {
		t.Error("the record is lost")
	}
	finish(t, l)
	lines := readLines(t, l.cfg.Path)
	if all := lines[0].text + logged.String(); strings.Contains(all, "MARK") || strings.Contains(all, d.Errors[0].Detail) || !strings.Contains(all, `"claims":{}`) || !strings.Contains(all, "claims are left out") {
		t.Error(all)
	}
	if len(in.Request.Headers) != 1+len(credentialHeaders) {
		t.Error("the input was changed")
	}
	if s := l.Stats(); s.Errors != 1 || s.Written.Decision != 1 {
		t.Errorf("%+v", s)
	}
}

// TestNothingIsRetained: a record holds what was true during the call.
func TestNothingIsRetained(t *testing.T) {
	set, in := testSet(t), testInput("denied")
	l := testLog(t, func(c *Config) { c.Plain = []string{"user"} })
	d := set.Decide(t.Context(), in)
	charged := []int64{5}
	l.Decided("id", "", testTime, in, d)
	l.Settled("id", testTime, "completed", "a", 0, policy.Usage{}, d, charged, nil)
	*in.Request.User, in.Request.Headers["x-app"], in.Principal.Groups[0], d.Denials[0].Rule, charged[0] = "later", "later", "later", "later", 6
	finish(t, l)
	if got := string(readFile(t, l.cfg.Path)); strings.Contains(got, "later") {
		t.Error(got)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		name   string
		change func(c *Config)
		want   string
	}{
		{"no path", func(c *Config) { c.Path = "" }, "path is missing, should be the file to write"},
		{"small files", func(c *Config) { c.MaxBytes = 1000 }, "maxBytes is 1000, should be at least 65536"},
		{"negative", func(c *Config) { c.MaxFiles = -1 }, "maxFiles is -1, should be the number of rotated files to keep, or 0 for all"},
		{"verdict", func(c *Config) { c.Sample = map[string]float64{"warn": 1} }, "sample.warn is no verdict; shares are given for allow and deny"},
		{"share", func(c *Config) { c.Sample = map[string]float64{"allow": 1.5} }, "sample.allow is 1.5, should be a share between 0 and 1"},
		{"no number", func(c *Config) { c.Sample = map[string]float64{"allow": math.NaN()} }, "sample.allow is NaN, should be a share between 0 and 1"},
		{"denials", func(c *Config) { c.Sample = map[string]float64{"deny": 0.5} }, "sample.deny is 0.5, should be 1: only plain allows can be sampled"},
		{"queue", func(c *Config) { c.Queue = 0 }, "queue is 0, should be between 1 and 1048576 records"},
		{"queue bytes", func(c *Config) { c.QueueBytes = 5 }, "queueBytes is 5, should be at least 1048576"},
		{"key", func(c *Config) { c.HashKey = []byte("short") }, "hashKeyFile holds 5 bytes, should hold 32 random bytes or more; for example: openssl rand -out decisions.key 32"},
		{"plain", func(c *Config) { c.Plain = []string{"user", "ip"} }, `plain[1] "ip" is unknown, should be one of user, session_id, source_ip`},
		{"no pointer", func(c *Config) { c.Mask = []string{"input"} }, `mask[0] "input" is no JSON pointer, should begin with a slash, as in /input/request/user`},
		{"escape", func(c *Config) { c.Drop = []string{"/input/~2"} }, `drop[0] "/input/~2" is no JSON pointer: a tilde is written ~0, a slash in a name ~1`},
		{"unknown", func(c *Config) { c.Drop = []string{"/input/request/usr"} }, `drop[0] "/input/request/usr" names nothing in a decision, shadow or settlement record`},
		{"below a text", func(c *Config) { c.Drop = []string{"/input/tenant/id/x"} }, `drop[0] "/input/tenant/id/x" names nothing in a decision, shadow or settlement record`},
		{"below a time", func(c *Config) { c.Drop = []string{"/input/now/wall"} }, `drop[0] "/input/now/wall" names nothing in a decision, shadow or settlement record`},
		{"no index", func(c *Config) { c.Drop = []string{"/limits/01"} }, `drop[0] "/limits/01" names nothing in a decision, shadow or settlement record`},
		{"needed", func(c *Config) { c.Mask = []string{"/decision_id"} }, `mask[0] "/decision_id" can't be taken away: no record can be read without it`},
		{"both", func(c *Config) { c.Mask, c.Drop = []string{"/message"}, []string{"/message"} }, `mask[0] "/message" is in drop as well, which takes the value out; give it once`},
		{"many", func(c *Config) {
			for i := range 65 {
				c.Drop = append(c.Drop, fmt.Sprintf("/limits/%d", i))
			}
		}, "drop has 65 entries, should have at most 64"},
		{"folder", func(c *Config) { c.Path = filepath.Join(dir, "none", "d.jsonl") }, "no such file or directory"},
		{"a folder", func(c *Config) { c.Path = dir }, "is a directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Path = filepath.Join(dir, "decisions.jsonl")
			c.change(&cfg)
			l, err := Open(cfg, slog.New(slog.DiscardHandler))
			if err == nil {
				l.Close()
				t.Fatal("opened")
			}
			if text := err.Error(); !strings.HasPrefix(text, "cannot open the decision log: ") || !strings.HasSuffix(text, c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

// TestOneWriter: two logs on one path would rotate each other's files away.
func TestOneWriter(t *testing.T) {
	l := testLog(t, nil)
	if other, err := Open(l.cfg, l.log); err == nil || !strings.Contains(err.Error(), "another gateway writes this log; give each its own path") {
		t.Errorf("%v %v", other, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(l.cfg, l.log)
	if err != nil {
		t.Fatal(err)
	}
	finish(t, again)
}
