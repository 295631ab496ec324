package policytest

import (
	"os"
	"testing"
)

// TestExamples runs the format's own examples: 30 tests, every outcome seen.
func TestExamples(t *testing.T) {
	r, err := Run(os.DirFS("testdata"), []string{"examples"}, Options{Orders: 50})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(r.Tests), 30; got != want {
		t.Errorf("%d tests, want %d", got, want)
	}
	for _, test := range r.Tests {
		for _, f := range test.Failures {
			t.Errorf("%s:%d: %s: %s", test.At.File, test.At.Line, test.Name, f)
		}
	}
	for _, m := range r.Coverage.Missing() {
		t.Errorf("%s %s was never %s", m.Kind, m.Rule, m.Outcome)
	}
}
