package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/ledger"
)

// The transcripts in testdata/script are command lines, each after a dollar sign, and what they print.
// A transcript runs in a folder of its own that starts as a copy of testdata/script/files; a line may end in
// `< FILE` and `> FILE`. Lines from standard error carry a leading "2|", and an exit code other than 0 is
// shown in brackets. Lines before the first command stay as they are.
func TestScripts(t *testing.T) {
	playScripts(t, "testdata/script/*.txt", nil)
}

// playScripts plays the transcripts that glob names. folders are copied beside the files of the
// transcript, by the name they get.
func playScripts(t *testing.T, glob string, folders map[string]string) {
	t.Helper()
	files, err := filepath.Glob(glob)
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			script, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			file, err := filepath.Abs(file)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS("testdata/script/files")); err != nil {
				t.Fatal(err)
			}
			for name, from := range folders {
				if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(from)); err != nil {
					t.Fatal(err)
				}
			}
			t.Chdir(dir)
			makeLedger(t, "ledger.db")
			p := player{keyID: "new-key-id-0"}
			golden(t, file, p.play(t, string(script)))
		})
	}
}

// makeLedger writes a ledger of one November: two tenants, a refusal, a request without a price, and one
// that ended in December.
func makeLedger(t *testing.T, path string) {
	t.Helper()
	l, err := ledger.Open(path, ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	priced := tenancy.Prices{Input: 150_000, CachedInput: 15_000, Output: 600_000}
	old := tenancy.Prices{Input: 300_000, CachedInput: 30_000, Output: 900_000}
	row := func(id, tenant string, start time.Time, input, cached, output int64, p tenancy.Prices) *tenancy.Row {
		r := &tenancy.Row{
			ID: id, Tenant: tenant, Team: tenant + "-team", Principal: "key:k-" + tenant, Operation: "chat", Dialect: "openai",
			Model: "tiny", RequestedModel: "tiny", Pool: "general", Worker: "w1", Class: "standard",
			Status: 200, Outcome: tenancy.OutcomeCompleted, Phase: tenancy.PhaseDone, Attempts: 1,
			InputTokens: input, CachedTokens: cached, OutputTokens: output,
			Currency: "USD", Prices: p, Start: start, Duration: time.Second,
		}
		cost := func(tokens, price int64) int64 { return (tokens*price + 500_000) / 1_000_000 }
		r.Costs = tenancy.Costs{Input: cost(input-cached, p.Input), CachedInput: cost(cached, p.CachedInput), Output: cost(output, p.Output)}
		return r
	}
	at := func(day int) time.Time { return time.Date(2026, 11, day, 9, 0, 0, 0, time.UTC) }
	rows := []*tenancy.Row{
		row("r1", "acme", at(1), 900, 600, 250, priced),
		row("r2", "acme", at(2), 901, 0, 7, old),
		row("r3", "other", at(3), 33, 32, 1, priced),
		row("r4", "acme", at(4), 0, 0, 0, tenancy.Prices{}),
		row("r5", "acme", at(5), 12, 0, 5, tenancy.Prices{}),
		row("r6", "acme", time.Date(2026, 11, 30, 23, 59, 59, 500_000_000, time.UTC), 10, 0, 10, priced),
	}
	rows[3].Currency, rows[3].Outcome, rows[3].Status = "", tenancy.OutcomeDenied, 429
	rows[4].Currency, rows[4].Model, rows[4].Flags = "", "free", tenancy.FlagUnpriced
	for _, r := range rows {
		if err := l.Record(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// player runs one transcript.
type player struct {
	keyID string   // stands for the ids of new keys
	made  []string // ids of the keys made so far
}

// play runs the command lines of a transcript and returns the transcript they make.
func (p *player) play(t *testing.T, script string) string {
	t.Helper()
	var out strings.Builder
	started := false
	for line := range strings.Lines(script) {
		switch {
		case strings.HasPrefix(line, "$ "):
			started = true
			out.WriteString(line)
			out.WriteString(p.line(t, strings.TrimSpace(line[2:])))
		case !started:
			out.WriteString(line)
		}
	}
	return out.String()
}

// scriptNow is the time in transcripts.
func scriptNow() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }

func (p *player) line(t *testing.T, line string) string {
	t.Helper()
	if name, ok := strings.CutPrefix(line, "cat "); ok {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return p.withoutSecrets(string(text))
	}
	line, into, _ := strings.Cut(line, " > ")
	line, from, _ := strings.Cut(line, " < ")
	args := strings.Fields(line)
	if args[0] != "sluice" {
		t.Fatalf("a transcript runs only sluice and cat, not %q", args[0])
	}
	var stdin, stdout, stderr bytes.Buffer
	if from != "" {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		stdin.Write(text)
	}
	code := execute(t.Context(), scriptNow, args[1:], &stdin, &stdout, &stderr)
	var out strings.Builder
	p.withoutSecrets(stdout.String()) // takes note of new keys
	if into != "" {
		if err := os.WriteFile(into, stdout.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	} else {
		out.WriteString(stdout.String())
	}
	for line := range strings.Lines(stderr.String()) {
		out.WriteString("2|" + line)
	}
	if code != exitOK {
		fmt.Fprintf(&out, "[%d]\n", code)
	}
	return p.withoutSecrets(out.String())
}

var (
	keyPattern    = regexp.MustCompile(`slk_([a-z0-9]+)_[A-Za-z0-9_-]+`)
	digestPattern = regexp.MustCompile(`\b[0-9a-f]{64}\b`)
)

// withoutSecrets replaces what is random in the output of `keys create`: secrets, digests, and the ids of
// the keys made so far, by a text of the same length.
func (p *player) withoutSecrets(text string) string {
	for _, m := range keyPattern.FindAllStringSubmatch(text, -1) {
		if len(m[1]) == len(p.keyID) {
			p.made = append(p.made, m[1])
		}
	}
	text = keyPattern.ReplaceAllString(text, "slk_${1}_SECRET")
	for _, id := range p.made {
		text = strings.ReplaceAll(text, id, p.keyID)
	}
	return digestPattern.ReplaceAllString(text, "DIGEST")
}
