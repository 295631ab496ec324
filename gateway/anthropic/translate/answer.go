package translate

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// MessageID is the id of the answer to a request.
func MessageID(requestID string) string { return "msg_" + requestID }

var (
	errNoChoice = errors.New("the worker's answer has no choice with a message")
	errAborted  = errors.New("the worker ended its answer before it was finished")
	errNoFinish = errors.New("the worker's answer has no finish reason")
	errCall     = errors.New("the worker's answer has a call of a tool that is not whole")
)

// AppendMessage appends the message that a chat completion stands for, and returns
// it. id is the message's, and u the usage that it tells of.
//
// A call whose arguments the limit on tokens has cut off is left out, as its input
// can't be told; the reason that the answer ended for says so. Any other answer that
// can't be put as a message is an error, which quotes nothing of it.
func AppendMessage(dst, answer []byte, id string, u wire.Usage) ([]byte, error) {
	top, err := document(answer)
	if err != nil {
		return dst, err
	}
	model, choice := value(nil), value(nil)
	w := enter(top, jsonscan.AnswerDepth)
	for name, v, ok := w.member(); ok; name, v, ok = w.member() {
		switch string(name) {
		case "model":
			model = v
		case "choices":
			choice = firstOf(v)
		}
	}
	c, err := readChoice(choice, "message")
	if err != nil {
		return dst, err
	}
	begin := len(dst)
	dst = append(append(dst, `{"id":`...), quoted(id)...)
	dst = appendString(append(dst, `,"type":"message","role":"assistant","model":`...), model)
	dst = append(dst, `,"content":[`...)
	calls, dst, err := appendContent(dst, &c, id)
	if err != nil {
		return dst[:begin], err
	}
	end := ending{finish: c.finish.text(), matched: c.stop, called: calls > 0, callsWhole: calls > 0, refused: c.refused()}
	reason, matched, err := end.reason()
	if err != nil {
		return dst[:begin], err
	}
	dst = append(append(dst, `],"stop_reason":`...), quoted(reason)...)
	dst = append(append(dst, `,"stop_sequence":`...), matched...)
	dst = append(dst, `,"usage":`...)
	return append(appendUsage(dst, u), '}'), nil
}

// document returns the object that an answer is.
func document(b []byte) (value, error) {
	c := jsonscan.Cursor{B: b, MaxDepth: jsonscan.AnswerDepth}
	c.Document()
	start := c.I
	c.Skip()
	end := c.I
	c.Finish()
	if c.Bad != jsonscan.FaultNone {
		return nil, fmt.Errorf("the worker's answer is not valid JSON: %v (at byte %d)", c.Bad, c.BadAt)
	}
	v := value(b[start:end])
	if !v.isObject() {
		return nil, fmt.Errorf("the worker's answer is %s, not an object", v.kind())
	}
	return v, nil
}

// firstOf returns the choice of a list that is the first by its index: there is one
// only, since nobody asks for more.
func firstOf(choices value) value {
	if !choices.isArray() {
		return nil
	}
	w := enter(choices, jsonscan.AnswerDepth)
	for c, ok := w.element(); ok; c, ok = w.element() {
		if !c.isObject() {
			continue
		}
		index := value(nil)
		m := enter(c, jsonscan.AnswerDepth)
		for name, v, ok := m.member(); ok; name, v, ok = m.member() {
			if string(name) == "index" {
				index = v
			}
		}
		if index == nil || string(index) == "0" {
			return c
		}
	}
	return nil
}

// choice is what a choice, or the piece of one in a chunk, says.
type choice struct {
	finish, stop                value
	reasoning, content, refusal value
	calls                       value
}

// readChoice reads a choice, whose words are under key.
func readChoice(v value, key string) (c choice, err error) {
	if v == nil {
		return c, errNoChoice
	}
	words := value(nil)
	w := enter(v, jsonscan.AnswerDepth)
	for name, v, ok := w.member(); ok; name, v, ok = w.member() {
		switch string(name) {
		case key:
			words = v
		case "finish_reason":
			c.finish = v
		case "stop_reason":
			c.stop = v
		}
	}
	if !words.isObject() {
		if words == nil && key == "delta" {
			return c, nil
		}
		return c, errNoChoice
	}
	other := value(nil)
	w = enter(words, jsonscan.AnswerDepth)
	for name, v, ok := w.member(); ok; name, v, ok = w.member() {
		switch string(name) {
		case "reasoning":
			c.reasoning = v
		case "reasoning_content":
			other = v
		case "content":
			c.content = v
		case "refusal":
			c.refusal = v
		case "tool_calls":
			c.calls = v
		case "function_call", "audio":
			if v != nil {
				return c, fmt.Errorf("the worker's answer has a %s, which a message can't have", name)
			}
		}
	}
	// Some engines write what was thought under both names.
	if !c.reasoning.says() {
		c.reasoning = other
	}
	for _, v := range []value{c.reasoning, c.content, c.refusal} {
		if v != nil && !v.isString() {
			return c, fmt.Errorf("the worker's answer has %s in place of a text", v.kind())
		}
	}
	if c.calls != nil && !c.calls.isArray() {
		return c, fmt.Errorf("the worker's answer has %s in place of a list of calls", c.calls.kind())
	}
	return c, nil
}

// says reports whether a value is a string with something in it.
func (v value) says() bool { return v.isString() && !v.isEmptyString() }

func (c *choice) refused() bool { return c.refusal.says() }

// call is a call of a tool, or the piece of one in a chunk.
type call struct {
	index           int
	hasIndex        bool
	id, name, input value // input is a string that holds JSON
}

// readCall reads a call.
func readCall(v value) (c call, err error) {
	if !v.isObject() {
		return c, errCall
	}
	w := enter(v, jsonscan.AnswerDepth)
	for name, v, ok := w.member(); ok; name, v, ok = w.member() {
		switch string(name) {
		case "index":
			if n, ok := jsonscan.Integer(v, 1<<31-1); ok && v.isNumber() {
				c.index, c.hasIndex = int(n), true
			}
		case "id":
			c.id = v
		case "function":
			if !v.isObject() {
				continue
			}
			f := enter(v, jsonscan.AnswerDepth)
			for name, v, ok := f.member(); ok; name, v, ok = f.member() {
				switch string(name) {
				case "name":
					c.name = v
				case "arguments":
					c.input = v
				}
			}
		}
	}
	for _, v := range []value{c.id, c.name, c.input} {
		if v != nil && !v.isString() {
			return c, errCall
		}
	}
	return c, nil
}

// appendContent appends the blocks of an answer that came at once, and returns how
// many of them are calls of tools. An answer without any has one empty text, as the
// engine's own messages have.
func appendContent(dst []byte, c *choice, id string) (calls int, _ []byte, err error) {
	blocks := 0
	block := func(before string) {
		if blocks++; blocks > 1 {
			dst = append(dst, ',')
		}
		dst = append(dst, before...)
	}
	if c.reasoning.says() {
		block(`{"type":"thinking","thinking":`)
		dst = append(append(dst, c.reasoning...), `,"signature":""}`...)
	}
	for _, text := range []value{c.content, c.refusal} {
		if text.says() {
			block(`{"type":"text","text":`)
			dst = append(append(dst, text...), '}')
		}
	}
	if c.calls != nil {
		w := enter(c.calls, jsonscan.AnswerDepth)
		for v, ok := w.element(); ok; v, ok = w.element() {
			one, err := readCall(v)
			if err != nil {
				return calls, dst, err
			}
			input, whole := inputOf(one.input)
			if !whole && c.finish.is("length") {
				continue
			}
			if !whole || !one.name.says() {
				return calls, dst, errCall
			}
			block(`{"type":"tool_use","id":`)
			dst = append(append(dst, callID(one.id, id, calls)...), `,"name":`...)
			dst = append(append(dst, one.name...), `,"input":`...)
			dst = append(append(dst, input...), '}')
			calls++
		}
	}
	if blocks == 0 {
		block(`{"type":"text","text":""}`)
	}
	return calls, dst, nil
}

// callID is the id of a call as JSON: the worker's, or one that is made up from the
// message's, since whoever has run the tool must have something to name the call by.
func callID(given value, message string, n int) []byte {
	if given.says() {
		return given
	}
	return quoted("toolu_" + strings.TrimPrefix(message, "msg_") + "_" + strconv.Itoa(n))
}

// inputOf returns the object that arguments spell, and whether they do.
func inputOf(arguments value) (input []byte, whole bool) {
	text := []byte(nil)
	if arguments != nil {
		text = bytes.TrimSpace(jsonscan.AppendUnescaped(nil, arguments.inner()))
	}
	if len(text) == 0 {
		return []byte("{}"), true
	}
	v, err := document(text)
	return v, err == nil
}

// ending is what is known of an answer's end.
type ending struct {
	finish             string
	matched            value // what the worker says it stopped at
	called, callsWhole bool
	refused            bool
}

// reason returns the reason that a message stopped for, and the sequence that it
// stopped at as JSON.
//
// An answer that gives no reason may be whole or not, so it gets none made up, even if its
// stream has its terminal mark: clients act on a reason, and run a tool by it.
//
// A forced call ends with the finish reason stop; to those who are to run the tool it
// is a call like any other. One that a stop sequence has cut short must not be run.
func (e *ending) reason() (reason string, matched []byte, err error) {
	none := []byte("null")
	switch e.finish {
	case "":
		return "", nil, errNoFinish
	case "length":
		return "max_tokens", none, nil
	case "content_filter":
		return "refusal", none, nil
	case "abort", "error":
		return "", nil, errAborted
	}
	switch {
	case e.called && e.callsWhole:
		return "tool_use", none, nil
	case e.matched.isString():
		return "stop_sequence", e.matched, nil
	case e.called || e.finish == "tool_calls" || e.finish == "function_call":
		return "tool_use", none, nil
	case e.refused:
		return "refusal", none, nil
	}
	return "end_turn", none, nil
}

// appendUsage appends a usage object. Anthropic's input_tokens are those that were
// not read from the cache; where nobody knows how many were, they are all.
func appendUsage(dst []byte, u wire.Usage) []byte {
	input := u.Input
	if u.CachedKnown {
		input -= u.Cached
	}
	dst = strconv.AppendInt(append(dst, `{"input_tokens":`...), max(input, 0), 10)
	if u.CachedKnown {
		dst = strconv.AppendInt(append(dst, `,"cache_read_input_tokens":`...), u.Cached, 10)
	}
	dst = strconv.AppendInt(append(dst, `,"output_tokens":`...), u.Output, 10)
	return append(dst, '}')
}

func quoted(s string) []byte { return jsonscan.AppendQuoted(nil, s) }

// appendString appends a string as it is spelt, and an empty one for anything else.
func appendString(dst []byte, v value) []byte {
	if !v.isString() {
		return append(dst, `""`...)
	}
	return append(dst, v...)
}

// AppendCount appends the answer to a count_tokens request that an answer of a
// worker's /tokenize stands for, and returns it.
func AppendCount(dst, answer []byte) ([]byte, error) {
	top, err := document(answer)
	if err != nil {
		return dst, err
	}
	w := enter(top, jsonscan.AnswerDepth)
	for name, v, ok := w.member(); ok; name, v, ok = w.member() {
		if string(name) != "count" || !v.isNumber() {
			continue
		}
		if n, ok := jsonscan.Integer(v, jsonscan.MaxCount); ok {
			dst = strconv.AppendInt(append(dst, `{"input_tokens":`...), n, 10)
			return append(dst, '}'), nil
		}
	}
	return dst, errors.New("the worker's answer has no count of tokens")
}
