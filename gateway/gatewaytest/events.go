package gatewaytest

import (
	"bufio"
	"errors"
	"io"
	"strings"
)

// Event is an event as a client reads it.
type Event struct {
	// Name and Data are its fields. HasData tells an empty data field from none.
	Name, Data string
	HasData    bool
	// Comments are its comment lines, without the colon and one space.
	Comments []string
	// Raw is its bytes, the blank line included.
	Raw string
}

// EventReader reads an event stream as a plain client does: line by line, with
// LF or CRLF at the end of each.
type EventReader struct {
	in *bufio.Reader
}

// NewEventReader reads events from r, such as the body of a response.
func NewEventReader(r io.Reader) *EventReader {
	return &EventReader{in: bufio.NewReader(r)}
}

// Next returns the next event. Its error is io.EOF after the last whole event,
// io.ErrUnexpectedEOF if the stream ends within one or without its last chunk,
// and otherwise the reader's own.
func (r *EventReader) Next() (Event, error) {
	var ev Event
	var data []string
	for {
		line, err := r.in.ReadString('\n')
		ev.Raw += line
		if errors.Is(err, io.EOF) && ev.Raw != "" {
			return ev, io.ErrUnexpectedEOF
		}
		if err != nil {
			return ev, err
		}
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		if line == "" {
			ev.Data = strings.Join(data, "\n")
			return ev, nil
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "":
			ev.Comments = append(ev.Comments, value)
		case "event":
			ev.Name = value
		case "data":
			data = append(data, value)
			ev.HasData = true
		}
	}
}

// All reads events to the end of the stream. The error is nil at a proper end.
func (r *EventReader) All() ([]Event, error) {
	var events []Event
	for {
		ev, err := r.Next()
		if errors.Is(err, io.EOF) {
			return events, nil
		}
		if err != nil {
			return events, err
		}
		events = append(events, ev)
	}
}
