package translate

import (
	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// The keys of a content block that a translation knows, of whatever type.
const (
	keyType = iota
	keyText
	keySource
	keyID
	keyName
	keyInput
	keyToolUseID
	keyContent
	keyIsError
	keyThinking
	keySignature
	keyData
	keyCacheControl
	keyCitations
	keyCaller
	keyToolset
	keyTransformations
	blockKeys
)

// blockNames are their names, in their order.
var blockNames = []string{
	"type", "text", "source", "id", "name", "input", "tool_use_id", "content", "is_error",
	"thinking", "signature", "data", "cache_control", "citations", "caller", "toolset_name", "transformations",
}

// blockFields are the keys that a block of each type may have. A mark for the cache
// is left out: the engine caches every prompt by itself.
var blockFields = map[string]uint64{
	"text":              1<<keyType | 1<<keyText | 1<<keyCacheControl | 1<<keyCitations,
	"image":             1<<keyType | 1<<keySource | 1<<keyCacheControl,
	"tool_use":          1<<keyType | 1<<keyID | 1<<keyName | 1<<keyInput | 1<<keyCacheControl | 1<<keyCaller,
	"tool_result":       1<<keyType | 1<<keyToolUseID | 1<<keyContent | 1<<keyIsError | 1<<keyCacheControl,
	"thinking":          1<<keyType | 1<<keyThinking | 1<<keySignature | 1<<keyCacheControl,
	"redacted_thinking": 1<<keyType | 1<<keyData | 1<<keyCacheControl,
}

// billingHeader is how a text begins that clients put before their system prompt,
// different with every request: it would keep any two prompts from sharing their
// beginning. The engine leaves it out too.
const billingHeader = "x-anthropic-billing-header"

// errorPrefix marks the result of a tool that has failed.
const errorPrefix = "Error: "

// conversation writes the system prompt and the messages.
func (t *translation) conversation() *wire.Error {
	if err := t.systemPrompt(); err != nil {
		return err
	}
	v := t.top[topMessages]
	if !v.isArray() {
		return wrongType("messages", "an array of messages", v)
	}
	w := enter(v, jsonscan.RequestDepth)
	for i := 0; ; i++ {
		m, ok := w.element()
		if !ok {
			return nil
		}
		if err := t.message(m, at{root: "messages"}.in(i)); err != nil {
			return err
		}
	}
}

// systemPrompt writes the leading system message.
func (t *translation) systemPrompt() *wire.Error {
	v := t.top[topSystem]
	switch {
	case v == nil || v.isEmptyString():
		return nil
	case v.isString():
		t.begin(`system`, at{root: "system"})
		t.addValue(`,"content":`, v)
		t.add(`}`)
		return nil
	case !v.isArray():
		return wrongType("system", "a string or an array of text blocks", v)
	}
	return t.systemBlocks(v, at{root: "system"})
}

// systemBlocks writes one system message of text blocks, joined as the engine does.
func (t *translation) systemBlocks(v value, where at) *wire.Error {
	t.parts = t.parts[:0]
	w := enter(v, jsonscan.RequestDepth)
	for i := 0; ; i++ {
		b, ok := w.element()
		if !ok {
			break
		}
		where := where.in(i)
		if err := t.readBlock(b, &t.block, where); err != nil {
			return err
		}
		if !t.block[keyType].is("text") {
			if t.lenient() {
				continue
			}
			return noValue(where.path("type"), "A system prompt holds text only.")
		}
		text, err := t.textOf(&t.block, where)
		if err != nil {
			return err
		}
		if !text.hasPrefix(billingHeader) {
			t.parts = append(t.parts, text.inner()...)
		}
	}
	if len(t.parts) > 0 {
		t.begin(`system`, where)
		t.add(`,"content":"`)
		t.dst = append(t.dst, t.parts...)
		t.add(`"}`)
	}
	return nil
}

// begin writes the beginning of a chat message, without its closing bracket, and
// remembers what it was made of.
func (t *translation) begin(role string, from at) {
	if t.dst[len(t.dst)-1] == '}' {
		t.add(`,`)
	}
	t.add(`{"role":"`)
	t.add(role)
	t.add(`"`)
	if t.names != nil {
		t.names.add(from)
	}
}

// message writes the chat messages of one message.
func (t *translation) message(v value, where at) *wire.Error {
	if !v.isObject() {
		return wrongType(where.path(""), "an object", v)
	}
	var f [2]value
	if err := fields(f[:]).read(v, where, []string{"role", "content"}, t.lenient()); err != nil {
		return err
	}
	role, content := f[0], f[1]
	switch {
	case !role.isString():
		return wrongType(where.path("role"), "a string", role)
	case role.is("system"):
		return t.inlineSystem(content, where)
	case role.is("user"), role.is("assistant"):
	default:
		return noValue(where.path("role"), "Send user, assistant or system.")
	}
	name := role.text()
	switch {
	case content.isString():
		t.begin(name, where)
		t.addValue(`,"content":`, content)
		t.add(`}`)
		return nil
	case !content.isArray():
		return wrongType(where.path("content"), "a string or an array of blocks", content)
	}
	return t.blocks(content, name, where)
}

// inlineSystem writes a system message in its place between the others.
func (t *translation) inlineSystem(content value, where at) *wire.Error {
	switch {
	case content.isArray():
		return t.systemBlocks(content, where)
	case !content.isString():
		return wrongType(where.path("content"), "a string or an array of text blocks", content)
	case content.isEmptyString() || content.hasPrefix(billingHeader):
		return nil
	}
	t.begin(`system`, where)
	t.addValue(`,"content":`, content)
	t.add(`}`)
	return nil
}

// blocks writes a message of content blocks: first what tools have returned, each
// a message of its own, then the rest.
func (t *translation) blocks(content value, role string, where at) *wire.Error {
	t.parts, t.calls, t.reasoning = t.parts[:0], t.calls[:0], t.reasoning[:0]
	t.partCount, t.onePart = 0, nil
	w := enter(content, jsonscan.RequestDepth)
	for i := 0; ; i++ {
		b, ok := w.element()
		if !ok {
			break
		}
		if err := t.contentBlock(b, role, where.in(i)); err != nil {
			return err
		}
	}
	if role == "user" && t.partCount == 0 {
		return nil // Nothing is left to say: there were only results, or empty texts.
	}
	t.begin(role, where)
	if len(t.reasoning) > 0 {
		t.add(`,"reasoning":"`)
		t.dst = append(t.dst, t.reasoning...)
		t.add(`"`)
	}
	if len(t.calls) > 0 {
		t.addValue(`,"tool_calls":[`, t.calls)
		t.add(`]`)
	}
	switch {
	case t.partCount == 0 && len(t.calls) > 0:
		t.add(`,"content":null`)
	case t.partCount == 0:
		t.add(`,"content":""`)
	case t.onePart != nil:
		t.addValue(`,"content":`, t.onePart)
	default:
		t.addValue(`,"content":[`, t.parts)
		t.add(`]`)
	}
	t.add(`}`)
	return nil
}

// readBlock reads one block's members and checks that its type may have them.
func (t *translation) readBlock(v value, block *[blockKeys]value, where at) *wire.Error {
	if !v.isObject() {
		return wrongType(where.path(""), "an object", v)
	}
	err := fields(block[:]).read(v, where, blockNames, t.lenient())
	kind := block[keyType]
	if !kind.isString() {
		return wrongType(where.path("type"), "a string", kind)
	}
	allowed, known := blockFields[kind.text()]
	switch {
	case t.lenient():
		return err
	case !known: // Whatever else it has, its type is what to name.
		return noValue(where.path("type"), "Send blocks of the types text, image, tool_use and tool_result only.")
	case err != nil:
		return err
	}
	if block[keyCitations].isEmptyArray() {
		block[keyCitations] = nil
	}
	return fields(block[:]).only(allowed&^(1<<keyCitations), where, blockNames)
}

// contentBlock takes one block of a message into the scratch memory, or writes it
// where it is a message of its own.
func (t *translation) contentBlock(v value, role string, where at) *wire.Error {
	err := t.readBlock(v, &t.block, where)
	if err != nil {
		return err
	}
	switch t.block[keyType].text() {
	case "text":
		text, err := t.textOf(&t.block, where)
		if err == nil && !text.isEmptyString() {
			t.textPart(text)
		}
		return err
	case "image":
		if t.partCount++; t.partCount > 1 {
			t.parts = append(t.parts, ',')
		}
		t.onePart = nil
		t.parts, err = t.appendImage(t.parts, &t.block, where)
		return err
	case "tool_use":
		if role != "assistant" {
			return noValue(where.path("type"), "Only messages of the assistant call tools.")
		}
		return t.toolCall(where)
	case "tool_result":
		if role != "user" {
			return noValue(where.path("type"), "Only messages of the user hold what tools have returned.")
		}
		return t.toolResult(where)
	case "thinking":
		// What was thought in earlier turns is left out; but the engine's own
		// messages route keeps it for the template.
		if text := t.block[keyThinking]; t.purpose == ForTokens && text.isString() {
			t.reasoning = append(t.reasoning, text.inner()...)
		}
	}
	return nil
}

func (t *translation) textPart(text value) {
	t.onePart = text
	if t.partCount++; t.partCount > 1 {
		t.onePart = nil
		t.parts = append(t.parts, ',')
	}
	t.parts = append(append(t.parts, `{"type":"text","text":`...), text...)
	t.parts = append(t.parts, '}')
}

// textOf returns the text of a text block.
func (t *translation) textOf(block *[blockKeys]value, where at) (value, *wire.Error) {
	text := block[keyText]
	if !text.isString() {
		return nil, wrongType(where.path("text"), "a string", text)
	}
	return text, nil
}

// appendImage appends the part of an image.
func (t *translation) appendImage(dst []byte, block *[blockKeys]value, where at) ([]byte, *wire.Error) {
	source := block[keySource]
	if !source.isObject() {
		return dst, wrongType(where.path("source"), "an object", source)
	}
	var f [4]value
	names := []string{"type", "media_type", "data", "url"}
	if err := fields(f[:]).read(source, where.at("source"), names, t.lenient()); err != nil {
		return dst, err
	}
	kind, media, data, url := f[0], f[1], f[2], f[3]
	dst = append(dst, `{"type":"image_url","image_url":{"url":`...)
	switch {
	case !kind.isString():
		return dst, wrongType(where.path("source.type"), "a string", kind)
	case kind.is("url"):
		if !url.isString() {
			return dst, wrongType(where.path("source.url"), "a string", url)
		}
		return append(append(dst, url...), `}}`...), fields(f[:]).only(1<<0|1<<3, where.at("source"), names)
	case !kind.is("base64"):
		return dst, noValue(where.path("source.type"), "Send base64 or url.")
	case !media.isString():
		return dst, wrongType(where.path("source.media_type"), "a string", media)
	case !data.isString():
		return dst, wrongType(where.path("source.data"), "a string", data)
	}
	dst = append(append(dst, `"data:`...), media.inner()...)
	dst = append(append(dst, `;base64,`...), data.inner()...)
	return append(dst, `"}}`...), fields(f[:]).only(1<<0|1<<1|1<<2, where.at("source"), names)
}

// toolCall takes a tool_use block into the calls of its message.
func (t *translation) toolCall(where at) *wire.Error {
	id, name, input := t.block[keyID], t.block[keyName], t.block[keyInput]
	switch {
	case !id.isString():
		return wrongType(where.path("id"), "a string", id)
	case !name.isString():
		return wrongType(where.path("name"), "a string", name)
	case input != nil && !input.isObject():
		return wrongType(where.path("input"), "an object", input)
	}
	if err := t.directCaller(where); err != nil {
		return err
	}
	if input == nil {
		input = value("{}")
	}
	if len(t.calls) > 0 {
		t.calls = append(t.calls, ',')
	}
	t.calls = append(append(t.calls, `{"id":`...), id...)
	t.calls = append(append(t.calls, `,"type":"function","function":{"name":`...), name...)
	t.calls = append(t.calls, `,"arguments":`...)
	t.calls = append(input.appendAsString(t.calls), `}}`...)
	return nil
}

// directCaller refuses a call that was made by anybody but the model.
func (t *translation) directCaller(where at) *wire.Error {
	caller := t.block[keyCaller]
	if caller == nil || t.lenient() {
		return nil
	}
	if !caller.isObject() {
		return wrongType(where.path("caller"), "an object", caller)
	}
	var f [1]value
	if err := fields(f[:]).read(caller, where.at("caller"), []string{"type"}, false); err != nil {
		return err
	}
	if !f[0].is("direct") {
		return noValue(where.path("caller"), "Send the type direct, or leave it out.")
	}
	return nil
}

// toolResult writes the message of what a tool has returned, and one with its
// images if there are any.
func (t *translation) toolResult(where at) *wire.Error {
	id, content, isError := t.block[keyToolUseID], t.block[keyContent], t.block[keyIsError]
	switch {
	case !id.isString():
		return wrongType(where.path("tool_use_id"), "a string", id)
	case isError != nil && !isError.isBool():
		return wrongType(where.path("is_error"), "true or false", isError)
	case content != nil && !content.isString() && !content.isArray():
		return wrongType(where.path("content"), "a string or an array of blocks", content)
	}
	t.begin(`tool`, where)
	t.addValue(`,"tool_call_id":`, id)
	t.add(`,"content":"`)
	if isError.isTrue() && t.purpose != ForTokens {
		t.add(errorPrefix)
	}
	t.images, t.imageCount = t.images[:0], 0
	switch {
	case content.isString():
		t.dst = append(t.dst, content.inner()...)
	case content.isArray():
		if err := t.resultBlocks(content, where); err != nil {
			return err
		}
	}
	t.add(`"}`)
	if t.imageCount > 0 {
		t.begin(`user`, where)
		t.addValue(`,"content":[`, t.images)
		t.add(`]}`)
	}
	return nil
}

// resultBlocks writes the texts of a result, each on lines of its own as the
// engine has them, and keeps the images for a message that follows.
func (t *translation) resultBlocks(content value, where at) *wire.Error {
	w := enter(content, jsonscan.RequestDepth)
	texts := 0
	for i := 0; ; i++ {
		b, ok := w.element()
		if !ok {
			return nil
		}
		where := where.in(i)
		err := t.readBlock(b, &t.item, where)
		if err != nil {
			return err
		}
		switch kind := t.item[keyType]; {
		case kind.is("text"):
			text, err := t.textOf(&t.item, where)
			if err != nil {
				return err
			}
			if texts++; texts > 1 {
				t.add(`\n`)
			}
			t.dst = append(t.dst, text.inner()...)
		case kind.is("image"):
			if t.imageCount++; t.imageCount > 1 {
				t.images = append(t.images, ',')
			}
			if t.images, err = t.appendImage(t.images, &t.item, where); err != nil {
				return err
			}
		case !t.lenient():
			return noValue(where.path("type"), "The result of a tool holds text and images only.")
		}
	}
}
