package yamltext

import "github.com/goccy/go-yaml/token"

// level is a place in which values stand: a mapping or a list by their indentation, a pair of brackets, or
// one key of a mapping in brackets.
type level struct {
	kind    kind
	column  int
	entries int
	path    int // bytes of the present key
}

type kind int

const (
	blockMap kind = iota
	blockList
	flowMap
	flowList
	flowKey
)

// shape follows how values are nested, by columns and brackets alone. Where the text is no YAML it may be
// deeper than a parser would find, which fails it sooner; where it is, it is as deep.
type shape struct {
	bounds     Bounds
	tokens     token.Tokens
	levels     []level
	path       int // bytes of all present keys
	paths      int // of the paths to all keys so far
	omitted    int // values left out so far
	properties int
	documents  int
}

// shapeOf refuses tokens that are costly to put together.
func shapeOf(tokens token.Tokens, b Bounds) *Fault {
	s := shape{bounds: b, tokens: tokens}
	for i, t := range tokens {
		if f := s.add(i, t); f != nil {
			return f
		}
		if len(s.levels) > maxDepth {
			return faultAt(t, "values are nested deeper than %d levels", maxDepth)
		}
		if s.omitted*len(tokens) > maxMoves {
			return faultAt(t, "more than %d values are left out: write them, or null", maxMoves/len(tokens))
		}
	}
	return nil
}

func (s *shape) add(i int, t *token.Token) *Fault {
	switch t.Type {
	case token.AnchorType, token.AliasType, token.TagType:
		if s.properties++; s.properties > maxProperties {
			return faultAt(t, "more than %d anchors, aliases and tags", maxProperties)
		}
	case token.DocumentHeaderType, token.DocumentEndType:
		if s.documents++; s.documents > maxDocuments {
			return faultAt(t, "more than %d document markers: split the file", maxDocuments)
		}
		s.levels, s.path = s.levels[:0], 0
	case token.MappingStartType:
		s.push(level{kind: flowMap})
	case token.SequenceStartType:
		s.push(level{kind: flowList})
	case token.MappingEndType, token.SequenceEndType:
		s.countBare(i)
		s.toBracket()
		s.pop()
	case token.CollectEntryType:
		s.countBare(i)
		s.toBracket()
	case token.SequenceEntryType:
		s.item(i, t)
	case token.MappingValueType:
		return s.key(i, t)
	}
	return nil
}

// item is a dash of a list.
func (s *shape) item(i int, t *token.Token) {
	if !s.bracketed() {
		s.popBeyond(t.Position.Column)
		if top := s.top(); top == nil || top.kind != blockList || top.column != t.Position.Column {
			s.push(level{kind: blockList, column: t.Position.Column})
		}
	}
	if s.nothingFollows(i, t.Position.Column, t.Position.Line) {
		s.omitted++
	}
}

// key is a colon, with the key before it.
func (s *shape) key(i int, t *token.Token) *Fault {
	at, size := t, 0
	if before := s.before(i); before != nil {
		at, size = before, len(before.Value)
	}
	column := at.Position.Column
	if s.bracketed() {
		s.toBracket()
		s.push(level{kind: flowKey})
	} else {
		s.popBeyond(column)
		if top := s.top(); top != nil && top.kind == blockList && top.column == column {
			s.pop() // a list may stand as far left as the key that it is the value of
		}
		if top := s.top(); top == nil || top.kind != blockMap || top.column != column {
			s.push(level{kind: blockMap, column: column})
		}
	}
	top := s.top()
	if top.entries++; top.entries > maxEntries {
		return faultAt(at, "a mapping has at most %d entries", maxEntries)
	}
	s.path += size - top.path
	top.path = size
	if s.paths += s.path; s.paths > s.bounds.Paths {
		return faultAt(at, "the keys are too long for how many and how deep they are: the paths to all of them have more than %d bytes", s.bounds.Paths)
	}
	if s.nothingFollows(i, column, t.Position.Line) {
		s.omitted++
	}
	return nil
}

// countBare counts the key of a mapping in brackets that has no colon and so no value, as in {a, b}.
func (s *shape) countBare(i int) {
	top := s.top()
	if top == nil || top.kind != flowMap {
		return
	}
	if before := s.before(i); before != nil && before.Type != token.MappingStartType && before.Type != token.CollectEntryType {
		s.omitted++
	}
}

// nothingFollows reports whether the value after a colon or a dash is left out.
func (s *shape) nothingFollows(i, column, line int) bool {
	next := s.after(i)
	if next == nil {
		return true
	}
	switch next.Type {
	case token.CollectEntryType, token.MappingEndType, token.SequenceEndType:
		return true
	}
	return next.Position.Line > line && next.Position.Column <= column
}

func (s *shape) before(i int) *token.Token {
	for i--; i >= 0; i-- {
		if s.tokens[i].Type != token.CommentType {
			return s.tokens[i]
		}
	}
	return nil
}

func (s *shape) after(i int) *token.Token {
	for i++; i < len(s.tokens); i++ {
		if s.tokens[i].Type != token.CommentType {
			return s.tokens[i]
		}
	}
	return nil
}

func (s *shape) top() *level {
	if len(s.levels) == 0 {
		return nil
	}
	return &s.levels[len(s.levels)-1]
}

func (s *shape) push(l level) { s.levels = append(s.levels, l) }

func (s *shape) pop() {
	if top := s.top(); top != nil {
		s.path -= top.path
		s.levels = s.levels[:len(s.levels)-1]
	}
}

// bracketed reports whether the present place is inside of brackets, where columns mean nothing.
func (s *shape) bracketed() bool {
	top := s.top()
	return top != nil && top.kind >= flowMap
}

// toBracket leaves what is open inside of the innermost brackets.
func (s *shape) toBracket() {
	for top := s.top(); top != nil && top.kind == flowKey; top = s.top() {
		s.pop()
	}
}

// popBeyond leaves the levels that begin further to the right.
func (s *shape) popBeyond(column int) {
	for top := s.top(); top != nil && top.kind < flowMap && top.column > column; top = s.top() {
		s.pop()
	}
}
