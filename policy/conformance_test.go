package policy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/internal/sentences"
)

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
	all := sentences.Read(t, "testdata/conformance.txt")
	for _, s := range all {
		section, _, _ := strings.Cut(s.ID, ".")
		sections[section]++
		if seen[s.ID] {
			t.Errorf("%s stands twice", s.ID)
		}
		seen[s.ID] = true
		if s.Prose == (len(s.Tests) > 0) {
			t.Errorf("%s has no test, or is prose with one: %s", s.ID, s.Text)
		}
		if s.Open != "" && !strings.Contains(string(note), "| "+s.ID+" | "+s.Open+" |") {
			t.Errorf("%s is open, and docs/0003-policy-format.md does not say: | %s | %s |", s.ID, s.ID, s.Open)
		}
		for _, ref := range s.Tests {
			where, what, _ := strings.Cut(ref, ":")
			if where == "file" {
				if _, err := os.Stat(filepath.Join("..", what)); err != nil {
					t.Errorf("%s: %v", s.ID, err)
				}
				continue
			}
			if known[where] == nil {
				known[where] = sentences.TestsOf(t, filepath.Join("..", where))
			}
			name, golden, hasCase := strings.Cut(what, "/")
			if !known[where][name] {
				t.Errorf("%s: %s has no %s", s.ID, where, name)
			}
			if hasCase {
				if _, err := os.Stat(filepath.Join("..", where, "testdata/faulty", golden+".yaml")); err != nil {
					t.Errorf("%s: %v", s.ID, err)
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
