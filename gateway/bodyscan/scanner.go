package bodyscan

import (
	"bytes"
	"unicode/utf8"

	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

const (
	// MaxInteger is the largest value of an integer that the gateway reads.
	MaxInteger = 1<<31 - 1
	// maxModelName, maxTools and maxToolName are the sizes in characters that
	// policies rely on for the cost of their expressions.
	maxModelName = 256
	maxTools     = 512
	maxToolName  = 128
)

// Scanner is one scan of a body. A dialect embeds it and reads what its own keys
// hold.
type Scanner struct {
	jsonscan.Cursor
	*wire.Places
	Req *wire.Request
	// Err is the first refusal; the scan goes on, for the syntax.
	Err *wire.Error
	// At is where the scan is, for refusals.
	At jsonscan.Place

	key   jsonscan.Token // of the top-level member at hand
	start int            // of its value
}

// New returns the scan of a body of op, which fills req.
func New(req *wire.Request, op wire.Operation, body []byte) Scanner {
	req.Reset()
	req.Operation = op
	return Scanner{Cursor: jsonscan.Cursor{B: body, MaxDepth: jsonscan.RequestDepth}, Req: req, Places: &req.Places}
}

// Begin enters the body's object. The error says that there is none.
func (s *Scanner) Begin() *wire.Error {
	s.Document()
	if s.Bad != jsonscan.FaultNone || s.Peek() == '{' {
		s.Enter()
		s.Top.Open, s.Top.Tail = s.I, s.I
		return nil
	}
	s.Skip()
	if err := s.End(); err != nil {
		return err
	}
	return errNotObject(jsonscan.KindOf(bytes.TrimLeft(s.B, " \r\n\t")))
}

// Field moves to the value of the next top-level key; the caller reads it and then
// calls EndField. Of two members with a key that the gateway reads the second is
// refused. The name holds until the next string is read.
func (s *Scanner) Field() (f wire.Field, name []byte, ok bool) {
	if s.key, ok = s.Member(); !ok {
		return wire.FieldNone, nil, false
	}
	name = s.Name(s.key)
	f = wire.FieldOf(name)
	s.start = s.I
	s.At = jsonscan.Place{Field: f.String()}
	if f != wire.FieldNone && s.Fields[f].Present && s.Err == nil {
		s.Refuse(Duplicate(f.String()))
	}
	return f, name, true
}

// EndField notes where the member stands whose value has been read.
func (s *Scanner) EndField(f wire.Field) {
	if f != wire.FieldNone {
		s.Fields[f] = wire.Member{Key: s.key.Start - 1, Start: s.start, End: s.I, Ordinal: s.Top.Members, Present: true}
	}
	s.Top.Tail = s.I
	s.Top.Members++
}

// End checks that the body is JSON to its end.
func (s *Scanner) End() *wire.Error {
	s.Finish()
	if s.Bad != jsonscan.FaultNone {
		return syntaxError(s.Bad, s.BadAt)
	}
	return nil
}

// Settle draws the conclusions from the whole body that are alike for all.
func (s *Scanner) Settle() {
	r := s.Req
	s.Size = len(s.B)
	s.At = jsonscan.Place{}
	switch name := r.Model; {
	case len(name) == 0:
		s.Refuse(errNoModel(name != nil))
	case len(name) > maxModelName && utf8.RuneCount(name) > maxModelName:
		s.Refuse(errTooLong("model", maxModelName, "characters"))
	}
	r.Priority, r.HasPriority = s.Ints[wire.FieldPriority], s.Given[wire.FieldPriority]
}

// Refuse notes a refusal unless there was one before. Where a body can hold any
// number of faults, the caller asks first, so that it makes one error only.
func (s *Scanner) Refuse(err *wire.Error) {
	if s.Err == nil && s.Bad == jsonscan.FaultNone {
		s.Err = err
	}
}

// Text returns the string of a token: a view into the body, or into scratch if
// it has escapes.
func (s *Scanner) Text(t jsonscan.Token) []byte {
	raw := s.B[t.Start:t.End:t.End]
	if !t.Escaped {
		return raw
	}
	start := len(s.Scratch)
	s.Scratch = jsonscan.AppendUnescaped(s.Scratch, raw)
	return s.Scratch[start:len(s.Scratch):len(s.Scratch)]
}

// Name returns the string of a key, until the next call of Text or Name.
func (s *Scanner) Name(t jsonscan.Token) []byte {
	if !t.Escaped {
		return s.B[t.Start:t.End]
	}
	kept := len(s.Scratch)
	name := s.Text(t)
	s.Scratch = s.Scratch[:kept]
	return name
}

// StringField reads a string, nil for null.
func (s *Scanner) StringField() []byte {
	t, ok := s.StringOrNull()
	if !ok {
		return nil
	}
	if t.Lone && s.Err == nil {
		s.Refuse(errSurrogate(s.At.String()))
	}
	return s.Text(t)
}

// StringOrNull reads a string; it reports false for null, and for another type,
// which it refuses.
func (s *Scanner) StringOrNull() (jsonscan.Token, bool) {
	switch s.Peek() {
	case '"':
		t := s.Str()
		return t, s.Bad == jsonscan.FaultNone
	case 'n':
	default:
		s.WrongType("a string")
	}
	s.Skip()
	return jsonscan.Token{}, false
}

// Boolean reads true or false, and false for null.
func (s *Scanner) Boolean() bool {
	ch := s.Peek()
	if ch != 't' && ch != 'f' && ch != 'n' {
		s.WrongType("true or false")
	}
	s.Skip()
	return ch == 't'
}

// Integer reads the integer of a field, or null.
func (s *Scanner) Integer(f wire.Field) {
	s.Ints[f], s.Given[f] = s.IntegerOrNull()
}

// IntegerOrNull reads an integer; it reports false for null, and for what is no
// integer in range, which it refuses.
func (s *Scanner) IntegerOrNull() (v int64, ok bool) {
	switch ch := s.Peek(); {
	case ch == '-' || ch >= '0' && ch <= '9':
		text := s.Number()
		if s.Bad != jsonscan.FaultNone {
			return 0, false
		}
		if v, ok = jsonscan.Integer(text, MaxInteger); !ok && s.Err == nil {
			s.Refuse(errInteger(s.At.String(), text))
		}
		return v, ok
	case ch != 'n':
		s.WrongType("an integer")
	}
	s.Skip()
	return 0, false
}

// OperatorOnly refuses a key that is not the client's to set, unless it is null.
func (s *Scanner) OperatorOnly() {
	if s.Peek() != 'n' {
		s.Refuse(errOperator(s.At.String()))
	}
	s.Skip()
}

// ExtraArgs reads vllm_xargs, which the engine puts into the same place as the
// operator's keys.
func (s *Scanner) ExtraArgs() {
	if s.Peek() != '{' {
		s.Skip()
		return
	}
	s.Enter()
	for key, ok := s.Member(); ok; key, ok = s.Member() {
		switch f := wire.FieldOf(s.Name(key)); f {
		case wire.FieldKVTransferParams, wire.FieldECTransferParams:
			s.At.Leaf = f.String()
			s.OperatorOnly()
		default:
			s.Skip()
		}
	}
}

// OrNull passes over the value at the cursor and refuses it unless it is null.
func (s *Scanner) OrNull(want string) {
	if s.Peek() != 'n' {
		s.WrongType(want)
	}
	s.Skip()
}

// ToolName reads a string that names a declared tool; null is none.
func (s *Scanner) ToolName() []byte {
	t, ok := s.StringOrNull()
	if !ok {
		return nil
	}
	if t.Lone && s.Err == nil {
		s.Refuse(errSurrogate(s.At.String()))
	}
	name := s.Text(t)
	if s.Err == nil && len(name) > maxToolName && utf8.RuneCount(name) > maxToolName {
		s.Refuse(errTooLong(s.At.String(), maxToolName, "characters"))
	}
	return name
}

// AddTool counts a declared tool. One without a name counts by the empty name, so
// that whoever asks whether there are tools is not told that there are none.
func (s *Scanner) AddTool(name []byte) {
	if len(s.Req.ToolNames) == maxTools {
		if s.Err == nil {
			s.Refuse(errTooLong("tools", maxTools, "tools"))
		}
		return
	}
	s.Req.ToolNames = append(s.Req.ToolNames, name)
	s.Req.Features |= wire.Tools
}

// AddText counts a string that becomes part of a prompt.
func (s *Scanner) AddText(t jsonscan.Token) {
	if t.Size > 0 {
		s.Req.TextBytes += t.Size
		s.Req.Modalities |= wire.Text
	}
}

// Count passes over a value that the engine's template may write into the
// prompt: a string by its own size, anything else by that of its JSON text.
func (s *Scanner) Count() {
	switch start := s.I; s.Peek() {
	case '"':
		s.AddText(s.Str())
	case '{', '[':
		s.Walk()
		s.Req.TextBytes += s.I - start
	default:
		s.Skip()
	}
}
