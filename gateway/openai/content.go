package openai

import (
	"github.com/sluicegate/sluice/gateway/bodyscan"
	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// messages reads the messages of a chat.
func (s *scanner) messages() {
	if s.Peek() != '[' {
		s.OrNull("an array of messages")
		return
	}
	others := 0
	s.Enter()
	for s.Element() {
		s.At = jsonscan.Place{Field: wire.FieldMessages.String(), Depth: 1, Index: s.Req.MessageCount}
		s.Req.MessageCount++
		if s.Peek() != '{' {
			s.WrongType("an object")
			s.Skip()
			continue
		}
		s.message(&others)
	}
}

// message reads one message. others counts those of other roles than system and
// developer.
func (s *scanner) message(others *int) {
	var seen bodyscan.Watched
	s.Enter()
	for key, ok := s.Member(); ok; key, ok = s.Member() {
		name, w := s.Watch(&seen, key, 0)
		s.noteMessageKey(name)
		switch {
		case w == bodyscan.WatchRole:
			s.At.Leaf = "role"
			if t, ok := s.StringOrNull(); ok {
				s.noteRole(s.Name(t), others)
			}
			s.At.Leaf = ""
		case w == bodyscan.WatchContent:
			s.At.Leaf = "content"
			s.messageContent()
			s.At.Leaf = ""
		case string(name) == "tools": // which templates can declare with a message
			s.At.Leaf = "tools"
			s.tools(false)
			s.At.Leaf = ""
		case inPrompt(name):
			s.Count()
		default:
			s.Walk()
		}
	}
}

// inPrompt tells whether chat templates write the value of a message's key into
// the prompt, other than its role and content.
func inPrompt(name []byte) bool {
	switch string(name) {
	case "name", "reasoning", "reasoning_content", "thinking", "refusal", "tool_calls", "function_call":
		return true
	}
	return false
}

// messageContent reads a message's content: a string, or parts.
func (s *scanner) messageContent() {
	switch s.Peek() {
	case '"':
		s.AddText(s.Str())
		return
	case '[':
	default:
		s.OrNull("a string or an array of parts")
		return
	}
	s.Req.Features |= wire.ContentParts
	outer := s.At
	s.Enter()
	for i := 0; s.Element(); i++ {
		s.At = jsonscan.Place{Field: outer.Field, Inner: outer.Leaf, Depth: 2, Index: outer.Index, Part: i}
		switch s.Peek() {
		case '{':
			s.part()
		case '"': // The engine takes a bare string for a text part.
			s.AddText(s.Str())
		default:
			s.WrongType("an object or a string")
			s.Skip()
		}
	}
	s.At = outer
}

// part reads one part of a message's content.
func (s *scanner) part() {
	var seen bodyscan.Watched
	var byType, byKeys wire.Modality
	s.Enter()
	for key, ok := s.Member(); ok; key, ok = s.Member() {
		name, w := s.Watch(&seen, key, 0)
		switch {
		case w == bodyscan.WatchType:
			s.At.Leaf = "type"
			if t, ok := s.StringOrNull(); ok {
				byType = modalityOf(s.Name(t))
			}
			s.At.Leaf = ""
		case w == bodyscan.WatchText:
			s.At.Leaf = "text"
			if t, ok := s.StringOrNull(); ok {
				s.AddText(t)
			}
			s.At.Leaf = ""
		case inPrompt(name):
			s.Count()
		default:
			if m := modalityOf(name); m != wire.Text {
				byKeys |= m
			}
			s.Walk()
		}
	}
	s.classify(byType, byKeys)
}

// classify notes what a part is. Where its type says nothing, its keys do, as
// they do for the engine.
func (s *scanner) classify(byType, byKeys wire.Modality) {
	m := byType
	if m == 0 {
		m = byKeys
	}
	if m == wire.Text {
		return // AddText knows whether there was any.
	}
	s.Req.Modalities |= m
	if m&wire.Image != 0 {
		s.Req.ImageCount++
	}
}

// modalityOf returns what kind of content a part of the given type, or with a
// key of that name, holds: 0 when the name says nothing.
func modalityOf(name []byte) wire.Modality {
	switch string(name) {
	case "text", "input_text", "output_text", "refusal", "thinking":
		return wire.Text
	case "image", "image_url", "input_image", "image_pil", "image_embeds":
		return wire.Image
	case "audio", "audio_url", "input_audio", "audio_embeds":
		return wire.Audio
	case "video", "video_url", "input_video":
		return wire.Video
	case "file", "input_file", "document":
		return wire.File
	}
	return 0
}

// prompts reads the prompts of a completion or the inputs of an embedding: a
// string, strings, token ids, or lists of token ids.
func (s *scanner) prompts(f wire.Field) {
	switch s.Peek() {
	case '"':
		s.AddText(s.Str())
		s.Req.PromptCount = 1
		return
	case '[':
	default:
		s.OrNull("a string, an array of strings, an array of token ids or an array of arrays of token ids")
		return
	}
	var kind byte
	s.Enter()
	for i := 0; s.Element(); i++ {
		s.At = jsonscan.Place{Field: f.String(), Depth: 1, Index: i}
		ch := promptKind(s.Peek())
		switch {
		case i == 0:
			kind = ch
			s.Req.PromptCount = 1
		case ch != kind && ch != 0 && kind != 0:
			s.WrongType("of the same kind as the elements before it")
			s.Skip()
			continue
		case kind != '0':
			s.Req.PromptCount++
		}
		s.promptElement(ch)
	}
}

// promptKind folds the first byte of a value to '"', '[', '0' for a number, or
// 0 for what cannot be in a prompt.
func promptKind(ch byte) byte {
	switch {
	case ch == '"', ch == '[':
		return ch
	case ch == '-', ch >= '0' && ch <= '9':
		return '0'
	}
	return 0
}

func (s *scanner) promptElement(kind byte) {
	switch kind {
	case '"':
		s.AddText(s.Str())
	case '0':
		s.tokenID()
	case '[':
		s.At.Depth = 2
		s.Enter()
		for i := 0; s.Element(); i++ {
			s.At.Part = i
			if promptKind(s.Peek()) == '0' {
				s.tokenID()
				continue
			}
			s.WrongType("a token id")
			s.Skip()
		}
	default:
		s.WrongType("a string, a token id or an array of token ids")
		s.Skip()
	}
}

func (s *scanner) tokenID() {
	if _, ok := s.IntegerOrNull(); ok {
		s.Req.TokenIDs++
		s.Req.Modalities |= wire.Text
	}
}

// tools reads the declared tools: those of a response are flat. A template writes
// them into the prompt.
func (s *scanner) tools(flat bool) {
	start := s.I
	if s.toolList(flat, nil) > 0 {
		s.Req.TextBytes += s.I - start
	}
}

// toolList reads a list of tools, which is the value of a top-level key, or of a key
// of an element of one, and returns how many there are. It appends the names of those
// that are flat to names, unless that is nil.
func (s *scanner) toolList(flat bool, names *[][]byte) (n int) {
	if s.Peek() != '[' {
		s.OrNull("an array of tools")
		return 0
	}
	outer := s.At
	s.Enter()
	for ; s.Element(); n++ {
		s.At = jsonscan.Place{Field: outer.Field, Depth: 1, Index: n}
		if outer.Depth > 0 {
			s.At = jsonscan.Place{Field: outer.Field, Inner: outer.Leaf, Depth: 2, Index: outer.Index, Part: n}
		}
		if s.Peek() != '{' {
			s.WrongType("an object")
			s.Skip()
			continue
		}
		switch {
		case !flat:
			s.tool()
		case names == nil:
			s.responseTool()
		default:
			if name := s.responseTool(); name != nil {
				*names = append(*names, name)
			}
		}
	}
	s.At = outer
	return n
}

// tool reads one declared tool. One without a name counts by the empty name.
func (s *scanner) tool() {
	named := len(s.Req.ToolNames)
	defer func() {
		if len(s.Req.ToolNames) == named {
			s.AddTool(nil)
		}
	}()
	var seen bodyscan.Watched
	s.Enter()
	for key, ok := s.Member(); ok; key, ok = s.Member() {
		_, w := s.Watch(&seen, key, bodyscan.WatchFunction)
		switch w {
		case bodyscan.WatchType:
			s.At.Leaf = "type"
			s.StringOrNull()
		case bodyscan.WatchFunction:
			s.At.Leaf = "function"
			s.function()
		default:
			s.Walk()
		}
		s.At.Leaf = ""
	}
}

func (s *scanner) function() {
	if s.Peek() != '{' {
		s.OrNull("an object")
		return
	}
	var seen bodyscan.Watched
	s.Enter()
	for key, ok := s.Member(); ok; key, ok = s.Member() {
		_, w := s.Watch(&seen, key, bodyscan.WatchName)
		if w != bodyscan.WatchName {
			s.Walk()
			continue
		}
		s.At.Leaf = "function.name"
		s.addToolName()
		s.At.Leaf = "function"
	}
}

// addToolName reads, counts and returns a string that names a declared tool, unless it is
// null.
func (s *scanner) addToolName() []byte {
	name := s.ToolName()
	if name != nil {
		s.AddTool(name)
	}
	return name
}
