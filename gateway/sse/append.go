package sse

import "strings"

// AppendEvent appends an event to dst: an event field unless name is empty, one
// data field for each line of data, and the blank line. Line ends in data, of
// any kind, become LF for the reader. The name must not hold a line end; data
// that is empty gives an empty data field.
func AppendEvent(dst []byte, name string, data []byte) []byte {
	mustBeOneLine(name)
	if name != "" {
		dst = append(dst, "event: "...)
		dst = append(dst, name...)
		dst = append(dst, '\n')
	}
	for {
		line, rest := cutLine(data)
		dst = append(dst, "data: "...)
		dst = append(dst, line...)
		dst = append(dst, '\n')
		if len(line) == len(data) {
			return append(dst, '\n')
		}
		data = rest
	}
}

// AppendComment appends a comment of one line and a blank line to dst. Readers
// skip it; it keeps a connection alive. The text must not hold a line end.
func AppendComment(dst []byte, text string) []byte {
	mustBeOneLine(text)
	dst = append(dst, ": "...)
	dst = append(dst, text...)
	return append(dst, "\n\n"...)
}

func mustBeOneLine(s string) {
	if strings.ContainsAny(s, "\r\n") {
		panic("BUG: a line end in an event's name or comment")
	}
}
