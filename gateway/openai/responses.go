package openai

import (
	"bytes"

	"github.com/sluicegate/sluice/gateway/bodyscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// items reads the input of a response: a text, or items, which are messages, calls
// of tools and what those returned.
func (s *scanner) items() {
	switch s.Peek() {
	case '"':
		s.AddText(s.Str())
		s.Req.MessageCount = 1
		return
	case '[':
	default:
		s.OrNull("a string or an array of items")
		return
	}
	others := 0
	outer := s.At
	s.Enter()
	for i := 0; s.Element(); i++ {
		s.At = outer
		s.At.Depth, s.At.Index = 1, i
		s.Req.MessageCount++
		if s.Peek() != '{' {
			s.WrongType("an object")
			s.Skip()
			continue
		}
		s.item(&others)
	}
}

// item reads one item. others counts those of other roles than system and
// developer.
func (s *scanner) item(others *int) {
	var seen bodyscan.Watched
	var byType, byKeys wire.Modality
	s.Enter()
	for key, ok := s.Member(); ok; key, ok = s.Member() {
		name, w := s.Watch(&seen, key, 0)
		switch {
		case w == bodyscan.WatchRole:
			s.At.Leaf = "role"
			if t, ok := s.StringOrNull(); ok {
				s.noteRole(s.Name(t), others)
			}
		case w == bodyscan.WatchType:
			s.At.Leaf = "type"
			if t, ok := s.StringOrNull(); ok {
				byType = s.itemType(s.Name(t), others)
			}
		case w == bodyscan.WatchContent:
			s.At.Leaf = "content"
			s.messageContent()
		case w == bodyscan.WatchText:
			s.At.Leaf = "text"
			if t, ok := s.StringOrNull(); ok {
				s.AddText(t)
			}
		case string(name) == "output":
			s.At.Leaf = "output"
			s.toolOutput()
		case string(name) == "tools" && s.Peek() == '[': // as a chat's messages can have them
			s.At.Leaf = "tools"
			s.tools(true)
		default:
			// What else an item holds is an argument, a query, a summary or the like. A
			// template may write any of it into the prompt.
			if m := modalityOf(name) &^ wire.Text; m != 0 {
				byKeys |= m
				s.Walk()
			} else {
				s.Count()
			}
		}
		s.At.Leaf = ""
	}
	s.classify(byType, byKeys)
}

// itemType notes what kind of an item comes, and returns its modality if it is a
// bare part of a message.
func (s *scanner) itemType(name []byte, others *int) wire.Modality {
	switch string(name) {
	case "message":
	case "item_reference":
		if s.Err == nil {
			s.Refuse(errStore(s.At.String()))
		}
	case "reasoning":
		s.Req.Features |= wire.TemplateSettings
	default:
		if m := modalityOf(name); m != 0 {
			return m
		}
		s.Req.Features |= wire.ToolCalls
		if *others++; *others > 1 {
			s.Req.Features |= wire.Turns
		}
	}
	return 0
}

// toolOutput reads what a tool returned: a text, parts as of a message, or one
// object such as a picture of a screen.
func (s *scanner) toolOutput() {
	switch s.Peek() {
	case '"', '[':
		s.messageContent()
	case '{':
		s.part()
	default:
		s.Skip()
	}
}

// instructions reads the text that stands before the input.
func (s *scanner) instructions() {
	switch s.Peek() {
	case '"':
		s.AddText(s.Str())
		s.Req.Features |= wire.SystemMessage
	case '[': // items, as in the answer to a stored prompt
		s.items()
	default:
		s.OrNull("a string or an array of items")
	}
}

// responseKey reads the value of a key that has a meaning for responses alone; the
// cursor stays where it has none.
func (s *scanner) responseKey(name []byte) {
	switch string(name) {
	case "conversation":
		s.At.Field = "conversation"
		s.keptElsewhere()
	case "request_id":
		// The engine takes it for the response's id, by which responses are kept.
		s.At.Field = "request_id"
		s.OperatorOnly()
	case "reasoning":
		if s.Peek() != 'n' {
			s.Req.Features |= wire.TemplateSettings
		}
		s.Skip()
	case "previous_input_messages":
		s.Count()
	default:
		s.Skip()
	}
}

// keptElsewhere refuses a value that names content kept elsewhere, unless it is null.
func (s *scanner) keptElsewhere() {
	if s.Peek() != 'n' && s.Err == nil {
		s.Refuse(errStore(s.At.String()))
	}
	s.Skip()
}

// responseTool reads one tool of a response. A function is known by its name, a tool
// that the engine or its operator provides by its type, and by its label or name
// where it has one: whoever forbids a tool finds it under each. A namespace is known by
// its own name, and its tools by theirs and by the one under which the model is shown
// them, which is both. It returns the tool's name.
func (s *scanner) responseTool() (own []byte) {
	named := len(s.Req.ToolNames)
	var inside [][]byte
	var seen bodyscan.Watched
	s.Enter()
	for key, ok := s.Member(); ok; key, ok = s.Member() {
		name, w := s.Watch(&seen, key, bodyscan.WatchName)
		switch {
		case w == bodyscan.WatchType:
			s.At.Leaf = "type"
			if name := s.ToolName(); name != nil && string(name) != "function" {
				s.AddTool(name)
			}
		case w == bodyscan.WatchName:
			s.At.Leaf = "name"
			own = s.addToolName()
		case string(name) == "server_label":
			s.At.Leaf = "server_label"
			s.addToolName()
		case string(name) == "function": // as a chat has it
			s.At.Leaf = "function"
			s.function()
		case string(name) == "tools" && s.Peek() == '[': // those of a namespace
			s.At.Leaf = "tools"
			s.toolList(true, &inside)
		case string(name) == "server_url":
			s.At.Leaf = "server_url"
			if s.Peek() != 'n' && s.Err == nil {
				s.Refuse(errServerURL(s.At.String()))
			}
			s.Walk()
		default:
			s.Walk()
		}
		s.At.Leaf = ""
	}
	if own != nil {
		for _, name := range inside {
			s.AddTool(bytes.Join([][]byte{own, name}, []byte("__")))
		}
	}
	if len(s.Req.ToolNames) == named {
		s.AddTool(nil)
	}
	return own
}

// tokens reads the token ids whose text is asked for.
func (s *scanner) tokens() {
	s.At.Field = "tokens"
	if s.Peek() != '[' {
		s.OrNull("an array of token ids")
		return
	}
	if s.Req.PromptCount > 0 && s.Err == nil {
		s.Refuse(bodyscan.Duplicate("tokens"))
	}
	s.Req.PromptCount = 1
	s.Enter()
	for i := 0; s.Element(); i++ {
		s.At.Depth, s.At.Index = 1, i
		if promptKind(s.Peek()) == '0' {
			s.tokenID()
			continue
		}
		s.WrongType("a token id")
		s.Skip()
	}
}
