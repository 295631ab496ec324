package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// indexText is a policy with one match condition and a parameter of each kind.
func indexText(name, condition, selector string) string {
	text := policyText(name, fmt.Sprintf(`
  params:
    schema:
      one: { type: string, default: chat }
      list: { type: list, items: string, default: [chat, completion] }
      table: { type: map, values: bool, default: { chat: true, messages: false } }
      flag: { type: bool, default: true }
  matchConditions: [{ name: m, expression: "%s" }]
  validations: [{ name: v, expression: "false" }]`, condition), "Deny")
	return strings.Replace(text, "actions:", "selector: {"+selector+"}, actions:", 1)
}

// TestIndexedConditions: what the index knows of a condition, as the operations
// of chat, completion, messages under which the binding is still looked at, and
// whether the condition needs no evaluation then.
func TestIndexedConditions(t *testing.T) {
	f := func(condition, operations string, decided bool) {
		t.Helper()
		s, err := load(testConfig(), indexText("p", condition, ""))
		if err != nil {
			t.Errorf("%s: %v", condition, err)
			return
		}
		var got []string
		for _, op := range []string{"chat", "completion", "messages"} {
			in := testInput()
			in.Request.Operation = op
			found := s.liveIndex.find(in)
			for range found.each {
				got = append(got, op)
			}
			in.Observer = watcher{}
			want := s.Decide(t.Context(), in)
			in.Observer = nil
			if d := s.Decide(t.Context(), in); d.Allow != want.Allow || rules(d.Denials) != rules(want.Denials) {
				t.Errorf("%s for %s: %s with the index, %s without", condition, op, rules(d.Denials), rules(want.Denials))
			}
		}
		if strings.Join(got, " ") != operations || s.live[0].decided[0] != decided {
			t.Errorf("%s: %v, decided %t", condition, got, s.live[0].decided[0])
		}
	}
	const all = "chat completion messages"
	f("request.operation == 'chat'", "chat", true)
	f("'chat' == request.operation", "chat", true)
	f("request.operation != 'chat'", "completion messages", true)
	f("!(request.operation == 'chat')", "completion messages", true)
	f("request.operation in ['chat', 'messages']", "chat messages", true)
	f("!(request.operation in ['chat', 'messages'])", "completion", true)
	f("request.operation in []", "", true)
	f("request.operation == params.one", "chat", true)
	f("request.operation in params.list", "chat completion", true)
	f("request.operation in params.table", "chat messages", true)
	f("request.operation in [params.one, 'messages']", "chat messages", true)
	f("request.operation == 'chat' || request.operation == 'completion'", "chat completion", true)
	f("request.operation == 'chat' && request.stream", "chat", true)
	f("request.operation == 'chat' && !request.stream", "", true)
	f("request.operation == 'chat' && request.stream == params.flag", "chat", true)
	f("request.operation == 'chat' && tenant.tier == 'gold' && principal.kind in ['jwt']", "chat", true)
	f("request.operation == 'chat' && tenant.tier == 'silver'", "", true)
	f("request.operation != 'chat' && request.operation != 'messages'", "completion", true)
	f("request.operation != 'chat' || request.operation == 'chat'", all, true)
	f("request.operation == 'chat' && request.n < 5", "chat", false)
	f("request.n < 5 && request.operation == 'chat'", "chat", false)
	f("request.operation == 'chat' && tenant.labels['x'] == 'y'", "chat", false) // an error for chat alone
	f("request.operation == 'chat' || request.n > 5", all, false)
	f("request.operation == 'chat' || tenant.tier == 'gold'", all, false)
	f("(request.operation == 'chat' && request.n < 5) || (request.operation == 'completion' && request.n > 5)", "chat completion", false)
	f("!(request.operation == 'chat' && request.stream)", all, false)
	f("request.operation.startsWith('ch')", all, false)
	f("request.operation == request.model", all, false)
	f("request.operation < 'd'", all, false)
	f("request.stream ? request.operation == 'chat' : false", all, false)
	f("['chat'].exists(o, o == request.operation)", all, false)
	f("request.operation in request.tool_names", all, false)
	f("true", all, true)
	f("false", "", true)
	f("request.stream", all, true)
}

type watcher struct{}

func (watcher) Read(string)     {}
func (watcher) Outcome(Outcome) {}

// TestIndexedSelectors: the index decides a selector of plain names, and looks
// at patterns and labels only where nothing else has ruled the binding out.
func TestIndexedSelectors(t *testing.T) {
	f := func(selector string, found, decided bool) {
		t.Helper()
		s := mustLoad(t, testConfig(), indexText("p", "true", selector))
		x := s.liveIndex.find(testInput())
		n := 0
		for range x.each {
			n++
		}
		if (n == 1) != found || s.live[0].selected != decided {
			t.Errorf("%s: found %d, selected %t", selector, n, s.live[0].selected)
		}
	}
	f("", true, true)
	f("tenants: [t1, t2]", true, true)
	f("tenants: [t2]", false, true)
	f("excludeTenants: [t1]", false, true)
	f("tenants: [t1, t2], excludeTenants: [t1]", false, true)
	f("operations: [chat]", true, true)
	f("operations: [messages]", false, true)
	f("models: [m]", true, true)
	f("models: [x]", false, true)
	f("models: ['x*']", true, false)
	f("models: ['x*'], tenants: [t2]", false, false)
	f("matchTenantLabels: { env: dev }", true, false)
}

// TestEveryDimension: each variable of the index is read from its field.
func TestEveryDimension(t *testing.T) {
	if len(dimensions) != int(dimCount) {
		t.Errorf("%d variables for %d dimensions", len(dimensions), dimCount)
	}
	for name, dim := range dimensions {
		value := "'" + dim.of(testInput()) + "'"
		if name == "request.stream" {
			value = dim.of(testInput())
		}
		for _, c := range []struct {
			condition string
			applies   bool
		}{{name + " == " + value, true}, {name + " != " + value, false}} {
			s := mustLoad(t, testConfig(), indexText("p", c.condition, ""))
			if !s.live[0].decided[0] {
				t.Errorf("%s is not indexed", c.condition)
			}
			if d := s.Decide(t.Context(), testInput()); d.Allow == c.applies {
				t.Errorf("%s: applies %t", c.condition, !d.Allow)
			}
		}
	}
}

// TestIndexChangesNoDecision: for random bindings and requests the index leaves
// out nothing that would have a say.
func TestIndexChangesNoDecision(t *testing.T) {
	atoms := []string{
		"request.operation == 'chat'", "request.operation != 'chat'", "request.operation in ['chat', 'completion']", "request.operation in params.list",
		"request.operation in params.table", "request.operation == params.one", "tenant.tier == 'gold'", "tenant.tier in ['gold', 'silver']", "tenant.id == 't1'",
		"request.stream", "request.stream == params.flag", "request.model == 'm'", "principal.kind == 'jwt'", "request.n > 2", "tenant.labels['x'] == 'y'", "true", "false",
	}
	rapid.Check(t, func(rt *rapid.T) {
		pick := func(label string, from []string) string { return rapid.SampledFrom(from).Draw(rt, label) }
		var condition func(depth int) string
		condition = func(depth int) string {
			if depth == 0 {
				return pick("atom", atoms)
			}
			switch pick("shape", []string{"atom", "and", "or", "not"}) {
			case "and":
				return "(" + condition(depth-1) + " && " + condition(depth-1) + ")"
			case "or":
				return "(" + condition(depth-1) + " || " + condition(depth-1) + ")"
			case "not":
				return "!(" + condition(depth-1) + ")"
			}
			return pick("atom", atoms)
		}
		var text strings.Builder
		for i := range rapid.IntRange(1, 6).Draw(rt, "policies") {
			text.WriteString(indexText(fmt.Sprint("p", i), condition(3), pick("selector", []string{"", "tenants: [t1]", "excludeTenants: [t1]", "operations: [chat]", "models: [m]", "models: ['m*']", "tenants: [t2], matchTenantLabels: { env: prod }"})))
		}
		s, err := load(testConfig(), text.String())
		if err != nil {
			rt.Fatalf("%v\n%s", err, text.String())
		}
		for range 5 {
			in := testInput()
			in.Request.Operation = pick("operation", []string{"chat", "completion", "messages"})
			in.Request.Stream = rapid.Bool().Draw(rt, "stream")
			in.Request.N = rapid.Int64Range(1, 4).Draw(rt, "n")
			in.Tenant.Tier, in.Tenant.ID = pick("tier", []string{"gold", "silver", "bronze"}), pick("tenant", []string{"t1", "t2"})
			judge := func(observer Observer) string {
				in.Observer = observer
				d := s.Decide(context.Background(), in)
				d.Cost = CostReport{}
				out, err := json.Marshal(d)
				if err != nil {
					rt.Fatal(err)
				}
				return string(out)
			}
			if with, without := judge(nil), judge(watcher{}); with != without {
				rt.Fatalf("with the index:\n%s\nwithout:\n%s\n%s", with, without, text.String())
			}
		}
	})
}

// TestIndexOfManyBindings: all words of the bit sets are used, in the order of
// the list.
func TestIndexOfManyBindings(t *testing.T) {
	var text strings.Builder
	text.WriteString(policyText("p", "\n  params: { schema: { op: { type: string, default: chat } } }\n  matchConditions: [{ name: m, expression: request.operation == params.op }]\n  auditAnnotations: [{ key: k, valueExpression: tenant.id }]", "Warn"))
	for i := range maxBindings - 1 {
		fmt.Fprintf(&text, "apiVersion: sluice/v1alpha1\nkind: AdmissionPolicyBinding\nmetadata: { name: b%04d }\nspec: { policyName: p, actions: [Warn], params: { op: op%d } }\n---\n", i, i%300)
	}
	s := mustLoad(t, testConfig(), text.String())
	in := testInput()
	in.Request.Operation = "op7"
	c := s.liveIndex.find(in)
	var got []string
	for i := range c.each {
		got = append(got, s.live[i].name)
	}
	if want := []string{"b0007", "b0307", "b0607", "b0907"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if d := s.Decide(t.Context(), in); d.Cost.Expressions != 4 {
		t.Errorf("%d expressions", d.Cost.Expressions)
	}
	in.Request.Operation = "none of them"
	c = s.liveIndex.find(in)
	for i := range c.each {
		t.Errorf("found %s", s.live[i].name)
	}
}

// TestIndexHasRoomForSoManyValues: a list that would make the index large is
// evaluated instead.
func TestIndexHasRoomForSoManyValues(t *testing.T) {
	list := func(prefix string, n int) string {
		out := make([]string, n)
		for i := range out {
			out[i] = fmt.Sprint(prefix, i)
		}
		return strings.Join(out, ", ")
	}
	text := indexText("a", "tenant.id in params.table", "") + strings.Replace(indexText("b", "tenant.id in params.table", ""), "actions:", "params: { table: {"+strings.ReplaceAll(list("t", maxIndexValues+1), ",", ": true,")+": true } }, actions:", 1)
	s := mustLoad(t, testConfig(), text)
	if s.live[0].admits == nil || s.live[1].admits != nil || s.live[1].decided[0] {
		t.Error("the large list is indexed")
	}
	for id, applies := range map[string]bool{"t8192": true, "t8193": false, "chat": true} {
		in := testInput()
		in.Tenant.ID = id
		if d := s.Decide(t.Context(), in); d.Allow == applies {
			t.Errorf("tenant %s: applies %t", id, !d.Allow)
		}
	}
}

// TestAdmitted: the algebra of values is that of sets.
func TestAdmitted(t *testing.T) {
	universe := []string{"a", "b", "c", "other"}
	draw := func(rt *rapid.T, label string) admitted {
		return admitted{rapid.Bool().Draw(rt, label+" not"), admit(rapid.SliceOf(rapid.SampledFrom(universe[:3])).Draw(rt, label)...).values}
	}
	rapid.Check(t, func(rt *rapid.T) {
		x, y := draw(rt, "x"), draw(rt, "y")
		before := fmt.Sprint(slices.Sorted(maps.Keys(x.values)), slices.Sorted(maps.Keys(y.values)))
		for _, v := range universe {
			if x.and(y).has(v) != (x.has(v) && y.has(v)) || x.or(y).has(v) != (x.has(v) || y.has(v)) || x.negated().has(v) == x.has(v) {
				rt.Fatalf("%v %v at %s: and %t, or %t", x, y, v, x.and(y).has(v), x.or(y).has(v))
			}
		}
		if after := fmt.Sprint(slices.Sorted(maps.Keys(x.values)), slices.Sorted(maps.Keys(y.values))); before != after {
			rt.Fatalf("the operands are changed: %s, %s", before, after)
		}
	})
}
