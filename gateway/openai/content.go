package openai

import (
	"unicode/utf8"

	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// addText counts a string that becomes part of a prompt.
func (s *scanner) addText(t jsonscan.Token) {
	if t.Size > 0 {
		s.req.TextBytes += t.Size
		s.req.Modalities |= wire.Text
	}
}

// count passes over a value that the engine's template may write into the
// prompt: a string by its own size, anything else by that of its JSON text.
func (s *scanner) count() {
	switch start := s.I; s.Peek() {
	case '"':
		s.addText(s.Str())
	case '{', '[':
		s.walk()
		s.req.TextBytes += s.I - start
	default:
		s.Skip()
	}
}

// messages reads the messages of a chat.
func (s *scanner) messages() {
	if s.Peek() != '[' {
		s.orNull("an array of messages")
		return
	}
	others := 0
	s.Enter()
	for s.Element() {
		s.at = jsonscan.Place{Field: wire.FieldMessages.String(), Depth: 1, Index: s.req.MessageCount}
		s.req.MessageCount++
		if s.Peek() != '{' {
			s.wrongType("an object")
			s.Skip()
			continue
		}
		s.message(&others)
	}
}

// message reads one message. others counts those of other roles than system and
// developer.
func (s *scanner) message(others *int) {
	var seen watched
	s.Enter()
	for key, ok := s.Member(); ok; key, ok = s.Member() {
		name, w := s.watch(&seen, key, 0)
		s.noteMessageKey(name)
		switch {
		case w == watchRole:
			s.at.Leaf = "role"
			if t, ok := s.stringOrNull(); ok {
				s.noteRole(s.name(t), others)
			}
			s.at.Leaf = ""
		case w == watchContent:
			s.at.Leaf = "content"
			s.messageContent()
			s.at.Leaf = ""
		case string(name) == "tools": // which templates can declare with a message
			s.at.Leaf = "tools"
			s.tools(false)
			s.at.Leaf = ""
		case inPrompt(name):
			s.count()
		default:
			s.walk()
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
		s.addText(s.Str())
		return
	case '[':
	default:
		s.orNull("a string or an array of parts")
		return
	}
	s.req.Features |= wire.ContentParts
	outer := s.at
	s.Enter()
	for i := 0; s.Element(); i++ {
		s.at = jsonscan.Place{Field: outer.Field, Inner: outer.Leaf, Depth: 2, Index: outer.Index, Part: i}
		switch s.Peek() {
		case '{':
			s.part()
		case '"': // The engine takes a bare string for a text part.
			s.addText(s.Str())
		default:
			s.wrongType("an object or a string")
			s.Skip()
		}
	}
	s.at = outer
}

// part reads one part of a message's content.
func (s *scanner) part() {
	var seen watched
	var byType, byKeys wire.Modality
	s.Enter()
	for key, ok := s.Member(); ok; key, ok = s.Member() {
		name, w := s.watch(&seen, key, 0)
		switch {
		case w == watchType:
			s.at.Leaf = "type"
			if t, ok := s.stringOrNull(); ok {
				byType = modalityOf(s.name(t))
			}
			s.at.Leaf = ""
		case w == watchText:
			s.at.Leaf = "text"
			if t, ok := s.stringOrNull(); ok {
				s.addText(t)
			}
			s.at.Leaf = ""
		case inPrompt(name):
			s.count()
		default:
			if m := modalityOf(name); m != wire.Text {
				byKeys |= m
			}
			s.walk()
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
		return // addText knows whether there was any.
	}
	s.req.Modalities |= m
	if m&wire.Image != 0 {
		s.req.ImageCount++
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
		s.addText(s.Str())
		s.req.PromptCount = 1
		return
	case '[':
	default:
		s.orNull("a string, an array of strings, an array of token ids or an array of arrays of token ids")
		return
	}
	var kind byte
	s.Enter()
	for i := 0; s.Element(); i++ {
		s.at = jsonscan.Place{Field: f.String(), Depth: 1, Index: i}
		ch := promptKind(s.Peek())
		switch {
		case i == 0:
			kind = ch
			s.req.PromptCount = 1
		case ch != kind && ch != 0 && kind != 0:
			s.wrongType("of the same kind as the elements before it")
			s.Skip()
			continue
		case kind != '0':
			s.req.PromptCount++
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
		s.addText(s.Str())
	case '0':
		s.tokenID()
	case '[':
		s.at.Depth = 2
		s.Enter()
		for i := 0; s.Element(); i++ {
			s.at.Part = i
			if promptKind(s.Peek()) == '0' {
				s.tokenID()
				continue
			}
			s.wrongType("a token id")
			s.Skip()
		}
	default:
		s.wrongType("a string, a token id or an array of token ids")
		s.Skip()
	}
}

func (s *scanner) tokenID() {
	if _, ok := s.integerOrNull(); ok {
		s.req.TokenIDs++
		s.req.Modalities |= wire.Text
	}
}

// tools reads the declared tools: those of a response are flat. A template writes
// them into the prompt.
func (s *scanner) tools(flat bool) {
	start := s.I
	if s.toolList(flat) > 0 {
		s.req.Features |= wire.Tools
		s.req.TextBytes += s.I - start
	}
}

// toolList reads a list of tools, which is the value of a top-level key, or of a key
// of an element of one, and returns how many there are.
func (s *scanner) toolList(flat bool) (n int) {
	if s.Peek() != '[' {
		s.orNull("an array of tools")
		return 0
	}
	outer := s.at
	s.Enter()
	for ; s.Element(); n++ {
		s.at = jsonscan.Place{Field: outer.Field, Depth: 1, Index: n}
		if outer.Depth > 0 {
			s.at = jsonscan.Place{Field: outer.Field, Inner: outer.Leaf, Depth: 2, Index: outer.Index, Part: n}
		}
		if s.Peek() != '{' {
			s.wrongType("an object")
			s.Skip()
			continue
		}
		if flat {
			s.responseTool()
		} else {
			s.tool()
		}
	}
	s.at = outer
	if n > maxTools {
		s.refuse(errTooLong(outer.String(), maxTools, "tools"))
	}
	return n
}

// tool reads one declared tool. One without a name counts by the empty name, so
// that whoever asks whether there are tools is not told that there are none.
func (s *scanner) tool() {
	named := len(s.req.ToolNames)
	defer func() {
		if len(s.req.ToolNames) == named {
			s.keepToolName(nil)
		}
	}()
	var seen watched
	s.Enter()
	for key, ok := s.Member(); ok; key, ok = s.Member() {
		_, w := s.watch(&seen, key, watchFunction)
		switch w {
		case watchType:
			s.at.Leaf = "type"
			s.stringOrNull()
		case watchFunction:
			s.at.Leaf = "function"
			s.function()
		default:
			s.walk()
		}
		s.at.Leaf = ""
	}
}

func (s *scanner) function() {
	if s.Peek() != '{' {
		s.orNull("an object")
		return
	}
	var seen watched
	s.Enter()
	for key, ok := s.Member(); ok; key, ok = s.Member() {
		_, w := s.watch(&seen, key, watchName)
		if w != watchName {
			s.walk()
			continue
		}
		s.at.Leaf = "function.name"
		s.toolName()
		s.at.Leaf = "function"
	}
}

func (s *scanner) toolName() {
	if t, ok := s.stringOrNull(); ok {
		s.addToolName(t)
	}
}

// addToolName adds a tool's name that stands in the token.
func (s *scanner) addToolName(t jsonscan.Token) {
	if t.Lone && s.err == nil {
		s.refuse(errSurrogate(s.at.String()))
	}
	name := s.text(t)
	if s.err == nil && len(name) > maxToolName && utf8.RuneCount(name) > maxToolName {
		s.refuse(errTooLong(s.at.String(), maxToolName, "characters"))
	}
	s.keepToolName(name)
}

// keepToolName keeps a name. One that there is no room for refuses the request: a
// list that was cut could hide what a rule forbids.
func (s *scanner) keepToolName(name []byte) {
	if len(s.req.ToolNames) < maxTools {
		s.req.ToolNames = append(s.req.ToolNames, name)
		return
	}
	if s.err == nil {
		s.refuse(errTooLong("tools", maxTools, "tools"))
	}
}
