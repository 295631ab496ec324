package openai

import (
	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// set gives a top-level field the value that x writes, where it stands or at
// the end of the body's object. That object is never empty: it has the model.
func set(s *wire.Places, e *jsonscan.Edits, f wire.Field, x jsonscan.Edit) {
	if m := s.Fields[f]; m.Present {
		x.Start, x.End = m.Start, m.End
	} else {
		x.Start, x.End = s.Top.Tail, s.Top.Tail
		x.Key = added(f)
	}
	e.Add(x)
}

// added is the text before the value of a field that is added.
func added(f wire.Field) string {
	switch f {
	case wire.FieldMaxTokens:
		return `,"max_tokens":`
	case wire.FieldMaxOutputTokens:
		return `,"max_output_tokens":`
	case wire.FieldCacheSalt:
		return `,"cache_salt":`
	case wire.FieldPriority:
		return `,"priority":`
	case wire.FieldStreamOptions:
		return `,"stream_options":`
	}
	panic("BUG: a field that is never added: " + f.String())
}

// AppendRewrite appends body with m applied to dst and returns it. The body
// must be the one of the last successful Scan.
//
// Only the values of the keys that m names change. A key that is missing is
// added at the end of its object, one that is taken out goes together with one
// comma. Every other byte stays: white space, key order, spelling of numbers,
// escapes and unknown keys. A value that is already as m wants it stays as it
// is spelt.
func AppendRewrite(dst, body []byte, r *wire.Request, m wire.Mutation) []byte {
	s := &r.Places
	if s.Size == 0 || s.Size != len(body) {
		panic("BUG: a rewrite of a body that was not scanned")
	}
	var e jsonscan.Edits
	editModel(r, &e, m)
	editMaxTokens(r, &e, m)
	editChoices(r, &e, m)
	editRemovals(r, &e, body, m)
	if m.CacheSalt != nil {
		set(s, &e, wire.FieldCacheSalt, jsonscan.Edit{Quoted: *m.CacheSalt, HasQuoted: true})
	}
	if m.Priority != nil {
		set(s, &e, wire.FieldPriority, jsonscan.Edit{Number: *m.Priority, HasNumber: true})
	}
	if m.InjectUsage && r.Stream && r.Operation != wire.Responses { // it tells its usage unasked
		editUsage(r, &e)
	}
	return e.Apply(dst, body)
}

func editModel(r *wire.Request, e *jsonscan.Edits, m wire.Mutation) {
	if m.Model != nil && *m.Model != string(r.Model) {
		set(&r.Places, e, wire.FieldModel, jsonscan.Edit{Quoted: *m.Model, HasQuoted: true})
	}
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
			set(s, e, f, jsonscan.Edit{Number: *m.MaxTokens, HasNumber: true})
		}
		return
	default:
		return // nothing is generated
	}
	for _, f := range [...]wire.Field{wire.FieldMaxTokens, wire.FieldMaxCompletionTokens} {
		if s.Fields[f].Present {
			added = added || f == wire.FieldMaxTokens || r.Operation == wire.Chat
			if !s.Given[f] || s.Ints[f] != *m.MaxTokens {
				set(s, e, f, jsonscan.Edit{Number: *m.MaxTokens, HasNumber: true})
			}
		}
	}
	if !added {
		set(s, e, wire.FieldMaxTokens, jsonscan.Edit{Number: *m.MaxTokens, HasNumber: true})
	}
}

func editChoices(r *wire.Request, e *jsonscan.Edits, m wire.Mutation) {
	if m.N == nil || r.N == nil && r.BestOf == nil {
		return
	}
	for _, f := range [...]wire.Field{wire.FieldN, wire.FieldBestOf} {
		if r.Places.Given[f] && r.Places.Ints[f] > *m.N {
			set(&r.Places, e, f, jsonscan.Edit{Number: *m.N, HasNumber: true})
		}
	}
}

// editRemovals takes members out, each with the comma before it, or with the
// one after it where no member before it stays.
func editRemovals(r *wire.Request, e *jsonscan.Edits, body []byte, m wire.Mutation) {
	s := &r.Places
	var out [2]wire.Member
	n := 0
	if m.RemoveCacheSalt {
		if m.CacheSalt != nil {
			panic("BUG: cache_salt is to be set and removed")
		}
		out[n] = s.Fields[wire.FieldCacheSalt]
		n++
	}
	if m.RemovePriority {
		if m.Priority != nil {
			panic("BUG: priority is to be set and removed")
		}
		out[n] = s.Fields[wire.FieldPriority]
		n++
	}
	if n == 2 && out[0].Ordinal > out[1].Ordinal {
		out[0], out[1] = out[1], out[0]
	}
	gone := 0
	for _, x := range out[:n] {
		if !x.Present {
			continue
		}
		start, end := x.Key, x.End
		if x.Ordinal > gone {
			start = jsonscan.CommaBefore(body, start)
		} else {
			end = jsonscan.CommaAfter(body, end)
		}
		e.Add(jsonscan.Edit{Start: start, End: end})
		gone++
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
		set(s, e, wire.FieldStreamOptions, jsonscan.Edit{Text: `{"include_usage":true}`})
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
