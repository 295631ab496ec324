package openai

import "strconv"

// place is where in a body a scan is, for error texts. It holds numbers and
// constant names, never content.
type place struct {
	field       field
	depth       uint8 // how many of index and part count
	index, part int
	leaf        string
}

// String returns the path, such as messages[2].content[0].text.
func (p place) String() string {
	b := append(make([]byte, 0, 64), p.field.String()...)
	if p.depth > 0 {
		b = appendIndex(b, p.index)
	}
	if p.depth > 1 {
		if p.field == fieldMessages {
			b = append(b, ".content"...)
		}
		b = appendIndex(b, p.part)
	}
	if p.leaf != "" {
		b = append(b, '.')
		b = append(b, p.leaf...)
	}
	return string(b)
}

// with returns the path of a key of the object the scan is in.
func (p place) with(leaf string) string {
	if p.leaf != "" {
		leaf = p.leaf + "." + leaf
	}
	p.leaf = leaf
	return p.String()
}

func appendIndex(b []byte, i int) []byte {
	b = append(b, '[')
	b = strconv.AppendInt(b, int64(i), 10)
	return append(b, ']')
}
