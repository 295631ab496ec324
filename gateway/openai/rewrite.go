package openai

import (
	"github.com/sluicegate/sluice/gateway/bodyscan"
	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// AppendRewrite appends body with m applied to dst and returns it. The body
// must be the one of the last successful Scan.
//
// Only the values of the keys that m names change. A key that is missing is
// added at the end of its object, one that is taken out goes together with one
// comma. Every other byte stays: white space, key order, spelling of numbers,
// escapes and unknown keys. A value that is already as m wants it stays as it
// is spelt.
func AppendRewrite(dst, body []byte, r *wire.Request, m wire.Mutation) []byte {
	var e jsonscan.Edits
	editMaxTokens(r, &e, m)
	editChoices(r, &e, m)
	bodyscan.Edit(&e, body, r, &m)
	if m.InjectUsage && r.Stream && r.Operation != wire.Responses { // it tells its usage unasked
		editUsage(r, &e)
	}
	return e.Apply(dst, body)
}

func editMaxTokens(r *wire.Request, e *jsonscan.Edits, m wire.Mutation) {
	if m.MaxTokens == nil {
		return
	}
	s, added := &r.Places, false
	switch r.Operation {
	case wire.Chat, wire.Completion:
	case wire.Responses:
		if f := wire.FieldMaxOutputTokens; !s.Given[f] || s.Ints[f] != *m.MaxTokens {
			bodyscan.Set(e, s, f, jsonscan.Edit{Number: *m.MaxTokens, HasNumber: true})
		}
		return
	default:
		return // nothing is generated
	}
	for _, f := range [...]wire.Field{wire.FieldMaxTokens, wire.FieldMaxCompletionTokens} {
		if s.Fields[f].Present {
			added = added || f == wire.FieldMaxTokens || r.Operation == wire.Chat
			if !s.Given[f] || s.Ints[f] != *m.MaxTokens {
				bodyscan.Set(e, s, f, jsonscan.Edit{Number: *m.MaxTokens, HasNumber: true})
			}
		}
	}
	if !added {
		bodyscan.Set(e, s, wire.FieldMaxTokens, jsonscan.Edit{Number: *m.MaxTokens, HasNumber: true})
	}
}

func editChoices(r *wire.Request, e *jsonscan.Edits, m wire.Mutation) {
	if m.N == nil || r.N == nil && r.BestOf == nil {
		return
	}
	for _, f := range [...]wire.Field{wire.FieldN, wire.FieldBestOf} {
		if r.Places.Given[f] && r.Places.Ints[f] > *m.N {
			bodyscan.Set(e, &r.Places, f, jsonscan.Edit{Number: *m.N, HasNumber: true})
		}
	}
}

// editUsage makes the worker send the usage chunk.
func editUsage(r *wire.Request, e *jsonscan.Edits) {
	s := &r.Places
	opts := r.StreamOptions
	switch {
	case opts.IncludeUsage:
		return
	case !opts.Present:
		bodyscan.Set(e, s, wire.FieldStreamOptions, jsonscan.Edit{Text: `{"include_usage":true}`})
		return
	case s.Include.Present:
		e.Add(jsonscan.Edit{Start: s.Include.Start, End: s.Include.End, Text: "true"})
	case s.Options.Members == 0:
		e.Add(jsonscan.Edit{Start: s.Options.Tail, End: s.Options.Tail, Text: `"include_usage":true`})
	default:
		e.Add(jsonscan.Edit{Start: s.Options.Tail, End: s.Options.Tail, Text: `,"include_usage":true`})
	}
	if opts.ContinuousUsage {
		e.Add(jsonscan.Edit{Start: s.Continuous.Start, End: s.Continuous.End, Text: "false"})
	}
}
