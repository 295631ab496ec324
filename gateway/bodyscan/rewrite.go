package bodyscan

import (
	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// Edit adds the changes that are alike for all dialects: those of the model, the
// cache salt and the priority. The body must be the one of req's last successful
// scan.
func Edit(e *jsonscan.Edits, body []byte, req *wire.Request, m *wire.Mutation) {
	p := &req.Places
	if p.Size == 0 || p.Size != len(body) {
		panic("BUG: a rewrite of a body that was not scanned")
	}
	if m.Model != nil && *m.Model != string(req.Model) {
		Set(e, p, wire.FieldModel, jsonscan.Edit{Quoted: *m.Model, HasQuoted: true})
	}
	remove(e, body, p, m)
	if m.CacheSalt != nil {
		Set(e, p, wire.FieldCacheSalt, jsonscan.Edit{Quoted: *m.CacheSalt, HasQuoted: true})
	}
	if m.Priority != nil {
		Set(e, p, wire.FieldPriority, jsonscan.Edit{Number: *m.Priority, HasNumber: true})
	}
}

// Set gives a top-level field the value that x writes, where it stands or at
// the end of the body's object. That object is never empty: it has the model.
func Set(e *jsonscan.Edits, p *wire.Places, f wire.Field, x jsonscan.Edit) {
	if m := p.Fields[f]; m.Present {
		x.Start, x.End = m.Start, m.End
	} else {
		x.Start, x.End = p.Top.Tail, p.Top.Tail
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

// remove takes members out, each with the comma before it, or with the one after
// it where no member before it stays.
func remove(e *jsonscan.Edits, body []byte, p *wire.Places, m *wire.Mutation) {
	var out [2]wire.Member
	n := 0
	if m.RemoveCacheSalt {
		if m.CacheSalt != nil {
			panic("BUG: cache_salt is to be set and removed")
		}
		out[n] = p.Fields[wire.FieldCacheSalt]
		n++
	}
	if m.RemovePriority {
		if m.Priority != nil {
			panic("BUG: priority is to be set and removed")
		}
		out[n] = p.Fields[wire.FieldPriority]
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
