package remote

import (
	"strings"
	"unicode/utf8"
)

// piece is a part of a text that is sent by itself.
type piece struct {
	text string
	// start is its place in the whole text and runes its length, in code points.
	start, runes int
}

// overlap is how many bytes neighbours share, at most: what is longer can be
// missed at a border.
const overlap = 128

// split cuts a text into pieces of at most size bytes, of which neighbours
// overlap. It cuts after a line break or a space if there is one near, and
// never within a character. size is at least 16.
func split(text string, size int) []piece {
	var out []piece
	start := 0 // code points before text
	for len(text) > size {
		end := cutBefore(text, size)
		out = append(out, piece{text: text[:end], start: start, runes: utf8.RuneCountInString(text[:end])})
		next := runeStart(text, end-min(overlap, end/4))
		start += utf8.RuneCountInString(text[:next])
		text = text[next:]
	}
	return append(out, piece{text: text, start: start, runes: utf8.RuneCountInString(text)})
}

// cutBefore is where a piece of at most size bytes ends.
func cutBefore(text string, size int) int {
	from := size - size/8
	near := text[from:size]
	for _, border := range []byte{'\n', ' '} {
		if i := strings.LastIndexByte(near, border); i >= 0 {
			return from + i + 1
		}
	}
	return runeStart(text, size)
}

// runeStart is the beginning of the character that holds the i-th byte. In what
// is no UTF-8 it is i.
func runeStart(text string, i int) int {
	for j := i; j > i-utf8.UTFMax; j-- {
		if utf8.RuneStart(text[j]) {
			return j
		}
	}
	return i
}
