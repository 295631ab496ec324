package policy

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// resultShapes are expressions of every library, whose results an upgrade of
// the evaluator must keep. costShapes join them.
var resultShapes = []string{
	"'a-b'.split('-').join('+')", "'AB'.lowerAscii() + 'ab'.upperAscii()", "'abc'.reverse()", "'abcabc'.lastIndexOf('b')", "' x '.trim()", "'aba'.replace('a', 'c', 1)",
	"'%s %d %.2f %x %b %s'.format(['a', 3, 1.5, 255, true, [1, 2]])", "strings.quote('a\\\"b')", "'naïve'.size()", "'naïve'.substring(2, 4)", "'abc'.charAt(1)",
	"lists.range(4)", "[1, 2, 2].distinct()", "[3, 1, 2].sort()", "['b', 'a'].sortBy(e, e)", "[[1], [2, 3]].flatten()", "[1, 2, 3].slice(1, 2)", "[1, 2, 3].reverse()", "[1, 2].first().orValue(0)",
	"math.greatest(1, 2)", "math.least([3, 1, 2])", "math.ceil(1.2)", "math.bitAnd(6, 3)", "math.sqrt(2.0)", "math.sign(-3)", "math.round(1.5)",
	"ip('10.0.0.1').family()", "string(cidr('10.1.2.0/24').masked())", "cidr('10.0.0.0/8').containsIP('10.1.1.1')", "isIP('::1')", "ip.isCanonical('2001:db8::1')",
	"sets.contains([1, 2], [1])", "sets.intersects(['a'], ['b'])", "sets.equivalent([1, 1], [1])",
	"[1, 2].transformList(i, v, i + v)", "{'b': 1, 'a': 2}.transformMap(k, v, v * 2)", "{'b': 1, 'a': 2}.map(k, k)", "[1, 2].all(i, v, i < v)", "{'a': 1}.exists(k, v, k == 'a')",
	"optional.of(1).optMap(x, x + 1)", "{'a': 1}[?'b'].orValue(2)", "request.headers[?'x-app']", "tenant.labels.?env.orValue('')",
	"1 < 1.5", "1u < 2", "7 / 2", "-7 % 3", "1u + 2u", "2.0 / 3.0", "int('42')", "string(1.5)", "double('1e3')", "bool('true')", "string(b'ab')", "bytes('é')",
	"timestamp('2026-01-01T10:00:00Z').getHours()", "now.getDayOfWeek()", "now.getHours('Europe/Berlin')", "now + duration('1h')", "duration('90m')", "string(duration('90m'))", "now - timestamp('2026-03-10T10:00:00Z')",
	"type(1) == int", "'x' in {'x': true}", "[1, 2, 3].filter(x, x > 1).map(x, x * x)", "[1, 2].exists_one(x, x == 2)", "request.stream ? 'a' : 'b'", "request.model.matches('^m$')",
	"tenant.labels['missing']", "1 / (request.n - 1)", "[1][5]", "request.user.value()", "9223372036854775807 + request.n",
}

// TestResultsAndCosts: the environment is frozen. An upgrade of the evaluator
// must keep every result; a cost that moves is a note for the release.
// UPDATE_GOLDEN=1 rewrites the file.
func TestResultsAndCosts(t *testing.T) {
	h := newHostileBench(t)
	h.in = testInput()
	h.c.keep = true
	s := h.set
	var b strings.Builder
	for _, text := range append(append([]string{}, resultShapes...), costShapes...) {
		if strings.Contains(text, "variables.") || strings.Contains(text, "claims.") {
			continue
		}
		h.c.p = &problems{}
		x := h.c.compile(exprDoc{scalar: scalar{text: text, file: "f.yaml", line: 1, col: 1}, path: "spec", set: true}, scopeAll)
		if x == nil {
			fmt.Fprintf(&b, "%s\n\trefused: %s\n", text, h.c.p.list[0].Text)
			continue
		}
		tracked, err := (&compiled{env: h.c.env}).tracked(x)
		if err != nil {
			t.Fatal(err)
		}
		val, det, err := tracked.Eval(newEvaluation(t.Context(), s, h.in).bind(s.live[0]))
		result := ""
		if err != nil {
			result = "error: " + err.Error()
		} else {
			result = show(val)
		}
		fmt.Fprintf(&b, "%s\n\t%s, costs %d of %d\n", text, result, *det.ActualCost(), x.estimate)
	}
	const file = "testdata/costs.golden"
	want, err := os.ReadFile(file)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	got, wanted := strings.Split(b.String(), "\n"), strings.Split(string(want), "\n")
	for i := range min(len(got), len(wanted)) {
		if got[i] != wanted[i] {
			t.Errorf("line %d: got  %s\nwant %s", i+1, got[i], wanted[i])
		}
	}
	if len(got) != len(wanted) {
		t.Errorf("%d lines, want %d", len(got), len(wanted))
	}
}
