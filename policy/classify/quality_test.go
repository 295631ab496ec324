package classify

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// quality counts what a detector found of what was to be found.
type quality struct{ right, wrong, missed int }

func (q quality) precision() float64 { return share(q.right, q.right+q.wrong) }
func (q quality) recall() float64    { return share(q.right, q.right+q.missed) }

func share(part, whole int) float64 {
	if whole == 0 {
		return 1
	}
	return float64(part) / float64(whole)
}

// TestQuality measures precision and recall on two sets and compares them with the
// golden tables, which the design note shows: the corpus, by which the detectors
// were made, and the one that was written when they stood. A finding counts as
// right as far as the text has values of its kind.
func TestQuality(t *testing.T) {
	c := mustNew(t, each())
	for _, folder := range []string{"corpus", "heldout"} {
		t.Run(folder, func(t *testing.T) { compareQuality(t, folder, measure(t, c, corpus(t, folder))) })
	}
}

// measure returns a table of the detectors' quality.
func measure(t *testing.T, c *Classifier, samples map[string][]sample) string {
	total := map[string]quality{}
	texts := 0
	for _, file := range slices.Sorted(maps.Keys(samples)) {
		for _, s := range samples[file] {
			texts++
			found := scanText(c, s.text).Findings
			for _, d := range builtinNames {
				q := total[d]
				got, want := int(found[d]), s.want[d]
				q.right += min(got, want)
				q.wrong += max(0, got-want)
				q.missed += max(0, want-got)
				total[d] = q
				if got != want {
					t.Logf("%s: %d for %d in %q", d, got, want, s.text)
				}
			}
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d texts\n%-13s %6s %6s %6s %10s %7s\n", texts, "detector", "right", "wrong", "missed", "precision", "recall")
	for _, d := range Builtins() {
		q := total[d]
		fmt.Fprintf(&b, "%-13s %6d %6d %6d %9.1f%% %6.1f%%\n", d, q.right, q.wrong, q.missed, 100*q.precision(), 100*q.recall())
		if q.right+q.missed < 40 {
			t.Errorf("%s is measured on %d values, want 40 or more", d, q.right+q.missed)
		}
	}
	return b.String()
}

func compareQuality(t *testing.T, folder, got string) {
	golden := "testdata/" + folder + ".golden"
	if *rewrite {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the quality is\n%swant\n%s(write it anew with -rewrite once the change is understood, and bring the note up to date)", got, want)
	}
}
