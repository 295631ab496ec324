package simworker

import (
	"strings"
	"unicode/utf8"
)

// detokenizer turns ids into text one at a time. A token that ends inside a
// character gives nothing until the character is whole.
type detokenizer struct {
	tok    Tokenizer
	ids    []uint32
	prefix int    // ids from here to read give context for those after
	read   int    // ids before this one have been turned into text
	known  string // text of ids[prefix:read]
}

// maxHeld is how many tokens without a whole character are held back before
// their text is given as it is. A character has at most four bytes.
const maxHeld = 4

// add returns the text that id completes.
func (d *detokenizer) add(id uint32) string {
	d.ids = append(d.ids, id)
	all := d.tok.Decode(d.ids[d.prefix:])
	if strings.HasSuffix(all, "\uFFFD") && len(d.ids)-d.read < maxHeld {
		return ""
	}
	return d.advance(all)
}

// flush returns the text of what is still held back.
func (d *detokenizer) flush() string {
	if d.read == len(d.ids) {
		return ""
	}
	return d.advance(d.tok.Decode(d.ids[d.prefix:]))
}

func (d *detokenizer) advance(all string) string {
	text, ok := strings.CutPrefix(all, d.known)
	if !ok {
		// The decoder changed its mind about earlier text; what was sent stays.
		text = d.tok.Decode(d.ids[d.read:])
	}
	d.prefix, d.read = d.read, len(d.ids)
	d.known = d.tok.Decode(d.ids[d.prefix:])
	return text
}

// stopper looks for stop strings and holds back text that may begin one.
type stopper struct {
	stops   []string
	include bool // the stop string stays in the text
	hold    int
	pending string
}

func newStopper(stops []string, include bool) *stopper {
	s := &stopper{stops: stops, include: include}
	for _, stop := range stops {
		s.hold = max(s.hold, len(stop)-1)
	}
	return s
}

// add returns text that is free to go, and the stop string if one was found,
// after which nothing more may be added.
func (s *stopper) add(text string) (emit, found string) {
	if len(s.stops) == 0 {
		return text, ""
	}
	s.pending += text
	at := len(s.pending)
	for _, stop := range s.stops {
		if i := strings.Index(s.pending, stop); i >= 0 && i < at {
			at, found = i, stop
		}
	}
	if found != "" {
		if s.include {
			at += len(found)
		}
		emit, s.pending = s.pending[:at], ""
		return emit, found
	}
	at = max(0, len(s.pending)-s.hold)
	for at > 0 && at < len(s.pending) && !utf8.RuneStart(s.pending[at]) {
		at--
	}
	emit, s.pending = s.pending[:at], s.pending[at:]
	return emit, ""
}

// flush returns what is held back at the end of a text.
func (s *stopper) flush() string {
	emit := s.pending
	s.pending = ""
	return emit
}
