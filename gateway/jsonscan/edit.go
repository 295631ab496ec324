package jsonscan

import "strconv"

// Edit replaces body[Start:End] by a text in up to four parts.
type Edit struct {
	Start, End int
	Key        string // a member's comma, key and colon
	Text       string // JSON text
	Quoted     string // written as a JSON string if HasQuoted
	Number     int64  // written in decimal if HasNumber
	HasQuoted  bool
	HasNumber  bool
}

// maxEdits is above the number of edits that one request can need.
const maxEdits = 12

// Edits are the changes to one body, in order of their place.
type Edits struct {
	list [maxEdits]Edit
	n    int
}

// Add keeps the order; edits at one place stay in the order they were added.
func (e *Edits) Add(x Edit) {
	i := e.n
	for ; i > 0 && e.list[i-1].Start > x.Start; i-- {
		e.list[i] = e.list[i-1]
	}
	e.list[i] = x
	e.n++
}

// Apply appends body with the edits to dst.
func (e *Edits) Apply(dst, body []byte) []byte {
	from := 0
	for i := range e.list[:e.n] {
		x := &e.list[i]
		dst = append(dst, body[from:x.Start]...)
		dst = append(dst, x.Key...)
		dst = append(dst, x.Text...)
		if x.HasQuoted {
			dst = AppendQuoted(dst, x.Quoted)
		}
		if x.HasNumber {
			dst = strconv.AppendInt(dst, x.Number, 10)
		}
		from = x.End
	}
	return append(dst, body[from:]...)
}

// CommaBefore returns where the comma stands before the member at i.
func CommaBefore(body []byte, i int) int {
	for i--; body[i] != ','; i-- {
	}
	return i
}

// CommaAfter returns the offset behind the comma that follows the member that
// ends at i, or i when it is the last.
func CommaAfter(body []byte, i int) int {
	for j := i; ; j++ {
		switch body[j] {
		case ',':
			return j + 1
		case '}':
			return i
		}
	}
}
