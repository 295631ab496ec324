package policy

import (
	"fmt"
	"strings"
	"testing"
)

// TestComparisonsHaveADepth: what holds lists or maps is compared by no single
// operator, since nothing bounds that.
func TestComparisonsHaveADepth(t *testing.T) {
	f := func(expr string, ok bool) {
		t.Helper()
		_, err := load(testConfig(), policyText("p", "\n  validations: [{ name: v, expression: \""+expr+"\" }]", "Deny"))
		refused := err != nil && strings.Contains(err.Error(), "a comparison of lists or maps that hold lists or maps has no bound: compare what they hold")
		if refused == ok || err != nil && ok {
			t.Errorf("%s: %v", expr, err)
		}
	}
	f("request.tool_names == ['a']", true)
	f("request.tool_names == []", true)
	f("[] == request.tool_names", true)
	f("principal.claims.regions.orValue([]) == []", true)
	f("principal.claims.regions == optional.of(['eu'])", true)
	f("tenant.labels == {'a': 'b'}", true)
	f("tenant.labels == {}", true)
	f("request.model in request.tool_names", true)
	f("request.model in ['a', 'b']", true)
	f("request.model in tenant.labels", true)
	f("request.model == dyn('a')", true)
	f("sets.contains(principal.groups, ['a'])", true)
	f("request.modalities.distinct() == ['a']", true)
	f("[request.modalities] == [['a']]", false)
	f("[request.modalities] != [['a']]", false)
	f("[tenant.labels] == [{'a': 'b'}]", false)
	f("request.modalities in [['a']]", false)
	f("tenant.labels in [{'a': 'b'}]", false)
	f("dyn(request.modalities) == dyn(['a'])", false)
	f("dyn(request.model) in [dyn('a')]", false)
	f("sets.intersects([request.modalities], [['a']])", false)
	f("sets.equivalent([request.modalities], [['a']])", false)
	f("[request.modalities, ['a']].distinct().size() == 1", false)
	f("optional.of([request.modalities]) == optional.of([['a']])", false)
}

// TestTimeZones: a zone is a literal or a parameter that the evaluator knows,
// in every place where one can stand.
func TestTimeZones(t *testing.T) {
	f := func(expr, param, want string) {
		t.Helper()
		text := policyText("p", "\n  params: { schema: { zone: { type: string, default: UTC } } }\n  validations: [{ name: v, expression: \""+expr+"\" }, { name: w, expression: \"params.zone != ''\" }]", "Deny")
		if param != "" {
			text = strings.Replace(text, "actions:", "params: { zone: "+param+" }, actions:", 1)
		}
		s, err := load(testConfig(), text)
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s, %s: got %v, want %s", expr, param, err, want)
			}
			return
		}
		if err != nil {
			t.Errorf("%s: %v", expr, err)
			return
		}
		if d := s.Decide(t.Context(), testInput()); !d.Allow { // 11:00 UTC on a Tuesday
			t.Errorf("%s: denied, errors %+v", expr, d.Errors)
		}
	}
	f("now.getHours('Europe/Berlin') == 12", "", "")
	f("now.getHours('America/New_York') == 7", "", "") // summer time has begun there
	f("now.getHours('+05:30') == 16 && now.getMinutes('+05:30') == 30", "", "")
	f("now.getHours('UTC') == 11 && now.getDayOfWeek('Asia/Tokyo') == 2", "", "")
	f("now.getHours(params.zone) == 11", "", "")
	f("now.getHours(params.zone) == 12", "Europe/Berlin", "")
	f("now.getHours('Europe/Berln') == 12", "", `p.yaml:7:54: AdmissionPolicy/p.spec.validations[0].expression: unknown time zone "Europe/Berln": use a name such as Europe/Berlin, or an offset such as +01:00`)
	f("now.getHours('+99:00') == 12", "", "unknown time zone")
	f("now.getHours('../../etc/passwd') == 12", "", "unknown time zone")
	f("now.getHours(params.zone) == 12", "Europe/Berln", `AdmissionPolicyBinding/p-b.spec.params: params.zone is used as a time zone, and there is no "Europe/Berln": use a name such as Europe/Berlin, or an offset such as +01:00`)
	for _, method := range []string{"getFullYear", "getMonth", "getDayOfYear", "getDayOfMonth", "getDate", "getDayOfWeek", "getHours", "getMinutes", "getSeconds", "getMilliseconds"} {
		f("now."+method+"(request.model) == 0", "", "a time zone must be a string literal or a parameter")
		f("now."+method+"('Nowhere/Land') == 0", "", "unknown time zone")
		f("now."+method+"('Asia/Tokyo') >= 0", "", "")
	}
}

// TestPrices: what the library prices at one unit, or at none, whatever it does.
func TestPrices(t *testing.T) {
	f := func(expr string, cost int64) {
		t.Helper()
		cfg := testConfig()
		cfg.KeepSource = true
		s := mustLoad(t, cfg, policyText("p", "\n  validations: [{ name: v, expression: \""+expr+" || true\" }]", "Deny"))
		x := s.policies[0].validations[0].expr
		tracked, err := s.policies[0].tracked(x)
		if err != nil {
			t.Fatal(err)
		}
		in := testInput()
		in.Request.Headers = map[string]string{"h": strings.Repeat("é", 1000)} // 2,000 bytes
		in.Request.ToolNames = strings.Split(strings.Repeat("0123456789,", 399)+"0123456789", ",")
		_, det, err := tracked.Eval(newEvaluation(t.Context(), s, in).bind(s.live[0]))
		if err != nil {
			t.Errorf("%s: %v", expr, err)
			return
		}
		// A look-up in the headers costs 2, a name 1.
		if got := int64(*det.ActualCost()); got != cost || uint64(got) > x.estimate {
			t.Errorf("%s: cost %d, want %d, estimated %d", expr, got, cost, x.estimate)
		}
	}
	f("request.headers['h'].size() == 0", 2+6+1)
	f("size(request.headers['h']) == 0", 2+6+1)
	f("timestamp(request.headers['h']) == now", 2+51)
	f("int(request.headers['h']) == 0", 2+51)
	f("request.headers['h'].contains('')", 2+50)
	f("request.headers['h'].contains('é')", 2+50)
	f("request.headers['h'] < 'x'", 2+1)
	f("request.headers['h'] < request.headers['h']", 4+50)
	f("request.headers['h'] == 'x'", 2+1)
	f("request.headers['h'] == request.headers['h']", 4+50)
	f("request.headers['h'].indexOf('') == 1", 2+51+1)
	f("request.headers['h'].lastIndexOf('éé') == 1", 2+51+1)
	f("now.getHours('Europe/Berlin') == 30", 1+100+1)
	f("request.tool_names == request.tool_names", 2+1+400+12)
	f("request.tool_names == ['a']", 1+1)
	f("request.headers == request.headers", 2+1+1+5)
}

// TestEstimatesDoNotDependOnTheLoad: the same text has the same estimate.
func TestEstimatesDoNotDependOnTheLoad(t *testing.T) {
	text := policyText("p", "\n  validations: [{ name: v, expression: \"request.headers.exists(k, v, v.contains('x')) && request.tool_names == ['a', 'b']\" }]", "Deny")
	first := mustLoad(t, testConfig(), text).Estimates()
	for range 5 {
		if got := mustLoad(t, testConfig(), text).Estimates(); fmt.Sprint(got) != fmt.Sprint(first) {
			t.Fatalf("%v, then %v", first, got)
		}
	}
}
