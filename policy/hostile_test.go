package policy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/decls"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"pgregory.net/rapid"
)

// producers are the overloads by the class of value that they yield.
func (h *hostileBench) producers() map[string][]producer {
	out := map[string][]producer{}
	functions := h.c.env.Functions()
	for _, name := range slices.Sorted(maps.Keys(functions)) {
		for _, o := range functions[name].OverloadDecls() {
			classes := classesOf(o.ResultType())
			if len(classes) == 1 && !uncallable[o.ID()] && len(o.ArgTypes()) > 0 {
				out[classes[0]] = append(out[classes[0]], producer{name, o})
			}
		}
	}
	return out
}

type producer struct {
	function string
	overload *decls.OverloadDecl
}

// nest draws an expression of a class, calls inside calls.
func nest(rt *rapid.T, from map[string][]producer, class string, depth int) string {
	options := from[class]
	if depth > 0 && strings.HasPrefix(class, "list(string") && rapid.Bool().Draw(rt, "loop") {
		return nest(rt, from, class, depth-1) + ".map(e, e + " + nest(rt, from, "string", depth-1) + ")"
	}
	if depth == 0 || len(options) == 0 {
		values := bigValues[class]
		if class == "string" {
			values = append(slices.Clone(values), "''", "'x'", "'a,b'", "request.path", "request.model")
		}
		return rapid.SampledFrom(values).Draw(rt, class)
	}
	p := rapid.SampledFrom(options).Draw(rt, "function")
	args := make([]string, len(p.overload.ArgTypes()))
	for i, t := range p.overload.ArgTypes() {
		args[i] = nest(rt, from, rapid.SampledFrom(classesOf(t)).Draw(rt, "argument"), depth-1)
	}
	if text := callText(p.function, p.overload, args); text != "" {
		return text
	}
	return rapid.SampledFrom(bigValues[class]).Draw(rt, class)
}

// TestNestedCallsAreBounded: no call of a call of a call, in the largest loop
// that is admitted, takes more than an expression may.
func TestNestedCallsAreBounded(t *testing.T) {
	h := newHostileBench(t)
	slowness, from := h.slowness(t), h.producers()
	classes := []string{"string", "list(string)", "int", "bool", "map"}
	admitted := 0
	rapid.Check(t, func(rt *rapid.T) {
		class := rapid.SampledFrom(classes).Draw(rt, "class")
		value := rapid.SampledFrom(bigValues["string"]).Draw(rt, "bound")
		x := h.dearest(value, nest(rt, from, class, rapid.IntRange(1, 3).Draw(rt, "depth")), true)
		if x == nil {
			return
		}
		admitted++
		h.check(rt, x, h.run(x), slowness)
	})
	if admitted == 0 {
		t.Error("nothing was admitted")
	}
	t.Logf("%d admitted", admitted)
}

// dearRules build and keep as much as an expression may, each in its own way.
var dearRules = []string{
	"request.tool_names.slice(%d, 512).filter(t, t != 'x').size() > 0 ? ['x'] : ['y']",
	"lists.range(120).map(i, string(i + %d) + request.path)",
	"principal.groups.map(g, g + g + 'x%d')",
	"request.headers.transformMap(k, v, v.size() > %d)",
	"lists.range(40).map(i, request.path + request.path + request.model + '%d')",
	"lists.range(200).map(i, [i, i + %d])",
}

// TestHostileRequest: a request that spends all that it may, by rules that keep
// what they build, has a bound on its time, on what it allocates and on what it
// still holds when it waits for its response.
func TestHostileRequest(t *testing.T) {
	slowness := newHostileBench(t).slowness(t)
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	f := func(name string, variables int, limited bool) {
		var vars, rules []string
		for i := range variables {
			vars = append(vars, fmt.Sprintf("{ name: x%d, expression: \"%s\" }", i, fmt.Sprintf(dearRules[i%len(dearRules)], i)))
			rules = append(rules, fmt.Sprintf("{ name: v%d, expression: \"variables.x%d.size() >= 0\" }", i, i))
		}
		s := mustLoad(t, testConfig(), policyText("p", "\n  variables: ["+strings.Join(vars, ", ")+"]\n  validations: ["+strings.Join(rules, ", ")+"]\n  limits: [{ name: l, unit: requests, window: 1m, limit: 5, key: [] }]", "Warn"))
		s.times = timeLimits{time.Hour, time.Hour}
		in := hostileInput()
		in.Request.Model = "m"
		s.Decide(context.Background(), in) // what is built once for the process
		held := heap()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		var d *Decision
		took := cpuTime(func() { d = s.Decide(context.Background(), in) })
		runtime.ReadMemStats(&after)
		live, allocated := heap()-held, after.TotalAlloc-before.TotalAlloc
		runtime.KeepAlive(d)
		t.Logf("%s: %d units, %d expressions, %d skipped: %s, %d bytes allocated, %d held", name, d.Cost.ShadowUnits, d.Cost.Expressions, d.Cost.Skipped, took, allocated, live)
		if (d.Cost.Skipped == 0) != limited || (len(d.Limits) == 1) != limited || d.Cost.ShadowUnits < requestCostLimit/2 || d.Cost.ShadowUnits > requestCostLimit+exprCostLimit {
			t.Errorf("%s: %d units, %d skipped, %d limits", name, d.Cost.ShadowUnits, d.Cost.Skipped, len(d.Limits))
		}
		if bound := time.Duration(float64(10*mostTime) * slowness); took > bound {
			t.Errorf("%s: %s, at most %s", name, took, bound)
		}
		if allocated > 10*mostBytes || live > 4<<20 {
			t.Errorf("%s: %d bytes allocated, %d held", name, allocated, live)
		}
	}
	f("as much as it may", 64, false)
	f("as much as it may hold", 14, true)
}

// TestManyHostileRequests: requests that spend all that they may do not spoil
// one another's budgets or results.
func TestManyHostileRequests(t *testing.T) {
	s := mustLoad(t, testConfig(), policyText("p", "\n  variables: [{ name: x, expression: \"principal.groups.map(g, g + g)\" }]\n  validations: [{ name: v, expression: \"variables.x.size() == 128 && request.headers.all(k, v, v.contains('é'))\" }]", "Deny"))
	s.times = timeLimits{time.Hour, time.Hour}
	first := s.Decide(context.Background(), hostileInput())
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			in := hostileInput()
			for range 5 {
				if d := s.Decide(context.Background(), in); d.Allow != first.Allow || d.Cost.Units != first.Cost.Units || rules(d.Errors) != rules(first.Errors) {
					t.Errorf("%d units and errors %+v, alone %d and %+v", d.Cost.Units, d.Errors, first.Cost.Units, first.Errors)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestSlowExpressionIsInterrupted: were an operation priced far too low, the
// clock ends its loop. The evaluation is given one: a function that burns the
// core for two units.
func TestSlowExpressionIsInterrupted(t *testing.T) {
	h := newHostileBench(t)
	const each = 300 * time.Microsecond
	env, err := h.c.env.Extend(cel.Function("burn", cel.Overload("burn_int", []*cel.Type{cel.IntType}, cel.IntType, cel.UnaryBinding(func(v ref.Val) ref.Val {
		for began := time.Now(); time.Since(began) < each; {
			runtime.Gosched()
		}
		return v
	}))))
	if err != nil {
		t.Fatal(err)
	}
	h.c.env = env
	x := h.compile("lists.range(1000).all(i, burn(i) >= 0)")
	if x == nil {
		t.Fatal(h.c.p.list)
	}
	h.set.times = timeLimits{exprTimeLimit, requestTimeLimit}
	e := newEvaluation(context.Background(), h.set, h.in)
	took := cpuTime(func() { _, err = e.bind(h.set.live[0]).run(x) })
	own, ok := errors.AsType[*evalError](err)
	if !ok || own.kind != ErrorClock {
		t.Fatalf("got %v after %s", err, took)
	}
	// The clock ends it at 100 ms, and the loop looks every 100 rounds of 0.3 ms.
	// Without it, it would have been 300 ms and more.
	if bound := exprTimeLimit + 2*interruptEvery*each; took > bound {
		t.Errorf("%s of CPU time, at most %s", took, bound)
	}
	if e.live.used > exprCostLimit {
		t.Errorf("%d units", e.live.used)
	}
	if e.clock.spent < exprTimeLimit {
		t.Errorf("interrupted after %s", e.clock.spent)
	}
	// What is left of the request's time is less, and then nothing.
	for i := range 3 {
		_, err = e.bind(h.set.live[0]).run(x)
		if own, ok = errors.AsType[*evalError](err); !ok || own.kind != ErrorClock {
			t.Errorf("run %d: %v", i, err)
		}
	}
	if most := requestTimeLimit + 4*interruptEvery*each*raceFactor; e.clock.spent > most+time.Second {
		t.Errorf("the request took %s", e.clock.spent)
	}
}

// TestKnownAttacks pins what the sweep has found, by the shapes in which an
// author would write it.
func TestKnownAttacks(t *testing.T) {
	h := newHostileBench(t)
	slowness := h.slowness(t)
	repeat := func(s string, n int) string { return strings.TrimSuffix(strings.Repeat(s+",", n), ",") }
	for _, expr := range []string{
		"[" + repeat("request.tool_names", 400) + "] == [" + repeat("request.tool_names", 400) + "]",
		"request.tool_names in [" + repeat("request.tool_names", 300) + "]",
		"lists.range(900).all(i, now.getHours(request.headers['h']) >= 0)",
		"['" + strings.Repeat("%s", 32) + "'.format([" + repeat("request.headers['h']", 32) + "])].all(a, lists.range(900).all(i, a.size() > 0))",
		"['" + strings.Repeat("%s", 32) + "'.format([" + repeat("request.headers['h']", 32) + "])].all(a, lists.range(900).all(i, a.contains('')))",
		"['" + strings.Repeat("%s", 32) + "'.format([" + repeat("request.headers['h']", 32) + "])].all(a, lists.range(900).all(i, a.indexOf('') == 0))",
		"['" + strings.Repeat("%s", 32) + "'.format([" + repeat("request.headers['h']", 32) + "])].all(a, lists.range(900).all(i, timestamp(a) == now))",
		"['" + strings.Repeat("%s", 32) + "'.format([" + repeat("request.headers['h']", 32) + "])].all(a, lists.range(900).all(i, a != 'x'))",
		"['" + strings.Repeat("%s", 32) + "'.format([" + repeat("request.headers['h']", 32) + "])].all(a, lists.range(900).all(i, a < 'x'))",
		"lists.range(250).all(i, now.getHours('Europe/Berlin') >= 0)",
		"request.headers.all(k, v, timestamp(v) == now)",
	} {
		if x := h.compile(expr); x != nil {
			h.check(t, x, h.run(x), slowness)
		}
	}
	if x := h.compile("lists.range(90).all(i, now.getHours('Europe/Berlin') >= 0)"); x == nil || types.BoolType != x.typ {
		t.Errorf("an ordinary use of a zone is refused: %v", h.c.p.list)
	}
}
