// Package sentences reads the lists that say which tests hold each sentence of a
// specification. It is for tests: what can't be read fails the one that asks.
package sentences

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Sentence is one statement of a specification with what holds it.
type Sentence struct {
	ID, Text string
	// Tests are dir:Test, the directory being that of the repository, or file:path.
	Tests []string
	// Prose marks what explains and demands nothing.
	Prose bool
	// Open is why no test holds it, empty where one does.
	Open string
}

// begins is the line of a sentence: its section and number, and what it says.
var begins = regexp.MustCompile(`^(\d+(?:\.\d+)+) (.+)$`)

// Read reads a list, in which the indented lines below a sentence name its tests.
func Read(t testing.TB, file string) []Sentence {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []Sentence
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSuffix(line, "\n")
		switch rest, indented := strings.CutPrefix(line, "\t"); {
		case line == "" || strings.HasPrefix(line, "#"):
		case !indented:
			m := begins.FindStringSubmatch(line)
			if m == nil {
				t.Fatalf("no sentence: %q", line)
			}
			out = append(out, Sentence{ID: m[1], Text: m[2]})
		case len(out) == 0:
			t.Fatalf("a test without a sentence: %q", line)
		case rest == "prose":
			out[len(out)-1].Prose = true
		case strings.HasPrefix(rest, "open "):
			out[len(out)-1].Open = strings.TrimPrefix(rest, "open ")
		default:
			out[len(out)-1].Tests = append(out[len(out)-1].Tests, rest)
		}
	}
	return out
}

var declares = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w*)\(`)

// TestsOf lists the tests that a directory declares.
func TestsOf(t testing.TB, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests in %s (%v)", dir, err)
	}
	out := map[string]bool{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range declares.FindAllStringSubmatch(string(raw), -1) {
			out[m[1]] = true
		}
	}
	return out
}
