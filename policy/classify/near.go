package classify

import "bytes"

const (
	wordsBefore = 40 // bytes before a number in which a word makes it what it is
	wordsAfter  = 32
)

// near reports whether one of the words stands close before t[start:end], or a
// little less close after it. words are lower-case ASCII or not cased at all.
func near(t []byte, start, end int, words []string) bool {
	var buf [wordsBefore + wordsAfter]byte
	return hasWord(lower(buf[:0], t[max(0, start-wordsBefore):start]), words) ||
		hasWord(lower(buf[:0], t[end:min(len(t), end+wordsAfter)]), words)
}

// lower appends t with ASCII letters in lower case and soft breaks as spaces.
func lower(dst, t []byte) []byte {
	for _, c := range t {
		switch {
		case c-'A' <= 25:
			c |= 0x20
		case c == softBreak:
			c = ' '
		}
		dst = append(dst, c)
	}
	return dst
}

// hasWord reports whether a word occurs whole: no ASCII letter beside it.
func hasWord(t []byte, words []string) bool {
	for _, w := range words {
		for from := 0; ; {
			i := bytes.Index(t[from:], []byte(w))
			if i < 0 {
				break
			}
			start, end := from+i, from+i+len(w)
			if (start == 0 || !isLetter(t[start-1]) || w[0] >= 0x80) && (end == len(t) || !isLetter(t[end]) || w[0] >= 0x80) {
				return true
			}
			from = start + 1
		}
	}
	return false
}
