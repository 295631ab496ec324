package policy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// sentence is one statement of the format with what holds it.
type sentence struct {
	id, text string
	tests    []string
	prose    bool
	open     string
}

// readConformance reads testdata/conformance.txt: a sentence begins with its
// section and number, the indented lines below name its tests.
func readConformance(t *testing.T) []sentence {
	t.Helper()
	raw, err := os.ReadFile("testdata/conformance.txt")
	if err != nil {
		t.Fatal(err)
	}
	begins := regexp.MustCompile(`^(\d+\.\d+) (.+)$`)
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
	declares := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w*)\(`)
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

// TestConformance: every sentence of the format that demands something names
// tests that exist, and what is open is said in the design note.
func TestConformance(t *testing.T) {
	note, err := os.ReadFile("../docs/0003-policy-format.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]map[string]bool{}
	seen := map[string]bool{}
	sections := map[string]int{}
	all := readConformance(t)
	for _, s := range all {
		section, _, _ := strings.Cut(s.id, ".")
		sections[section]++
		if seen[s.id] {
			t.Errorf("%s stands twice", s.id)
		}
		seen[s.id] = true
		if s.prose == (len(s.tests) > 0) {
			t.Errorf("%s has no test, or is prose with one: %s", s.id, s.text)
		}
		if s.open != "" && !strings.Contains(string(note), "| "+s.id+" | "+s.open+" |") {
			t.Errorf("%s is open, and docs/0003-policy-format.md does not say: | %s | %s |", s.id, s.id, s.open)
		}
		for _, ref := range s.tests {
			where, what, _ := strings.Cut(ref, ":")
			if where == "file" {
				if _, err := os.Stat(filepath.Join("..", what)); err != nil {
					t.Errorf("%s: %v", s.id, err)
				}
				continue
			}
			if known[where] == nil {
				known[where] = testsOf(t, where)
			}
			name, golden, hasCase := strings.Cut(what, "/")
			if !known[where][name] {
				t.Errorf("%s: %s has no %s", s.id, where, name)
			}
			if hasCase {
				if _, err := os.Stat(filepath.Join("..", where, "testdata/faulty", golden+".yaml")); err != nil {
					t.Errorf("%s: %v", s.id, err)
				}
			}
		}
	}
	for section, least := range map[string]int{"0": 8, "1": 20, "2": 38, "3": 25, "4": 14, "5": 14, "6": 6, "7": 20, "8": 13, "9": 10, "10": 9, "11": 20, "12": 7, "13": 7} {
		if sections[section] < least {
			t.Errorf("section %s has %d sentences, want %d and more", section, sections[section], least)
		}
	}
}
