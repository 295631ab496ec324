package policy

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
)

// largestInput is a request at every maximum of section 2.
func largestInput() *Input {
	fill := func(n, size int) []string {
		out := make([]string, n)
		for i := range out {
			out[i] = fmt.Sprintf("%0*d", size, i)
		}
		return out
	}
	table := func(n, key, value int) map[string]string {
		out := map[string]string{}
		for _, k := range fill(n, key) {
			out[k] = strings.Repeat("é", value)
		}
		return out
	}
	text := func(n int) string { return strings.Repeat("a", n) }
	str := func(n int) *string { s := text(n); return &s }
	tokens := int64(1 << 30)
	return &Input{
		Request: RequestInput{
			Operation: text(maxWord), Dialect: text(maxWord), Method: text(maxWord), Path: text(maxPath), Model: text(maxModelSize),
			RequestedModel: text(maxModelSize), ModelFamily: text(maxModelSize), Stream: true, N: 8, MaxTokens: &tokens,
			ToolNames: fill(maxTools, maxToolSize), Modalities: fill(maxModalities, maxWord), SessionID: str(maxClientID), User: str(maxClientID),
			Headers: table(maxHeaderCount, maxHeaderName, maxHeaderValue), SourceIP: "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff",
		},
		Principal: PrincipalInput{
			Kind: text(maxWord), ID: text(maxPrincipalID), Subject: text(maxSubject), Issuer: text(maxSubject), Groups: fill(maxGroups, maxGroupSize),
			Scopes: fill(maxScopes, maxGroupSize), KeyID: str(maxKeyID), SPIFFEID: str(maxSPIFFE),
			Claims: map[string]any{"clearance": int64(1), "regions": fill(maxClaimList, maxSubject), "dept": text(maxSubject)},
		},
		Tenant:         TenantInput{ID: text(maxTenantWord), Team: text(maxTenantWord), Tier: text(maxTenantWord), Labels: table(maxTenantLabels, maxName, maxName)},
		DeclaredLabels: fill(maxLabelCount, maxName),
		Lazy: &fakeLazy{tokens: 1 << 40, content: Content{
			Labels: fill(maxLabelCount, maxName), Detectors: fill(maxLabelCount, maxName), ScanStatus: "unavailable",
			Findings: map[string]int64{text(maxName): 1},
		}},
	}
}

func TestLargestInputIsValid(t *testing.T) {
	in := largestInput()
	if err := in.Validate(); err != nil {
		t.Fatal(err)
	}
	s := mustLoad(t, testConfig(), policyText("p", "\n  validations: [{ name: v, expression: \"content.labels.size() == 64\" }]", "Deny"))
	cfg := in.Request
	cfg.Model = "m"
	in.Request = cfg
	if d := s.Decide(t.Context(), in); !d.Allow {
		t.Errorf("%+v", d.Errors)
	}
}

// costShapes are rules as authors write them. Each is either refused at load or
// never costs more than was estimated, on the largest input that is admitted.
var costShapes = []string{
	"content.labels.join(', ') == ''",
	"content.labels.join(', ').size() > 0",
	"principal.groups.join(',').contains('admin')",
	"principal.groups.filter(g, g.startsWith('a')).join(',') == ''",
	"principal.groups.filter(g, g.startsWith('a')).map(g, 'x' + g).join('; ') == ''",
	"request.tool_names.join('') == ''",
	"request.tool_names.exists(t, t == 'shell')",
	"request.tool_names.exists(t, t in ['shell', 'python'])",
	"request.tool_names.all(t, !t.startsWith('danger'))",
	"'shell' in request.tool_names",
	"sets.intersects(request.tool_names, ['a', 'b'])",
	"sets.intersects(content.labels, principal.groups)",
	"sets.contains(principal.groups, principal.scopes)",
	"content.labels.exists(l, principal.groups.exists(g, g == l))",
	"'model %s for %s'.format([request.model, content.labels.join(', ')]) == ''",
	"'%s %d %s'.format([tenant.id, request.n, principal.groups]) == ''",
	"'%s'.format([request.headers]) == ''",
	"request.model.startsWith('external/')", "request.model.endsWith('-preview')", "request.model.contains('7b')",
	"request.model.matches('^(qwen|llama)-[0-9]{1,3}b$')", "request.path.matches('a*b*c*d*')", "request.headers.exists(k, v, v.matches('a*b'))",
	"request.headers[?'x'].orValue('').matches('^[a-z]+$')", "request.headers.exists(k, k == 'x')", "request.headers.all(k, v, v.size() < 2000)",
	"'x' in request.headers && request.headers['x'].lowerAscii() == 'y'", "request.headers[?'x'].orValue('none').split(',').exists(p, p == 'a')",
	"request.model.split('/')[0] == 'external'", "request.model.split('').size() > 2", "request.model.replace('a', 'bb') == ''",
	"request.model.lowerAscii().upperAscii().trim().reverse() == ''", "request.model.substring(0, 3) == 'abc'", "request.model.indexOf('a') >= 0",
	"request.user.orValue('') == 'root'", "request.user.orValue('').startsWith('svc-')", "principal.claims.dept.orValue('').contains('x')",
	"principal.claims.regions.orValue([]).exists(r, r == 'eu')", "'eu' in principal.claims.regions.orValue([])",
	"tenant.labels == {'a': 'b'}", "tenant.labels.exists(k, v, k == v)", "tenant.labels[?'zone'].orValue('onprem') == 'eu'",
	"content.findings.exists(k, n, n > 3)", "content.labels.filter(l, l != 'x').size() < 3", "content.labels.map(l, l + '!').exists(l, l == 'pii!')",
	"content.labels.distinct().size() > 1", "content.labels.sort()[0] == 'a'", "content.labels.reverse()[0] == 'a'",
	"lists.range(100).all(i, i < 100)", "lists.range(1000).all(i, i < 1000)", "[request.model, tenant.id, principal.id].exists(x, x.contains('q'))",
	"isIP(request.source_ip) && cidr('10.0.0.0/8').containsIP(request.source_ip)",
	"isIP(request.source_ip) && ['10.0.0.0/8', '2001:db8::/32'].exists(n, cidr(n).containsIP(request.source_ip))",
	"request.modalities.exists(m, m == 'image') ? request.model.contains('vl') : request.model.contains('a')",
	"math.greatest(request.n, request.image_count) > 3", "now.getHours() >= 22 || now.getDayOfWeek() == 0",
	"(request.model + principal.id + tenant.id).contains('abc')", "(principal.groups + principal.scopes).exists(x, x == 'a')",
	"variables.list.join(',') == ''", "variables.list.exists(x, x.contains('a'))", "variables.text.contains('abc')", "variables.table.exists(k, v, v == k)",
	"string(request.body_bytes).size() > 3", "request.tool_names.map(t, t.size()).exists(n, n > 100)",
	"principal.groups.transformList(i, g, g + string(i)).join(',') == ''", "request.headers.transformMap(k, v, v.size()).exists(k, n, n > 10)",
}

// TestActualCostStaysBelowEstimate is the property on which load-time checks
// rest.
func TestActualCostStaysBelowEstimate(t *testing.T) {
	refused := 0
	for _, expr := range costShapes {
		text := policyText("p", fmt.Sprintf(`
  variables:
    - { name: list, expression: "content.labels" }
    - { name: text, expression: "request.model" }
    - { name: table, expression: "tenant.labels" }
  validations: [{ name: v, expression: "%s" }]`, expr), "Deny")
		cfg := testConfig()
		cfg.KeepSource = true
		s, err := load(cfg, text)
		if err != nil {
			if !strings.Contains(err.Error(), "the estimated cost is up to") && !strings.Contains(err.Error(), "the cost has no bound") {
				t.Errorf("%s: %v", expr, err)
			}
			refused++
			continue
		}
		x := s.policies[0].validations[0].expr
		s.times = timeLimits{time.Hour, time.Hour}
		e := newEvaluation(context.Background(), s, largestInput())
		a := e.bind(s.live[0])
		for _, v := range s.policies[0].varNames {
			a.ResolveName(v) // their cost is their own
		}
		e.live.used = 0
		tracked, err := s.policies[0].tracked(x)
		if err != nil {
			t.Fatal(err)
		}
		x.program, x.cheap = tracked, false // a cheap one tracks nothing
		began := time.Now()
		_, err = a.run(x)
		took := time.Since(began)
		if err != nil {
			t.Errorf("%s: %v", expr, err)
		}
		if e.live.used > x.estimate {
			t.Errorf("%s: cost %d, estimated %d", expr, e.live.used, x.estimate)
		}
		t.Logf("%6d of %6d, %8s: %s", e.live.used, x.estimate, took.Round(time.Microsecond), expr)
	}
	t.Logf("%d of %d shapes are refused at load", refused, len(costShapes))
	if refused > len(costShapes)/4 {
		t.Errorf("%d of %d shapes are refused: the bounds are too wide", refused, len(costShapes))
	}
}

// tracked builds a program that tracks its cost whatever the estimate is.
func (c *compiled) tracked(x *expression) (cel.Program, error) {
	tree := ast.Copy(x.checked.NativeRep())
	sortRanges(tree, func(name string) bool { return slices.Contains(x.reads, name) })
	return c.env.PlanProgram(tree, append(programOptions(), regexCosts(tree))...)
}

// TestCheapExpressions: what is small, has no loop and reads nothing lazily is
// charged its estimate, and anything else what it has cost.
func TestCheapExpressions(t *testing.T) {
	f := func(expr string, cheap bool) {
		t.Helper()
		cfg := testConfig()
		cfg.KeepSource = true
		s := mustLoad(t, cfg, policyText("p", "\n  variables: [{ name: lazy, expression: content.labels.size() }, { name: n, expression: request.n }]\n  validations: [{ name: v, expression: \""+expr+"\" }]", "Deny"))
		x := s.policies[0].validations[0].expr
		if x.cheap != cheap {
			t.Errorf("%s: cheap %t, estimate %d", expr, x.cheap, x.estimate)
			return
		}
		e := newEvaluation(t.Context(), s, testInput())
		a := e.bind(s.live[0])
		for _, v := range s.policies[0].varNames {
			a.ResolveName(v)
		}
		e.live.used = 0
		if _, err := a.run(x); err != nil {
			t.Errorf("%s: %v", expr, err)
		}
		tracked, err := s.policies[0].tracked(x)
		if err != nil {
			t.Fatal(err)
		}
		_, det, err := tracked.Eval(a)
		if err != nil {
			t.Errorf("%s: %v", expr, err)
		}
		want := *det.ActualCost()
		if want > x.estimate {
			t.Errorf("%s: cost %d, estimated %d", expr, want, x.estimate)
		}
		if cheap {
			want = x.estimate
		}
		if e.live.used != want {
			t.Errorf("%s: charged %d, want %d", expr, e.live.used, want)
		}
	}
	f("request.operation in ['chat', 'completion']", true)
	f("tenant.tier == 'gold' && request.n <= 8", true)
	f("request.max_tokens.orValue(0) <= 100000", true)
	f("tenant.labels[?'zone'].orValue('onprem') == 'eu' || request.stream", true)
	f("variables.n < 5", true)
	f("request.tool_names == []", true)
	f("'devs' in principal.groups", false)        // up to the longest list
	f("request.input_tokens < 5 || true", false)  // lazy
	f("variables.lazy < 5", false)                // lazy, through a variable
	f("content.scan_status == 'complete'", false) // lazy
	f("[1].exists(i, i == 1)", false)             // a loop
	f("request.headers.exists(k, k == 'x-app')", false)
}

// hostile are expressions that compile, or look as if they could, and try to
// hold a core or to build large values.
var hostile = []string{
	"request.headers.all(k, v, request.headers.all(a, b, v == b))",
	"request.tool_names.all(t, request.tool_names.all(u, t != u || t == u))",
	"[1].all(x, request.tool_names.all(t, request.tool_names.all(u, t == u)))",
	"request.headers.exists(k, v, v.matches('(a|aa)+$'))",
	"request.headers.exists(k, v, v.matches('(a?){20}(a){20}'))",
	"request.model.matches('((a?){30}){30}')",
	"request.headers.exists(k, v, v.matches('(x+x+)+y'))",
	"(request.path + request.path + request.path + request.path).contains(request.path + 'b')",
	"request.tool_names.map(t, t + t).map(t, t + t).map(t, t + t).map(t, t + t).map(t, t + t).map(t, t + t).size() > 0",
	"request.path.replace('a', request.path).size() > 0",
	"'" + strings.Repeat("%s", 150) + "'.format([" + strings.TrimSuffix(strings.Repeat("request.tool_names,", 150), ",") + "]) == ''",
	"'" + strings.Repeat("%s", 40) + "'.format([" + strings.TrimSuffix(strings.Repeat("request.path,", 40), ",") + "]) == ''",
	"request.tool_names.join(request.path).join == ''",
	"principal.groups.join(request.path) == ''",
	"lists.range(1000).all(i, lists.range(1000).all(j, i + j >= 0))",
	"lists.range(31).all(i, lists.range(31).all(j, i + j >= 0))",
	"lists.range(1000).map(i, lists.range(1000)).flatten().size() > 0",
	"lists.range(30).map(i, request.tool_names).flatten().distinct().size() > 0",
	"request.tool_names.sort().distinct().size() > 0",
	"request.tool_names.map(t, {t: request.headers}).size() > 0",
	"request.headers.transformMap(k, v, v + v + v + v).size() > 0",
	"[request.headers, request.headers].all(h, h.all(k, v, v.contains('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab')))",
	"request.headers.all(k, v, v.contains('aaaaaaaaaab') == false)",
	"request.headers == request.headers && request.tool_names == request.tool_names",
	"('%.999f'.format([1e300]) + '%.999f'.format([1e300])).size() > 0",
}

// TestHostileExpressions: whatever compiles ends within 10 ms of CPU time and
// builds little, on the largest input.
func TestHostileExpressions(t *testing.T) {
	for _, expr := range hostile {
		s, err := load(testConfig(), policyText("p", fmt.Sprintf("\n  validations: [{ name: v, expression: \"%s\" }]", expr), "Deny"))
		if err != nil {
			t.Logf("refused: %.60s", expr)
			continue
		}
		var least time.Duration = time.Hour
		var bytes uint64
		in := largestInput()
		for range 7 { // the least of several runs is what it takes
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			least = min(least, cpuTime(func() { s.Decide(context.Background(), in) }))
			runtime.ReadMemStats(&after)
			bytes = after.TotalAlloc - before.TotalAlloc
		}
		t.Logf("%8s %8d bytes: %.60s", least.Round(time.Microsecond), bytes, expr)
		if least > 10*time.Millisecond*raceFactor {
			t.Errorf("%.60s: %s", expr, least)
		}
		if bytes > 8<<20 {
			t.Errorf("%.60s: %d bytes allocated", expr, bytes)
		}
	}
}

// TestEstimatesOfTheExamples: every expression has one, and the dearest is the
// message that joins and formats labels.
func TestEstimatesOfTheExamples(t *testing.T) {
	examples := os.DirFS("policytest/testdata/examples")
	suites, err := LoadTests(examples, "03-policy-tests.yaml")
	if err != nil {
		t.Fatal(err)
	}
	set, err := LoadFiles(suites[0].Config, examples, suites[0].Files)
	if err != nil {
		t.Fatal(err)
	}
	all := set.Estimates()
	if len(all) != 40 {
		t.Errorf("%d expressions, want 40", len(all))
	}
	dearest := slices.MaxFunc(all, func(a, b Estimate) int { return cmp.Compare(a.Cost, b.Cost) })
	want := Estimate{Error{File: "01-restricted-data.yaml", Line: 45, Col: 26, Path: "AdmissionPolicy/restricted-data.spec.validations[1].messageExpression"}, 4632}
	if dearest != want {
		t.Errorf("the dearest is %+v, want %+v", dearest, want)
	}
}
