package policy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzLoad: no document makes the loader panic or report a fault without a
// place, and what loads decides.
func FuzzLoad(f *testing.F) {
	for _, pattern := range []string{"testdata/faulty/*.yaml", "policytest/testdata/examples/*.yaml"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(string(raw))
		}
	}
	f.Add(policyText("p", validations, "Deny"))
	f.Add("a: |\n  x\n---\n")
	in := testInput()
	f.Fuzz(func(t *testing.T, text string) {
		files := fsOf(map[string]string{"f.yaml": text})
		s, err := Load(testConfig(), files)
		if err == nil {
			s.Decide(context.Background(), in)
		} else {
			checkFaults(t, err, text)
		}
		if _, err := LoadTests(files, "f.yaml"); err != nil {
			checkFaults(t, err, text)
		}
	})
}

func checkFaults(t *testing.T, err error, text string) {
	var le *LoadError
	if !errors.As(err, &le) || len(le.Errors) == 0 {
		t.Fatalf("another error: %v", err)
	}
	lines := strings.Count(text, "\n") + 1
	for _, e := range le.Errors {
		if e.File == "" && e.Line == 0 {
			continue // about the set as a whole
		}
		if e.Text == "" || e.Line < 1 || e.Line > lines+1 || e.Col < 1 {
			t.Errorf("a fault without a place: %+v (%d lines)", e, lines)
		}
	}
}

// FuzzExpression: no expression makes the compiler panic, and one that compiles
// is bounded at request time.
func FuzzExpression(f *testing.F) {
	for _, x := range costShapes {
		f.Add(x)
	}
	for _, x := range hostile {
		f.Add(x)
	}
	f.Add("request.modle == 'x'")
	f.Add("[1].exists(request, request.model)")
	f.Add("a.b.c.d(e.f, [g.h], {i.j: k.l})")
	f.Add("has(request.a.b) && x.?y[?z]")
	in := largestInput()
	f.Fuzz(func(t *testing.T, text string) {
		if !utf8.ValidString(text) || badTextLine(text) != 0 {
			return
		}
		var quoted strings.Builder
		for line := range strings.SplitSeq(text, "\n") {
			quoted.WriteString("\n        " + line)
		}
		s, err := load(testConfig(), policyText("p", "\n  auditAnnotations: [{ key: k, valueExpression: tenant.id }]\n  validations:\n    - name: v\n      expression: |2"+quoted.String(), "Deny"))
		if err != nil {
			return
		}
		d := s.Decide(context.Background(), in)
		if d.Cost.Units > exprCostLimit+exprCostLimit/2 {
			t.Errorf("%d units", d.Cost.Units)
		}
		for _, e := range d.Errors {
			if e.ErrorKind == ErrorInternal {
				t.Errorf("internal error: %s", e.Detail)
			}
		}
	})
}
