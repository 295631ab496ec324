package classify

import (
	"bytes"
	"context"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	// chunk is how much text is scanned between two looks at the clock.
	chunk = 64 << 10
	// keepScratch is how large a buffer may be to be kept for the next scan.
	keepScratch = 4 << 20
)

// softBreak stands between consecutive text parts. Detectors of numbers read
// over it as if it were not there; for all others it is a line break. It is a
// control character that text has no use for; one that a client writes does no
// more than join digits.
const softBreak = 0x1f

// del is the one control character that JSON has unescaped.
const del = 0x7f

// reasons why a scan is partial.
type reasons uint8

const (
	byBudget     reasons = 1 << iota // more text than MaxBytes
	byMedia                          // images, audio, video, files
	byReference                      // content that isn't in the body
	byTokenIDs                       // token ids that could not be decoded
	byEmbeddings                     // embeddings in place of text
	bySyntax                         // not JSON: fields can't be told apart
)

// scan is the state of one scan. It is reused: begin sets everything.
type scan struct {
	c        *Classifier
	ctx      context.Context // of one call of Scan
	req      *Request
	deadline time.Time

	left         int // bytes of text that may still be scanned
	scannedBytes int
	sinceLook    int // bytes and strings since the last look at the clock
	why          reasons
	expired      bool

	hits []int64 // by detector: the built-in ones, then the custom ones

	stop func(n int) bool // looks at the clock, for the folder

	levels   [levels]level // the body, JSON inside one of its strings, and inside of that
	fold     folder
	softened []byte // scratch of soften
	lines    []byte // scratch of plain
	words    []byte // scratch of keywords
	ids      []uint32
	text     strings.Builder // for external detectors
}

// level is what a walk needs at one level of nesting.
type level struct {
	frames    []frame
	unescaped []byte
	run       run
	// before and during are scratch of nested.
	before, during []int64
}

func newScan(c *Classifier) *scan {
	n := builtinCount + len(c.custom)
	s := &scan{c: c, hits: make([]int64, n)}
	for i := range s.levels[:deepestLevel] {
		s.levels[i].before, s.levels[i].during = make([]int64, n), make([]int64, n)
	}
	s.stop = func(n int) bool {
		s.look(n)
		return s.expired
	}
	return s
}

func (s *scan) begin(ctx context.Context, r *Request) {
	s.ctx, s.req = ctx, r
	s.deadline = s.c.now().Add(s.c.budget)
	s.left, s.scannedBytes, s.sinceLook = s.c.maxBytes, 0, 0
	s.why, s.expired = 0, ctx.Err() != nil
	clear(s.hits)
}

// release gives the state back to its pool, without references to the request
// and without buffers that an unusual body has blown up.
func (s *scan) release() {
	s.ctx, s.req = nil, nil
	for i := range s.levels {
		l := &s.levels[i]
		l.run.reset()
		l.unescaped = keep(l.unescaped)
		l.run.text = keep(l.run.text)
	}
	s.words, s.lines, s.softened = keep(s.words), keep(s.lines), keep(s.softened)
	s.fold.buf, s.fold.out = keep(s.fold.buf), keep(s.fold.out)
	if cap(s.ids) > keepScratch/4 {
		s.ids = nil
	}
	s.text.Reset()
	s.c.pool.Put(s)
}

func keep(b []byte) []byte {
	if cap(b) > keepScratch {
		return nil
	}
	return b[:0]
}

// body scans the whole request.
func (s *scan) body() {
	s.walk(s.req.Body, bodyLevel)
}

func (s *scan) status() status {
	switch {
	case s.expired:
		return timeout
	case s.why != 0:
		return partial
	}
	return complete
}

// stopped reports that no more text is to be scanned.
func (s *scan) stopped() bool { return s.expired || s.why&byBudget != 0 }

// look checks the clock once in chunk bytes. n is what has been done since the
// last call; each call counts for at least a few hundred bytes, so that many
// small strings don't go unnoticed.
func (s *scan) look(n int) {
	const least = 256
	if s.sinceLook += n + least; s.sinceLook >= chunk {
		s.sinceLook = 0
		s.expired = s.expired || s.ctx.Err() != nil || s.c.now().After(s.deadline)
	}
}

// take charges text to the byte budget and returns what of it may be scanned.
func (s *scan) take(t []byte) []byte {
	if len(t) > s.left {
		t = cutRunes(t, s.left)
		s.why |= byBudget
	}
	s.left -= len(t)
	s.scannedBytes += len(t)
	return t
}

// cutRunes returns at most n bytes of t, without half a rune at the end.
func cutRunes(t []byte, n int) []byte {
	if n >= len(t) {
		return t
	}
	for n > 0 && !utf8.RuneStart(t[n]) {
		n--
	}
	return t[:n]
}

// scanText scans a piece of text that stands by itself.
func (s *scan) scanText(t []byte, at depth) {
	if at == bodyLevel {
		if t = s.take(t); len(t) == 0 {
			return
		}
		s.collect(t)
	}
	if at == deepestLevel || !holdsJSON(t) {
		s.detect(t)
		return
	}
	s.nested(t, nil, at)
}

// nested scans text that looks like JSON as it stands and decoded. Of each
// detector the higher count holds, as both see the same text. starts are the
// offsets of several texts in t; nil is one.
func (s *scan) nested(t []byte, starts []int, at depth) {
	lv := &s.levels[at]
	copy(lv.before, s.hits)
	s.detect(t)
	copy(lv.during, s.hits)
	copy(s.hits, lv.before)
	if starts == nil {
		s.walk(t, at+1)
	}
	for i, start := range starts {
		end := len(t)
		if i+1 < len(starts) {
			end = starts[i+1] - 1
		}
		if part := t[start:end]; holdsJSON(part) {
			s.walk(part, at+1)
		}
	}
	for i, n := range lv.during {
		s.hits[i] = max(s.hits[i], n)
	}
}

// holdsJSON reports whether text may be a JSON object or list.
func holdsJSON(t []byte) bool {
	for _, c := range t {
		switch c {
		case ' ', '\t', '\n', '\r':
		case '{', '[':
			return true
		default:
			return false
		}
	}
	return false
}

// detect runs the built-in and custom detectors over a text.
func (s *scan) detect(t []byte) {
	if s.expired {
		return
	}
	if bytes.IndexByte(t, del) >= 0 {
		t = s.soften(t)
	}
	if !isASCII(t) {
		t = s.fold.text(t, s.stop)
		s.look(len(t) / 4)
	}
	for at, found := 0, -1; at < len(t) && !s.expired; {
		start := at
		at, found = s.c.builtin.scan(s.hits, t, start, min(start+chunk, len(t)), found)
		s.look(at - start)
	}
	if len(s.c.custom) == 0 {
		return
	}
	t = s.plain(t)
	for i := range s.c.custom {
		s.c.custom[i].scan(s, t, &s.hits[builtinCount+i])
	}
}

// soften returns text with soft breaks for what can't be seen.
func (s *scan) soften(t []byte) []byte {
	s.softened = append(s.softened[:0], t...)
	for i, c := range s.softened {
		if c == del {
			s.softened[i] = softBreak
		}
	}
	return s.softened
}

// plain returns text with line breaks for soft ones.
func (s *scan) plain(t []byte) []byte {
	if bytes.IndexByte(t, softBreak) < 0 {
		return t
	}
	s.lines = append(s.lines[:0], t...)
	for i, c := range s.lines {
		if c == softBreak {
			s.lines[i] = '\n'
		}
	}
	return s.lines
}

// collect keeps text for the external detectors.
func (s *scan) collect(t []byte) {
	if len(s.c.external) == 0 || len(t) == 0 {
		return
	}
	if s.text.Len() > 0 {
		s.text.WriteByte('\n')
	}
	s.text.Write(t)
}

// collected is the text for the external detectors, strings apart by line breaks.
func (s *scan) collected() string { return s.text.String() }

// labelHits sums the hits of the detectors by label.
func (s *scan) labelHits() map[string]int64 {
	var out findings
	for i, n := range s.hits {
		if n > 0 {
			out.add(s.c.labels[i], n)
		}
	}
	return out.hits
}
