package classify

import "bytes"

// depth tells the body from JSON text inside one of its strings, and from JSON
// text inside of that, which is decoded, too, but nothing in it.
type depth uint8

const (
	bodyLevel depth = iota
	nestedLevel
	deepestLevel
	levels
)

// maxFrames bounds nesting. The gateway refuses bodies long before.
const maxFrames = 1024

// frame is an object or list that is open.
type frame struct {
	key   field // of the member at hand, in an object
	under field // the key under which the container stands; a list hands it on
	array bool
	// inert containers hold data or schemas of tools: their strings are scanned
	// like any other, but a field in them says nothing about the request.
	inert bool
}

// walker goes through JSON text and hands every string to the scan. It is
// lenient: what the engine would refuse is scanned all the same.
type walker struct {
	s  *scan
	lv *level
	in []byte
	at int
	depth
}

type state uint8

const (
	wantValue state = iota
	wantValueOrEnd
	wantKey
	wantKeyOrEnd
	wantMore
	ended
	broken
)

// walk scans JSON text. Where it stops being JSON the rest of a body is scanned
// as plain text; the rest of a string was scanned before.
func (s *scan) walk(in []byte, d depth) {
	w := walker{s: s, lv: &s.levels[d], in: in, depth: d}
	w.lv.frames = w.lv.frames[:0]
	w.lv.run.reset()
	st := wantValue
	for st != ended && st != broken && !s.stopped() {
		st = w.step(st)
	}
	w.flush()
	if d != bodyLevel || s.stopped() {
		return
	}
	if w.space(); st == broken || w.at < len(in) {
		s.why |= bySyntax
		s.scanText(in[min(w.at, len(in)):], d)
	}
}

// step reads one token.
func (w *walker) step(st state) state {
	w.s.look(0)
	w.space()
	if w.at >= len(w.in) {
		return broken
	}
	c := w.in[w.at]
	switch st {
	case wantValueOrEnd:
		if c == ']' {
			return w.close()
		}
		return w.value(c)
	case wantValue:
		return w.value(c)
	case wantKeyOrEnd:
		if c == '}' {
			return w.close()
		}
		return w.member(c)
	case wantKey:
		return w.member(c)
	}
	return w.more(c)
}

// more reads what follows a value.
func (w *walker) more(c byte) state {
	top := &w.lv.frames[len(w.lv.frames)-1]
	switch {
	case c == ',' && top.array:
		w.at++
		return wantValue
	case c == ',':
		w.at++
		return wantKey
	case c == ']' && top.array, c == '}' && !top.array:
		return w.close()
	}
	return broken
}

// member reads a key and its colon.
func (w *walker) member(c byte) state {
	if c != '"' {
		return broken
	}
	key, ok := w.str()
	if !ok {
		return broken
	}
	f := fieldOf(key)
	if f == unknownField {
		w.s.scanText(key, w.depth)
	}
	w.lv.frames[len(w.lv.frames)-1].key = f
	if w.space(); w.at >= len(w.in) || w.in[w.at] != ':' {
		return broken
	}
	w.at++
	return wantValue
}

// value reads a scalar or opens a container.
func (w *walker) value(c byte) state {
	p := w.place()
	if w.depth == bodyLevel && !p.inert && c != 'n' {
		w.s.why |= p.reason(c)
	}
	switch c {
	case '{':
		return w.open(p, false, wantKeyOrEnd)
	case '[':
		if w.depth == bodyLevel && p.tokenIDs() && w.tokenIDs() {
			return w.after()
		}
		return w.open(p, true, wantValueOrEnd)
	case '"':
		t, ok := w.str()
		if !ok {
			return broken
		}
		w.text(p, t)
		return w.after()
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 't', 'f', 'n':
		w.scalar(p)
		return w.after()
	}
	return broken
}

// scalar reads a number, true, false or null. A long number inside a structure
// may be a card or an account number that a tool's arguments hold; one at the top
// is a setting.
func (w *walker) scalar(p place) {
	const longNumber = 9
	start := w.at
	for w.at < len(w.in) && !delimiter[w.in[w.at]] {
		w.at++
	}
	if n := w.at - start; n >= longNumber && p.depth > 1 {
		w.s.scanText(w.in[start:w.at], w.depth)
	}
}

// delimiter are the bytes that end a number or a literal.
var delimiter = [256]bool{',': true, ']': true, '}': true, ' ': true, '\t': true, '\n': true, '\r': true, '"': true, ':': true, '{': true, '[': true}

func (w *walker) open(p place, array bool, st state) state {
	if len(w.lv.frames) == maxFrames {
		return broken
	}
	w.at++
	w.lv.frames = append(w.lv.frames, frame{under: p.key, array: array, inert: p.inert || p.opensInert()})
	return st
}

// close ends the container on top.
func (w *walker) close() state {
	w.at++
	w.lv.frames = w.lv.frames[:len(w.lv.frames)-1]
	if w.lv.run.owner > len(w.lv.frames) {
		w.flush()
	}
	return w.after()
}

func (w *walker) after() state {
	if len(w.lv.frames) == 0 {
		return ended
	}
	return wantMore
}

func (w *walker) space() {
	for w.at < len(w.in) {
		switch w.in[w.at] {
		case ' ', '\n', '\r', '\t':
			w.at++
		default:
			return
		}
	}
}

// str reads the string at w.at and returns its text, which is valid until the
// next call. Text of more than the byte budget may be cut, but not to below it.
func (w *walker) str() (text []byte, ok bool) {
	start := w.at + 1
	for from := start; ; {
		i := bytes.IndexByte(w.in[from:], '"')
		if i < 0 {
			return nil, false
		}
		end := from + i
		slashes := end
		for slashes > start && w.in[slashes-1] == '\\' {
			slashes--
		}
		if (end-slashes)%2 == 0 {
			w.at = end + 1
			return w.unescape(w.in[start:end]), true
		}
		from = end + 1
	}
}

func (w *walker) unescape(raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	limit := w.s.left
	if w.depth != bodyLevel {
		limit = len(raw)
	}
	w.lv.unescaped = appendUnescaped(w.lv.unescaped[:0], raw, limit)
	w.s.look(len(raw))
	return w.lv.unescaped
}

// text handles a string that is a value.
func (w *walker) text(p place, t []byte) {
	if p.depth == 1 && p.key == modelField && w.depth == bodyLevel {
		return
	}
	if w.depth == bodyLevel && !p.inert {
		w.s.why |= p.reasonOfText(t)
		if p.media(t) && leftOut(t) {
			w.s.why |= byMedia
			w.s.look(len(t) / 8)
			return
		}
	}
	switch {
	case p.protocolWord(t):
	case p.part:
		w.addPart(p, t)
	default:
		w.s.scanText(t, w.depth)
	}
}

// run is text of consecutive parts, joined.
type run struct {
	text   []byte
	starts []int // of the parts
	owner  int   // depth of the list that holds the parts; 0 is no run
}

func (r *run) reset() { r.text, r.starts, r.owner = r.text[:0], r.starts[:0], 0 }

// addPart adds a text part to the run of its list.
func (w *walker) addPart(p place, t []byte) {
	r := &w.lv.run
	if r.owner != p.list {
		w.flush()
		r.owner = p.list
	}
	if w.depth == bodyLevel {
		t = w.s.take(t)
	}
	if len(r.starts) > 0 {
		r.text = append(r.text, softBreak)
	}
	r.starts = append(r.starts, len(r.text))
	r.text = append(r.text, t...)
}

// flush scans the run at hand.
func (w *walker) flush() {
	r := &w.lv.run
	if len(r.text) == 0 {
		r.reset()
		return
	}
	json := false
	for i, start := range r.starts {
		end := len(r.text)
		if i+1 < len(r.starts) {
			end = r.starts[i+1] - 1
		}
		if w.depth == bodyLevel {
			w.s.collect(r.text[start:end])
		}
		json = json || holdsJSON(r.text[start:end])
	}
	if json && w.depth < deepestLevel {
		w.s.nested(r.text, r.starts, w.depth)
	} else {
		w.s.detect(r.text)
	}
	r.reset()
}
