package policy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
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

// positions are the places where an expression can stand, as the field that is
// left open: each demands another type or may read other variables.
var positions = []string{
	"  matchConditions:\n    - name: m\n      expression: %s\n  auditAnnotations: [{ key: k, valueExpression: tenant.id }]",
	"  variables:\n    - name: x\n      expression: %s\n  validations: [{ name: v, expression: \"optional.of(variables.x).hasValue()\" }]",
	"  validations:\n    - name: v\n      expression: %s",
	"  validations:\n    - name: v\n      expression: \"false\"\n      messageExpression: %s",
	"  effects:\n    - name: e\n      addLabels: [x]\n      when: %s",
	"  effects:\n    - name: e\n      mutate:\n        max_tokens: %s",
	"  limits:\n    - name: l\n      unit: requests\n      window: 1m\n      key: []\n      limit: %s",
	"  limits:\n    - name: l\n      unit: requests\n      window: 1m\n      limit: 5\n      key:\n        - %s",
	"  limits:\n    - name: l\n      unit: requests\n      window: 1m\n      limit: 9000\n      key: []\n      estimate: %s",
	"  limits:\n    - name: l\n      unit: requests\n      window: 1m\n      limit: 5\n      key: []\n      charge: %s",
	"  auditAnnotations:\n    - key: k\n      valueExpression: %s",
}

// FuzzExpression: no expression makes the compiler panic, and one that compiles
// is bounded at request time, wherever it stands: in units, in memory and, far
// above what any should need, in time.
func FuzzExpression(f *testing.F) {
	for i, x := range slices.Concat(costShapes, hostile) {
		f.Add(x, i)
	}
	for i, x := range []string{
		"request.modle == 'x'", "[1].exists(request, request.model)", "a.b.c.d(e.f, [g.h], {i.j: k.l})", "has(request.a.b) && x.?y[?z]",
		"usage.output_tokens + effective.max_tokens", "now.getHours('Europe/Berlin')", "'a' + request.model", "optional.of('x')", "[[1]] == [[1]]",
	} {
		for p := range positions {
			f.Add(x, p+i)
		}
	}
	in := hostileInput()
	in.Request.Model = "m"
	f.Fuzz(func(t *testing.T, text string, position int) {
		if !utf8.ValidString(text) || badTextLine(text) != 0 {
			return
		}
		var quoted strings.Builder
		quoted.WriteString("|2")
		for line := range strings.SplitSeq(text, "\n") {
			quoted.WriteString("\n            " + line)
		}
		spec := strings.Replace(positions[uint(position)%uint(len(positions))], "%s", quoted.String(), 1)
		s, err := load(testConfig(), policyText("p", spec, "Deny"))
		if err != nil {
			return
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		var d *Decision
		took := cpuTime(func() {
			d = s.Decide(context.Background(), in)
			d.Charges(Usage{InputTokens: 1 << 40, OutputTokens: 1 << 40, Cost: 1 << 40})
		})
		runtime.ReadMemStats(&after)
		if d.Cost.Units > exprCostLimit+exprCostLimit/2 {
			t.Errorf("%d units", d.Cost.Units)
		}
		if most := 20 * mostTime * raceFactor; took > most {
			t.Errorf("%s of CPU time, at most %s", took, most)
		}
		if bytes := after.TotalAlloc - before.TotalAlloc; bytes > 4*mostBytes {
			t.Errorf("%d bytes allocated", bytes)
		}
		for _, e := range d.Errors {
			if e.ErrorKind == ErrorInternal {
				t.Errorf("internal error: %s", e.Detail)
			}
		}
	})
}
