package policy

import (
	"os"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
)

// TestEvaluatorVersion: the digest names the version that go.mod pins.
func TestEvaluatorVersion(t *testing.T) {
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(mod), evaluatorVersion) {
		t.Errorf("go.mod does not pin %s: change evaluatorVersion with the version, and note moved costs", evaluatorVersion)
	}
}

// TestLibraries: each library is there in the pinned version, and what the
// format leaves out is not.
func TestLibraries(t *testing.T) {
	accepted := []string{
		"'a-b'.split('-').join('+') == 'a+b'", "'AB'.lowerAscii() == 'ab'", "'abc'.reverse() == 'cba'", "'a'.charAt(0) == 'a'", "'%d'.format([1]) == '1'",
		"lists.range(3) == [0, 1, 2]", "[1, 2, 2].distinct().size() == 2", "[3, 1].sort() == [1, 3]", "[[1], [2]].flatten() == [1, 2]", "[1, 2].first().orValue(0) == 1", "[1, 2, 3].slice(1, 2) == [2]",
		"math.greatest(1, 2) == 2", "math.bitAnd(3, 1) == 1", "math.sqrt(4.0) == 2.0",
		"ip('10.0.0.1').family() == 4", "cidr('10.0.0.0/8').containsIP('10.1.1.1')", "isIP('::1')", "isCIDR('10.0.0.0/8')",
		"sets.contains([1, 2], [1])", "sets.equivalent([1], [1])",
		"[1, 2].all(i, v, i < v)", "{'a': 1}.exists(k, v, k == 'a' && v == 1)", "[1, 2].transformList(i, v, v * 2) == [2, 4]",
		"optional.of(1).hasValue()", "{'a': 1}[?'b'].orValue(2) == 2", "{'a': 1}.?a.value() == 1", "optional.of(1).optMap(x, x + 1).value() == 2",
		"1 < 1.5", "1u < 2", "timestamp('2026-01-01T10:00:00Z').getHours() == 10", "duration('1h') > duration('59m')", "type(1) == int",
		"[1, 2].map(x, x * 2) == [2, 4]", "[1, 2].filter(x, x > 1) == [2]", "'x' in {'x': true}",
	}
	for _, expr := range accepted {
		s := mustLoad(t, testConfig(), policyText("p", "\n  validations: [{ name: v, expression: \""+expr+"\" }]", "Deny"))
		if d := s.Decide(t.Context(), testInput()); !d.Allow {
			t.Errorf("%s: %+v", expr, d.Errors)
		}
	}
	refused := map[string]string{
		"cel.bind(x, 1, x == 1)":                 "unknown name",
		"base64.encode(b'a') == 'YQ=='":          "unknown name",
		"'a'.replace('a', 'b', 1, 2) == ''":      "no matching overload",
		"regex.replace('a', 'a', 'b') == 'b'":    "unknown name",
		"proto.hasExt(1, 'x')":                   "unknown name",
		"request.model == `x`":                   "",
		"[1, 2].map(x, x + y) == []":             `unknown name "y"`,
		"principal.groups.exists(g, grp == 'a')": `unknown name "grp"`,
	}
	for expr, want := range refused {
		_, err := load(testConfig(), policyText("p", "\n  validations: [{ name: v, expression: \""+expr+"\" }]", "Deny"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", expr, err, want)
		}
	}
}

// TestVariableTypes: every base variable has the documented type and yields the
// input's value.
func TestVariableTypes(t *testing.T) {
	exprs := []string{
		"request.operation == 'chat'", "request.dialect == 'openai'", "request.method == 'POST'", "request.path == '/v1/chat/completions'",
		"request.model == 'm'", "request.requested_model == 'alias'", "request.model_family == 'fam'", "request.stream", "request.n == 1",
		"request.max_tokens.value() == 1000", "request.input_tokens_estimate == 90", "request.input_tokens == 900", "request.input_tokens_exact",
		"request.body_bytes == 400", "request.message_count == 2", "request.image_count == 1", "request.tool_names == ['search', 'shell']",
		"request.modalities == ['text', 'image']", "request.session_id.value() == 's-1'", "request.user.value() == 'u-1'",
		"request.headers['x-app'] == 'demo'", "request.headers == {'x-app': 'demo'}", "request.source_ip == '10.20.1.7'",
		"principal.kind == 'jwt'", "principal.id == 'jwt:iss:sub'", "principal.subject == 'sub'", "principal.issuer == 'iss'",
		"principal.groups == ['devs', 'ops']", "principal.scopes == ['infer']", "principal.key_id.value() == 'k1'", "principal.spiffe_id.value() == 'spiffe://x/y'",
		"principal.claims.clearance.value() == 3", "principal.claims.regions.value() == ['eu', 'us']", "principal.claims.admin.value()",
		"principal.claims.score.value() == 1.5", "principal.claims.dept.value() == 'red'",
		"tenant.id == 't1'", "tenant.team == 'search'", "tenant.tier == 'gold'", "tenant.labels.env == 'prod'",
		"content.declared_labels == ['internal']", "content.labels == ['internal', 'pii']", "content.findings == {'pii': 2}",
		"content.detectors == ['email']", "content.scan_status == 'complete'", "now == timestamp('2026-03-10T11:00:00Z')", "now.getHours() == 11",
	}
	covered := map[string]bool{}
	for _, expr := range exprs {
		s := mustLoad(t, testConfig(), policyText("p", "\n  validations: [{ name: v, expression: \""+expr+"\" }]", "Deny"))
		if d := s.Decide(t.Context(), testInput()); !d.Allow {
			t.Errorf("%s: denied, errors %+v", expr, d.Errors)
		}
		for _, name := range s.policies[0].validations[0].expr.reads {
			covered[name] = true
		}
	}
	vars, err := Variables(testConfig().Claims)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range vars {
		if v.ReadableIn == "" && !covered[v.Name] {
			t.Errorf("%s has no test", v.Name)
		}
	}
}

// TestOptionalVariablesAbsent: an absent optional is none, never an error.
func TestOptionalVariablesAbsent(t *testing.T) {
	s := mustLoad(t, testConfig(), policyText("p", `
  validations:
    - name: v
      expression: >-
        !request.max_tokens.hasValue() && !request.session_id.hasValue() && !request.user.hasValue() && !principal.key_id.hasValue() &&
        !principal.spiffe_id.hasValue() && !principal.claims.clearance.hasValue() && principal.groups == [] && request.headers == {} &&
        principal.claims.regions.orValue([]) == []`, "Deny"))
	d := s.Decide(t.Context(), &Input{Request: RequestInput{Operation: "chat", Model: "m"}})
	if !d.Allow {
		t.Errorf("denied: %+v %+v", d.Denials, d.Errors)
	}
}

// TestTracingTurnsCostOff pins the library's trap: with state tracking the cost
// limit is off, so a deciding program must not track state.
func TestTracingTurnsCostOff(t *testing.T) {
	env, err := baseEnv()
	if err != nil {
		t.Fatal(err)
	}
	checked, iss := env.Compile("lists.range(1000).all(x, x < 2000)")
	if iss.Err() != nil {
		t.Fatal(iss.Err())
	}
	f := func(name string, wantError bool, opts ...cel.ProgramOption) {
		t.Helper()
		program, err := env.Program(checked, append(append(programOptions(), cel.CostLimit(100)), opts...)...)
		if err != nil {
			t.Fatal(err)
		}
		_, det, err := program.Eval(cel.NoVars())
		if (err != nil) != wantError {
			t.Errorf("%s: %v", name, err)
		}
		if cost := det.ActualCost(); wantError && (cost == nil || *cost < 100) {
			t.Errorf("%s: no cost", name)
		}
	}
	f("a deciding program", true)
	f("a tracing program", false, cel.EvalOptions(cel.OptTrackState))
	// A traced program of ours has no limit either, and has the value of every node.
	cfg := testConfig()
	cfg.KeepSource = true
	s := mustLoad(t, cfg, policyText("p", "\n  validations: [{ name: v, expression: \"request.n + 1 == 2 && tenant.labels.transformMap(k, v, v).exists(k, 'env' == k)\" }]", "Deny"))
	x := s.policies[0].validations[0].expr
	traced, err := s.policies[0].traced(x)
	if err != nil {
		t.Fatal(err)
	}
	e := newEvaluation(t.Context(), s, testInput())
	val, det, err := traced.ContextEval(t.Context(), e.bind(s.live[0]))
	if err != nil || val != types.True {
		t.Fatalf("%v, %v", val, err)
	}
	found := false
	ast.PostOrderVisit(x.checked.NativeRep().Expr(), ast.NewExprVisitor(func(n ast.Expr) {
		v, ok := det.State().Value(n.ID())
		found = found || ok && n.Kind() == ast.CallKind && n.AsCall().FunctionName() == "_+_" && v.Equal(types.Int(2)) == types.True
	}))
	if !found {
		t.Error("the value of request.n + 1 is not tracked")
	}
}

// TestRangeLimit: a longer range is an evaluation error, and one whose length is
// not written out is refused at load.
func TestRangeLimit(t *testing.T) {
	f := func(expr string, ok bool) {
		t.Helper()
		s := mustLoad(t, testConfig(), policyText("p", "\n  validations: [{ name: v, expression: \""+expr+"\" }]", "Deny"))
		d := s.Decide(t.Context(), testInput())
		if d.Allow != ok || !ok && (len(d.Errors) != 1 || d.Errors[0].ErrorKind != ErrorValue) {
			t.Errorf("%s: allow %t, errors %+v", expr, d.Allow, d.Errors)
		}
	}
	f("lists.range(1000).size() == 1000", true)
	f("lists.range(1001).size() == 1001", false)
	for _, expr := range []string{"lists.range(request.n).size() > 0", "lists.range(request.stream ? 5 : 6).size() > 0"} {
		if _, err := load(testConfig(), policyText("p", "\n  validations: [{ name: v, expression: \""+expr+"\" }]", "Deny")); err == nil || !strings.Contains(err.Error(), "the cost has no bound below 10000") {
			t.Errorf("%s: %v", expr, err)
		}
	}
}

func TestRegexSize(t *testing.T) {
	f := func(pattern string, most int) {
		t.Helper()
		n, err := regexSize(pattern)
		if err != nil || n > most {
			t.Errorf("%s: %d instructions, %v", pattern, n, err)
		}
	}
	f("a{2}", 6)
	f("(a{10}){10}", 130)
	f("^(foo|bar)-[0-9]{1,3}$", 30)
	if _, err := regexSize("(a"); err == nil {
		t.Error("a broken pattern has a size")
	}
}
