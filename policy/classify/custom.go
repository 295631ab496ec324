package classify

import (
	"bytes"
	"regexp"
	"regexp/syntax"
)

const (
	// overlap is how long a match may be that crosses the end of a chunk.
	overlap = 4 << 10
	// patternWork is how many instructions times bytes a pattern may take between
	// two looks at the clock. The regexp package bounds its work by this product.
	patternWork = 2 << 20
)

// custom is a compiled Custom detector.
type custom struct {
	patterns []pattern
	keywords *keywords // nil without any
}

// pattern is an expression and the way in which text is cut for it.
type pattern struct {
	re *regexp.Regexp
	// whole expressions are anchored to the ends of the text, so that it can't be
	// cut; lines are anchored to lines, so that it is cut at line breaks only.
	whole, lines bool
	chunk        int
}

func (d *custom) scan(s *scan, t []byte, hits *int64) {
	for i := range d.patterns {
		*hits += d.patterns[i].count(s, t)
	}
	if d.keywords != nil {
		*hits += d.keywords.count(s, t)
	}
}

// compilePattern compiles an expression and finds out how text may be cut.
func compilePattern(expr string) (pattern, error) {
	re, err := regexp.Compile(expr)
	if err != nil {
		return pattern{}, err
	}
	tree, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return pattern{}, err
	}
	prog, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return pattern{}, err
	}
	if n := len(prog.Inst); n > maxInstructions {
		return pattern{}, &patternSize{n}
	}
	p := pattern{re: re, chunk: min(chunk, patternWork/len(prog.Inst))}
	p.anchors(tree)
	return p, nil
}

// anchors looks for assertions about what is around a match.
func (p *pattern) anchors(x *syntax.Regexp) {
	switch x.Op {
	case syntax.OpBeginText, syntax.OpEndText:
		p.whole = true
	case syntax.OpBeginLine, syntax.OpEndLine:
		p.lines = true
	}
	for _, sub := range x.Sub {
		p.anchors(sub)
	}
}

// count counts the matches that don't overlap. t has no soft breaks.
func (p *pattern) count(s *scan, t []byte) (n int64) {
	for at := 0; at < len(t) && !s.expired; {
		end := len(t)
		if !p.whole {
			end = p.cut(t, at)
		}
		next := end
		for _, m := range p.re.FindAllIndex(t[at:min(len(t), end+overlap)], -1) {
			if at+m[0] >= end {
				break
			}
			n++
			next = max(next, at+m[1])
		}
		s.look(next - at)
		at = next
	}
	return n
}

// cut returns where the chunk from at ends: behind a line break or space, where
// what follows looks to an expression like the beginning of a text.
func (p *pattern) cut(t []byte, at int) int {
	end := at + p.chunk
	if end >= len(t) {
		return len(t)
	}
	if i := bytes.LastIndexByte(t[at:end], '\n'); i > 0 {
		return at + i + 1
	}
	if p.lines {
		if i := bytes.IndexByte(t[end:], '\n'); i >= 0 {
			return end + i + 1
		}
		return len(t)
	}
	if i := bytes.LastIndexByte(t[at:end], ' '); i > 0 {
		return at + i + 1
	}
	return end
}
