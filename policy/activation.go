package policy

import (
	"strings"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
)

// valueID numbers the values that are kept for the request once they have been
// converted.
type valueID uint8

const (
	idOperation valueID = iota
	idDialect
	idMethod
	idPath
	idModel
	idRequestedModel
	idModelFamily
	idSourceIP
	idToolNames
	idModalities
	idSessionID
	idUser
	idHeaders
	idKind
	idID
	idSubject
	idIssuer
	idGroups
	idScopes
	idKeyID
	idSPIFFE
	idTenantID
	idTeam
	idTier
	idTenantLabels
	idDeclaredLabels
	idLabels
	idFindings
	idDetectors
	idScanStatus
	idNow
	idCount
)

// activation gives one binding's expressions their values. Names are resolved
// by switches, so that a request needs no map.
type activation struct {
	e      *evaluation
	b      *binding
	budget *budget
	// vars are the binding's variables, evaluated at most once; nil until one is
	// read.
	vars []slot
}

// slot is a variable's value or error. Both are nil until it has been read.
type slot struct {
	val ref.Val
	err error
}

// Parent implements cel.Activation: there is none.
func (a *activation) Parent() interpreter.Activation { return nil }

// ResolveName implements cel.Activation. An error is a value, too.
func (a *activation) ResolveName(name string) (any, bool) {
	space, rest, dotted := strings.Cut(name, ".")
	if !dotted {
		return a.e.plainName(name)
	}
	switch space {
	case "params":
		v, ok := a.b.params[name]
		return v, ok
	case "variables":
		return a.variable(name)
	case "request":
		return a.e.request(name, rest)
	case "principal":
		return a.e.principal(name, rest)
	case "tenant":
		return a.e.tenant(name, rest)
	case "content":
		return a.e.content(name, rest)
	case "effective":
		return a.e.effectiveValue(name, rest)
	case "usage":
		return a.e.usageValue(rest)
	}
	return nil, false
}

// variable evaluates a variable at its first read.
func (a *activation) variable(name string) (any, bool) {
	i, ok := a.b.policy.varIndex[name]
	if !ok {
		return nil, false
	}
	if a.vars == nil {
		a.vars = make([]slot, len(a.b.policy.variables))
	}
	s := &a.vars[i]
	if s.val == nil && s.err == nil {
		s.val, s.err = a.run(a.b.policy.variables[i])
		if s.err == nil {
			s.val = sorted(s.val)
			s.err = checkVariable(name, s.val)
		}
	}
	if s.err != nil {
		return types.WrapErr(s.err), true
	}
	return s.val, true
}

// observed is the prelude of every variable of section 2: it tells the
// observer, and refuses a variable that the input does not have. In a gateway
// it costs two comparisons.
func (e *evaluation) observed(name string) (failure any, failed bool) {
	if e.in.Observer != nil {
		e.in.Observer.Read(name)
	}
	if e.in.Absent != nil && e.in.Absent[name] {
		return types.WrapErr(&evalError{kind: ErrorAbsent, text: "the input does not give " + name}), true
	}
	return nil, false
}

// plainName resolves a name without dots: now.
func (e *evaluation) plainName(name string) (any, bool) {
	if name != "now" {
		return nil, false
	}
	if failure, failed := e.observed(name); failed {
		return failure, true
	}
	return e.keep(idNow, func() ref.Val { return types.Timestamp{Time: e.in.Now.UTC()} }), true
}

// keep converts a value at its first read.
func (e *evaluation) keep(id valueID, convert func() ref.Val) ref.Val {
	if e.values[id] == nil {
		e.values[id] = convert()
	}
	return e.values[id]
}

func (e *evaluation) text(id valueID, s string) any {
	if v := e.values[id]; v != nil {
		return v
	}
	e.values[id] = types.String(s)
	return e.values[id]
}

func (e *evaluation) optText(id valueID, s *string) any {
	if v := e.values[id]; v != nil {
		return v
	}
	e.values[id] = types.OptionalNone
	if s != nil {
		e.values[id] = types.OptionalOf(types.String(*s))
	}
	return e.values[id]
}

func (e *evaluation) texts(id valueID, s []string) any {
	if v := e.values[id]; v != nil {
		return v
	}
	e.values[id] = types.NewStringList(types.DefaultTypeAdapter, s)
	return e.values[id]
}

func (e *evaluation) textMap(id valueID, m map[string]string) any {
	if v := e.values[id]; v != nil {
		return v
	}
	e.values[id] = sorted(types.NewStringStringMap(types.DefaultTypeAdapter, m))
	return e.values[id]
}

func (e *evaluation) request(name, rest string) (any, bool) {
	if failure, failed := e.observed(name); failed {
		return failure, true
	}
	r := &e.in.Request
	switch rest {
	case "operation":
		return e.text(idOperation, r.Operation), true
	case "dialect":
		return e.text(idDialect, r.Dialect), true
	case "method":
		return e.text(idMethod, r.Method), true
	case "path":
		return e.text(idPath, r.Path), true
	case "model":
		return e.text(idModel, r.Model), true
	case "requested_model":
		return e.text(idRequestedModel, r.RequestedModel), true
	case "model_family":
		return e.text(idModelFamily, r.ModelFamily), true
	case "source_ip":
		return e.text(idSourceIP, r.SourceIP), true
	case "tool_names":
		return e.texts(idToolNames, r.ToolNames), true
	case "modalities":
		return e.texts(idModalities, r.Modalities), true
	case "session_id":
		return e.optText(idSessionID, r.SessionID), true
	case "user":
		return e.optText(idUser, r.User), true
	case "headers":
		return e.textMap(idHeaders, r.Headers), true
	}
	return e.requestNumber(rest)
}

func (e *evaluation) requestNumber(rest string) (any, bool) {
	r := &e.in.Request
	switch rest {
	case "stream":
		return types.Bool(r.Stream), true
	case "n":
		return types.Int(r.N), true
	case "max_tokens":
		if r.MaxTokens == nil {
			return types.OptionalNone, true
		}
		return types.OptionalOf(types.Int(*r.MaxTokens)), true
	case "input_tokens_estimate":
		return types.Int(r.InputTokensEstimate), true
	case "body_bytes":
		return types.Int(r.BodyBytes), true
	case "message_count":
		return types.Int(r.MessageCount), true
	case "image_count":
		return types.Int(r.ImageCount), true
	case "input_tokens", "input_tokens_exact":
		t := e.inputTokens()
		switch {
		case t.err != nil:
			return types.WrapErr(t.err), true
		case rest == "input_tokens":
			return types.Int(t.n), true
		}
		return types.Bool(t.exact), true
	}
	return nil, false
}

func (e *evaluation) principal(name, rest string) (any, bool) {
	if failure, failed := e.observed(name); failed {
		return failure, true
	}
	p := &e.in.Principal
	switch rest {
	case "kind":
		return e.text(idKind, p.Kind), true
	case "id":
		return e.text(idID, p.ID), true
	case "subject":
		return e.text(idSubject, p.Subject), true
	case "issuer":
		return e.text(idIssuer, p.Issuer), true
	case "groups":
		return e.texts(idGroups, p.Groups), true
	case "scopes":
		return e.texts(idScopes, p.Scopes), true
	case "key_id":
		return e.optText(idKeyID, p.KeyID), true
	case "spiffe_id":
		return e.optText(idSPIFFE, p.SPIFFEID), true
	}
	if claim, ok := strings.CutPrefix(rest, "claims."); ok {
		return e.claim(claim)
	}
	return nil, false
}

func (e *evaluation) claim(name string) (any, bool) {
	typeName, declared := e.set.cfg.Claims[name]
	if !declared {
		return nil, false
	}
	v, given := e.in.Principal.Claims[name]
	if !given || v == nil {
		return types.OptionalNone, true
	}
	val, err := claimValue(typeName, v)
	if err != nil {
		return types.WrapErr(&evalError{kind: ErrorValue, text: "claim " + name + ": " + err.Error()}), true
	}
	return types.OptionalOf(val), true
}

func (e *evaluation) tenant(name, rest string) (any, bool) {
	if failure, failed := e.observed(name); failed {
		return failure, true
	}
	t := &e.in.Tenant
	switch rest {
	case "id":
		return e.text(idTenantID, t.ID), true
	case "team":
		return e.text(idTeam, t.Team), true
	case "tier":
		return e.text(idTier, t.Tier), true
	case "labels":
		return e.textMap(idTenantLabels, t.Labels), true
	}
	return nil, false
}

func (e *evaluation) content(name, rest string) (any, bool) {
	if failure, failed := e.observed(name); failed {
		return failure, true
	}
	if rest == "declared_labels" {
		return e.texts(idDeclaredLabels, e.in.DeclaredLabels), true
	}
	c := e.scan()
	if c.err != nil {
		return types.WrapErr(c.err), true
	}
	switch rest {
	case "labels":
		return e.texts(idLabels, c.labels), true
	case "findings":
		return e.keep(idFindings, func() ref.Val { return intMap(c.content.Findings) }), true
	case "detectors":
		return e.texts(idDetectors, c.content.Detectors), true
	case "scan_status":
		return e.text(idScanStatus, c.content.ScanStatus), true
	}
	return nil, false
}

func (e *evaluation) effectiveValue(name, rest string) (any, bool) {
	f := e.effective
	if f == nil {
		return nil, false
	}
	switch rest {
	case "max_tokens":
		return types.Int(f.maxTokens), true
	case "n":
		return types.Int(f.n), true
	case "cost_estimate":
		cost, err := e.costEstimate()
		if err != nil {
			return types.WrapErr(err), true
		}
		return types.Int(cost), true
	case "qos_class":
		return types.String(f.class), true
	case "cache_isolation":
		return types.String(f.isolation), true
	case "labels":
		if len(f.labels) > maxLabelCount {
			return types.WrapErr(&evalError{kind: ErrorSize, text: "effective.labels is beyond its maximum"}), true
		}
		return types.NewStringList(types.DefaultTypeAdapter, f.labels), true
	}
	return nil, false
}

func (e *evaluation) usageValue(rest string) (any, bool) {
	u := e.usage
	if u == nil {
		return nil, false
	}
	switch rest {
	case "input_tokens":
		return types.Int(u.InputTokens), true
	case "cached_input_tokens":
		return types.Int(u.CachedInputTokens), true
	case "output_tokens":
		return types.Int(u.OutputTokens), true
	case "reasoning_tokens":
		return types.Int(u.ReasoningTokens), true
	case "cost":
		return types.Int(u.Cost), true
	case "complete":
		return types.Bool(u.Complete), true
	}
	return nil, false
}

func intMap(m map[string]int64) ref.Val {
	out := make(map[ref.Val]ref.Val, len(m))
	for k, v := range m {
		out[types.String(k)] = types.Int(v)
	}
	return sorted(types.NewRefValMap(types.DefaultTypeAdapter, out))
}
