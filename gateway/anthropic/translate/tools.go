package translate

import (
	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// schemaDepth is how deep a schema may nest: a tool's stands one level deeper in a
// chat body than in a messages body, and both may have RequestDepth levels.
const schemaDepth = jsonscan.RequestDepth - 4

func tooDeep(v value, depth int) bool {
	c := jsonscan.Cursor{B: v, MaxDepth: depth}
	c.Skip()
	return c.Bad == jsonscan.FaultDepth
}

func deep(path string) *wire.Error {
	return invalid(path, "`%s` nests too deep. At most %d levels are allowed.", path, schemaDepth)
}

// The keys of a tool that a translation knows.
const (
	toolType = iota
	toolName
	toolDescription
	toolSchema
	toolStrict
	toolCacheControl
	toolDefer
	toolCallers
	toolExamples
	toolEager
	toolKeys
)

// toolNames are their names, in their order.
var toolNames = []string{
	"type", "name", "description", "input_schema", "strict",
	"cache_control", "defer_loading", "allowed_callers", "input_examples", "eager_input_streaming",
}

// tools writes the declared tools.
func (t *translation) tools() *wire.Error {
	v := t.top[topTools]
	switch {
	case v == nil || v.isEmptyArray():
		return nil
	case !v.isArray():
		return wrongType("tools", "an array of tools", v)
	}
	t.add(`,"tools":[`)
	w := enter(v, jsonscan.RequestDepth)
	for i := 0; ; i++ {
		tool, ok := w.element()
		if !ok {
			break
		}
		if i > 0 {
			t.add(`,`)
		}
		if err := t.tool(tool, at{root: "tools"}.in(i)); err != nil {
			return err
		}
	}
	t.add(`]`)
	return nil
}

func (t *translation) tool(v value, where at) *wire.Error {
	if !v.isObject() {
		return wrongType(where.path(""), "an object", v)
	}
	var f [toolKeys]value
	// A tool that runs on Anthropic's servers has keys of its own; its type is what
	// to name.
	if err := fields(f[:]).read(v, where, toolNames, true); err != nil {
		return err
	}
	if kind := f[toolType]; kind != nil && !kind.is("custom") && !t.lenient() {
		return noValue(where.path("type"), "Only tools that the client runs, of the type custom, can be translated.")
	}
	if !t.lenient() {
		if err := fields(f[:]).read(v, where, toolNames, false); err != nil {
			return err
		}
		if err := toolOptions(&f, where); err != nil {
			return err
		}
	}
	name, description, schema, strict := f[toolName], f[toolDescription], f[toolSchema], f[toolStrict]
	switch {
	case !name.isString():
		return wrongType(where.path("name"), "a string", name)
	case description != nil && !description.isString():
		return wrongType(where.path("description"), "a string", description)
	case !schema.isObject():
		return wrongType(where.path("input_schema"), "an object", schema)
	case strict != nil && !strict.isBool():
		return wrongType(where.path("strict"), "true or false", strict)
	case tooDeep(schema, schemaDepth):
		return deep(where.path("input_schema"))
	}
	t.addValue(`{"type":"function","function":{"name":`, name)
	if description != nil {
		t.addValue(`,"description":`, description)
	}
	t.schema(schema)
	if strict != nil {
		t.addValue(`,"strict":`, strict)
	}
	t.add(`}}`)
	return nil
}

// schema writes a tool's parameters. One without a type is of an object, which the
// engine spells out.
func (t *translation) schema(v value) {
	members, typed := 0, false
	w := enter(v, jsonscan.RequestDepth)
	for name, _, ok := w.member(); ok; name, _, ok = w.member() {
		members++
		typed = typed || string(name) == "type"
	}
	if typed {
		t.addValue(`,"parameters":`, v)
		return
	}
	t.addValue(`,"parameters":`, v[:len(v)-1])
	if members > 0 {
		t.add(`,`)
	}
	t.add(`"type":"object"}`)
}

// toolOptions checks what a tool asks for beside its definition. That its input be
// streamed as it comes needs no asking: it always is.
func toolOptions(f *[toolKeys]value, where at) *wire.Error {
	if v := f[toolEager]; v != nil && !v.isBool() {
		return wrongType(where.path(toolNames[toolEager]), "true or false", v)
	}
	if v := f[toolDefer]; v != nil && !v.isBool() {
		return wrongType(where.path(toolNames[toolDefer]), "true or false", v)
	} else if v.isTrue() {
		return noValue(where.path(toolNames[toolDefer]), "Send false, or leave it out.")
	}
	if v := f[toolExamples]; v != nil && !v.isEmptyArray() {
		return noEquivalent(where.path(toolNames[toolExamples]))
	}
	v := f[toolCallers]
	if v == nil {
		return nil
	}
	if !v.isArray() {
		return wrongType(where.path(toolNames[toolCallers]), "an array of strings", v)
	}
	w := enter(v, jsonscan.RequestDepth)
	direct := false
	for caller, ok := w.element(); ok; caller, ok = w.element() {
		if direct = caller.is("direct"); !direct {
			break
		}
	}
	if !direct {
		return noValue(where.path(toolNames[toolCallers]), "Send [\"direct\"], or leave it out.")
	}
	return nil
}

// toolChoice writes how the model is to use the tools.
func (t *translation) toolChoice() *wire.Error {
	v := t.top[topToolChoice]
	if v == nil {
		return nil
	}
	where := at{root: "tool_choice"}
	if !v.isObject() {
		return wrongType(where.root, "an object", v)
	}
	var f [3]value
	names := []string{"type", "name", "disable_parallel_tool_use"}
	if err := fields(f[:]).read(v, where, names, false); err != nil {
		return err
	}
	kind, name, single := f[0], f[1], f[2]
	named := kind.is("tool")
	switch {
	case !kind.isString():
		return wrongType(where.path("type"), "a string", kind)
	case single != nil && !single.isBool():
		return wrongType(where.path("disable_parallel_tool_use"), "true or false", single)
	case named && !name.isString():
		return wrongType(where.path("name"), "a string", name)
	case !named && name != nil:
		return noEquivalent(where.path("name"))
	}
	choice, ok := toolChoices[kind.text()]
	if !ok {
		return noValue(where.path("type"), "Send auto, any, tool or none.")
	}
	if t.purpose != ForWorker {
		return nil // It plays no part in the prompt.
	}
	t.add(`,"tool_choice":`)
	t.add(choice)
	if named {
		t.dst = append(t.dst, name...)
		t.add(`}}`)
	}
	if single.isTrue() {
		t.add(`,"parallel_tool_calls":false`)
	}
	return nil
}

// toolChoices are the types of a tool_choice as chat completions have them; the
// name of a tool comes after the last one.
var toolChoices = map[string]string{
	"auto": `"auto"`, "any": `"required"`, "none": `"none"`,
	"tool": `{"type":"function","function":{"name":`,
}
