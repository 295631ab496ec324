package openai

import "strconv"

// edit replaces body[start:end] by a text in up to four parts.
type edit struct {
	start, end int
	key        string // a member's comma, key and colon
	text       string // JSON text
	quoted     string // written as a JSON string if hasQuoted
	number     int64  // written in decimal if hasNumber
	hasQuoted  bool
	hasNumber  bool
}

// maxEdits is above the number of edits that one Mutation can ask for.
const maxEdits = 12

// edits are the changes to one body, in order of their place.
type edits struct {
	list [maxEdits]edit
	n    int
}

// add keeps the order; edits at one place stay in the order they were added.
func (e *edits) add(x edit) {
	i := e.n
	for ; i > 0 && e.list[i-1].start > x.start; i-- {
		e.list[i] = e.list[i-1]
	}
	e.list[i] = x
	e.n++
}

// apply appends body with the edits to dst.
func (e *edits) apply(dst, body []byte) []byte {
	from := 0
	for i := range e.list[:e.n] {
		x := &e.list[i]
		dst = append(dst, body[from:x.start]...)
		dst = append(dst, x.key...)
		dst = append(dst, x.text...)
		if x.hasQuoted {
			dst = appendQuoted(dst, x.quoted)
		}
		if x.hasNumber {
			dst = strconv.AppendInt(dst, x.number, 10)
		}
		from = x.end
	}
	return append(dst, body[from:]...)
}

// set gives a top-level field the value that x writes, where it stands or at
// the end of the body's object. That object is never empty: it has the model.
func (s *scanState) set(e *edits, f field, x edit) {
	if m := s.fields[f]; m.present {
		x.start, x.end = m.start, m.end
	} else {
		x.start, x.end = s.top.tail, s.top.tail
		x.key = added(f)
	}
	e.add(x)
}

// added is the text before the value of a field that is added.
func added(f field) string {
	switch f {
	case fieldMaxTokens:
		return `,"max_tokens":`
	case fieldCacheSalt:
		return `,"cache_salt":`
	case fieldPriority:
		return `,"priority":`
	case fieldStreamOptions:
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
func (r *Request) AppendRewrite(dst, body []byte, m Mutation) []byte {
	s := &r.scan
	if s.size == 0 || s.size != len(body) {
		panic("BUG: a rewrite of a body that was not scanned")
	}
	var e edits
	r.editModel(&e, m)
	r.editMaxTokens(&e, m)
	r.editChoices(&e, m)
	r.editRemovals(&e, body, m)
	if m.CacheSalt != nil {
		s.set(&e, fieldCacheSalt, edit{quoted: *m.CacheSalt, hasQuoted: true})
	}
	if m.Priority != nil {
		s.set(&e, fieldPriority, edit{number: *m.Priority, hasNumber: true})
	}
	if m.InjectUsage && r.Stream {
		r.editUsage(&e)
	}
	return e.apply(dst, body)
}

func (r *Request) editModel(e *edits, m Mutation) {
	if m.Model != nil && *m.Model != string(r.Model) {
		r.scan.set(e, fieldModel, edit{quoted: *m.Model, hasQuoted: true})
	}
}

func (r *Request) editMaxTokens(e *edits, m Mutation) {
	if m.MaxTokens == nil {
		return
	}
	s, added := &r.scan, false
	for _, f := range [...]field{fieldMaxTokens, fieldMaxCompletionTokens} {
		if s.fields[f].present {
			added = added || f == fieldMaxTokens || r.Operation == Chat
			if !s.given[f] || s.ints[f] != *m.MaxTokens {
				s.set(e, f, edit{number: *m.MaxTokens, hasNumber: true})
			}
		}
	}
	if !added {
		s.set(e, fieldMaxTokens, edit{number: *m.MaxTokens, hasNumber: true})
	}
}

func (r *Request) editChoices(e *edits, m Mutation) {
	if m.N == nil {
		return
	}
	for _, f := range [...]field{fieldN, fieldBestOf} {
		if r.scan.given[f] && r.scan.ints[f] > *m.N {
			r.scan.set(e, f, edit{number: *m.N, hasNumber: true})
		}
	}
}

// editRemovals takes members out, each with the comma before it, or with the
// one after it where no member before it stays.
func (r *Request) editRemovals(e *edits, body []byte, m Mutation) {
	s := &r.scan
	var out [2]member
	n := 0
	if m.RemoveCacheSalt {
		if m.CacheSalt != nil {
			panic("BUG: cache_salt is to be set and removed")
		}
		out[n] = s.fields[fieldCacheSalt]
		n++
	}
	if m.RemovePriority {
		if m.Priority != nil {
			panic("BUG: priority is to be set and removed")
		}
		out[n] = s.fields[fieldPriority]
		n++
	}
	if n == 2 && out[0].ordinal > out[1].ordinal {
		out[0], out[1] = out[1], out[0]
	}
	gone := 0
	for _, x := range out[:n] {
		if !x.present {
			continue
		}
		start, end := x.key, x.end
		if x.ordinal > gone {
			start = commaBefore(body, start)
		} else {
			end = commaAfter(body, end)
		}
		e.add(edit{start: start, end: end})
		gone++
	}
}

// commaBefore returns where the comma stands before the member at i.
func commaBefore(body []byte, i int) int {
	for i--; body[i] != ','; i-- {
	}
	return i
}

// commaAfter returns the offset behind the comma that follows the member that
// ends at i, or i when it is the last.
func commaAfter(body []byte, i int) int {
	for j := i; ; j++ {
		switch body[j] {
		case ',':
			return j + 1
		case '}':
			return i
		}
	}
}

// editUsage makes the worker send the usage chunk.
func (r *Request) editUsage(e *edits) {
	s := &r.scan
	opts := r.StreamOptions
	switch {
	case opts.IncludeUsage:
		return
	case !opts.Present:
		s.set(e, fieldStreamOptions, edit{text: `{"include_usage":true}`})
		return
	case s.include.present:
		e.add(edit{start: s.include.start, end: s.include.end, text: "true"})
	case s.options.members == 0:
		e.add(edit{start: s.options.tail, end: s.options.tail, text: `"include_usage":true`})
	default:
		e.add(edit{start: s.options.tail, end: s.options.tail, text: `,"include_usage":true`})
	}
	if opts.ContinuousUsage {
		e.add(edit{start: s.continuous.start, end: s.continuous.end, text: "false"})
	}
}
