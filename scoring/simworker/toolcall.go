package simworker

import (
	"bytes"
	"encoding/json"
)

// tool is a declared tool: its name, and the argument that a call gives it.
type tool struct {
	name, property string
}

// toolChoice is what the client says about tools: kind is "" for nothing, or
// auto, none, required, or named with the name.
type toolChoice struct {
	kind, name string
}

// calledTool is a call of a tool in the place of a text.
type calledTool struct {
	tool
	named bool // the client named it
	// content is the JSON of an answer's content beside the call.
	content string
}

// readTools reads the tools of a chat and which of them the client wants.
func (p *params) readTools(f *fields) {
	var list []struct {
		Function struct {
			Name       string          `json:"name"`
			Parameters json.RawMessage `json:"parameters"`
		} `json:"function"`
	}
	if raw := f.get("tools"); raw != nil && json.Unmarshal(raw, &list) != nil {
		f.wrong("tools", "list_type", "Input should be a valid list", raw)
	}
	for _, t := range list {
		p.tools = append(p.tools, tool{t.Function.Name, firstProperty(t.Function.Parameters)})
	}
	var last []struct {
		Role string `json:"role"`
	}
	if json.Unmarshal(f.get("messages"), &last) == nil && len(last) > 0 {
		p.answered = last[len(last)-1].Role == "tool"
	}
	raw := f.get("tool_choice")
	var named struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	switch {
	case raw == nil:
	case raw[0] == '"':
		p.choice.kind = f.str("tool_choice")
	case json.Unmarshal(raw, &named) == nil:
		p.choice = toolChoice{"named", named.Function.Name}
	default:
		f.wrong("tool_choice", "model_type", "Input should be a valid dictionary", raw)
	}
}

// chooseTool decides which tool the answer calls, if any. parser says whether
// the engine can tell by itself that the model calls one.
func (p *params) chooseTool(parser bool) *apiError {
	if len(p.tools) == 0 {
		return nil
	}
	switch kind := p.choice.kind; {
	case kind == "none":
	case kind == "named":
		for _, t := range p.tools {
			if t.name == p.choice.name {
				p.called = &calledTool{tool: t, named: true, content: `""`}
				return nil
			}
		}
		return badRequest("tool_choice", "The tool specified in `tool_choice` does not match any of the specified `tools`")
	case kind == "required":
		p.called = &calledTool{tool: p.tools[0], content: `""`}
	case !parser:
		return badRequest("", `"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set`)
	case !p.answered:
		p.called = &calledTool{tool: p.tools[0], content: "null"}
	}
	return nil
}

// firstProperty returns the name of the first property of a JSON schema, or one
// that fits any.
func firstProperty(schema json.RawMessage) string {
	var s struct {
		Properties json.RawMessage `json:"properties"`
	}
	if json.Unmarshal(schema, &s) == nil {
		dec := json.NewDecoder(bytes.NewReader(s.Properties))
		if open, err := dec.Token(); err == nil && open == json.Delim('{') {
			if name, err := dec.Token(); err == nil {
				if name, ok := name.(string); ok {
					return name
				}
			}
		}
	}
	return "input"
}

// argument wraps a piece of text into the piece of the arguments' JSON that it
// stands for: an object with one string, closed with the last piece even where
// a limit cuts the text.
func (t *calledTool) argument(piece string, first, last bool) string {
	var b []byte
	if first {
		b = append(appendString(append(b, '{'), t.property), `: "`...)
	}
	quoted := appendString(nil, piece)
	b = append(b, quoted[1:len(quoted)-1]...)
	if last {
		b = append(b, `"}`...)
	}
	return string(b)
}

// toolCallID returns the id of the call in choice c.
func (g *generation) toolCallID(c *choice) string {
	if c.callID == "" {
		c.callID = "chatcmpl-tool-" + randomHex(8)
	}
	return c.callID
}

// appendCall appends a whole call of a chat.
func (g *generation) appendCall(b []byte, c *choice, arguments string) []byte {
	b = appendString(append(b, `{"id":`...), g.toolCallID(c))
	b = appendString(append(b, `,"type":"function","function":{"name":`...), g.p.called.name)
	b = appendString(append(b, `,"arguments":`...), arguments)
	return append(b, "}}"...)
}

// appendChatMessage appends the message of a chat's answer that is no stream.
func (g *generation) appendChatMessage(b []byte, c *choice) []byte {
	b = append(b, `{"role":"assistant","content":`...)
	if g.p.called != nil {
		b = append(b, g.p.called.content...)
	} else {
		b = appendString(b, c.text.String())
	}
	b = append(b, `,"refusal":null,"annotations":null,"audio":null,"function_call":null`...)
	if g.p.called != nil {
		b = g.appendCall(append(b, `,"tool_calls":[`...), c, c.text.String())
		b = append(b, ']')
	}
	return append(b, `,"reasoning":null}`...)
}

// appendCallDelta appends the delta of a chat's stream that adds a piece to a
// call.
func (g *generation) appendCallDelta(b []byte, c *choice, piece string) []byte {
	b = append(b, `,"delta":{"tool_calls":[{`...)
	if c.callID == "" {
		b = appendString(append(b, `"id":`...), g.toolCallID(c))
		b = append(b, `,"type":"function",`...)
	}
	b = append(b, `"index":0,"function":{`...)
	if c.generated == 1 {
		b = append(appendString(append(b, `"name":`...), g.p.called.name), ',')
	}
	b = appendString(append(b, `"arguments":`...), piece)
	return append(b, "}}]}"...)
}

// finishReason is the reason in the words of chat and completions.
func (p *params) finishReason(c *choice) string {
	if p.called != nil && !p.called.named && c.finish.String() == "stop" {
		return "tool_calls"
	}
	return c.finish.String()
}
