package translate

import "github.com/sluicegate/sluice/gateway/wire"

// noEffect checks the fields that the answer does not depend on as long as they
// have certain values: they are left out, and other values refused.
func (t *translation) noEffect() *wire.Error {
	// A mark for a cache that the caller pays for by the mark. The engine caches
	// every prompt by itself.
	if v := t.top[topCacheControl]; v != nil && !v.isObject() {
		return wrongType("cache_control", "an object", v)
	}
	// There is one tier, which is the one that "auto" falls back to.
	if v := t.top[topServiceTier]; v != nil && !v.is("auto") && !v.is("standard_only") {
		return noValue("service_tier", "Send auto or standard_only, or leave it out.")
	}
	if v := t.top[topSpeed]; v != nil && !v.is("standard") {
		return noValue("speed", "Send standard, or leave it out.")
	}
	return nil
}

// thinking returns the effort, as JSON, that the engine sets for a request that
// turns thinking off, or nothing.
func (t *translation) thinking() (string, *wire.Error) {
	v := t.top[topThinking]
	if v == nil {
		return "", nil
	}
	if !v.isObject() {
		return "", wrongType("thinking", "an object", v)
	}
	var f [3]value
	names := []string{"type", "budget_tokens", "display"}
	if err := fields(f[:]).read(v, at{root: "thinking"}, names, t.lenient()); err != nil {
		return "", err
	}
	kind, budget, display := f[0], f[1], f[2]
	if t.lenient() {
		if kind.is("disabled") {
			return `"none"`, nil
		}
		return "", nil
	}
	switch {
	case !kind.isString():
		return "", wrongType("thinking.type", "a string", kind)
	case kind.is("disabled"):
		if budget != nil {
			return "", noEquivalent("thinking.budget_tokens")
		}
	case kind.is("adaptive"):
		// The model thinks as it sees fit, which is what it does unasked.
		if budget != nil {
			return "", noEquivalent("thinking.budget_tokens")
		}
		if display != nil && !display.is("summarized") {
			return "", noValue("thinking.display", "Send summarized, or leave it out.")
		}
	default:
		return "", noValue("thinking", "Send the type disabled or adaptive, or leave it out.")
	}
	return "", nil
}

// outputConfig writes the format that an answer must have, and returns the effort
// that was asked for.
func (t *translation) outputConfig() (effort value, err *wire.Error) {
	v := t.top[topOutput]
	if v == nil {
		return nil, nil
	}
	if !v.isObject() {
		return nil, wrongType("output_config", "an object", v)
	}
	var f [2]value
	if err := fields(f[:]).read(v, at{root: "output_config"}, []string{"effort", "format"}, t.lenient()); err != nil {
		return nil, err
	}
	effort, format := f[0], f[1]
	if effort != nil && !effort.isString() {
		return nil, wrongType("output_config.effort", "a string", effort)
	}
	if format == nil || t.purpose != ForWorker {
		return effort, nil
	}
	return effort, t.outputFormat(format)
}

func (t *translation) outputFormat(v value) *wire.Error {
	where := at{root: "output_config.format"}
	if !v.isObject() {
		return wrongType(where.root, "an object", v)
	}
	var f [2]value
	if err := fields(f[:]).read(v, where, []string{"type", "schema"}, false); err != nil {
		return err
	}
	kind, schema := f[0], f[1]
	switch {
	case !kind.isString():
		return wrongType(where.path("type"), "a string", kind)
	case !kind.is("json_schema"):
		return noValue(where.path("type"), "Send json_schema.")
	case !schema.isObject():
		return wrongType(where.path("schema"), "an object", schema)
	case tooDeep(schema, schemaDepth):
		return deep(where.path("schema"))
	}
	t.addValue(`,"response_format":{"type":"json_schema","json_schema":{"name":"json_schema","schema":`, schema)
	t.add(`}}`)
	return nil
}

// metadata writes the client's word for its user.
func (t *translation) metadata() *wire.Error {
	v := t.top[topMetadata]
	if v == nil {
		return nil
	}
	if !v.isObject() {
		return wrongType("metadata", "an object", v)
	}
	var f [1]value
	if err := fields(f[:]).read(v, at{root: "metadata"}, []string{"user_id"}, false); err != nil {
		return err
	}
	user := f[0]
	if user == nil {
		return nil
	}
	if !user.isString() {
		return wrongType("metadata.user_id", "a string", user)
	}
	t.addValue(`,"user":`, user)
	return nil
}
