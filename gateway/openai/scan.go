package openai

import (
	"bytes"
	"unicode/utf8"

	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
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
func Scan(req *wire.Request, op wire.Operation, body []byte) error {
	switch op {
	case wire.Chat, wire.Completion, wire.Embeddings, wire.Responses, wire.Tokenize, wire.Detokenize:
	default:
		panic("BUG: a body of an operation that this dialect cannot scan")
	}
	req.Reset()
	req.Operation = op
	s := scanner{Cursor: jsonscan.Cursor{B: body, MaxDepth: jsonscan.RequestDepth}, req: req, Places: &req.Places}
	s.Document()
	if s.Bad == jsonscan.FaultNone && s.Peek() != '{' {
		s.Skip()
		s.Finish()
		if s.Bad != jsonscan.FaultNone {
			return syntaxError(s.Bad, s.BadAt)
		}
		return errNotObject(jsonscan.KindOf(bytes.TrimLeft(body, " \r\n\t")))
	}
	s.object()
	s.Finish()
	if s.Bad != jsonscan.FaultNone {
		return syntaxError(s.Bad, s.BadAt)
	}
	s.settle()
	if s.err != nil {
		return s.err
	}
	return nil
}

// scanner is one scan of a body.
type scanner struct {
	jsonscan.Cursor
	*wire.Places
	req *wire.Request
	err *wire.Error // the first refusal; the scan goes on, for the syntax
	at  jsonscan.Place
}

// refuse notes a refusal unless there was one before. Where a body can hold any
// number of faults, the caller asks first, so that it makes one error only.
func (s *scanner) refuse(err *wire.Error) {
	if s.err == nil && s.Bad == jsonscan.FaultNone {
		s.err = err
	}
}

// text returns the string of a token: a view into the body, or into scratch if
// it has escapes.
func (s *scanner) text(t jsonscan.Token) []byte {
	raw := s.B[t.Start:t.End:t.End]
	if !t.Escaped {
		return raw
	}
	start := len(s.Scratch)
	s.Scratch = jsonscan.AppendUnescaped(s.Scratch, raw)
	return s.Scratch[start:len(s.Scratch):len(s.Scratch)]
}

// name returns the string of a key, until the next call of text or name.
func (s *scanner) name(t jsonscan.Token) []byte {
	if !t.Escaped {
		return s.B[t.Start:t.End]
	}
	kept := len(s.Scratch)
	name := s.text(t)
	s.Scratch = s.Scratch[:kept]
	return name
}

// object reads the body's object.
func (s *scanner) object() {
	s.Enter()
	s.Top.Open, s.Top.Tail = s.I, s.I
	for key, ok := s.Member(); ok; key, ok = s.Member() {
		name := s.name(key)
		f := wire.FieldOf(name)
		s.at = jsonscan.Place{Field: f.String()}
		if f == wire.FieldNone {
			s.noteKey(name)
			s.ownKey(name)
			s.Top.Tail = s.I
			s.Top.Members++
			continue
		}
		start := s.I
		if s.Fields[f].Present && s.err == nil {
			s.refuse(errDuplicate(f.String()))
		}
		s.value(f)
		s.Fields[f] = wire.Member{Key: key.Start - 1, Start: start, End: s.I, Ordinal: s.Top.Members, Present: true}
		s.Top.Tail = s.I
		s.Top.Members++
	}
}

// value reads the value of a top-level key.
func (s *scanner) value(f wire.Field) {
	switch f {
	case wire.FieldModel:
		s.req.Model = s.stringField(f)
	case wire.FieldUser:
		s.req.User = s.stringField(f)
	case wire.FieldCacheSalt:
		s.req.CacheSalt = s.stringField(f)
	case wire.FieldPreviousResponseID:
		s.req.PreviousResponse = s.stringField(f)
	case wire.FieldStream:
		if s.req.Stream = s.boolean(); s.req.Stream && !streams(s.req.Operation) {
			s.refuse(errNeverStreams())
		}
	case wire.FieldBackground:
		s.req.Background = s.boolean()
	case wire.FieldMaxTokens, wire.FieldMaxCompletionTokens, wire.FieldMaxOutputTokens, wire.FieldN, wire.FieldBestOf, wire.FieldPriority:
		s.integer(f)
	case wire.FieldStreamInterval:
		if op := s.req.Operation; op == wire.Chat || op == wire.Completion {
			s.integer(f)
		} else {
			s.Skip()
		}
	case wire.FieldStreamOptions:
		s.streamOptions()
	case wire.FieldKVTransferParams, wire.FieldECTransferParams:
		s.operatorOnly()
	case wire.FieldXArgs:
		s.extraArgs()
	default:
		s.content(f)
	}
}

// streams tells whether answers of an operation can be event streams.
func streams(op wire.Operation) bool {
	return op == wire.Chat || op == wire.Completion || op == wire.Responses
}

// content reads the values that hold a prompt, as far as the operation has
// them; to the engine the others are unknown keys.
func (s *scanner) content(f wire.Field) {
	op := s.req.Operation
	switch {
	case f == wire.FieldMessages && (op == wire.Chat || op == wire.Embeddings || op == wire.Tokenize):
		s.messages()
	case f == wire.FieldTools && (op == wire.Chat || op == wire.Tokenize):
		s.tools(false)
	case f == wire.FieldPrompt && (op == wire.Completion || op == wire.Tokenize), f == wire.FieldInput && op == wire.Embeddings:
		s.prompts(f)
	case op == wire.Responses && f == wire.FieldPrompt:
		s.keptElsewhere()
	case op == wire.Responses && f == wire.FieldInput:
		s.items()
	case op == wire.Responses && f == wire.FieldInstructions:
		s.instructions()
	case op == wire.Responses && f == wire.FieldTools:
		s.tools(true)
	default:
		s.Skip()
	}
}

// ownKey passes over the value of a key that no operation reads, or reads what one
// operation has for itself.
func (s *scanner) ownKey(name []byte) {
	switch op := s.req.Operation; {
	case op == wire.Responses:
		s.responseKey(name)
	case op == wire.Detokenize && string(name) == "tokens":
		s.tokens()
	default:
		s.Skip()
	}
}

// stringField reads a string, nil for null.
func (s *scanner) stringField(f wire.Field) []byte {
	t, ok := s.stringOrNull()
	if !ok {
		return nil
	}
	if t.Lone {
		s.refuse(errSurrogate(f.String()))
	}
	return s.text(t)
}

// stringOrNull reads a string; it reports false for null, and for another type,
// which it refuses.
func (s *scanner) stringOrNull() (jsonscan.Token, bool) {
	switch s.Peek() {
	case '"':
		t := s.Str()
		return t, s.Bad == jsonscan.FaultNone
	case 'n':
	default:
		s.wrongType("a string")
	}
	s.Skip()
	return jsonscan.Token{}, false
}

// boolean reads true or false, and false for null.
func (s *scanner) boolean() bool {
	ch := s.Peek()
	if ch != 't' && ch != 'f' && ch != 'n' {
		s.wrongType("true or false")
	}
	s.Skip()
	return ch == 't'
}

// integer reads an integer or null.
func (s *scanner) integer(f wire.Field) {
	v, ok := s.integerOrNull()
	s.Ints[f], s.Given[f] = v, ok
}

func (s *scanner) integerOrNull() (v int64, ok bool) {
	switch ch := s.Peek(); {
	case ch == '-' || ch >= '0' && ch <= '9':
		text := s.Number()
		if s.Bad != jsonscan.FaultNone {
			return 0, false
		}
		if v, ok = jsonscan.Integer(text, maxInteger); !ok && s.err == nil {
			s.refuse(errInteger(s.at.String(), text))
		}
		return v, ok
	case ch != 'n':
		s.wrongType("an integer")
	}
	s.Skip()
	return 0, false
}

// streamOptions reads stream_options.
func (s *scanner) streamOptions() {
	if s.Peek() != '{' {
		s.orNull("an object")
		return
	}
	opts := &s.req.StreamOptions
	opts.Present = true
	s.Enter()
	s.Options = wire.Object{Open: s.I, Tail: s.I}
	for key, ok := s.Member(); ok; key, ok = s.Member() {
		switch start := s.I; string(s.name(key)) {
		case "include_usage":
			s.at.Leaf = "include_usage"
			opts.IncludeUsage = s.option(&s.Include, start)
		case "continuous_usage_stats":
			s.at.Leaf = "continuous_usage_stats"
			opts.ContinuousUsage = s.option(&s.Continuous, start)
		default:
			s.Skip()
		}
		s.at.Leaf = ""
		s.Options.Tail = s.I
		s.Options.Members++
	}
}

func (s *scanner) option(m *wire.Member, start int) bool {
	if m.Present {
		s.refuse(errDuplicate(s.at.String()))
	}
	on := s.boolean()
	*m = wire.Member{Start: start, End: s.I, Present: true}
	return on
}

// operatorOnly refuses a key that is not the client's to set, unless it is null.
func (s *scanner) operatorOnly() {
	if s.Peek() != 'n' {
		s.refuse(errOperator(s.at.String()))
	}
	s.Skip()
}

// extraArgs reads vllm_xargs, which the engine puts into the same place as the
// operator's keys.
func (s *scanner) extraArgs() {
	if s.Peek() != '{' {
		s.Skip()
		return
	}
	s.Enter()
	for key, ok := s.Member(); ok; key, ok = s.Member() {
		switch f := wire.FieldOf(s.name(key)); f {
		case wire.FieldKVTransferParams, wire.FieldECTransferParams:
			s.at.Leaf = f.String()
			s.operatorOnly()
		default:
			s.Skip()
		}
	}
}

// settle draws the conclusions from the whole body.
func (s *scanner) settle() {
	r := s.req
	s.Size = len(s.B)
	s.at = jsonscan.Place{}
	switch name := r.Model; {
	case len(name) == 0:
		s.refuse(errNoModel(name != nil))
	case len(name) > maxModelName && utf8.RuneCount(name) > maxModelName:
		s.refuse(errTooLong("model", maxModelName, "characters"))
	}
	switch r.Operation {
	case wire.Chat:
		r.PromptCount = 1
		r.MaxTokens = s.first(wire.FieldMaxCompletionTokens, wire.FieldMaxTokens)
		s.require(wire.FieldMessages, errNoMessages)
	case wire.Completion:
		r.MaxTokens = s.first(wire.FieldMaxTokens, wire.FieldMaxCompletionTokens)
	case wire.Responses:
		r.PromptCount = 1
		r.MaxTokens = s.first(wire.FieldMaxOutputTokens)
		s.require(wire.FieldInput, errNoInput)
	default:
		if r.MessageCount > 0 {
			r.PromptCount = max(r.PromptCount, 1)
		}
	}
	if r.Operation == wire.Chat || r.Operation == wire.Completion {
		r.N = s.first(wire.FieldN)
		r.BestOf = s.first(wire.FieldBestOf)
		r.StreamInterval = s.Ints[wire.FieldStreamInterval]
	}
	r.Priority, r.HasPriority = s.Ints[wire.FieldPriority], s.Given[wire.FieldPriority]
}

// require refuses a body without a field.
func (s *scanner) require(f wire.Field, missing func() *wire.Error) {
	if m := s.Fields[f]; !m.Present || s.B[m.Start] == 'n' {
		s.refuse(missing())
	}
}

// first returns the first of the integers that the body gives.
func (s *scanner) first(fields ...wire.Field) *int64 {
	for _, f := range fields {
		if s.Given[f] {
			return &s.Ints[f]
		}
	}
	return nil
}
