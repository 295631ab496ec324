package policy

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/decls"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"pgregory.net/rapid"
)

// hostileInput is the largest request, with a header that an expression can
// name and texts whose characters are long.
func hostileInput() *Input {
	in := largestInput()
	for k := range in.Request.Headers {
		delete(in.Request.Headers, k)
		break
	}
	in.Request.Headers["h"] = strings.Repeat("é", maxHeaderValue)
	return in
}

// hostileBench compiles and runs single expressions as a policy's, on the
// hostile input.
type hostileBench struct {
	set *Set
	c   *compiler
	in  *Input
}

func newHostileBench(t testing.TB) *hostileBench {
	t.Helper()
	env, err := baseEnv()
	if err != nil {
		t.Fatal(err)
	}
	c := &compiler{policy: &policyDoc{name: "p"}, env: env, vars: map[string]variable{}, traits: map[string]*expression{}, broken: map[string]bool{}, later: map[string]bool{}}
	for _, v := range baseVariables() {
		c.vars[v.name] = v
	}
	s := mustLoad(t, testConfig(), policyText("p", validations, "Deny"))
	s.times = timeLimits{time.Hour, time.Hour}
	return &hostileBench{s, c, hostileInput()}
}

// compile returns nil for an expression that is refused.
func (h *hostileBench) compile(text string) *expression {
	h.c.p = &problems{}
	return h.c.compile(exprDoc{scalar: scalar{text: text, file: "f.yaml", line: 1, col: 1}, path: "spec", set: true}, scopeAll, cel.BoolType)
}

// measure is what an expression costs at most of several runs: the least CPU
// time, what one run allocates, and the units.
type measure struct {
	text    string
	took    time.Duration
	bytes   uint64
	units   uint64
	failure error
}

func (h *hostileBench) run(x *expression) measure {
	m := measure{text: x.text, took: time.Hour}
	for range 3 { // the least is nearest to what it takes
		if m.took < time.Millisecond {
			break
		}
		var before, after runtime.MemStats
		e := newEvaluation(context.Background(), h.set, h.in)
		a := e.bind(h.set.live[0])
		runtime.ReadMemStats(&before)
		m.took = min(m.took, cpuTime(func() { _, m.failure = a.run(x) }))
		runtime.ReadMemStats(&after)
		m.bytes, m.units = after.TotalAlloc-before.TotalAlloc, e.live.used
	}
	return m
}

func (m measure) perUnit() time.Duration { return m.took / time.Duration(max(m.units, 1)) }

// Values of each type, the dearest that an expression can get hold of. Those
// of several parts are bound once, outside the loop.
var bigValues = map[string][]string{
	"string": {
		"request.headers['h']",
		"'" + strings.Repeat("%s", 32) + "'.format([" + strings.TrimSuffix(strings.Repeat("request.headers['h'],", 32), ",") + "])",
		"request.source_ip",
	},
	"bytes":        {"bytes(request.headers['h'])"},
	"list(string)": {"request.tool_names", "content.labels", "request.modalities", strings.TrimSuffix(strings.Repeat("request.tool_names + ", 40), " + ")},
	"list(list)": {
		"[" + strings.TrimSuffix(strings.Repeat("request.tool_names,", 400), ",") + "]",
		"[" + strings.TrimSuffix(strings.Repeat("request.tool_names,", 20), ",") + "]",
		"[request.tool_names]", "[request.modalities]",
	},
	"list(map)":  {"[" + strings.TrimSuffix(strings.Repeat("request.headers,", 100), ",") + "]"},
	"list(int)":  {"lists.range(1000)", "lists.range(100)", "lists.range(20)"},
	"list(uint)": {"[1u, 2u, 3u]"}, "list(double)": {"[1.5, 2.5, 3.5]"}, "list(bool)": {"[true, false]"}, "list(bytes)": {"[bytes(request.headers['h'])]"},
	"list(timestamp)": {"[now, now]"}, "list(duration)": {"[duration('1h'), duration('2h')]"}, "list(optional)": {"[optional.of(request.headers['h'])]"},
	"map": {"request.headers", "content.findings", "tenant.labels"},
	"int": {"9223372036854775807", "1000", "1"}, "uint": {"18446744073709551615u"}, "double": {"-1.7976931348623157e308"}, "bool": {"true"},
	"timestamp": {"now"}, "duration": {"duration('2562047h')"}, "null": {"null"}, "type": {"type(1)"},
	"ip": {"ip('2001:db8:ffff:ffff:ffff:ffff:ffff:ffff')"}, "cidr": {"cidr('2001:db8::/32')"},
	"optional": {"optional.of(request.headers['h'])", "optional.of(request.tool_names)"},
}

// classesOf are the classes of bigValues that fit a parameter.
func classesOf(t *types.Type) []string {
	switch t.Kind() {
	case types.StringKind:
		return []string{"string"}
	case types.BytesKind:
		return []string{"bytes"}
	case types.IntKind:
		return []string{"int"}
	case types.UintKind:
		return []string{"uint"}
	case types.DoubleKind:
		return []string{"double"}
	case types.BoolKind:
		return []string{"bool"}
	case types.TimestampKind:
		return []string{"timestamp"}
	case types.DurationKind:
		return []string{"duration"}
	case types.NullTypeKind:
		return []string{"null"}
	case types.TypeKind:
		return []string{"type"}
	case types.ListKind:
		if elem := classesOf(t.Parameters()[0]); len(elem) == 1 {
			return []string{"list(" + elem[0] + ")"}
		}
		return []string{"list(string)", "list(list)", "list(map)", "list(int)"}
	case types.MapKind:
		return []string{"map"}
	case types.OpaqueKind:
		switch {
		case t.TypeName() == "net.IP":
			return []string{"ip"}
		case t.TypeName() == "net.CIDR":
			return []string{"cidr"}
		}
		return []string{"optional"}
	}
	return []string{"string", "list(string)", "list(list)", "list(map)", "map", "int"}
}

// callText writes a call of an overload, or nothing where none can be written.
func callText(function string, o *decls.OverloadDecl, args []string) string {
	if symbol, ok := operators.FindReverse(function); ok && symbol != "" {
		switch len(args) {
		case 1:
			return "(" + symbol + args[0] + ")"
		case 2:
			return "(" + args[0] + " " + symbol + " " + args[1] + ")"
		}
	}
	switch function {
	case operators.In, operators.OldIn, "in":
		return "(" + args[0] + " in " + args[1] + ")"
	case "math.@max":
		return "math.greatest(" + strings.Join(args, ", ") + ")"
	case "math.@min":
		return "math.least(" + strings.Join(args, ", ") + ")"
	case "@sortByAssociatedKeys":
		return args[0] + ".sortBy(e, e)"
	case "format":
		return "'%s %s'.format([" + args[0] + ", " + args[0] + "])"
	case operators.Conditional:
		return "(" + args[0] + " ? " + args[1] + " : " + args[2] + ")"
	case operators.Index:
		return args[0] + "[" + args[1] + "]"
	case operators.OptIndex:
		return args[0] + "[?" + args[1] + "]"
	case operators.OptSelect:
		return args[0] + ".?h"
	}
	if strings.ContainsAny(function, "_@") {
		return ""
	}
	if o.IsMemberFunction() {
		return args[0] + "." + function + "(" + strings.Join(args[1:], ", ") + ")"
	}
	return function + "(" + strings.Join(args, ", ") + ")"
}

// calls writes the calls of an overload on every class of values, each with the
// value that is bound as a.
func calls(function string, o *decls.OverloadDecl) (out [][2]string) {
	params := o.ArgTypes()
	var fill func(i int, classes []string)
	fill = func(i int, classes []string) {
		if i < len(params) {
			for _, class := range classesOf(params[i]) {
				fill(i+1, append(slices.Clone(classes), class))
			}
			return
		}
		for _, bound := range slices.Compact(slices.Sorted(slices.Values(classes))) {
			for _, value := range bigValues[bound] {
				// The other arguments are large, too, or as small as can be.
				for _, small := range []string{"", "''"} {
					args := make([]string, len(classes))
					for i, class := range classes {
						switch {
						case class == "string" && small != "" && (class != bound || i > 0):
							args[i] = small
						case class == bound:
							args[i] = "a"
						default:
							args[i] = bigValues[class][0]
						}
					}
					text := callText(function, o, args)
					if pair := [2]string{value, text}; text != "" && !slices.Contains(out, pair) {
						out = append(out, pair)
					}
				}
			}
		}
	}
	fill(0, nil)
	if len(params) == 0 {
		out = append(out, [2]string{"1", callText(function, o, nil)})
	}
	return out
}

// dearest finds the largest loop around a call that is admitted: the estimate
// is a straight line in the number of rounds. A value that is bound is made
// once; one that is written out has a size that the estimate knows better.
func (h *hostileBench) dearest(value, call string, bound bool) *expression {
	if !bound {
		call = boundName.ReplaceAllLiteralString(call, value)
	}
	loop := func(rounds uint64) *expression {
		text := fmt.Sprintf("lists.range(%d).all(i, type(%s) != type(now))", rounds, call)
		if bound {
			text = "[" + value + "].all(a, " + text + ")"
		}
		return h.compile(text)
	}
	one, two := loop(1), loop(2)
	if one == nil || two == nil {
		return one
	}
	rounds := 1 + (exprCostLimit-one.estimate)/max(two.estimate-one.estimate, 1)
	for ; rounds > 2; rounds-- {
		if x := loop(min(rounds, maxRange)); x != nil {
			return x
		}
	}
	return two
}

// slowness is how much slower than the reference a unit of a plain loop is on
// this machine, now: bounds of time grow with it.
func (h *hostileBench) slowness(t rapid.TB) float64 {
	t.Helper()
	const reference = 300 * time.Nanosecond
	x := h.compile("lists.range(1000).all(i, i < 1000)")
	m := measure{took: time.Hour}
	for range 5 {
		m = minTime(m, h.run(x))
	}
	return max(1, float64(m.perUnit())/float64(reference))
}

func minTime(a, b measure) measure {
	if a.took < b.took {
		return a
	}
	return b
}

// What one expression may do at most, on a machine of the reference's speed.
const (
	mostTime  = 10 * time.Millisecond
	mostBytes = 4 << 20
)

// check holds a measured expression against the bounds. One that seems slow is
// measured again, and so is the machine, which is not always its own.
func (h *hostileBench) check(t rapid.TB, x *expression, m measure, slowness float64) measure {
	t.Helper()
	bound := time.Duration(float64(mostTime) * slowness)
	for i := 0; i < 5 && m.took > bound; i++ {
		bound = max(bound, time.Duration(float64(mostTime)*h.slowness(t)))
		m = minTime(m, h.run(x))
	}
	if m.took > bound || m.bytes > mostBytes || m.units > exprCostLimit+exprCostLimit/4 {
		t.Errorf("%s and %d bytes for %d units (%s a unit), at most %s and %d: %.300s", m.took, m.bytes, m.units, m.perUnit(), bound, mostBytes, m.text)
	}
	return m
}

// TestEveryOverloadIsPriced calls every overload of the environment as often as
// an expression may, on the largest values and on the smallest, and holds what
// that takes against the bounds.
func TestEveryOverloadIsPriced(t *testing.T) {
	h := newHostileBench(t)
	slowness := h.slowness(t)
	admitted, called := 0, map[string]bool{}
	var slowest, largest measure
	for n, name := range slices.Sorted(maps.Keys(h.c.env.Functions())) {
		for _, o := range h.c.env.Functions()[name].OverloadDecls() {
			// One goroutine: the race detector is slow and has nothing to find here.
			if called[o.ID()] = called[o.ID()] || raceFactor > 1 && n%10 != 0; called[o.ID()] && raceFactor > 1 {
				continue
			}
			for _, call := range calls(name, o) {
				x := h.dearest(call[0], call[1], true)
				if x == nil {
					x = h.dearest(call[0], call[1], false)
				}
				if x == nil {
					continue
				}
				m := h.check(t, x, h.run(x), slowness)
				called[o.ID()] = true
				admitted++
				if m.took > slowest.took {
					slowest = m
				}
				if m.bytes > largest.bytes {
					largest = m
				}
			}
			called[o.ID()] = called[o.ID()] || uncallable[o.ID()]
		}
	}
	for _, f := range h.c.env.Functions() {
		for _, o := range f.OverloadDecls() {
			if !called[o.ID()] {
				t.Errorf("no call of %s was admitted: give it a price under which one is, or say why none can be", o.ID())
			}
		}
	}
	t.Logf("%d overloads, %d loops; a unit of a plain loop takes %.1f times the reference", len(called), admitted, slowness)
	t.Logf("slowest: %s for %d units: %.120s", slowest.took, slowest.units, slowest.text)
	t.Logf("largest: %d bytes for %d units: %.120s", largest.bytes, largest.units, largest.text)
}

// uncallable overloads are called by the evaluator alone, inside loops, or make
// the library's estimate panic, which is a refusal.
var uncallable = map[string]bool{
	overloadSorted: true, "not_strictly_false": true, "__not_strictly_false__": true, "list_bytes_sort": true, "list_bytes_sortByAssociatedKeys": true,
	"@mapInsert_map_key_value": true, "@mapInsert_map_map": true,
}

var boundName = regexp.MustCompile(`\ba\b`)
