package anthropic

import (
	"github.com/sluicegate/sluice/gateway/bodyscan"
	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// insideResult is where an error text places what stands in the content of a
// block, in place of one more number.
const insideResult = "content[]"

// system reads the system text: a string or blocks.
func (s *scanner) system() {
	before := s.Req.TextBytes
	switch s.Peek() {
	case '"':
		s.AddText(s.Str())
	case '[':
		s.Enter()
		for i := 0; s.Element(); i++ {
			s.At = jsonscan.Place{Field: "system", Depth: 1, Index: i}
			s.block()
		}
	default:
		s.OrNull("a string or an array of text blocks")
	}
	if s.Req.TextBytes > before {
		s.Req.Features |= wire.SystemMessage
	}
}

// messages reads the conversation.
func (s *scanner) messages() {
	if s.Peek() != '[' {
		s.OrNull("an array of messages")
		return
	}
	s.Enter()
	for s.Element() {
		s.At = jsonscan.Place{Field: "messages", Inner: "content", Depth: 1, Index: s.Req.MessageCount}
		s.Req.MessageCount++
		if s.Peek() != '{' {
			s.WrongType("an object")
			s.Skip()
			continue
		}
		s.message()
	}
}

func (s *scanner) message() {
	var seen bodyscan.Watched
	s.Enter()
	for key, ok := s.Member(); ok; key, ok = s.Member() {
		switch _, w := s.Watch(&seen, key, 0); w {
		case bodyscan.WatchRole:
			s.At.Leaf = "role"
			if t, ok := s.StringOrNull(); ok {
				s.role(s.Name(t))
			}
			s.At.Leaf = ""
		case bodyscan.WatchContent:
			s.At.Leaf = "content"
			s.messageContent()
			s.At.Leaf = ""
		default:
			s.Walk()
		}
	}
}

func (s *scanner) role(role []byte) {
	if string(role) == "system" {
		s.Req.Features |= wire.SystemMessage
		return
	}
	if s.others++; s.others > 1 {
		s.Req.Features |= wire.Turns
	}
}

// messageContent reads a message's content: a string, or blocks.
func (s *scanner) messageContent() {
	switch s.Peek() {
	case '"':
		s.AddText(s.Str())
		return
	case '[':
	default:
		s.OrNull("a string or an array of content blocks")
		return
	}
	outer := s.At
	n := 0
	s.Enter()
	for ; s.Element(); n++ {
		s.At = jsonscan.Place{Field: "messages", Inner: "content", Depth: 2, Index: outer.Index, Part: n}
		s.block()
	}
	s.At = outer
	if n > 1 { // One text block is written as a string is.
		s.Req.Features |= wire.ContentParts
	}
}

// block reads one block of content. Which of its keys the engine reads depends
// on its type, which may come last; what any type has in the prompt counts.
func (s *scanner) block() {
	if s.Peek() != '{' {
		s.WrongType("an object")
		s.Skip()
		return
	}
	outer := s.At
	var kind blockKind
	var seen bodyscan.Watched
	s.Enter()
	for key, ok := s.Member(); ok; key, ok = s.Member() {
		name, w := s.Watch(&seen, key, bodyscan.WatchSource|bodyscan.WatchTool)
		switch w {
		case bodyscan.WatchType:
			s.At.Leaf = join(outer.Leaf, "type")
			if t, ok := s.StringOrNull(); ok {
				kind = kindOf(s.Name(t))
			}
		case bodyscan.WatchText:
			s.At.Leaf = join(outer.Leaf, "text")
			if t, ok := s.StringOrNull(); ok {
				s.AddText(t)
			}
		case bodyscan.WatchContent:
			s.At.Leaf = join(outer.Leaf, "content")
			s.blockContent(outer)
		case bodyscan.WatchTool:
			s.At.Leaf = join(outer.Leaf, "tool")
			s.toolChange()
		case bodyscan.WatchSource:
			s.Walk()
		default:
			if inPrompt(name) {
				s.Count()
			} else {
				s.Walk()
			}
		}
		s.At = outer
	}
	s.classify(kind)
}

// join puts a key behind the place of the object that it stands in.
func join(outer, leaf string) string {
	if outer == "" {
		return leaf
	}
	switch leaf { // No text is made for places that nobody is told of.
	case "type":
		return insideResult + ".type"
	case "text":
		return insideResult + ".text"
	case "tool":
		return insideResult + ".tool"
	}
	return insideResult + ".content"
}

// blockContent reads the content of a block, such as what a tool has returned: a
// string, or blocks again. Blocks of other kinds may have an object there.
func (s *scanner) blockContent(outer jsonscan.Place) {
	switch s.Peek() {
	case '[':
		s.Enter()
		for s.Element() {
			s.At = outer
			s.At.Leaf = insideResult
			s.block()
		}
	case '"', '{':
		s.Count()
	default:
		s.OrNull("a string or an array of content blocks")
	}
}

// inPrompt tells whether templates write the value of a block's key into the
// prompt, other than its text and content.
func inPrompt(name []byte) bool {
	switch string(name) {
	case "name", "input", "thinking", "title", "context", "tool_name":
		return true
	}
	return false
}

// blockKind is what a block is, as far as the gateway tells them apart.
type blockKind uint8

const (
	otherBlock blockKind = iota
	imageBlock
	fileBlock
	toolBlock
	thinkingBlock
)

func kindOf(name []byte) blockKind {
	switch string(name) {
	case "image":
		return imageBlock
	case "document", "container_upload":
		return fileBlock
	case "tool_use", "tool_result", "server_tool_use", "mcp_tool_use", "mcp_tool_result", "tool_reference", "tool_addition", "tool_removal":
		return toolBlock
	case "thinking":
		return thinkingBlock
	}
	return otherBlock
}

// classify notes what a block is.
func (s *scanner) classify(kind blockKind) {
	r := s.Req
	switch kind {
	case imageBlock:
		r.Modalities |= wire.Image
		r.ImageCount++
		r.Features |= wire.ContentParts
	case fileBlock:
		r.Modalities |= wire.File
		r.Features |= wire.ContentParts
	case toolBlock:
		r.Features |= wire.ToolCalls
	case thinkingBlock:
		r.Features |= wire.TemplateSettings
	}
}

// toolList reads the declared tools. A template writes them into the prompt.
func (s *scanner) toolList() {
	if s.Peek() != '[' {
		s.OrNull("an array of tools")
		return
	}
	start, n := s.I, 0
	s.Enter()
	for ; s.Element(); n++ {
		s.At = jsonscan.Place{Field: "tools", Depth: 1, Index: n}
		s.tool()
	}
	if n > 0 {
		s.Req.TextBytes += s.I - start
	}
}

// tool reads one declared tool. A tool of the API's own can do without a name; it
// counts by its type then.
func (s *scanner) tool() {
	if s.Peek() != '{' {
		s.WrongType("an object")
		s.Skip()
		return
	}
	outer := s.At
	var named, kind []byte
	var seen bodyscan.Watched
	s.Enter()
	for key, ok := s.Member(); ok; key, ok = s.Member() {
		switch _, w := s.Watch(&seen, key, bodyscan.WatchName); w {
		case bodyscan.WatchType:
			s.At.Leaf = "type"
			kind = s.ToolName()
		case bodyscan.WatchName:
			s.At.Leaf = "name"
			named = s.ToolName()
		default:
			s.Walk()
		}
		s.At = outer
	}
	if len(named) == 0 {
		named = kind
	}
	s.AddTool(named)
}

// toolChange reads the tool that a message adds or removes. One that is added by
// its definition is declared there and nowhere else.
func (s *scanner) toolChange() {
	if s.Peek() != '{' {
		s.OrNull("an object")
		return
	}
	start := s.I
	var seen bodyscan.Watched
	s.Enter()
	for key, ok := s.Member(); ok; key, ok = s.Member() {
		if _, w := s.Watch(&seen, key, bodyscan.WatchDefinition); w == bodyscan.WatchDefinition && s.Peek() == '{' {
			s.tool()
		} else {
			s.Walk()
		}
	}
	s.Req.TextBytes += s.I - start
}
