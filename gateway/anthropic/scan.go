package anthropic

import (
	"github.com/sluicegate/sluice/gateway/bodyscan"
	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// Scan reads a request body of op, which is wire.Messages or wire.CountTokens,
// into req, in one pass over its bytes.
//
// It is as strict as the scan of the other dialect, and for the same reason: the
// gateway must not see another request than the worker does. The body must be one
// JSON object in UTF-8, no deeper than 128 levels, with nothing after it; a key
// that the gateway reads must occur once in its object, names being compared after
// unescaping; and its value must have its documented type or be null. Keys for
// the engine's operator are refused. All other keys are left for the worker to
// judge.
//
// What a template writes into the prompt counts as its text, wherever it stands:
// the system text, the blocks of the messages, what tools were given and have
// returned, and the tools, also those that a message adds.
func (Codec) Scan(req *wire.Request, op wire.Operation, body []byte) error {
	if op != wire.Messages && op != wire.CountTokens {
		panic("BUG: a body of an operation that this dialect cannot scan")
	}
	s := scanner{Scanner: bodyscan.New(req, op, body)}
	if err := s.Begin(); err != nil {
		return err
	}
	for f, name, ok := s.Field(); ok; f, name, ok = s.Field() {
		s.value(f, name)
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
type scanner struct {
	bodyscan.Scanner
	others   int  // messages of other roles than system
	metadata bool // it has come
}

// value reads the value of a top-level key.
func (s *scanner) value(f wire.Field, name []byte) {
	switch f {
	case wire.FieldModel:
		s.Req.Model = s.StringField()
	case wire.FieldCacheSalt:
		s.Req.CacheSalt = s.StringField()
	case wire.FieldStream:
		// To count_tokens it is an unknown key, and its answer never a stream.
		s.Req.Stream = s.Boolean() && s.Req.Operation == wire.Messages
	case wire.FieldUser, wire.FieldPreviousResponseID:
		s.StringField()
	case wire.FieldBackground:
		s.Boolean()
	case wire.FieldMaxTokens, wire.FieldMaxCompletionTokens, wire.FieldMaxOutputTokens, wire.FieldN, wire.FieldBestOf, wire.FieldPriority:
		s.Integer(f)
	case wire.FieldKVTransferParams, wire.FieldECTransferParams:
		s.OperatorOnly()
	case wire.FieldXArgs:
		s.ExtraArgs()
	case wire.FieldSystem:
		s.system()
	case wire.FieldMessages:
		s.messages()
	case wire.FieldTools:
		s.toolList()
	case wire.FieldNone:
		s.unread(name)
	default:
		s.Skip()
	}
}

// unread reads a top-level key that is no field of the gateway's, of which the
// dialect still wants to know.
func (s *scanner) unread(name []byte) {
	given := s.Peek() != 'n'
	switch string(name) {
	case "metadata":
		s.At.Field = "metadata"
		s.readMetadata()
	case "chat_template_kwargs", "output_config", "thinking":
		if given {
			s.Req.Features |= wire.TemplateSettings
		}
		s.Skip()
	default:
		s.Skip()
	}
}

// readMetadata reads metadata.user_id, the client's own word for its user.
func (s *scanner) readMetadata() {
	if s.metadata && s.Err == nil {
		s.Refuse(bodyscan.Duplicate("metadata"))
	}
	s.metadata = true
	if s.Peek() != '{' {
		s.OrNull("an object")
		return
	}
	seen := false
	s.Enter()
	for key, ok := s.Member(); ok; key, ok = s.Member() {
		if string(s.Name(key)) != "user_id" {
			s.Skip()
			continue
		}
		s.At.Leaf = "user_id"
		if seen && s.Err == nil {
			s.Refuse(bodyscan.Duplicate("metadata.user_id"))
		}
		seen = true
		s.Req.User = s.StringField()
		s.At.Leaf = ""
	}
}

// settle draws the conclusions from the whole body.
func (s *scanner) settle() {
	s.Settle()
	r := s.Req
	r.PromptCount = 1
	if m := s.Fields[wire.FieldMessages]; !m.Present || s.B[m.Start] == 'n' {
		s.Refuse(bodyscan.Invalid("messages", "`messages` is missing. Send the conversation as an array of messages."))
	}
	if r.Operation == wire.CountTokens {
		return
	}
	if s.Given[wire.FieldMaxTokens] {
		r.MaxTokens = &s.Ints[wire.FieldMaxTokens]
	} else {
		s.Refuse(bodyscan.Invalid("max_tokens", "`max_tokens` is missing. Say how many tokens the answer may have, as an integer."))
	}
}

// AppendRewrite appends body with m applied to dst and returns it. The body must
// be the one of req's last successful scan.
//
// Only the values of the keys that m names change. A key that is missing is added
// at the end of the object, one that is taken out goes together with one comma.
// Every other byte stays. The usage of a stream comes in any case, and there is
// one answer, so m.InjectUsage and m.N change nothing.
func (Codec) AppendRewrite(dst, body []byte, req *wire.Request, m wire.Mutation) []byte {
	var e jsonscan.Edits
	bodyscan.Edit(&e, body, req, &m)
	p := &req.Places
	if f := wire.FieldMaxTokens; m.MaxTokens != nil && req.Operation == wire.Messages && (!p.Given[f] || p.Ints[f] != *m.MaxTokens) {
		bodyscan.Set(&e, p, f, jsonscan.Edit{Number: *m.MaxTokens, HasNumber: true})
	}
	return e.Apply(dst, body)
}
