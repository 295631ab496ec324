package gateway

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// sentence is one statement of the HTTP contract with what holds it.
type sentence struct {
	id, text string
	tests    []string
	prose    bool
	open     string
}

// readContract reads testdata/contract.txt: a sentence begins with its section and
// number, the indented lines below name its tests.
func readContract(t *testing.T) []sentence {
	t.Helper()
	raw, err := os.ReadFile("testdata/contract.txt")
	if err != nil {
		t.Fatal(err)
	}
	begins := regexp.MustCompile(`^(\d+(?:\.\d+)+) (.+)$`)
	var out []sentence
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSuffix(line, "\n")
		switch rest, indented := strings.CutPrefix(line, "\t"); {
		case line == "" || strings.HasPrefix(line, "#"):
		case !indented:
			m := begins.FindStringSubmatch(line)
			if m == nil {
				t.Fatalf("no sentence: %q", line)
			}
			out = append(out, sentence{id: m[1], text: m[2]})
		case len(out) == 0:
			t.Fatalf("a test without a sentence: %q", line)
		case rest == "prose":
			out[len(out)-1].prose = true
		case strings.HasPrefix(rest, "open "):
			out[len(out)-1].open = strings.TrimPrefix(rest, "open ")
		default:
			out[len(out)-1].tests = append(out[len(out)-1].tests, rest)
		}
	}
	return out
}

// testsOf lists the tests of a directory of the repository.
func testsOf(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests in %s (%v)", dir, err)
	}
	declares := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w*)\(`)
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

// TestContract: every sentence of the HTTP contract names tests that exist, or says
// why it has none.
func TestContract(t *testing.T) {
	known := map[string]map[string]bool{}
	seen := map[string]bool{}
	for _, s := range readContract(t) {
		if seen[s.id] {
			t.Errorf("%s stands twice", s.id)
		}
		seen[s.id] = true
		if len(s.tests) == 0 && !s.prose && s.open == "" {
			t.Errorf("%s has no test and does not say why: %s", s.id, s.text)
		}
		if s.prose && len(s.tests) > 0 {
			t.Errorf("%s is prose with a test: %s", s.id, s.text)
		}
		for _, ref := range s.tests {
			where, what, ok := strings.Cut(ref, ":")
			switch {
			case !ok:
				t.Errorf("%s: %q is not dir:Test or file:path", s.id, ref)
			case where == "file":
				if _, err := os.Stat(filepath.Join("..", what)); err != nil {
					t.Errorf("%s: %v", s.id, err)
				}
			default:
				if known[where] == nil {
					known[where] = testsOf(t, where)
				}
				if !known[where][what] {
					t.Errorf("%s: %s has no %s", s.id, where, what)
				}
			}
		}
	}
}
