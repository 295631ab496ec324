package remote

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// TestSplit: every byte is in a piece, no piece is too long, none begins or
// ends within a character, and places are counted in characters.
func TestSplit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOf(rapid.SampledFrom([]string{"a", "é", "🙂", "漢字", " ", "\n", "word ", strings.Repeat("x", 50), "\xff", "\x80\x80\x80\x80\x80"})).Draw(t, "words")
		text, size := strings.Join(words, ""), rapid.IntRange(16, 200).Draw(t, "size")
		valid := utf8.ValidString(text)
		at := 0 // bytes of text that pieces have covered
		pieces := split(text, size)
		for i, p := range pieces {
			if len(p.text) > size || p.runes != utf8.RuneCountInString(p.text) {
				t.Fatalf("piece %d has %d bytes, %d runes counted", i, len(p.text), p.runes)
			}
			if valid && !utf8.ValidString(p.text) {
				t.Fatalf("piece %d is cut within a character: %q", i, p.text)
			}
			if !valid { // counts of code points are not comparable across a cut of what is no UTF-8
				continue
			}
			begin := len(string([]rune(text)[:p.start]))
			if begin > at || !strings.HasPrefix(text[begin:], p.text) {
				t.Fatalf("piece %d begins at %d, covered %d: %q", i, begin, at, p.text)
			}
			if i > 0 && at-begin > overlap+utf8.UTFMax {
				t.Fatalf("pieces share %d bytes", at-begin)
			}
			at = begin + len(p.text)
		}
		if valid && at != len(text) {
			t.Fatalf("%d of %d bytes are covered", at, len(text))
		}
		if most := 2*len(text)/size + 2; len(pieces) > most {
			t.Fatalf("%d pieces of %d bytes, at most %d", len(pieces), len(text), most)
		}
	})
}

func TestSplitBorders(t *testing.T) {
	long := strings.Repeat("x", 240)
	for text, want := range map[string]string{
		long + "\n12345 7890" + long:          long + "\n",               // a line break goes before a space
		long + "12345 7890" + long:            long + "12345 ",           // a space before nothing
		long + "1234567890123456789":          long + "1234567890123456", // nothing near
		strings.Repeat("x", 255) + "é" + long: strings.Repeat("x", 255),
	} {
		if got := split(text, 256)[0].text; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := split("short", 256); len(got) != 1 || got[0] != (piece{text: "short", runes: 5}) {
		t.Errorf("%+v", got)
	}
}
