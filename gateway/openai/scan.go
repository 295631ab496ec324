package openai

import (
	"bytes"
	"unicode/utf8"
)

const (
	// maxInteger is the largest value of an integer that the gateway reads.
	maxInteger = 1<<31 - 1
	// maxModelName, maxTools and maxToolName are the sizes in characters that
	// policies rely on for the cost of their expressions.
	maxModelName = 256
	maxTools     = 512
	maxToolName  = 128
)

// Scan reads a request body of op into req, in one pass over its bytes.
//
// It is strict where a lenient reader could see another request than the worker
// does: the body must be one JSON object in UTF-8, no deeper than 128 levels,
// with nothing after it; a key that the gateway reads must occur once in its
// object, names being compared after unescaping; and its value must have its
// documented type or be null. Integers are integral and from 0 to 2147483647,
// in any spelling: 100, 100.0 and 1e2 are the same. Keys for the engine's
// operator are refused. All other keys are left for the worker to judge.
//
// The error is an *Error. When a body has several faults, one that makes it no
// valid JSON is reported before any other, else the first.
func Scan(req *Request, op Operation, body []byte) error {
	if op != Chat && op != Completion {
		panic("BUG: a body of an operation that this dialect cannot scan")
	}
	req.Reset()
	req.Operation = op
	s := scanner{cursor: cursor{b: body, maxDepth: requestDepth}, req: req, scanState: &req.scan}
	s.document()
	if s.bad == faultNone && s.peek() != '{' {
		s.skip()
		s.finish()
		if s.bad != faultNone {
			return syntaxError(s.bad, s.badAt)
		}
		return errNotObject(kindOf(bytes.TrimLeft(body, " \r\n\t")))
	}
	s.object()
	s.finish()
	if s.bad != faultNone {
		return syntaxError(s.bad, s.badAt)
	}
	s.settle()
	if s.err != nil {
		return s.err
	}
	return nil
}

// scanner is one scan of a body.
type scanner struct {
	cursor
	*scanState
	req *Request
	err *Error // the first refusal; the scan goes on, for the syntax
	at  place
}

// refuse notes a refusal unless there was one before. Where a body can hold any
// number of faults, the caller asks first, so that it makes one error only.
func (s *scanner) refuse(err *Error) {
	if s.err == nil && s.bad == faultNone {
		s.err = err
	}
}

// text returns the string of a token: a view into the body, or into scratch if
// it has escapes.
func (s *scanner) text(t token) []byte {
	raw := s.b[t.start:t.end:t.end]
	if !t.escaped {
		return raw
	}
	start := len(s.scratch)
	s.scratch = appendUnescaped(s.scratch, raw)
	return s.scratch[start:len(s.scratch):len(s.scratch)]
}

// name returns the string of a key, until the next call of text or name.
func (s *scanner) name(t token) []byte {
	if !t.escaped {
		return s.b[t.start:t.end]
	}
	kept := len(s.scratch)
	name := s.text(t)
	s.scratch = s.scratch[:kept]
	return name
}

// object reads the body's object.
func (s *scanner) object() {
	s.enter()
	s.top.open, s.top.tail = s.i, s.i
	for key, ok := s.member(); ok; key, ok = s.member() {
		name := s.name(key)
		f := fieldOf(name)
		if f == fieldNone {
			s.noteKey(name)
		}
		start := s.i
		s.at = place{field: f}
		if f != fieldNone && s.fields[f].present && s.err == nil {
			s.refuse(errDuplicate(f.String()))
		}
		s.value(f)
		if f != fieldNone {
			s.fields[f] = member{key: key.start - 1, start: start, end: s.i, ordinal: s.top.members, present: true}
		}
		s.top.tail = s.i
		s.top.members++
	}
}

// value reads the value of a top-level key.
func (s *scanner) value(f field) {
	switch f {
	case fieldModel:
		s.req.Model = s.stringField(f)
	case fieldUser:
		s.req.User = s.stringField(f)
	case fieldCacheSalt:
		s.req.CacheSalt = s.stringField(f)
	case fieldPreviousResponseID:
		s.stringField(f)
	case fieldStream:
		s.req.Stream = s.boolean()
	case fieldBackground:
		s.boolean()
	case fieldMaxTokens, fieldMaxCompletionTokens, fieldMaxOutputTokens, fieldN, fieldBestOf, fieldPriority:
		s.integer(f)
	case fieldStreamOptions:
		s.streamOptions()
	case fieldKVTransferParams, fieldECTransferParams:
		s.operatorOnly()
	case fieldXArgs:
		s.extraArgs()
	default:
		s.content(f)
	}
}

// content reads the values that hold a prompt, as far as the operation has
// them; to the engine the others are unknown keys.
func (s *scanner) content(f field) {
	switch chat := s.req.Operation == Chat; {
	case f == fieldMessages && chat:
		s.messages()
	case f == fieldTools && chat:
		s.tools()
	case f == fieldPrompt && !chat:
		s.prompt()
	default:
		s.skip()
	}
}

// stringField reads a string, nil for null.
func (s *scanner) stringField(f field) []byte {
	t, ok := s.stringOrNull()
	if !ok {
		return nil
	}
	if t.lone {
		s.refuse(errSurrogate(f.String()))
	}
	return s.text(t)
}

// stringOrNull reads a string; it reports false for null, and for another type,
// which it refuses.
func (s *scanner) stringOrNull() (token, bool) {
	switch s.peek() {
	case '"':
		t := s.str()
		return t, s.bad == faultNone
	case 'n':
	default:
		s.wrongType("a string")
	}
	s.skip()
	return token{}, false
}

// boolean reads true or false, and false for null.
func (s *scanner) boolean() bool {
	ch := s.peek()
	if ch != 't' && ch != 'f' && ch != 'n' {
		s.wrongType("true or false")
	}
	s.skip()
	return ch == 't'
}

// integer reads an integer or null.
func (s *scanner) integer(f field) {
	v, ok := s.integerOrNull()
	s.ints[f], s.given[f] = v, ok
}

func (s *scanner) integerOrNull() (v int64, ok bool) {
	switch ch := s.peek(); {
	case ch == '-' || ch >= '0' && ch <= '9':
		text := s.number()
		if s.bad != faultNone {
			return 0, false
		}
		if v, ok = integer(text, maxInteger); !ok && s.err == nil {
			s.refuse(errInteger(s.at.String(), text))
		}
		return v, ok
	case ch != 'n':
		s.wrongType("an integer")
	}
	s.skip()
	return 0, false
}

// streamOptions reads stream_options.
func (s *scanner) streamOptions() {
	if s.peek() != '{' {
		s.orNull("an object")
		return
	}
	opts := &s.req.StreamOptions
	opts.Present = true
	s.enter()
	s.options = object{open: s.i, tail: s.i}
	for key, ok := s.member(); ok; key, ok = s.member() {
		switch start := s.i; string(s.name(key)) {
		case "include_usage":
			s.at.leaf = "include_usage"
			opts.IncludeUsage = s.option(&s.include, start)
		case "continuous_usage_stats":
			s.at.leaf = "continuous_usage_stats"
			opts.ContinuousUsage = s.option(&s.continuous, start)
		default:
			s.skip()
		}
		s.at.leaf = ""
		s.options.tail = s.i
		s.options.members++
	}
}

func (s *scanner) option(m *member, start int) bool {
	if m.present {
		s.refuse(errDuplicate(s.at.String()))
	}
	on := s.boolean()
	*m = member{start: start, end: s.i, present: true}
	return on
}

// operatorOnly refuses a key that is not the client's to set, unless it is null.
func (s *scanner) operatorOnly() {
	if s.peek() != 'n' {
		s.refuse(errOperator(s.at.String()))
	}
	s.skip()
}

// extraArgs reads vllm_xargs, which the engine puts into the same place as the
// operator's keys.
func (s *scanner) extraArgs() {
	if s.peek() != '{' {
		s.skip()
		return
	}
	s.enter()
	for key, ok := s.member(); ok; key, ok = s.member() {
		switch f := fieldOf(s.name(key)); f {
		case fieldKVTransferParams, fieldECTransferParams:
			s.at.leaf = f.String()
			s.operatorOnly()
		default:
			s.skip()
		}
	}
}

// settle draws the conclusions from the whole body.
func (s *scanner) settle() {
	r := s.req
	s.size = len(s.b)
	s.at = place{field: fieldNone}
	switch name := r.Model; {
	case len(name) == 0:
		s.refuse(errNoModel(name != nil))
	case len(name) > maxModelName && utf8.RuneCount(name) > maxModelName:
		s.refuse(errTooLong("model", maxModelName, "characters"))
	}
	if r.Operation == Chat {
		r.PromptCount = 1
		r.MaxTokens = s.first(fieldMaxCompletionTokens, fieldMaxTokens)
		if m := s.fields[fieldMessages]; !m.present || s.b[m.start] == 'n' {
			s.refuse(errNoMessages())
		}
	} else {
		r.MaxTokens = s.first(fieldMaxTokens, fieldMaxCompletionTokens)
	}
	r.N = s.first(fieldN)
	r.BestOf = s.first(fieldBestOf)
	r.Priority, r.HasPriority = s.ints[fieldPriority], s.given[fieldPriority]
}

// first returns the first of the integers that the body gives.
func (s *scanner) first(fields ...field) *int64 {
	for _, f := range fields {
		if s.given[f] {
			return &s.ints[f]
		}
	}
	return nil
}
