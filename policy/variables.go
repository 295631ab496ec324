package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
)

// Where a variable can be read.
type scope uint8

const (
	scopeAll    scope = iota // every expression
	scopeLimit               // the expressions of a limit
	scopeCharge              // the charge of a limit
)

// What a lazy variable costs at its first read.
type lazyKind uint8

const (
	notLazy lazyKind = iota
	lazyTokens
	lazyContent
)

// variable declares one flat name of section 2.
type variable struct {
	name  string
	typ   *cel.Type
	size  valueSize // maxima, which make cost estimates bounds
	scope scope
	lazy  lazyKind
	// client: the text is the client's own, so it must not come back in a
	// message or an annotation.
	client bool
}

// Maxima of section 2, and of the values that it leaves open.
const (
	maxModelSize    = 256
	maxHeaderCount  = 32
	maxHeaderName   = 128
	maxHeaderValue  = 1024
	maxTools        = 512
	maxToolSize     = 128
	maxGroups       = 128
	maxScopes       = 64
	maxGroupSize    = 128
	maxLabelCount   = 64
	maxTenantLabels = 32
	maxFindings     = 64
	maxSubject      = 256
	maxPrincipalID  = 2*maxSubject + 8 // jwt:<issuer>:<subject>
	maxSPIFFE       = 512
	maxKeyID        = 128
	maxWord         = 64
	maxPath         = 256
	maxTenantWord   = 128
	maxSourceIP     = 64
	maxClientID     = 128 // session_id and user, 7 + 64 when hashed
	maxModalities   = 8
	maxClaimList    = 128
	maxVariable     = 256
	maxVariableElem = 1024
)

var optionalString = cel.OptionalType(cel.StringType)

// requestVariables are request.*.
func requestVariables() []variable {
	str := func(name string, size uint64) variable {
		return variable{name: "request." + name, typ: cel.StringType, size: valueSize{self: size}}
	}
	number := func(name string) variable {
		return variable{name: "request." + name, typ: cel.IntType, size: valueSize{self: 1}}
	}
	out := []variable{
		str("operation", maxWord), str("dialect", maxWord), str("method", maxWord), str("path", maxPath),
		str("model", maxModelSize), str("requested_model", maxModelSize), str("model_family", maxModelSize),
		str("source_ip", maxSourceIP),
		{name: "request.stream", typ: cel.BoolType, size: valueSize{self: 1}},
		number("n"),
		{name: "request.max_tokens", typ: cel.OptionalType(cel.IntType), size: valueSize{self: 1}},
		number("input_tokens_estimate"), number("body_bytes"), number("message_count"), number("image_count"),
		{name: "request.input_tokens", typ: cel.IntType, size: valueSize{self: 1}, lazy: lazyTokens},
		{name: "request.input_tokens_exact", typ: cel.BoolType, size: valueSize{self: 1}, lazy: lazyTokens},
		{name: "request.tool_names", typ: cel.ListType(cel.StringType), size: valueSize{self: maxTools, elem: maxToolSize}},
		{name: "request.modalities", typ: cel.ListType(cel.StringType), size: valueSize{self: maxModalities, elem: maxWord}},
		{name: "request.session_id", typ: optionalString, size: valueSize{self: maxClientID}},
		{name: "request.user", typ: optionalString, size: valueSize{self: maxClientID}},
		{name: "request.headers", typ: cel.MapType(cel.StringType, cel.StringType), size: valueSize{self: maxHeaderCount, key: maxHeaderName, elem: maxHeaderValue}},
	}
	for i := range out {
		switch out[i].name {
		case "request.user", "request.session_id", "request.headers", "request.tool_names", "request.requested_model":
			out[i].client = true
		}
	}
	return out
}

// identityVariables are principal.* without claims, tenant.*, content.* and now.
func identityVariables() []variable {
	str := func(name string, size uint64) variable {
		return variable{name: name, typ: cel.StringType, size: valueSize{self: size}}
	}
	list := func(name string, n, size uint64, lazy lazyKind) variable {
		return variable{name: name, typ: cel.ListType(cel.StringType), size: valueSize{self: n, elem: size}, lazy: lazy}
	}
	return []variable{
		str("principal.kind", maxWord), str("principal.id", maxPrincipalID),
		str("principal.subject", maxSubject), str("principal.issuer", maxSubject),
		list("principal.groups", maxGroups, maxGroupSize, notLazy), list("principal.scopes", maxScopes, maxGroupSize, notLazy),
		{name: "principal.key_id", typ: optionalString, size: valueSize{self: maxKeyID}},
		{name: "principal.spiffe_id", typ: optionalString, size: valueSize{self: maxSPIFFE}},
		str("tenant.id", maxTenantWord), str("tenant.team", maxTenantWord), str("tenant.tier", maxTenantWord),
		{name: "tenant.labels", typ: cel.MapType(cel.StringType, cel.StringType), size: valueSize{self: maxTenantLabels, key: maxName, elem: maxName}},
		list("content.declared_labels", maxLabelCount, maxName, notLazy),
		list("content.labels", maxLabelCount, maxName, lazyContent),
		{name: "content.findings", typ: cel.MapType(cel.StringType, cel.IntType), size: valueSize{self: maxFindings, key: maxName, elem: 1}, lazy: lazyContent},
		list("content.detectors", maxLabelCount, maxName, lazyContent),
		{name: "content.scan_status", typ: cel.StringType, size: valueSize{self: maxWord}, lazy: lazyContent},
		{name: "now", typ: cel.TimestampType, size: valueSize{self: 1}},
	}
}

// outcomeVariables are effective.* and usage.*.
func outcomeVariables() []variable {
	number := func(name string, s scope) variable {
		return variable{name: name, typ: cel.IntType, size: valueSize{self: 1}, scope: s}
	}
	out := []variable{
		number("effective.max_tokens", scopeLimit), number("effective.n", scopeLimit),
		{name: "effective.cost_estimate", typ: cel.IntType, size: valueSize{self: 1}, scope: scopeLimit, lazy: lazyTokens},
		{name: "effective.qos_class", typ: cel.StringType, size: valueSize{self: maxName}, scope: scopeLimit},
		{name: "effective.cache_isolation", typ: cel.StringType, size: valueSize{self: maxWord}, scope: scopeLimit},
		{name: "effective.labels", typ: cel.ListType(cel.StringType), size: valueSize{self: maxLabelCount, elem: maxName}, scope: scopeLimit},
	}
	for _, n := range []string{"input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens", "cost"} {
		out = append(out, number("usage."+n, scopeCharge))
	}
	return append(out, variable{name: "usage.complete", typ: cel.BoolType, size: valueSize{self: 1}, scope: scopeCharge})
}

// baseVariables is everything but claims, parameters and a policy's own
// variables.
func baseVariables() []variable {
	return slices.Concat(requestVariables(), identityVariables(), outcomeVariables())
}

// topLevel are the first parts of all names. A loop variable must not carry
// one, since request.model would then be a field of the loop variable.
var topLevel = []string{"request", "principal", "tenant", "content", "now", "params", "variables", "effective", "usage"}

// claimVariable declares principal.claims.<name>.
func claimVariable(name, typeName string) (variable, error) {
	if !isIdentifier(name) {
		return variable{}, fmt.Errorf("claim name %q is no CEL identifier", cut(name, 80))
	}
	t, isList, err := claimType(typeName)
	if err != nil {
		return variable{}, fmt.Errorf("claim %s: %w", name, err)
	}
	size := valueSize{self: maxSubject}
	if isList {
		size = valueSize{self: maxClaimList, elem: maxSubject}
	}
	return variable{name: "principal.claims." + name, typ: cel.OptionalType(t), size: size}, nil
}

// claimType reads a declared type: a scalar, or list(scalar).
func claimType(name string) (t *cel.Type, isList bool, err error) {
	if inner, ok := strings.CutPrefix(name, "list("); ok && strings.HasSuffix(inner, ")") {
		elem, nested, err := claimType(strings.TrimSuffix(inner, ")"))
		if err != nil || nested {
			return nil, false, fmt.Errorf("unknown type %q: use string, int, double, bool or list of one", cut(name, 80))
		}
		return cel.ListType(elem), true, nil
	}
	switch name {
	case "string":
		return cel.StringType, false, nil
	case "int":
		return cel.IntType, false, nil
	case "double":
		return cel.DoubleType, false, nil
	case "bool":
		return cel.BoolType, false, nil
	}
	return nil, false, fmt.Errorf("unknown type %q: use string, int, double, bool or list(T)", cut(name, 80))
}
