package openai

import (
	"bytes"
	"strconv"

	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/vllm"
	"github.com/sluicegate/sluice/gateway/wire"
)

// ResponsesCodec is the form of /v1/responses: the bodies and errors of the dialect,
// and events of its own. It has no state.
type ResponsesCodec struct{ Codec }

// NewObserver returns what observes one stream of a response.
func (ResponsesCodec) NewObserver(wire.Operation) wire.Observer { return new(ResponseStream) }

// ReadUsage returns the usage of a response that is not a stream.
func (ResponsesCodec) ReadUsage(_ wire.Operation, body []byte) (wire.Usage, error) {
	a, err := readResponse(body)
	return a.usage, err
}

// AppendErrorEvent appends the event that reports an error once a stream of a
// response has begun, with the number seq among its events. Its members are there
// twice: flat as the event is documented, and nested, which is where the clients that
// raise an exception look.
func (ResponsesCodec) AppendErrorEvent(dst []byte, e wire.ErrorBody, _ int, _ string, seq int64) []byte {
	members := func(dst []byte) []byte {
		dst = jsonscan.AppendQuotedOrNull(append(dst, `,"code":`...), e.Code)
		dst = jsonscan.AppendQuoted(append(dst, `,"message":`...), e.Message)
		return append(dst, `,"param":null`...)
	}
	dst = members(append(dst, "event: error\ndata: {\"type\":\"error\""...))
	dst = strconv.AppendInt(append(dst, `,"sequence_number":`...), seq, 10)
	dst = jsonscan.AppendQuoted(append(dst, `,"error":{"type":`...), e.Type)
	return append(members(dst), "}}\n\n"...)
}

// ResponseID returns the id of the response whose object or event data is given, and
// nil if there is none. It is a view into the data.
func ResponseID(data []byte) []byte {
	a, err := readResponse(data)
	if err != nil {
		return nil
	}
	return a.id
}

// ResponseStream observes the events of one response. The zero value is ready to use.
// It keeps no view of the data. It is not safe for concurrent use.
type ResponseStream struct {
	usage    wire.Usage
	complete bool
	begun    bool
	deltas   int64
	next     int64
	id       []byte
	err      wire.WorkerError
	failed   bool
}

// Usage implements wire.Observer: that of the last event that had one.
func (s *ResponseStream) Usage() wire.Usage { return s.usage }

// Complete implements wire.Observer.
func (s *ResponseStream) Complete() bool { return s.complete }

// ContentDeltas implements wire.Observer.
func (s *ResponseStream) ContentDeltas() int64 { return s.deltas }

// NextSequence implements wire.Observer: one more than the last number seen.
func (s *ResponseStream) NextSequence() int64 { return s.next }

// ID is the response's id, nil until an event has told it.
func (s *ResponseStream) ID() []byte { return s.id }

// StreamError implements wire.Observer.
func (s *ResponseStream) StreamError() (wire.WorkerError, bool) { return s.err, s.failed }

// Observe implements wire.Observer. What an event is follows from the type in its
// data, and from its name where there is no type.
func (s *ResponseStream) Observe(name, data []byte) wire.Flags {
	data = bytes.Trim(data, " \t\r\n")
	switch {
	case len(data) == 0:
		return 0
	case data[0] != '{':
		return wire.Malformed
	}
	e := responseReader{reader: reader{jsonscan.Cursor{B: data, MaxDepth: jsonscan.AnswerDepth}}, kind: name}
	e.event()
	if e.Bad != jsonscan.FaultNone {
		return wire.Malformed
	}
	return s.take(&e, data)
}

func (s *ResponseStream) take(e *responseReader, data []byte) wire.Flags {
	var f wire.Flags
	if e.hasSequence {
		s.next = e.sequence + 1
	}
	if e.failed || string(e.kind) == "error" {
		s.err, s.failed = vllm.MapStreamError(data), true
		return wire.StreamError
	}
	if s.id == nil && e.id != nil {
		s.id = bytes.Clone(e.id)
	}
	if e.usage.Known {
		f |= wire.HasUsage
		s.usage = e.usage
	}
	if e.delta && bytes.HasSuffix(e.kind, []byte(".delta")) {
		f |= wire.Content
		s.deltas++
		if !s.begun {
			s.begun = true
			f |= wire.FirstToken
		}
	}
	switch string(e.kind) {
	case "response.completed", "response.incomplete", "response.failed":
		f |= wire.Done
		s.complete = s.usage.Known
	}
	return f
}

// responseReader reads a response, or an event about one.
type responseReader struct {
	reader
	kind        []byte // type, or what it was before
	id          []byte
	usage       wire.Usage
	delta       bool // delta is there and not empty
	failed      bool // error is there and not null
	hasSequence bool
	sequence    int64
}

// event reads an event's object.
func (c *responseReader) event() {
	c.Enter()
	for key, ok := c.Member(); ok; key, ok = c.Member() {
		switch {
		case c.Is(key, "type"):
			if kind := c.plainText(); kind != nil {
				c.kind = kind
			}
		case c.Is(key, "delta"):
			c.delta = c.something()
		case c.Is(key, "sequence_number"):
			c.sequence, c.hasSequence = c.Count()
		case c.Is(key, "response") && c.Peek() == '{':
			c.response()
		case c.Is(key, "error"):
			c.failed = c.Peek() != 'n'
			c.Skip()
		default:
			c.Skip()
		}
	}
	c.Finish()
}

// response reads a response's object.
func (c *responseReader) response() {
	c.Enter()
	for key, ok := c.Member(); ok; key, ok = c.Member() {
		switch {
		case c.Is(key, "id"):
			c.id = c.plainText()
		case c.Is(key, "usage"):
			c.usage = c.reader.usage(&responseUsage, false)
		default:
			c.Skip()
		}
	}
}

// plainText reads a string without escapes; anything else is none.
func (c *responseReader) plainText() []byte {
	if c.Peek() != '"' {
		c.Skip()
		return nil
	}
	t := c.Str()
	if t.Escaped || c.Bad != jsonscan.FaultNone {
		return nil
	}
	return c.B[t.Start:t.End]
}

// something passes over a value and tells whether it is a text or an object with
// something in it.
func (c *responseReader) something() bool {
	if c.Peek() != '{' {
		return c.NonEmpty()
	}
	start := c.I
	c.Skip()
	return len(bytes.TrimSpace(c.B[start+1:max(start+1, c.I-1)])) > 0
}

// readResponse reads an answer that is one response, or an event's data with one in it.
func readResponse(body []byte) (responseReader, error) {
	c := responseReader{reader: reader{jsonscan.Cursor{B: body, MaxDepth: jsonscan.AnswerDepth}}}
	c.Document()
	start, kind := c.I, c.Peek()
	if kind == '{' {
		c.response()
	} else {
		c.Skip()
	}
	c.Finish()
	return c, c.answerFault(body, start)
}
