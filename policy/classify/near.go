package classify

const (
	wordsBefore = 40 // bytes before a number in which a word makes it what it is
	wordsAfter  = 32 // the most bytes after it
)

// wordList prepares words to be looked for near a number.
func wordList(words ...string) *keywords {
	folded := make([][]byte, len(words))
	for i, w := range words {
		folded[i] = foldText(nil, []byte(w))
	}
	return newKeywords(folded)
}

// near reports whether one of the words stands close before t[start:end], or no
// more than after bytes behind it.
func near(t []byte, start, end, after int, words *keywords) bool {
	return words.within(t, max(0, start-wordsBefore), start) || words.within(t, end, min(len(t), end+after))
}

// within reports whether a whole word lies in t[from:to].
func (k *keywords) within(t []byte, from, to int) bool {
	if !isASCII(t[from:to]) {
		var buf [2 * (wordsBefore + wordsAfter)]byte
		t = foldText(buf[:0], t[from:to])
		from, to = 0, len(t)
	}
	state, columns := uint32(0), uint32(k.columns)
	for i := from; i < to; i++ {
		if again(t, i) {
			continue
		}
		if state = k.next[state*columns+uint32(k.class[t[i]])]; k.final[state] && k.words(t, i, state) > 0 {
			return true
		}
	}
	return false
}
