package classify

import (
	"slices"
	"unicode"
	"unicode/utf8"
)

// keywords finds many words at once: an automaton of Aho and Corasick over the
// bytes of folded text, its failure links resolved into a table.
type keywords struct {
	// class maps a byte to a column of the table; 0 are bytes of no keyword.
	// Capital letters have the class of the small ones, so that ASCII needs no
	// folding, and all white space is a space.
	class   [256]uint8
	columns int
	// next is the state after a byte, by state and column.
	next []uint32
	// ends are the lengths of the keywords that end in a state; final says that
	// there are any.
	ends  [][]uint16
	final []bool
}

// foldText returns t in the form in which words are compared: NFKC and simple
// case folding.
func foldText(dst, t []byte) []byte {
	for i := 0; i < len(t); {
		if c := t[i]; c < utf8.RuneSelf {
			dst = append(dst, foldByte(c))
			i++
			continue
		}
		r, n := utf8.DecodeRune(t[i:])
		dst = utf8.AppendRune(dst, foldRune(r))
		i += n
	}
	return dst
}

func foldByte(c byte) byte {
	switch {
	case c-'A' <= 25:
		return c | 0x20
	case c == '\n', c == '\r', c == '\t', c == softBreak:
		return ' '
	}
	return c
}

// foldRune returns the least rune that differs from r in case only, in lower case
// if it is ASCII.
func foldRune(r rune) rune {
	least := r
	for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
		least = min(least, f)
	}
	if least < utf8.RuneSelf {
		return rune(foldByte(byte(least)))
	}
	return least
}

// newKeywords builds the automaton. words are folded and not empty.
func newKeywords(words [][]byte) *keywords {
	k := &keywords{columns: 1}
	for _, w := range words {
		for _, c := range w {
			if k.class[c] == 0 {
				k.class[c] = uint8(k.columns)
				k.columns++
			}
		}
	}
	for c := range k.class {
		if to := k.class[foldByte(byte(c))]; to != 0 && c < utf8.RuneSelf {
			k.class[c] = to
		}
	}
	k.addState()
	for _, w := range words {
		k.addWord(w)
	}
	k.link()
	return k
}

func (k *keywords) addState() uint32 {
	k.next = append(k.next, make([]uint32, k.columns)...)
	k.ends = append(k.ends, nil)
	k.final = append(k.final, false)
	return uint32(len(k.ends) - 1)
}

func (k *keywords) addWord(w []byte) {
	state := uint32(0)
	for _, c := range w {
		at := k.cell(state, uint32(k.class[c]))
		to := k.next[at]
		if to == 0 {
			to = k.addState()
			k.next[at] = to
		}
		state = to
	}
	k.addEnd(state, uint16(len(w)))
}

func (k *keywords) cell(state, column uint32) uint32 { return state*uint32(k.columns) + column }

// addEnd notes once that a keyword of n bytes ends in a state.
func (k *keywords) addEnd(state uint32, n uint16) {
	if !slices.Contains(k.ends[state], n) {
		k.ends[state] = append(k.ends[state], n)
		k.final[state] = true
	}
}

// link resolves failure links, breadth first: where a state has no way on for a
// byte, the table holds the way on of the longest suffix that is a state.
func (k *keywords) link() {
	fail := make([]uint32, len(k.ends))
	var queue []uint32
	for c := range k.columns {
		if to := k.next[c]; to != 0 {
			queue = append(queue, to)
		}
	}
	for len(queue) > 0 {
		state := queue[0]
		queue = queue[1:]
		back := fail[state]
		for _, n := range k.ends[back] {
			k.addEnd(state, n)
		}
		for c := range uint32(k.columns) {
			to, other := k.next[k.cell(state, c)], k.next[k.cell(back, c)]
			if to == 0 {
				k.next[k.cell(state, c)] = other
				continue
			}
			fail[to] = other
			queue = append(queue, to)
		}
	}
}

// count counts whole words in normalised text. White space of any length is one
// space.
func (k *keywords) count(s *scan, t []byte) (n int64) {
	if !isASCII(t) {
		s.words = foldText(s.words[:0], t)
		t = s.words
	}
	state, columns := uint32(0), uint32(k.columns)
	for at := 0; at < len(t) && !s.expired; at += chunk {
		end := min(at+chunk, len(t))
		for i := at; i < end; i++ {
			c := t[i]
			if c <= ' ' && again(t, i) {
				continue
			}
			if state = k.next[state*columns+uint32(k.class[c])]; k.final[state] {
				n += int64(k.words(t, i, state))
			}
		}
		s.look(end - at)
	}
	return n
}

// words counts the keywords that end at i, in a state, and are whole words.
func (k *keywords) words(t []byte, i int, state uint32) (n int) {
	for _, size := range k.ends[state] {
		if start := back(t, i+1, int(size)); wholeWord(t, start, i+1) {
			n++
		}
	}
	return n
}

// white are the bytes that are a space in folded text.
var white = func() (set [256]bool) {
	for c := range set {
		set[c] = foldByte(byte(c)) == ' '
	}
	return set
}()

// again reports whether the byte at i is white space behind white space.
func again(t []byte, i int) bool { return i > 0 && white[t[i]] && white[t[i-1]] }

// back returns where the size bytes before end begin, of which white space in a
// row is one.
func back(t []byte, end, size int) int {
	for ; size > 0; size-- {
		for end--; again(t, end); end-- {
		}
	}
	return end
}

// wholeWord reports whether t[start:end] is no part of a longer word.
func wholeWord(t []byte, start, end int) bool { return apart(t, start) && apart(t, end) }

// apart reports whether a word may begin or end at t[i].
func apart(t []byte, i int) bool {
	if i == 0 || i == len(t) {
		return true
	}
	if a, b := t[i-1], t[i]; a < utf8.RuneSelf && b < utf8.RuneSelf {
		return !isWordByte(a) || !isWordByte(b)
	}
	a, _ := utf8.DecodeLastRune(t[:i])
	b, _ := utf8.DecodeRune(t[i:])
	return !inWord(a) || !inWord(b)
}

func isWordByte(c byte) bool { return isAlnum(c) || c == '_' }

// inWord reports whether a rune is joined with its neighbours to a word. Scripts
// written without spaces have no such neighbours: any place is as good as a
// word's end.
func inWord(r rune) bool {
	if r < utf8.RuneSelf {
		return isWordByte(byte(r))
	}
	return unicode.In(r, unicode.Letter, unicode.Nd, unicode.Mark) &&
		!unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar)
}

// oneSpace returns folded text with one space for each run of them.
func oneSpace(t []byte) []byte {
	out := t[:0]
	for i, c := range t {
		if c != ' ' || i == 0 || t[i-1] != ' ' {
			out = append(out, c)
		}
	}
	return out
}
