package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// record is what the tests read of a line of the decision log.
type record struct {
	Type     string
	ID       string `json:"decision_id"`
	Revision string
	Gateway  string
	Verdict  string
	Rule     string
	Outcome  string
	Pool     string
	Input    struct {
		Request struct {
			User *string
		}
		Tenant struct{ ID string }
	}
	Usage struct {
		Output int64 `json:"output_tokens"`
	}
}

// readRecords reads a decision log.
func readRecords(t *testing.T, file string) (list []record) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // being written
		}
		var r record
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		list = append(list, r)
	}
	return list
}

// Every verdict is in the decision log, with what rehearsals made of it and how it ended; the answer, the log and the ledger
// have one id for it. Neither a prompt nor a credential is in it.
func TestDecisionLog(t *testing.T) {
	r := startReloading(t, unwatched, func(dir string) {
		editConfig(dir, "decisionLog: { path: decisions.jsonl, hashKeyFile: cache.key, gateway: gw-7 }\n")
	})
	file := filepath.Join(r.d.dir, "decisions.jsonl")
	ask := func(tenant string, more map[string]any) string {
		t.Helper()
		body := user("tell me of rivers")
		body["user"] = "ada@example.com"
		maps.Copy(body, more)
		got, err := r.tour.ask(t.Context(), tenant, body)
		if err != nil {
			t.Fatal(err)
		}
		return got.header.Get("x-sluice-decision-id")
	}
	allowed := ask("acme", nil)
	denied := ask("initech", map[string]any{"tools": []any{map[string]any{"type": "function", "function": map[string]any{"name": "shell"}}}})
	seen := map[string]record{}
	has := func(file string, keys ...string) func() bool {
		return func() bool {
			if _, err := os.Stat(file); err != nil {
				return false
			}
			for _, rec := range readRecords(t, file) {
				seen[rec.Type+" "+rec.ID] = rec
			}
			return !slices.ContainsFunc(keys, func(key string) bool { _, ok := seen[key]; return !ok })
		}
	}
	soon(t, "the records", stackPatience, has(file, "decision "+allowed, "shadow "+allowed, "settlement "+allowed, "decision "+denied))
	d := seen["decision "+allowed]
	if d.Verdict != "allow" || d.Gateway != "gw-7" || d.Revision != r.status().Revision || d.Input.Tenant.ID != "acme" {
		t.Errorf("the allow: %+v", d)
	}
	if d.Input.Request.User == nil || !strings.HasPrefix(*d.Input.Request.User, "hmac:") {
		t.Errorf("the user is not hashed: %v", d.Input.Request.User)
	}
	if s := seen["settlement "+allowed]; s.Outcome != "completed" || s.Pool != "general" || s.Usage.Output != 4 {
		t.Errorf("the settlement: %+v", s)
	}
	if d := seen["decision "+denied]; d.Verdict != "deny" || !strings.HasPrefix(d.Rule, "tool-use/") {
		t.Errorf("the denial: %+v", d)
	}
	for _, row := range rows(t, r.a) {
		if id := row.DecisionID; id != allowed && id != denied {
			t.Errorf("a row has decision %q", id)
		}
	}
	soon(t, "the counts", stackPatience, func() bool { return r.a.decisions.Stats().Written.Settlement == 1 })
	r.wantMetrics(
		`sluice_decision_log_records_total{result="written",type="decision"} 2`,
		`sluice_decision_log_records_total{result="written",type="settlement"} 1`,
		`sluice_decision_log_records_total{result="dropped",type="decision"} 0`,
	)

	// A tool moves the file away and sends SIGHUP.
	rename(t, file, file+".moved")
	r.hangups <- struct{}{}
	soon(t, "the reload", stackPatience, func() bool { return r.status().Generation == 2 })
	again := ask("acme", nil)
	soon(t, "records in a new file", stackPatience, has(file, "decision "+again, "settlement "+again))

	for _, name := range []string{file, file + ".moved"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{"rivers", "slk_", "ada@example.com", r.d.keys["acme"]} {
			if bytes.Contains(text, []byte(secret)) {
				t.Errorf("the decision log holds %q", secret)
			}
		}
	}
}

// Without a path nothing is written, and decisions have ids all the same.
func TestNoDecisionLog(t *testing.T) {
	r := startReloading(t, unwatched)
	got, err := r.tour.ask(t.Context(), "acme", user("hello"))
	if err != nil || got.header.Get("x-sluice-decision-id") == "" {
		t.Errorf("%v %v", err, got.header)
	}
	if strings.Contains(metricsText(t, r.a), "sluice_decision_log_") {
		t.Error("there are series of a decision log that there is not")
	}
}

// A log that is full and must lose nothing refuses requests, and /readyz says why. The folder of the log is
// the disk that fails.
func TestFullDecisionLogRefuses(t *testing.T) {
	r := startReloading(t, unwatched, func(dir string) {
		if err := os.Mkdir(filepath.Join(dir, "log"), 0o755); err != nil {
			t.Fatal(err)
		}
		editConfig(dir, "decisionLog: { path: log/decisions.jsonl, queue: 1, onFull: Refuse }\n")
	})
	if status, _ := r.ask("acme"); status != 200 {
		t.Fatalf("got %d", status)
	}
	// The path leads nowhere once the file is opened anew.
	rename(t, filepath.Join(r.d.dir, "log"), filepath.Join(r.d.dir, "gone"))
	r.hangups <- struct{}{}
	soon(t, "the reload", stackPatience, func() bool { return r.status().Last != nil })
	soon(t, "a refusal", stackPatience, func() bool { status, _ := r.ask("acme"); return status == 503 })
	soon(t, "the word of it", stackPatience, func() bool {
		return strings.Contains(r.readyz(), `"details":["reload_failed","decision_log_failing","decision_log_full"]`)
	})
	rename(t, filepath.Join(r.d.dir, "gone"), filepath.Join(r.d.dir, "log"))
	soon(t, "requests to be served again", stackPatience, func() bool { status, _ := r.ask("acme"); return status == 200 })
}

// A log that can't be written serves on by default, and is told of all the same.
func TestFailingDecisionLogIsTold(t *testing.T) {
	r := startReloading(t, unwatched, func(dir string) {
		if err := os.Mkdir(filepath.Join(dir, "log"), 0o755); err != nil {
			t.Fatal(err)
		}
		editConfig(dir, "decisionLog: { path: log/decisions.jsonl }\n")
	})
	const series = `sluice_degraded{part="decision_log",reason="failing"} 1`
	if got := r.readyz(); strings.Contains(got, "decision_log") || strings.Contains(metricsText(t, r.a), series) {
		t.Fatalf("before: /readyz says %s", got)
	}
	// The path leads nowhere once the file is opened anew.
	rename(t, filepath.Join(r.d.dir, "log"), filepath.Join(r.d.dir, "gone"))
	r.hangups <- struct{}{}
	soon(t, "the reload", stackPatience, func() bool { return r.status().Last != nil })
	if status, _ := r.ask("acme"); status != 200 {
		t.Fatalf("got %d", status)
	}
	soon(t, "the word of it", stackPatience, func() bool { return strings.Contains(r.readyz(), `"decision_log_failing"`) })
	if got := metricsText(t, r.a); !strings.Contains(got, series) {
		t.Errorf("no series %s", series)
	}
	if status, _ := r.ask("acme"); status != 200 {
		t.Errorf("with a failing log: got %d", status)
	}
	rename(t, filepath.Join(r.d.dir, "gone"), filepath.Join(r.d.dir, "log"))
	soon(t, "the end of it", stackPatience, func() bool {
		return !strings.Contains(r.readyz(), "decision_log") && !strings.Contains(metricsText(t, r.a), series)
	})
}
