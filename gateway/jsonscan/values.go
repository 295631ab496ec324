package jsonscan

// MaxCount bounds a count of tokens: no answer comes near it, and sums of a few
// cannot overflow.
const MaxCount = 1 << 40

// Is tells whether a key has the given name, which is plain ASCII.
func (c *Cursor) Is(key Token, name string) bool {
	raw := c.B[key.Start:key.End]
	if !key.Escaped {
		return string(raw) == name
	}
	var buf [64]byte
	return key.Size == len(name) && string(AppendUnescaped(buf[:0], raw)) == name
}

// Count reads a count of tokens; it reports false for null and for what cannot be one.
func (c *Cursor) Count() (int64, bool) {
	if ch := c.Peek(); ch == '-' || ch >= '0' && ch <= '9' {
		return Integer(c.Number(), MaxCount)
	}
	c.Skip()
	return 0, false
}

// NonEmpty passes over a value and tells whether it is a string with something
// in it.
func (c *Cursor) NonEmpty() bool {
	if c.Peek() != '"' {
		c.Skip()
		return false
	}
	t := c.Str()
	return t.End > t.Start
}

// HasElements passes over a value and tells whether it is an array with
// something in it.
func (c *Cursor) HasElements() bool {
	if c.Peek() != '[' {
		c.Skip()
		return false
	}
	n := 0
	c.Enter()
	for c.Element() {
		n++
		c.Skip()
	}
	return n > 0
}

// TextIs passes over a value and tells whether it is the given string of plain
// ASCII.
func (c *Cursor) TextIs(want string) bool {
	if c.Peek() != '"' {
		c.Skip()
		return false
	}
	return c.Is(c.Str(), want)
}

// Words reads a string; anything else is none.
func (c *Cursor) Words() string {
	if c.Peek() != '"' {
		c.Skip()
		return ""
	}
	t := c.Str()
	if c.Bad != FaultNone {
		return ""
	}
	return string(AppendUnescaped(nil, c.B[t.Start:t.End]))
}
