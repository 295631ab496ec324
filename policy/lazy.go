package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"runtime"
	"slices"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// tokenCount is the outcome of counting the prompt, kept for the request.
type tokenCount struct {
	done  bool
	n     int64
	exact bool
	err   error
}

// scanned is the outcome of a content scan, kept for the request.
type scanned struct {
	done    bool
	content Content
	labels  []string // declared and detected, sorted, without repeats
	err     error
}

// inputTokens counts the prompt at the first call.
func (e *evaluation) inputTokens() *tokenCount {
	t := &e.tokens
	if t.done {
		return t
	}
	t.done = true
	if e.in.Lazy == nil {
		t.err = &evalError{kind: ErrorLazy, text: "request.input_tokens cannot be computed here"}
		return t
	}
	e.tokenizeTime += e.clock.pause(func() {
		defer recoverLazy(&t.err)
		t.n, t.exact, t.err = e.in.Lazy.InputTokens(e.ctx)
	})
	switch {
	case t.err != nil:
		t.err = &evalError{kind: ErrorLazy, text: "request.input_tokens cannot be computed: " + t.err.Error(), cause: t.err}
	case t.n < 0:
		t.err = &evalError{kind: ErrorLazy, text: "request.input_tokens is negative"}
	}
	return t
}

// recoverLazy keeps a panic in the caller's lazy work an error of this request. Lazy work reads the prompt,
// which may be in the panic's value and must not get into a log: only what the runtime itself says is kept.
func recoverLazy(err *error) {
	if r := recover(); r != nil {
		*err = errors.New(panicText(r))
	}
}

// panicText is what may be said of a panic: what the runtime itself says, and only the type of anything else,
// which may hold a value of the request.
func panicText(r any) string {
	if err, ok := r.(runtime.Error); ok {
		return "panic: " + err.Error()
	}
	return fmt.Sprintf("panic with a value of type %T", r)
}

// scan scans the content at the first call.
func (e *evaluation) scan() *scanned {
	c := &e.scanned
	if c.done {
		return c
	}
	c.done = true
	if e.in.Lazy == nil {
		c.err = &evalError{kind: ErrorLazy, text: "content cannot be scanned here"}
		return c
	}
	e.scanTime += e.clock.pause(func() {
		defer recoverLazy(&c.err)
		c.content, c.err = e.in.Lazy.Content(e.ctx)
	})
	if c.err != nil {
		c.err = &evalError{kind: ErrorLazy, text: "content cannot be scanned: " + c.err.Error(), cause: c.err}
		return c
	}
	c.labels = slices.Concat(e.in.DeclaredLabels, c.content.Labels)
	slices.Sort(c.labels)
	c.labels = slices.Compact(c.labels)
	c.err = c.check()
	return c
}

// check holds a scan's outcome against the maxima and words of section 2.
func (c *scanned) check() error {
	tooLong := func(s string) bool { return len(s) > maxName }
	noLabel := func(s string) bool { return !isName(s) }
	switch {
	case len(c.labels) > maxLabelCount || slices.ContainsFunc(c.labels, tooLong):
		return &evalError{kind: ErrorSize, text: "content.labels is beyond its maximum"}
	case len(c.content.Detectors) > maxLabelCount || slices.ContainsFunc(c.content.Detectors, tooLong):
		return &evalError{kind: ErrorSize, text: "content.detectors is beyond its maximum"}
	case len(c.content.Findings) > maxFindings:
		return &evalError{kind: ErrorSize, text: "content.findings is beyond its maximum"}
	case slices.ContainsFunc(slices.Collect(maps.Keys(c.content.Findings)), tooLong):
		return &evalError{kind: ErrorSize, text: "content.findings has a label beyond its maximum"}
	case slices.ContainsFunc(c.content.Labels, noLabel) || slices.ContainsFunc(slices.Collect(maps.Keys(c.content.Findings)), noLabel):
		return &evalError{kind: ErrorLazy, text: "the scan reports a label that is none: labels have 1 to 63 of a-z, 0-9 and -"}
	case !slices.Contains(scanStatuses, c.content.ScanStatus):
		return &evalError{kind: ErrorLazy, text: "content.scan_status is none of complete, partial, timeout, unavailable"}
	}
	return nil
}

var scanStatuses = []string{"complete", "partial", "timeout", "unavailable"}

// costEstimate is the price of the whole prompt and of the output that is
// reserved.
func (e *evaluation) costEstimate() (int64, error) {
	if e.in.Observer != nil {
		e.in.Observer.Read("request.input_tokens")
	}
	price, ok := e.price()
	if !ok {
		return 0, &evalError{kind: ErrorValue, text: "the model has no price"}
	}
	t := e.promptTokens()
	if t.err != nil {
		return 0, t.err
	}
	output, err := e.outputTokens()
	if err != nil {
		return 0, err
	}
	return price.mostCost(t.n, output)
}

// learnedOutput names [RequestInput.LearnedOutput], which is no variable.
const learnedOutput = "request.learned_output"

// outputTokens is what is reserved for the request's output: as much as it may
// generate, or, where the client has not said how much, as much as such requests
// have taken so far.
func (e *evaluation) outputTokens() (int64, error) {
	r := &e.in.Request
	choices, err := mulInt(e.effective.n, max(r.Prompts, 1))
	if err != nil {
		return 0, err
	}
	if r.MaxTokens == nil && e.in.Absent[learnedOutput] {
		return 0, &evalError{kind: ErrorAbsent, text: "the input does not give " + learnedOutput}
	}
	each := e.effective.maxTokens
	if r.LearnedOutput != nil && r.MaxTokens == nil {
		each = min(each, max(*r.LearnedOutput, 1))
	}
	return mulInt(each, choices)
}

// promptTokens is what is reserved for the request's prompt: nothing where none goes
// through an engine.
func (e *evaluation) promptTokens() *tokenCount {
	if slices.Contains(withoutPrompt, e.in.Request.Operation) {
		return &tokenCount{}
	}
	return e.countedTokens()
}

// countedTokens is inputTokens for the evaluator's own use, which obeys absent
// variables like an expression.
func (e *evaluation) countedTokens() *tokenCount {
	if e.in.Absent["request.input_tokens"] {
		return &tokenCount{err: &evalError{kind: ErrorAbsent, text: "the input does not give request.input_tokens"}}
	}
	return e.inputTokens()
}

func mulInt(a, b int64) (int64, error) {
	hi, lo := bits.Mul64(uint64(max(a, 0)), uint64(max(b, 0)))
	if hi != 0 || lo > math.MaxInt64 {
		return 0, &evalError{kind: ErrorValue, text: "the number of output tokens overflows"}
	}
	return int64(lo), nil
}

func addInt(a, b int64) (int64, error) {
	if b > 0 && a > math.MaxInt64-b {
		return 0, &evalError{kind: ErrorValue, text: "the number of tokens overflows"}
	}
	return a + b, nil
}

// claimValue converts a claim, as decoded from JSON, to its declared type.
func claimValue(typeName string, v any) (ref.Val, error) {
	t, isList, err := claimType(typeName)
	if err != nil {
		return nil, err
	}
	if !isList {
		return claimScalar(typeName, v)
	}
	elem := t.Parameters()[0].String()
	var in []any
	switch l := v.(type) {
	case []any:
		in = l
	case []string:
		for _, s := range l {
			in = append(in, s)
		}
	default:
		return nil, fmt.Errorf("expected a list, found %T", v)
	}
	if len(in) > maxClaimList {
		return nil, fmt.Errorf("%d elements, at most %d are allowed", len(in), maxClaimList)
	}
	out := make([]ref.Val, len(in))
	for i, x := range in {
		if out[i], err = claimScalar(elem, x); err != nil {
			return nil, err
		}
	}
	return types.NewRefValList(types.DefaultTypeAdapter, out), nil
}

func claimScalar(typeName string, v any) (ref.Val, error) {
	switch typeName {
	case "string":
		if s, ok := v.(string); ok {
			if len(s) > maxSubject {
				return nil, fmt.Errorf("more than %d characters", maxSubject)
			}
			return types.String(s), nil
		}
	case "bool":
		if b, ok := v.(bool); ok {
			return types.Bool(b), nil
		}
	case "int":
		if n, ok := claimInt(v); ok {
			return types.Int(n), nil
		}
	case "double":
		if f, ok := claimFloat(v); ok {
			return types.Double(f), nil
		}
	}
	return nil, fmt.Errorf("expected %s, found %T", typeName, v)
}

func claimInt(v any) (int64, bool) {
	switch n := v.(type) {
	case int64:
		return n, true
	case int:
		return int64(n), true
	case json.Number:
		i, err := n.Int64()
		return i, err == nil
	case float64:
		// Beyond 2^53 a float64 may stand for another integer than was signed.
		const exact = 1 << 53
		return int64(n), n == math.Trunc(n) && math.Abs(n) <= exact
	}
	return 0, false
}

func claimFloat(v any) (float64, bool) {
	switch n := v.(type) {
	case float64:
		return n, !math.IsNaN(n) && !math.IsInf(n, 0)
	case int64:
		return float64(n), true
	case int:
		return float64(n), true
	case json.Number:
		f, err := n.Float64()
		return f, err == nil
	}
	return 0, false
}

// checkVariable holds the value of a variables.* against its maximum, on which
// the cost estimates of its readers rest.
func checkVariable(name string, v ref.Val) error {
	if o, ok := v.(*types.Optional); ok {
		if !o.HasValue() {
			return nil
		}
		v = o.GetValue()
	}
	if sizeAbove(v, maxVariable) {
		return &evalError{kind: ErrorSize, text: fmt.Sprintf("%s is larger than %d", name, maxVariable)}
	}
	if it, ok := v.(traits.Iterable); ok && elementAbove(v, it) {
		return &evalError{kind: ErrorSize, text: fmt.Sprintf("%s holds an element larger than allowed", name)}
	}
	return nil
}

func elementAbove(v ref.Val, it traits.Iterable) bool {
	m, isMap := v.(traits.Mapper)
	for i := it.Iterator(); i.HasNext() == types.True; {
		e := i.Next()
		if isMap {
			if sizeAbove(e, maxVariable) {
				return true
			}
			e = m.Get(e)
		}
		if sizeAbove(e, maxVariableElem) {
			return true
		}
	}
	return false
}

func sizeAbove(v ref.Val, most int) bool {
	if s, ok := v.(types.String); ok && len(s) <= most {
		return false
	}
	return scalarSize(v) > uint64(most)
}
