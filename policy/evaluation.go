package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
)

// evaluation is the state of one request: converted input, lazy values, spent
// cost and time. It is used by one goroutine at a time and lives as long as its
// Decision, since charges and shadow bindings read it again.
type evaluation struct {
	set *Set
	in  *Input
	ctx context.Context

	values    [idCount]ref.Val
	tokens    tokenCount
	scanned   scanned
	effective *effective
	usage     *Usage

	// indexed: bindings that the index rules out are not looked at. It is off
	// where somebody watches, or a variable is absent.
	indexed                bool
	began                  time.Time
	clock                  clock
	live, other            budget // enforced; Warn and Audit
	expressions, skipped   int
	scanTime, tokenizeTime time.Duration

	// tracer is told of every expression that a binding asks for, with its value
	// or error and what it cost; an expression that shares the result of an equal
	// one costs 0. For explanations; nil in a gateway.
	tracer func(a *activation, x *expression, v ref.Val, cost uint64, err error)
}

// budget is the CEL cost that a request has spent on one kind of bindings, and
// the results that they share.
type budget struct {
	used uint64
	// shared are the results of expressions that stand in several places and
	// read nothing but the request. They are paid for once.
	shared []slot
}

// evalError is an evaluation error. Its text is for the log: it can hold input
// values.
type evalError struct {
	kind  ErrorKind
	text  string
	cause error
}

func (e *evalError) Error() string { return e.text }

func (e *evalError) Unwrap() error { return e.cause }

func newEvaluation(ctx context.Context, s *Set, in *Input) *evaluation {
	e := &evaluation{set: s, in: in, indexed: in.Observer == nil && in.Absent == nil, tracer: observeExpressions(in.Observer)}
	e.restart(ctx)
	return e
}

// restart begins a phase with a time budget of its own.
func (e *evaluation) restart(ctx context.Context) {
	e.ctx, e.began, e.clock = ctx, time.Now(), clock{limits: e.set.times}
}

// bind returns the activation of one binding.
func (e *evaluation) bind(b *binding) *activation {
	a := &activation{}
	a.reset(e, b)
	return a
}

// reset makes an activation that has read no variable that of another binding.
func (a *activation) reset(e *evaluation, b *binding) {
	*a = activation{e: e, b: b, budget: &e.live}
	if b.mode != Enforced {
		a.budget = &e.other
	}
}

// run evaluates an expression within all limits, or finds the result of an
// equal one. The error is an *evalError.
func (a *activation) run(x *expression) (ref.Val, error) {
	if x.shared == 0 {
		v, cost, err := a.eval(x)
		a.trace(x, v, cost, err)
		return v, err
	}
	if a.budget.shared == nil {
		a.budget.shared = make([]slot, a.e.set.shared+1)
	}
	s := &a.budget.shared[x.shared]
	var cost uint64
	if s.val == nil && s.err == nil {
		s.val, cost, s.err = a.eval(x)
	}
	a.trace(x, s.val, cost, s.err)
	return s.val, s.err
}

func (a *activation) trace(x *expression, v ref.Val, cost uint64, err error) {
	if t := a.e.tracer; t != nil {
		t(a, x, v, cost, err)
	}
}

func (a *activation) eval(x *expression) (val ref.Val, cost uint64, err error) {
	e := a.e
	if err := e.mayRun(a.budget); err != nil {
		return nil, 0, err
	}
	e.expressions++
	var det *cel.EvalDetails
	if x.loops {
		ctx := e.clock.enter()
		val, det, err = x.program.ContextEval(ctx, a)
		e.clock.leave()
	} else {
		val, det, err = x.program.Eval(a)
	}
	if units := det.ActualCost(); units != nil {
		cost = *units
	} else {
		cost = x.estimate // of a cheap one
	}
	a.budget.used += cost
	if err != nil {
		return nil, cost, classify(err)
	}
	return val, cost, nil
}

// errSkipped stands for the result of an expression of a Warn or Audit binding
// that the request's budget has left out. The rule that needs it is absent: it
// neither warns nor counts as an error.
var errSkipped = &evalError{kind: ErrorCost, text: "skipped: Warn and Audit bindings have spent their evaluation cost"}

// skipped reports whether an error is that of an expression left out.
func skipped(err error) bool {
	own, ok := errors.AsType[*evalError](err)
	return ok && own == errSkipped
}

// mayRun refuses an expression once the caller is gone or the request's cost is
// spent.
func (e *evaluation) mayRun(b *budget) error {
	if b.used >= requestCostLimit {
		if b == &e.other {
			e.skipped++
			return errSkipped
		}
		return &evalError{kind: ErrorCost, text: fmt.Sprintf("the request has spent its evaluation cost of %d", requestCostLimit)}
	}
	if err := e.ctx.Err(); err != nil {
		return &evalError{kind: ErrorCancelled, text: "the request was cancelled: " + err.Error(), cause: err}
	}
	return nil
}

// classify finds the kind of an error of the evaluator.
func classify(err error) error {
	if own, ok := errors.AsType[*evalError](err); ok {
		return own
	}
	var cancelled interpreter.EvalCancelledError
	switch {
	case errors.As(err, &cancelled) && cancelled.Cause == interpreter.CostLimitExceeded:
		return &evalError{kind: ErrorCost, text: fmt.Sprintf("the expression's cost exceeds %d", exprCostLimit), cause: err}
	case errors.Is(err, interpreter.InterruptError{}):
		return &evalError{kind: ErrorClock, text: fmt.Sprintf("the expression takes longer than %s, or the request longer than %s", exprTimeLimit, requestTimeLimit), cause: err}
	}
	kind := ErrorValue
	if strings.HasPrefix(err.Error(), "internal error:") { // a recovered panic
		kind = ErrorInternal
	}
	return &evalError{kind: kind, text: err.Error(), cause: err}
}

// The typed forms of run. The type check at load makes another type a bug of
// the evaluator, which is an error all the same.

func (a *activation) bool(x *expression) (bool, error) {
	v, err := a.run(x)
	if err != nil {
		return false, err
	}
	if b, ok := v.(types.Bool); ok {
		return bool(b), nil
	}
	return false, wrongType("bool", v)
}

func (a *activation) int(x *expression) (int64, error) {
	v, err := a.run(x)
	if err != nil {
		return 0, err
	}
	if n, ok := v.(types.Int); ok {
		return int64(n), nil
	}
	return 0, wrongType("int", v)
}

func (a *activation) string(x *expression) (string, error) {
	v, err := a.run(x)
	if err != nil {
		return "", err
	}
	if s, ok := v.(types.String); ok {
		return string(s), nil
	}
	return "", wrongType("string", v)
}

// optionalString is string for a string or an optional one.
func (a *activation) optionalString(x *expression) (s string, given bool, err error) {
	v, err := a.run(x)
	if err != nil {
		return "", false, err
	}
	if o, ok := v.(*types.Optional); ok {
		if !o.HasValue() {
			return "", false, nil
		}
		v = o.GetValue()
	}
	if s, ok := v.(types.String); ok {
		return string(s), true, nil
	}
	return "", false, wrongType("string", v)
}

func wrongType(want string, v ref.Val) error {
	return &evalError{kind: ErrorInternal, text: fmt.Sprintf("the result is %s, not %s", v.Type().TypeName(), want)}
}
