package translate

// progress follows the arguments of a call, as they come in pieces, to the end of the
// object that they are.
type progress struct {
	depth    int
	began    bool // the object has
	inString bool
	escaped  bool
}

// whole reports whether the object has come to its end.
func (p *progress) whole() bool { return p.began && p.depth == 0 }

func (p *progress) feed(text []byte) {
	for _, ch := range text {
		switch {
		case p.escaped:
			p.escaped = false
		case p.inString:
			p.escaped = ch == '\\'
			p.inString = ch != '"'
		case ch == '"':
			p.inString = true
		case ch == '{', ch == '[':
			p.depth++
			p.began = p.began || ch == '{'
		case ch == '}', ch == ']':
			p.depth = max(p.depth-1, 0)
		}
	}
}
