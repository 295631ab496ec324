package policy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// ClaimMapSource are the expressions that say whose caller somebody is, by what
// a token or a certificate says of it. They are written in the environment of
// policies, with the variables of ClaimVariables alone. Tenant must be given; an
// empty one of the others says nothing.
type ClaimMapSource struct {
	Tenant, Team string // string
	Labels       string // map(string, string)
	Groups       string // list(string)
	Scopes       string // list(string)
}

// ClaimInput is a verified caller. Claims hold what JSON can: string, bool,
// int64, float64, nil, []any and map[string]any.
type ClaimInput struct {
	Kind, Issuer, Subject, SPIFFEID string
	Claims                          map[string]any
}

// Mapped is what the expressions made of a caller. Team is nil where none was
// given.
type Mapped struct {
	Tenant         string
	Team           *string
	Labels         map[string]string
	Groups, Scopes []string
}

// ClaimFault is one fault of a ClaimMapSource. Field is tenant, team, labels,
// groups or scopes.
type ClaimFault struct{ Field, Text string }

// ClaimMapError lists the faults of a ClaimMapSource.
type ClaimMapError struct{ Faults []ClaimFault }

// Error gives one line for each fault.
func (e *ClaimMapError) Error() string {
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		lines[i] = f.Field + ": " + f.Text
	}
	return strings.Join(lines, "\n")
}

// ClaimMap is a compiled ClaimMapSource. It is immutable and safe for concurrent
// use.
type ClaimMap struct {
	tenant, team, labels, groups, scopes *expression
}

// claimSize is how many characters or entries a value of a claim is taken to
// have when the cost of an expression is estimated. Nothing bounds it but the
// size of a token, so that the cost is limited at request time, too.
const claimSize = 64

// claimVariables are the names that the expressions may read.
func claimVariables() []variable {
	text := func(name string, size uint64) variable {
		return variable{name: name, typ: cel.StringType, size: valueSize{self: size}}
	}
	return []variable{
		{name: "claims", typ: cel.MapType(cel.StringType, cel.DynType), size: valueSize{self: claimSize, key: claimSize, elem: claimSize}},
		text("kind", maxWord), text("issuer", maxSubject), text("subject", maxSubject), text("spiffe_id", maxSPIFFE),
	}
}

// ClaimVariables lists the names that the expressions of a ClaimMapSource may
// read.
func ClaimVariables() []string {
	var names []string
	for _, v := range claimVariables() {
		names = append(names, v.name)
	}
	return names
}

var claimEnv = sync.OnceValues(func() (*cel.Env, error) { return celEnv(claimVariables()) })

// CompileClaimMap compiles the expressions, within the bounds of those of
// policies. The error is a *ClaimMapError, or says that the environment can't be
// built.
func CompileClaimMap(src ClaimMapSource) (*ClaimMap, error) {
	env, err := claimEnv()
	if err != nil {
		return nil, err
	}
	var p problems
	c := &compiler{p: &p, env: env, vars: make(map[string]variable), guess: claimSize}
	for _, v := range claimVariables() {
		c.vars[v.name] = v
	}
	optional := func(of ...*cel.Type) []*cel.Type {
		all := append(of, cel.DynType)
		for _, t := range all {
			all = append(all, cel.OptionalType(t))
		}
		return all
	}
	compile := func(field, text string, want ...*cel.Type) *expression {
		return c.compile(exprDoc{scalar: scalar{text: text}, path: field, set: true}, scopeAll, optional(want...)...)
	}
	m := &ClaimMap{
		tenant: compile("tenant", src.Tenant, cel.StringType),
		team:   compile("team", src.Team, cel.StringType),
		labels: compile("labels", src.Labels, cel.MapType(cel.StringType, cel.StringType), cel.MapType(cel.StringType, cel.DynType)),
		groups: compile("groups", src.Groups, cel.ListType(cel.StringType), cel.ListType(cel.DynType)),
		scopes: compile("scopes", src.Scopes, cel.ListType(cel.StringType), cel.ListType(cel.DynType)),
	}
	if strings.TrimSpace(src.Tenant) == "" {
		p.addAt("", 0, 0, "tenant", "is missing, should be an expression for the tenant's id, such as claims.org or 'acme'")
	}
	if len(p.list) == 0 {
		return m, nil
	}
	var out ClaimMapError
	for _, e := range p.list {
		out.Faults = append(out.Faults, ClaimFault{Field: e.Path, Text: e.Text})
	}
	return nil, &out
}

// Eval maps a caller. An error means that it is nobody's; its text is for the
// log and holds no value of a claim.
func (m *ClaimMap) Eval(ctx context.Context, in *ClaimInput) (Mapped, error) {
	var out Mapped
	e := claimEvaluation{ctx: ctx, vars: map[string]any{
		"claims": sortedNow(types.DefaultTypeAdapter.NativeToValue(orEmpty(in.Claims))),
		"kind":   in.Kind, "issuer": in.Issuer, "subject": in.Subject, "spiffe_id": in.SPIFFEID,
	}}
	tenant := e.text("tenant", m.tenant)
	if e.err == nil && (tenant == nil || *tenant == "") {
		e.fail("tenant", "there is none")
	}
	out.Team = e.text("team", m.team)
	out.Labels = e.table("labels", m.labels)
	out.Groups = e.list("groups", m.groups)
	out.Scopes = e.list("scopes", m.scopes)
	if e.err != nil {
		return Mapped{}, e.err
	}
	out.Tenant = *tenant
	return out, nil
}

func orEmpty(claims map[string]any) map[string]any {
	if claims == nil {
		return map[string]any{}
	}
	return claims
}

// claimEvaluation evaluates the expressions of one caller. It keeps the first
// error, and does nothing after it.
type claimEvaluation struct {
	ctx  context.Context
	vars map[string]any
	err  error
}

func (e *claimEvaluation) fail(field, format string, args ...any) {
	if e.err == nil {
		e.err = fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...))
	}
}

// value is that of an expression; nil if there is none.
func (e *claimEvaluation) value(field string, x *expression) ref.Val {
	if x == nil || e.err != nil {
		return nil
	}
	var v ref.Val
	var err error
	if x.loops {
		ctx, cancel := context.WithTimeout(e.ctx, exprTimeLimit)
		defer cancel()
		v, _, err = x.program.ContextEval(ctx, e.vars)
	} else {
		v, _, err = x.program.Eval(e.vars)
	}
	if err != nil {
		e.fail(field, "%s", claimProblem(err))
		return nil
	}
	if o, ok := v.(*types.Optional); ok {
		if !o.HasValue() {
			return nil
		}
		v = o.GetValue()
	}
	return v
}

// claimProblem says what went wrong without the values that the library quotes.
func claimProblem(err error) string {
	err = classify(err)
	own, ok := errors.AsType[*evalError](err)
	if !ok || own.kind != ErrorValue {
		return err.Error()
	}
	switch text := own.text; {
	case strings.HasPrefix(text, "no such key"):
		return "the expression reads a claim that is not there"
	case strings.HasPrefix(text, "no such overload"), strings.HasPrefix(text, "found no matching overload"):
		return "the expression does with a claim what its type does not allow"
	}
	return "the expression failed on these claims"
}

func (e *claimEvaluation) text(field string, x *expression) *string {
	v := e.value(field, x)
	if v == nil {
		return nil
	}
	s, ok := v.(types.String)
	if !ok {
		e.fail(field, "the result is %s, not text", v.Type().TypeName())
		return nil
	}
	out := string(s)
	return &out
}

func (e *claimEvaluation) list(field string, x *expression) []string {
	v := e.value(field, x)
	if v == nil {
		return nil
	}
	l, ok := v.(traits.Lister)
	if !ok {
		e.fail(field, "the result is %s, not a list of texts", v.Type().TypeName())
		return nil
	}
	var out []string
	for it := l.Iterator(); it.HasNext() == types.True; {
		item := it.Next()
		s, ok := item.(types.String)
		if !ok {
			e.fail(field, "the list holds %s, not only texts", item.Type().TypeName())
			return nil
		}
		out = append(out, string(s))
	}
	return out
}

func (e *claimEvaluation) table(field string, x *expression) map[string]string {
	v := e.value(field, x)
	if v == nil {
		return nil
	}
	m, ok := v.(traits.Mapper)
	if !ok {
		e.fail(field, "the result is %s, not a map of texts", v.Type().TypeName())
		return nil
	}
	out := make(map[string]string)
	for it := m.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		k, isText := key.(types.String)
		value, isValue := m.Get(key).(types.String)
		if !isText || !isValue {
			e.fail(field, "the map holds something other than texts")
			return nil
		}
		out[string(k)] = string(value)
	}
	return out
}
