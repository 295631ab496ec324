package anthropic

import (
	"bytes"

	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/vllm"
	"github.com/sluicegate/sluice/gateway/wire"
)

// Stream observes the events of one messages stream. The zero value is ready to
// use. It allocates nothing unless the worker reports an error, and keeps no view
// of the data. It is not safe for concurrent use. It implements wire.Observer.
type Stream struct {
	counts   counts
	deltas   int64
	seen     wire.Flags
	complete bool // the last event with usage came at the end
	err      wire.WorkerError
}

// NewObserver returns what observes one messages stream.
func (Codec) NewObserver(wire.Operation) wire.Observer { return &Stream{} }

// Usage returns the usage as far as the stream has told it, each count by its last
// value. The input is known from the first event on. Until the end tells of the
// output it is what was counted here, an event with output for a token, so that it
// is no less than that.
func (s *Stream) Usage() wire.Usage {
	if s.complete {
		return s.counts.usage()
	}
	if s.seen.Has(wire.Done) || !s.counts.hasInput {
		return wire.Usage{}
	}
	c := s.counts
	c.output, c.hasOutput = max(c.output, s.deltas), true
	return c.usage()
}

// Complete tells whether the last usage has come, so that Usage is final.
func (s *Stream) Complete() bool { return s.complete }

// ContentDeltas counts the events with output so far; each may hold several
// tokens.
func (s *Stream) ContentDeltas() int64 { return s.deltas }

// NextSequence is 0: these events are not numbered.
func (s *Stream) NextSequence() int64 { return 0 }

// StreamError is the worker's own error, rebuilt for the client.
func (s *Stream) StreamError() (wire.WorkerError, bool) {
	return s.err, s.seen.Has(wire.StreamError)
}

// Observe looks at the next event and returns what it is, 0 for an event without
// data or without anything of interest. Clients go by the event's name and then by
// its type, which are the same where a worker is sane; where they are not, an
// error in either is one, and the type decides about the rest.
func (s *Stream) Observe(name, data []byte) wire.Flags {
	f := s.observe(name, bytes.Trim(data, " \t\r\n"))
	if f.Has(wire.Content) && !s.seen.Has(wire.Content) {
		f |= wire.FirstToken
	}
	s.seen |= f
	return f
}

func (s *Stream) observe(name, data []byte) wire.Flags {
	if len(data) == 0 {
		return 0
	}
	if string(name) == "error" {
		s.err = vllm.MapStreamError(data)
		return wire.StreamError
	}
	if data[0] != '{' {
		return wire.Malformed
	}
	e := event{reader: newReader(data), kind: typeOf(name)}
	e.read()
	if e.Bad != jsonscan.FaultNone {
		return wire.Malformed
	}
	return s.take(&e, data)
}

// take adds what an event says to what is known.
func (s *Stream) take(e *event, data []byte) wire.Flags {
	var f wire.Flags
	if e.failed || e.kind == errorEvent {
		s.err = vllm.MapStreamError(data)
		return wire.StreamError
	}
	switch e.kind {
	case messageStop:
		return wire.Done
	case messageStart:
		s.counts.add(e.message)
	case blockStart:
		if e.toolStart {
			f |= wire.Content
		}
	case blockDelta:
		if e.output {
			f |= wire.Content
		}
	case messageDelta:
		s.counts.add(e.usage)
		if e.finished {
			f |= wire.FinishReason
		}
		if e.usage.hasOutput && s.counts.hasInput {
			s.complete = true
			f |= wire.HasUsage
		}
	}
	if f.Has(wire.Content) {
		s.deltas++
	}
	return f
}

// eventType is the type of an event.
type eventType uint8

const (
	otherEvent eventType = iota
	messageStart
	blockStart
	blockDelta
	messageDelta
	messageStop
	errorEvent
)

func typeOf(name []byte) eventType {
	switch string(name) {
	case "message_start":
		return messageStart
	case "content_block_start":
		return blockStart
	case "content_block_delta":
		return blockDelta
	case "message_delta":
		return messageDelta
	case "message_stop":
		return messageStop
	case "error":
		return errorEvent
	}
	return otherEvent
}

// event is one event's object. Its keys come in any order, so that all of them are
// read before the type says which count.
type event struct {
	reader
	kind      eventType
	message   counts // message.usage
	usage     counts
	toolStart bool // content_block is of a tool
	output    bool // delta holds output
	finished  bool // delta has a stop_reason
	failed    bool // error is there: no event but an error has it, whatever it says of itself
}

func (e *event) read() {
	e.Enter()
	for key, ok := e.Member(); ok; key, ok = e.Member() {
		switch {
		case e.Is(key, "type"):
			if name, ok := e.name(); ok {
				e.kind = typeOf(name)
			}
		case e.Is(key, "message"):
			e.readMessage()
		case e.Is(key, "usage"):
			e.usage = e.counts()
		case e.Is(key, "content_block"):
			e.readBlock()
		case e.Is(key, "delta"):
			e.readDelta()
		case e.Is(key, "error"):
			e.failed = e.Peek() != 'n'
			e.Skip()
		default:
			e.Skip()
		}
	}
	e.Finish()
}

// name reads a string that has no escapes.
func (e *event) name() ([]byte, bool) {
	if e.Peek() != '"' {
		e.Skip()
		return nil, false
	}
	t := e.Str()
	return e.B[t.Start:t.End], !t.Escaped
}

func (e *event) readMessage() {
	if e.Peek() != '{' {
		e.Skip()
		return
	}
	e.Enter()
	for key, ok := e.Member(); ok; key, ok = e.Member() {
		if e.Is(key, "usage") {
			e.message = e.counts()
		} else {
			e.Skip()
		}
	}
}

func (e *event) readBlock() {
	if e.Peek() != '{' {
		e.Skip()
		return
	}
	e.Enter()
	for key, ok := e.Member(); ok; key, ok = e.Member() {
		if !e.Is(key, "type") {
			e.Skip()
			continue
		}
		name, ok := e.name()
		e.toolStart = ok && bytes.HasSuffix(name, []byte("tool_use"))
	}
}

// readDelta looks for output in a delta: text, thinking, or a piece of a tool's
// input.
func (e *event) readDelta() {
	if e.Peek() != '{' {
		e.Skip()
		return
	}
	var text, thinking, input bool
	e.Enter()
	for key, ok := e.Member(); ok; key, ok = e.Member() {
		switch {
		case e.Is(key, "text"):
			text = e.NonEmpty()
		case e.Is(key, "thinking"):
			thinking = e.NonEmpty()
		case e.Is(key, "partial_json"):
			input = e.NonEmpty()
		case e.Is(key, "stop_reason"):
			e.finished = e.Peek() == '"'
			e.Skip()
		default:
			e.Skip()
		}
	}
	e.output = text || thinking || input
}

// MapWorkerError rebuilds the error answer of a worker.
func (Codec) MapWorkerError(status int, body []byte) wire.WorkerError {
	return vllm.MapError(status, body)
}
