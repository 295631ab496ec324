package jsonscan

import "strconv"

// Place is where in a body a scan is, for error texts. It holds numbers and
// constant names, never content.
type Place struct {
	Field       string // the top-level key
	Inner       string // the key between index and part, or empty
	Depth       uint8  // how many of index and part count
	Index, Part int
	Leaf        string
}

// String returns the path, such as messages[2].content[0].text.
func (p Place) String() string {
	b := append(make([]byte, 0, 64), p.Field...)
	if p.Depth > 0 {
		b = appendIndex(b, p.Index)
	}
	if p.Depth > 1 {
		if p.Inner != "" {
			b = append(b, '.')
			b = append(b, p.Inner...)
		}
		b = appendIndex(b, p.Part)
	}
	if p.Leaf != "" {
		b = append(b, '.')
		b = append(b, p.Leaf...)
	}
	return string(b)
}

// With returns the path of a key of the object the scan is in.
func (p Place) With(leaf string) string {
	if p.Leaf != "" {
		leaf = p.Leaf + "." + leaf
	}
	p.Leaf = leaf
	return p.String()
}

func appendIndex(b []byte, i int) []byte {
	b = append(b, '[')
	b = strconv.AppendInt(b, int64(i), 10)
	return append(b, ']')
}
