package openai

import (
	"github.com/sluicegate/sluice/gateway/wire"
)

// items reads the input of a response: a text, or items, which are messages, calls
// of tools and what those returned.
func (s *scanner) items() {
	switch s.Peek() {
	case '"':
		s.addText(s.Str())
		s.req.MessageCount = 1
		return
	case '[':
	default:
		s.orNull("a string or an array of items")
		return
	}
	others := 0
	outer := s.at
	s.Enter()
	for i := 0; s.Element(); i++ {
		s.at = outer
		s.at.Depth, s.at.Index = 1, i
		s.req.MessageCount++
		if s.Peek() != '{' {
			s.wrongType("an object")
			s.Skip()
			continue
		}
		s.item(&others)
	}
}

// item reads one item. others counts those of other roles than system and
// developer.
func (s *scanner) item(others *int) {
	var seen watched
	var byType, byKeys wire.Modality
	s.Enter()
	for key, ok := s.Member(); ok; key, ok = s.Member() {
		name, w := s.watch(&seen, key, 0)
		switch {
		case w == watchRole:
			s.at.Leaf = "role"
			if t, ok := s.stringOrNull(); ok {
				s.noteRole(s.name(t), others)
			}
		case w == watchType:
			s.at.Leaf = "type"
			if t, ok := s.stringOrNull(); ok {
				byType = s.itemType(s.name(t), others)
			}
		case w == watchContent:
			s.at.Leaf = "content"
			s.messageContent()
		case w == watchText:
			s.at.Leaf = "text"
			if t, ok := s.stringOrNull(); ok {
				s.addText(t)
			}
		case string(name) == "output":
			s.at.Leaf = "output"
			s.toolOutput()
		case string(name) == "tools" && s.Peek() == '[': // as a chat's messages can have them
			s.at.Leaf = "tools"
			s.tools(true)
		default:
			// What else an item holds is an argument, a query, a summary or the like. A
			// template may write any of it into the prompt.
			if m := modalityOf(name) &^ wire.Text; m != 0 {
				byKeys |= m
				s.walk()
			} else {
				s.count()
			}
		}
		s.at.Leaf = ""
	}
	s.classify(byType, byKeys)
}

// itemType notes what kind of an item comes, and returns its modality if it is a
// bare part of a message.
func (s *scanner) itemType(name []byte, others *int) wire.Modality {
	switch string(name) {
	case "message":
	case "item_reference":
		if s.err == nil {
			s.refuse(errStore(s.at.String()))
		}
	case "reasoning":
		s.req.Features |= wire.TemplateSettings
	default:
		if m := modalityOf(name); m != 0 {
			return m
		}
		s.req.Features |= wire.ToolCalls
		if *others++; *others > 1 {
			s.req.Features |= wire.Turns
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
		s.addText(s.Str())
		s.req.Features |= wire.SystemMessage
	case '[': // items, as in the answer to a stored prompt
		s.items()
	default:
		s.orNull("a string or an array of items")
	}
}

// responseKey reads the value of a key that has a meaning for responses alone; the
// cursor stays where it has none.
func (s *scanner) responseKey(name []byte) {
	switch string(name) {
	case "conversation":
		s.at.Field = "conversation"
		s.keptElsewhere()
	case "request_id":
		// The engine takes it for the response's id, by which responses are kept.
		s.at.Field = "request_id"
		s.operatorOnly()
	case "reasoning":
		if s.Peek() != 'n' {
			s.req.Features |= wire.TemplateSettings
		}
		s.Skip()
	case "previous_input_messages":
		s.count()
	default:
		s.Skip()
	}
}

// keptElsewhere refuses a value that names content kept elsewhere, unless it is null.
func (s *scanner) keptElsewhere() {
	if s.Peek() != 'n' && s.err == nil {
		s.refuse(errStore(s.at.String()))
	}
	s.Skip()
}

// responseTool reads one tool of a response. A function is known by its name, a tool
// that the engine or its operator provides by its type, and by its label or name
// where it has one: whoever forbids a tool finds it under each. A namespace is known by
// its own name, and its tools by theirs.
func (s *scanner) responseTool() {
	named := len(s.req.ToolNames)
	var seen watched
	s.Enter()
	for key, ok := s.Member(); ok; key, ok = s.Member() {
		name, w := s.watch(&seen, key, watchName)
		switch {
		case w == watchType:
			s.at.Leaf = "type"
			if t, ok := s.stringOrNull(); ok && string(s.name(t)) != "function" {
				s.addToolName(t)
			}
		case w == watchName:
			s.at.Leaf = "name"
			s.toolName()
		case string(name) == "server_label":
			s.at.Leaf = "server_label"
			s.toolName()
		case string(name) == "function": // as a chat has it
			s.at.Leaf = "function"
			s.function()
		case string(name) == "tools" && s.Peek() == '[': // those of a namespace
			s.at.Leaf = "tools"
			s.toolList(true)
		case string(name) == "server_url":
			s.at.Leaf = "server_url"
			if s.Peek() != 'n' && s.err == nil {
				s.refuse(errServerURL(s.at.String()))
			}
			s.walk()
		default:
			s.walk()
		}
		s.at.Leaf = ""
	}
	if len(s.req.ToolNames) == named {
		s.keepToolName(nil)
	}
}

// tokens reads the token ids whose text is asked for.
func (s *scanner) tokens() {
	s.at.Field = "tokens"
	if s.Peek() != '[' {
		s.orNull("an array of token ids")
		return
	}
	if s.req.PromptCount > 0 && s.err == nil {
		s.refuse(errDuplicate("tokens"))
	}
	s.req.PromptCount = 1
	s.Enter()
	for i := 0; s.Element(); i++ {
		s.at.Depth, s.at.Index = 1, i
		if promptKind(s.Peek()) == '0' {
			s.tokenID()
			continue
		}
		s.wrongType("a token id")
		s.Skip()
	}
}
