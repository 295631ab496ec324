package sse

import (
	"bytes"
	"fmt"
	"slices"
)

// MaxEvent is the largest event in bytes, its blank line included, that a
// Scanner accepts unless told otherwise.
const MaxEvent = 16 << 20

// TooLargeError reports an event that does not fit the scanner's limit.
type TooLargeError struct {
	// Limit is the most bytes one event may have.
	Limit int
}

// Error implements error.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("cannot read an event of more than %d bytes", e.Limit)
}

// Event is one event of a stream. Its slices are views into the scanner's memory,
// or what it was lent, valid until the next call of Feed, Lend, Keep or Reset; they
// must not be changed.
type Event struct {
	// Raw is the exact bytes of the event, from the end of the previous event
	// up to and with the blank line. The Raw of all events one after another,
	// followed by Rest, are the stream.
	Raw []byte
	// Name is the value of the last event field, nil when there was none.
	Name []byte
	// Data holds the values of the data fields joined by LF, nil when there
	// was none. A comment, or a blank line alone, is an event without Data.
	Data []byte
}

// Scanner cuts a stream of bytes into events. Bytes are pushed with Feed,
// events are pulled with Next until it reports false:
//
//	s.Feed(p)
//	for ev, ok := s.Next(); ok; ev, ok = s.Next() {
//	}
//	if err := s.Err(); err != nil {
//	}
//
// Which events come out, and their bytes, does not depend on how the stream
// was cut into calls of Feed. Lines end in LF, CRLF or CR, in any mix.
//
// A blank line that ends in CR is complete at that CR if the line before it
// ended in a lone CR; an LF that follows nevertheless opens the next event's
// Raw. Otherwise the scanner waits for the next byte, because a stream that
// writes CRLF is about to send the LF, and a client waits for it.
//
// The zero value is ready to use and accepts events up to MaxEvent. A Scanner
// allocates nothing per event once its buffers have grown. It is not safe for
// concurrent use.
type Scanner struct {
	buf   []byte // bytes fed and not yet dropped
	start int    // where the current event begins in buf
	pos   int    // next byte to look at
	line  int    // where the current line begins
	last  lineEnd
	skip  bool // an LF at pos belongs to the CR that ended the previous line
	began bool // the first line of the stream has been passed
	taken bool // the first event of the stream has been handed out
	limit int
	join  []byte // joined data of events with several data lines
	err   error

	own  []byte // the scanner's memory while buf is lent to it
	lent bool
}

type lineEnd uint8

const (
	endNone lineEnd = iota
	endLF
	endCRLF
	endCR
)

// NewScanner makes a Scanner that accepts events of up to limit bytes;
// a limit of 0 means MaxEvent.
func NewScanner(limit int) *Scanner {
	if limit < 0 {
		panic(fmt.Sprintf("BUG: negative event limit %d", limit))
	}
	return &Scanner{limit: limit}
}

// maxKept is the largest buffer kept by Reset: one huge event must not hold
// its memory for as long as a pooled Scanner lives.
const maxKept = 64 << 10

// Reset makes the Scanner ready for another stream. It keeps its limit, and its
// buffers unless they have grown large.
func (s *Scanner) Reset() {
	s.Keep()
	*s = Scanner{buf: kept(s.buf), join: kept(s.join), limit: s.limit}
}

func kept(b []byte) []byte {
	if cap(b) > maxKept {
		return nil
	}
	return b[:0]
}

// Feed adds the next bytes of the stream. It copies p, and ends the validity of
// every Event handed out before.
func (s *Scanner) Feed(p []byte) {
	if s.start > 0 {
		n := copy(s.buf, s.buf[s.start:])
		s.buf = s.buf[:n]
		s.pos -= s.start
		s.line -= s.start
		s.start = 0
	}
	s.join = s.join[:0]
	s.buf = append(s.buf, p...)
}

// Lend is Feed without a copy: until Keep the scanner reads p itself, which must
// not change. Where an event is half in p and half in what was fed before, p is
// copied after all.
func (s *Scanner) Lend(p []byte) {
	if s.lent || s.Pending() > 0 {
		s.Feed(p)
		return
	}
	s.own, s.buf, s.lent = s.buf[:0], slices.Clip(p), true
	s.start, s.pos, s.line = 0, 0, 0
	s.join = s.join[:0]
}

// maxIdle is the largest buffer that Keep leaves a Scanner with nothing in it.
const maxIdle = 1 << 10

// Keep ends what Lend began: the scanner copies what it still needs, and drops
// the memory that it needs no more. Like Feed it ends the validity of every Event
// handed out before.
func (s *Scanner) Keep() {
	rest := s.buf[s.start:]
	if s.lent {
		s.buf, s.own, s.lent = append(s.own[:0], rest...), nil, false
	} else {
		s.buf = s.buf[:copy(s.buf, rest)]
	}
	s.pos -= s.start
	s.line -= s.start
	s.start = 0
	s.join = s.join[:0]
	if len(s.buf) == 0 && cap(s.buf) > maxIdle {
		s.buf = nil
	}
	if cap(s.join) > maxIdle {
		s.join = nil
	}
}

// Next returns the next complete event. It reports false when more bytes are
// needed, or when Err is not nil.
func (s *Scanner) Next() (Event, bool) {
	if s.err != nil {
		return Event{}, false
	}
	end, ok := s.find()
	if limit := s.max(); end-s.start > limit {
		s.err = &TooLargeError{Limit: limit}
		return Event{}, false
	}
	if !ok {
		return Event{}, false
	}
	return s.take(end), true
}

// End returns what is left at a clean end of the stream as one last event,
// whether its blank line came or not; it reports false when nothing is left.
// It is called after Next reported false, and once. The parsed fields are what
// a reader would have found had the blank line come.
func (s *Scanner) End() (Event, bool) {
	if s.err != nil || s.start == len(s.buf) {
		return Event{}, false
	}
	return s.take(len(s.buf)), true
}

// Err returns why the Scanner stopped: nil, or a *TooLargeError.
func (s *Scanner) Err() error { return s.err }

// Pending returns the number of bytes fed that no event handed out has
// included.
func (s *Scanner) Pending() int { return len(s.buf) - s.start }

// Rest returns the bytes that no event handed out has included: after Next
// reported false, the event that is not complete. The view is valid until the
// next call of Feed or Reset.
func (s *Scanner) Rest() []byte { return s.buf[s.start:len(s.buf):len(s.buf)] }

func (s *Scanner) max() int {
	if s.limit == 0 {
		return MaxEvent
	}
	return s.limit
}

// find looks for the blank line that ends the current event and returns the
// offset after it, or the end of the buffer and false. Bytes once looked at are
// not looked at again.
func (s *Scanner) find() (end int, ok bool) {
	for {
		if s.skip && s.pos < len(s.buf) {
			s.skip = false
			if s.buf[s.pos] == '\n' {
				s.pos++
				s.line = s.pos
			}
		}
		s.pos += lineLength(s.buf[s.pos:])
		var ends bool
		switch left := s.buf[s.pos:]; {
		case len(left) == 0:
			return s.pos, false
		case left[0] == '\n':
			ends = s.endLine(endLF, 1)
		case len(left) > 1:
			ends = s.carriageReturn(left[1] == '\n')
		case s.blank() && s.last == endCR:
			ends = s.carriageReturn(false)
		default:
			return len(s.buf), false
		}
		if ends {
			return s.pos, true
		}
	}
}

// lineLength returns the number of bytes before the first CR or LF.
func lineLength(b []byte) int {
	for i, c := range b {
		if c == '\n' || c == '\r' {
			return i
		}
	}
	return len(b)
}

// carriageReturn ends the line at the CR at pos, which an LF follows or not.
func (s *Scanner) carriageReturn(lf bool) (eventEnds bool) {
	if s.blank() && s.last == endCR {
		s.skip = true
		return s.endLine(endCR, 1)
	}
	if lf {
		return s.endLine(endCRLF, 2)
	}
	return s.endLine(endCR, 1)
}

// blank tells whether the line that ends at pos is empty. A byte order mark
// that opens the stream is no part of its first line.
func (s *Scanner) blank() bool {
	line := s.buf[s.line:s.pos]
	if !s.began {
		line = bytes.TrimPrefix(line, bom)
	}
	return len(line) == 0
}

func (s *Scanner) endLine(how lineEnd, n int) (eventEnds bool) {
	eventEnds = s.blank()
	s.last = how
	s.began = true
	s.pos += n
	s.line = s.pos
	return eventEnds
}

// take cuts the event off that ends at end.
func (s *Scanner) take(end int) Event {
	raw := s.buf[s.start:end:end]
	fields := raw
	if !s.taken {
		// Anywhere but at the head of the stream these bytes are part of a
		// field's name.
		fields = bytes.TrimPrefix(raw, bom)
	}
	s.taken = true
	s.start, s.pos, s.line = end, end, end
	ev := s.parse(fields)
	ev.Raw = raw
	return ev
}
