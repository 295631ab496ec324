package translate

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// maxCalls bounds the calls of tools in one answer.
const maxCalls = 1 << 10

// ErrTooLarge is what an error is that is about the size of an answer alone.
var ErrTooLarge = errors.New("the worker's answer is too large to be translated")

var (
	errChunk    = errors.New("the worker sent an event that is no chunk of a chat completion")
	errNotBegun = errors.New("the worker's stream ended before it had begun")
	errTooMany  = fmt.Errorf("%w: it has too many calls of tools", ErrTooLarge)
	errHeld     = fmt.Errorf("%w: it mixes the parts of more calls than can be held back", ErrTooLarge)
)

// Translator turns the chunks of a chat completion into the events of a message. One
// block is open at a time: what belongs to another is held back until the one that is
// open has its end, in memory that is bounded.
//
// After an error nothing more may be appended: the stream is to be ended by an error
// event, with no block, delta or message brought to an end.
type Translator struct {
	id      string
	limit   int
	begun   bool
	index   int // of the block that is open, or of the next one
	open    kind
	tool    openTool // while open is kindTool
	waiting []segment
	held    int // bytes in waiting
	calls   int // that have begun, waiting ones included
	end     ending
	scratch []byte
}

// kind is what a block is.
type kind uint8

const (
	kindNone kind = iota
	kindThinking
	kindText
	kindTool
)

// openTool is the call that is being told.
type openTool struct {
	index    int
	id       []byte
	said     bool // it has arguments
	progress progress
}

// segment is a part of the answer that waits for the block that is open to end. Its
// text is as it stood between quotes.
type segment struct {
	kind  kind
	index int
	id    []byte
	name  []byte
	text  []byte
}

// segmentBytes is what a segment takes beside its texts.
const segmentBytes = 128

// NewTranslator returns a Translator for one answer. id is the message's, and limit
// how many bytes it may hold back.
func NewTranslator(id string, limit int) *Translator {
	return &Translator{id: id, limit: limit}
}

// AppendChunk appends the events that the data of a chunk gives rise to, and returns
// them; there may be none. u is the usage as far as it is known with this chunk.
func (t *Translator) AppendChunk(dst, data []byte, u wire.Usage) ([]byte, error) {
	top, err := document(data)
	if err != nil {
		return dst, errChunk
	}
	model, choices := value(nil), value(nil)
	w := enter(top, jsonscan.AnswerDepth)
	for name, v, ok := w.member(); ok; name, v, ok = w.member() {
		switch string(name) {
		case "model":
			model = v
		case "choices":
			choices = v
		}
	}
	if !t.begun {
		t.begun = true
		dst = t.appendStart(dst, model, u)
	}
	one := firstOf(choices)
	if one == nil {
		return dst, nil
	}
	c, err := readChoice(one, "delta")
	if err != nil {
		return dst, err
	}
	t.note(&c)
	dst = t.appendText(dst, kindThinking, c.reasoning)
	dst = t.appendText(dst, kindText, c.content)
	dst = t.appendText(dst, kindText, c.refusal)
	if c.calls != nil {
		if dst, err = t.appendCalls(dst, c.calls); err != nil {
			return dst, err
		}
	}
	if t.held > t.limit {
		return dst, errHeld
	}
	return dst, nil
}

// note keeps what a chunk says of the answer's end.
func (t *Translator) note(c *choice) {
	if c.finish.isString() {
		t.end.finish = c.finish.text()
	}
	if c.stop.isString() {
		t.end.matched = append(value(nil), c.stop...)
	}
	t.end.refused = t.end.refused || c.refused()
}

func (t *Translator) appendStart(dst []byte, model value, u wire.Usage) []byte {
	u.Output = 0
	dst = append(dst, `event: message_start`+"\n"+`data: {"type":"message_start","message":{"id":`...)
	dst = append(append(dst, quoted(t.id)...), `,"type":"message","role":"assistant","model":`...)
	dst = append(appendString(dst, model), `,"content":[],"stop_reason":null,"stop_sequence":null,"usage":`...)
	return append(appendUsage(dst, u), "}}\n\n"...)
}

// appendText takes a piece of text of either kind.
func (t *Translator) appendText(dst []byte, k kind, v value) []byte {
	if !v.says() {
		return dst
	}
	if t.busy() {
		t.wait(k, v.inner())
		return dst
	}
	if t.open != k {
		dst = t.appendStop(dst)
		dst = t.appendOpen(dst, &segment{kind: k})
	}
	return t.appendDelta(dst, v.inner())
}

// busy reports whether what comes now has to wait, unless it belongs to the call that
// is open: that one has not come to its end, or others wait already.
func (t *Translator) busy() bool {
	return len(t.waiting) > 0 || t.open == kindTool && !t.tool.progress.whole()
}

// wait keeps a piece of text.
func (t *Translator) wait(k kind, text []byte) {
	if n := len(t.waiting); n == 0 || t.waiting[n-1].kind != k {
		t.waiting = append(t.waiting, segment{kind: k})
		t.held += segmentBytes
	}
	last := &t.waiting[len(t.waiting)-1]
	last.text = append(last.text, text...)
	t.held += len(text)
}

// appendCalls takes the pieces of calls in one chunk.
func (t *Translator) appendCalls(dst []byte, calls value) ([]byte, error) {
	w := enter(calls, jsonscan.AnswerDepth)
	position := 0
	for v, ok := w.element(); ok; v, ok = w.element() {
		c, err := readCall(v)
		if err != nil {
			return dst, err
		}
		if !c.hasIndex {
			c.index = position
		}
		position++
		if dst, err = t.appendCall(dst, &c); err != nil {
			return dst, err
		}
		dst = t.appendWaiting(dst)
	}
	return dst, nil
}

// appendCall takes a piece of one call: of the one that is open, of one that waits, or
// of a new one.
func (t *Translator) appendCall(dst []byte, c *call) ([]byte, error) {
	var text []byte
	if c.input != nil {
		text = c.input.inner()
	}
	if t.open == kindTool && same(t.tool.index, t.tool.id, c) {
		return t.appendDelta(dst, text), nil
	}
	for i := len(t.waiting) - 1; i >= 0; i-- {
		if s := &t.waiting[i]; s.kind == kindTool && same(s.index, s.id, c) {
			s.text = append(s.text, text...)
			t.held += len(text)
			return dst, nil
		}
	}
	if !c.name.says() {
		if t.blank(text) {
			return dst, nil
		}
		return dst, errCall
	}
	if t.calls++; t.calls > maxCalls {
		return dst, errTooMany
	}
	t.end.called = true
	s := segment{
		kind: kindTool, index: c.index, id: callID(c.id, t.id, t.calls-1), name: append([]byte(nil), c.name...),
	}
	s.id = append([]byte(nil), s.id...)
	if t.busy() {
		s.text = append(s.text, text...)
		t.waiting = append(t.waiting, s)
		t.held += segmentBytes + len(s.id) + len(s.name) + len(s.text)
		return dst, nil
	}
	dst = t.appendOpen(t.appendStop(dst), &s)
	return t.appendDelta(dst, text), nil
}

// same reports whether a piece is of the call with an index and id. Later pieces have
// no id; a call of its own may have the index of another, but then it has an id and a
// name.
func same(index int, id []byte, c *call) bool {
	if c.index != index {
		return false
	}
	return !c.id.says() || !c.name.says() || string(c.id) == string(id)
}

// blank reports whether a text, as it stood between quotes, is white space only.
func (t *Translator) blank(text []byte) bool {
	for _, ch := range jsonscan.AppendUnescaped(t.scratch[:0], text) {
		if ch != ' ' && ch != '\n' && ch != '\r' && ch != '\t' {
			return false
		}
	}
	return true
}

// appendWaiting appends what needs to wait no longer.
func (t *Translator) appendWaiting(dst []byte) []byte {
	for len(t.waiting) > 0 && (t.open != kindTool || t.tool.progress.whole()) {
		dst = t.appendNext(dst)
	}
	return dst
}

// appendNext ends the block that is open, and begins the one that has waited longest.
func (t *Translator) appendNext(dst []byte) []byte {
	s := t.waiting[0]
	t.waiting = t.waiting[1:]
	t.held -= segmentBytes + len(s.id) + len(s.name) + len(s.text)
	dst = t.appendOpen(t.appendStop(dst), &s)
	return t.appendDelta(dst, s.text)
}

// appendOpen begins a block.
func (t *Translator) appendOpen(dst []byte, s *segment) []byte {
	t.open = s.kind
	dst = append(dst, "event: content_block_start\n"+`data: {"type":"content_block_start","index":`...)
	dst = strconv.AppendInt(dst, int64(t.index), 10)
	dst = append(dst, `,"content_block":`...)
	switch s.kind {
	case kindThinking:
		dst = append(dst, `{"type":"thinking","thinking":"","signature":""}`...)
	case kindText:
		dst = append(dst, `{"type":"text","text":""}`...)
	case kindTool:
		t.tool = openTool{index: s.index, id: s.id}
		dst = append(append(dst, `{"type":"tool_use","id":`...), s.id...)
		dst = append(append(dst, `,"name":`...), s.name...)
		dst = append(dst, `,"input":{}}`...)
	}
	return append(dst, "}\n\n"...)
}

// appendDelta appends a piece of the block that is open, as it stood between quotes.
func (t *Translator) appendDelta(dst, text []byte) []byte {
	if len(text) == 0 {
		return dst
	}
	dst = append(dst, "event: content_block_delta\n"+`data: {"type":"content_block_delta","index":`...)
	dst = strconv.AppendInt(dst, int64(t.index), 10)
	switch t.open {
	case kindThinking:
		dst = append(dst, `,"delta":{"type":"thinking_delta","thinking":"`...)
	case kindText:
		dst = append(dst, `,"delta":{"type":"text_delta","text":"`...)
	case kindTool:
		t.tool.said = true
		t.scratch = jsonscan.AppendUnescaped(t.scratch[:0], text)
		t.tool.progress.feed(t.scratch)
		dst = append(dst, `,"delta":{"type":"input_json_delta","partial_json":"`...)
	}
	return append(append(dst, text...), "\"}}\n\n"...)
}

// appendStop ends the block that is open, if one is. A call without arguments has an
// empty object of them.
func (t *Translator) appendStop(dst []byte) []byte {
	if t.open == kindNone {
		return dst
	}
	if t.open == kindTool && !t.tool.said {
		dst = t.appendDelta(dst, []byte("{}"))
	}
	if t.open == kindTool {
		t.end.callsWhole = t.tool.progress.whole()
	}
	t.open = kindNone
	dst = append(dst, "event: content_block_stop\n"+`data: {"type":"content_block_stop","index":`...)
	dst = strconv.AppendInt(dst, int64(t.index), 10)
	t.index++
	return append(dst, "}\n\n"...)
}

// AppendEnd appends the events that end the message, once the worker has said that
// its answer is whole. u is the final usage.
func (t *Translator) AppendEnd(dst []byte, u wire.Usage) ([]byte, error) {
	if !t.begun {
		return dst, errNotBegun
	}
	begin := len(dst)
	for len(t.waiting) > 0 {
		dst = t.appendNext(dst)
	}
	dst = t.appendStop(dst)
	reason, matched, err := t.end.reason()
	if err != nil {
		return dst[:begin], err
	}
	dst = append(dst, "event: message_delta\n"+`data: {"type":"message_delta","delta":{"stop_reason":`...)
	dst = append(append(dst, quoted(reason)...), `,"stop_sequence":`...)
	dst = append(append(dst, matched...), `},"usage":`...)
	dst = append(appendUsage(dst, u), "}\n\n"...)
	return append(dst, "event: message_stop\n"+`data: {"type":"message_stop"}`+"\n\n"...), nil
}
