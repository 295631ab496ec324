package sse

import "bytes"

// bom is the byte order mark that a stream may open with.
var bom = []byte("\xef\xbb\xbf")

// parse reads the fields of an event whose bytes are complete. Empty lines are
// passed over: they are the event's own end, or the LF of a CRLF whose CR ended
// the event before.
func (s *Scanner) parse(fields []byte) Event {
	var ev Event
	lines := 0
	for rest := fields; len(rest) > 0; {
		var line []byte
		line, rest = cutLine(rest)
		name, value := cutField(line)
		switch string(name) {
		case "event":
			ev.Name = value
		case "data":
			lines++
			ev.Data = value
		}
	}
	if lines > 1 {
		ev.Data = s.joinData(fields)
	}
	return ev
}

// joinData joins the data lines of an event by LF. Events handed out since the
// last Feed keep their place in s.join, or the array it had before it grew.
func (s *Scanner) joinData(fields []byte) []byte {
	start := len(s.join)
	for rest, first := fields, true; len(rest) > 0; {
		var line []byte
		line, rest = cutLine(rest)
		name, value := cutField(line)
		if string(name) != "data" {
			continue
		}
		if !first {
			s.join = append(s.join, '\n')
		}
		first = false
		s.join = append(s.join, value...)
	}
	return s.join[start:len(s.join):len(s.join)]
}

// cutLine returns the first line of b without its end, and what follows.
func cutLine(b []byte) (line, rest []byte) {
	n := lineLength(b)
	line, rest = b[:n:n], b[n:]
	switch {
	case len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n':
		return line, rest[2:]
	case len(rest) > 0:
		return line, rest[1:]
	}
	return line, nil
}

// cutField splits a line at its first colon and drops one space after it. The
// value of a line without a colon is empty, not nil. A comment has no name.
func cutField(line []byte) (name, value []byte) {
	name, value, _ = bytes.Cut(line, []byte{':'})
	if value == nil {
		value = line[len(line):]
	}
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	return name, value
}
