package engine

import "slices"

// Clone returns an engine in the same state, which goes on independently. Both
// share only memory that neither writes to. It may be called while a step is
// under way.
func (e *Engine) Clone() *Engine {
	c := *e
	c.pool = e.pool.clone()
	twin := make(map[*sequence]*sequence, len(e.byID))
	c.byID = make(map[ID]*sequence, len(e.byID))
	copies := func(of []*sequence) []*sequence {
		out := make([]*sequence, len(of))
		for i, s := range of {
			t := twin[s]
			if t == nil {
				t = s.clone()
				twin[s] = t
				if e.byID[s.id] == s {
					c.byID[s.id] = t
				}
			}
			out[i] = t
		}
		return out
	}
	c.waiting, c.running, c.batch = copies(e.waiting), copies(e.running), copies(e.batch)
	c.outputs, c.hits, c.future = nil, nil, nil
	return &c
}

// clone copies s. Its token and hash slices are cut to their length, so that
// whoever appends first moves away.
func (s *sequence) clone() *sequence {
	c := *s
	c.tokens, c.hashes = slices.Clip(s.tokens), slices.Clip(s.hashes)
	c.blocks = slices.Clone(s.blocks)
	c.hasher.buf = nil
	return &c
}

func (p *pool) clone() *pool {
	c := *p
	c.blocks = slices.Clone(p.blocks)
	c.cached.slots = slices.Clone(p.cached.slots)
	c.events = slices.Clone(p.events)
	return &c
}
