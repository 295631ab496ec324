package openai

import (
	"github.com/sluicegate/sluice/gateway/bodyscan"
	"github.com/sluicegate/sluice/gateway/wire"
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
	s := scanner{Scanner: bodyscan.New(req, op, body)}
	if err := s.Begin(); err != nil {
		return err
	}
	for f, name, ok := s.Field(); ok; f, name, ok = s.Field() {
		if f == wire.FieldNone {
			s.noteKey(name)
			s.ownKey(name)
		} else {
			s.value(f)
		}
		s.EndField(f)
	}
	if err := s.End(); err != nil {
		return err
	}
	s.settle()
	if s.Err != nil {
		return s.Err
	}
	return nil
}

// scanner is one scan of a body.
type scanner struct{ bodyscan.Scanner }

// value reads the value of a top-level key.
func (s *scanner) value(f wire.Field) {
	switch f {
	case wire.FieldModel:
		s.Req.Model = s.StringField()
	case wire.FieldUser:
		s.Req.User = s.StringField()
	case wire.FieldCacheSalt:
		s.Req.CacheSalt = s.StringField()
	case wire.FieldPreviousResponseID:
		s.Req.PreviousResponse = s.StringField()
	case wire.FieldStream:
		if s.Req.Stream = s.Boolean(); s.Req.Stream && !streams(s.Req.Operation) {
			s.Refuse(errNeverStreams())
		}
	case wire.FieldBackground:
		s.Req.Background = s.Boolean()
	case wire.FieldMaxTokens, wire.FieldMaxCompletionTokens, wire.FieldMaxOutputTokens, wire.FieldN, wire.FieldBestOf, wire.FieldPriority:
		s.Integer(f)
	case wire.FieldStreamInterval:
		if op := s.Req.Operation; op == wire.Chat || op == wire.Completion {
			s.Integer(f)
		} else {
			s.Skip()
		}
	case wire.FieldStreamOptions:
		s.streamOptions()
	case wire.FieldKVTransferParams, wire.FieldECTransferParams:
		s.OperatorOnly()
	case wire.FieldXArgs:
		s.ExtraArgs()
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
	op := s.Req.Operation
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
	switch op := s.Req.Operation; {
	case op == wire.Responses:
		s.responseKey(name)
	case op == wire.Detokenize && string(name) == "tokens":
		s.tokens()
	default:
		s.Skip()
	}
}

// streamOptions reads stream_options.
func (s *scanner) streamOptions() {
	if s.Peek() != '{' {
		s.OrNull("an object")
		return
	}
	opts := &s.Req.StreamOptions
	opts.Present = true
	s.Enter()
	s.Options = wire.Object{Open: s.I, Tail: s.I}
	for key, ok := s.Member(); ok; key, ok = s.Member() {
		switch start := s.I; string(s.Name(key)) {
		case "include_usage":
			s.At.Leaf = "include_usage"
			opts.IncludeUsage = s.option(&s.Include, start)
		case "continuous_usage_stats":
			s.At.Leaf = "continuous_usage_stats"
			opts.ContinuousUsage = s.option(&s.Continuous, start)
		default:
			s.Skip()
		}
		s.At.Leaf = ""
		s.Options.Tail = s.I
		s.Options.Members++
	}
}

func (s *scanner) option(m *wire.Member, start int) bool {
	if m.Present {
		s.Refuse(bodyscan.Duplicate(s.At.String()))
	}
	on := s.Boolean()
	*m = wire.Member{Start: start, End: s.I, Present: true}
	return on
}

// settle draws the conclusions from the whole body.
func (s *scanner) settle() {
	s.Settle()
	r := s.Req
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
}

// require refuses a body without a field.
func (s *scanner) require(f wire.Field, missing func() *wire.Error) {
	if m := s.Fields[f]; !m.Present || s.B[m.Start] == 'n' {
		s.Refuse(missing())
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
