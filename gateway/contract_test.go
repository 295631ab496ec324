package gateway

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/internal/sentences"
)

// TestContract: every sentence of the HTTP contract names tests that exist, or says
// why it has none.
func TestContract(t *testing.T) {
	known := map[string]map[string]bool{}
	seen := map[string]bool{}
	for _, s := range sentences.Read(t, "testdata/contract.txt") {
		if seen[s.ID] {
			t.Errorf("%s stands twice", s.ID)
		}
		seen[s.ID] = true
		if len(s.Tests) == 0 && !s.Prose && s.Open == "" {
			t.Errorf("%s has no test and does not say why: %s", s.ID, s.Text)
		}
		if s.Prose && len(s.Tests) > 0 {
			t.Errorf("%s is prose with a test: %s", s.ID, s.Text)
		}
		for _, ref := range s.Tests {
			where, what, ok := strings.Cut(ref, ":")
			switch {
			case !ok:
				t.Errorf("%s: %q is not dir:Test or file:path", s.ID, ref)
			case where == "file":
				if _, err := os.Stat(filepath.Join("..", what)); err != nil {
					t.Errorf("%s: %v", s.ID, err)
				}
			default:
				if known[where] == nil {
					known[where] = sentences.TestsOf(t, filepath.Join("..", where))
				}
				if !known[where][what] {
					t.Errorf("%s: %s has no %s", s.ID, where, what)
				}
			}
		}
	}
}
