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
			p := player{keyID: "new-key-id-0"}
			golden(t, file, p.play(t, string(script)))
		})
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
