package openai

import (
	"bytes"

	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// TokenForm returns a scanned body in the form of a chat completion or, where req has
// no messages, of a completion, for those who find its tokens: nil where the body has
// that form itself. It is false where nobody here knows how the engine makes a prompt
// of the body.
func TokenForm(body []byte, req *wire.Request) (form []byte, ok bool) {
	switch req.Operation {
	case wire.Responses:
		f := former{reader: reader{jsonscan.Cursor{B: body, MaxDepth: jsonscan.RequestDepth}}}
		return f.chat(req), !f.unknown && f.Bad == jsonscan.FaultNone
	case wire.Embeddings:
		input := req.Places.Fields[wire.FieldInput]
		if req.MessageCount > 0 || !input.Present {
			return nil, req.MessageCount > 0
		}
		form = append(make([]byte, 0, input.End-input.Start+16), `{"prompt":`...)
		return append(append(form, body[input.Start:input.End]...), '}'), true
	case wire.Detokenize:
		return nil, false
	}
	return nil, true
}

// former writes the chat that the engine makes of a response's input. Values are
// copied as they stand; what a chat has no like of makes it unknown.
type former struct {
	reader
	out      []byte
	calling  bool // the last message is one of calls, still open
	unknown  bool
	messages int
}

func (f *former) chat(req *wire.Request) []byte {
	fields := &req.Places.Fields
	f.out = append(make([]byte, 0, len(f.B)+256), `{"messages":[`...)
	if m := fields[wire.FieldInstructions]; m.Present {
		switch f.B[m.Start] {
		case '"':
			if m.End > m.Start+2 {
				f.message(`"system"`, f.B[m.Start:m.End])
			}
		case 'n':
		default:
			f.unknown = true
		}
	}
	f.I = fields[wire.FieldInput].Start
	if f.Peek() == '"' {
		t := f.Str()
		f.message(`"user"`, f.B[t.Start-1:t.End+1])
	} else {
		f.Enter()
		for f.Element() {
			f.item()
		}
	}
	f.endCalls()
	f.out = append(f.out, ']')
	if m := fields[wire.FieldTools]; m.Present && f.B[m.Start] == '[' && !f.unknown {
		f.I = m.Start
		f.tools()
	}
	// A template's own settings, and reasoning as a response asks for it.
	f.unknown = f.unknown || req.Features&(wire.TemplateSettings|wire.OwnTemplate) != 0 || req.PreviousResponse != nil
	return append(f.out, '}')
}

func (f *former) begin() {
	f.endCalls()
	if f.messages++; f.messages > 1 {
		f.out = append(f.out, ',')
	}
}

func (f *former) endCalls() {
	if f.calling {
		f.out = append(f.out, "]}"...)
		f.calling = false
	}
}

func (f *former) message(role string, content []byte) {
	f.begin()
	f.out = append(append(append(f.out, `{"role":`...), role...), `,"content":`...)
	f.out = append(append(f.out, content...), '}')
}

// raw passes over a value and returns its text.
func (f *former) raw() []byte {
	f.Space()
	start := f.I
	f.Skip()
	return f.B[start:f.I]
}

func (f *former) item() {
	var kind, role, content, output, name, arguments, call []byte
	if f.Peek() != '{' {
		f.unknown = true
		f.Skip()
		return
	}
	f.Enter()
	for key, ok := f.Member(); ok; key, ok = f.Member() {
		switch {
		case f.Is(key, "type"):
			kind = f.raw()
		case f.Is(key, "role"):
			role = f.raw()
		case f.Is(key, "content"):
			content = f.parts()
		case f.Is(key, "output"):
			output = f.parts()
		case f.Is(key, "name"):
			name = f.raw()
		case f.Is(key, "arguments"):
			arguments = f.raw()
		case f.Is(key, "call_id"):
			call = f.raw()
		default:
			f.Skip()
		}
	}
	switch string(kind) {
	case "", "null", `"message"`:
		if !text(role) || content == nil {
			f.unknown = true
			return
		}
		f.message(string(role), content)
	case `"function_call"`:
		if !text(name) || !text(arguments) || !text(call) {
			f.unknown = true
			return
		}
		f.call(call, name, arguments)
	case `"function_call_output"`:
		if output == nil || !text(call) {
			f.unknown = true
			return
		}
		f.begin()
		f.out = append(append(append(f.out, `{"role":"tool","tool_call_id":`...), call...), `,"content":`...)
		f.out = append(append(f.out, output...), '}')
	default:
		f.unknown = true
	}
}

// call writes a call of a function; those that follow one another are of one message.
func (f *former) call(id, name, arguments []byte) {
	if f.calling {
		f.out = append(f.out, ',')
	} else {
		f.begin()
		f.out = append(f.out, `{"role":"assistant","tool_calls":[`...)
		f.calling = true
	}
	f.out = append(append(append(f.out, `{"type":"function","id":`...), id...), `,"function":{"name":`...)
	f.out = append(append(append(append(f.out, name...), `,"arguments":`...), arguments...), "}}"...)
}

// parts returns a content: a string as it stands, or parts of text in the names of a
// chat; nil if there is anything else in it.
func (f *former) parts() []byte {
	switch f.Peek() {
	case '"':
		return f.raw()
	case '[':
	default:
		f.Skip()
		return nil
	}
	out := []byte{'['}
	whole := true
	f.Enter()
	for f.Element() {
		if f.Peek() != '{' {
			f.Skip()
			whole = false
			continue
		}
		var kind, content []byte
		f.Enter()
		for key, ok := f.Member(); ok; key, ok = f.Member() {
			switch {
			case f.Is(key, "type"):
				kind = f.raw()
			case f.Is(key, "text"):
				content = f.raw()
			default:
				f.Skip()
			}
		}
		switch string(kind) {
		case `"input_text"`, `"output_text"`, `"text"`:
			whole = whole && text(content)
		default:
			whole = false
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, `{"type":"text","text":`...), content...), '}')
	}
	if !whole {
		return nil
	}
	return append(out, ']')
}

// tools writes the functions among the tools; others are not written into a prompt by
// a template, but by the engine.
func (f *former) tools() {
	n := 0
	f.Enter()
	for f.Element() {
		start := f.I
		var kind []byte
		if f.Peek() != '{' {
			f.unknown = true
			f.Skip()
			continue
		}
		f.Enter()
		for key, ok := f.Member(); ok; key, ok = f.Member() {
			if f.Is(key, "type") {
				kind = f.raw()
			} else {
				f.Skip()
			}
		}
		if !bytes.Equal(kind, []byte(`"function"`)) {
			f.unknown = true
			continue
		}
		if n++; n == 1 {
			f.out = append(f.out, `,"tools":[`...)
		} else {
			f.out = append(f.out, ',')
		}
		f.out = append(f.out, `{"type":"function","function":`...)
		f.out = append(append(f.out, bytes.TrimSpace(f.B[start:f.I])...), '}')
	}
	if n > 0 {
		f.out = append(f.out, ']')
	}
}

// text tells whether the text of a value is that of a string.
func text(raw []byte) bool { return len(raw) > 1 && raw[0] == '"' }
