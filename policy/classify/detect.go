package classify

// Indexes of the built-in detectors' hit counters.
const (
	cardHits = iota
	ibanHits
	ssnHits
	emailHits
	phoneHits
	keyHits
	secretHits
)

// trigger is what a byte may be the beginning of, or the middle.
type trigger uint8

const (
	noTrigger trigger = iota
	digitTrigger
	atTrigger
	dashTrigger
	secretTrigger
)

// builtins are the built-in detectors that are switched on.
type builtins struct {
	// triggers is the prefilter: bytes of no trigger are passed over eight at a
	// time, and in most text nearly all are such.
	triggers [256]trigger
	on       [builtinCount]bool
	numbers  bool // any detector that begins with a digit
}

func newBuiltins(on [builtinCount]bool) builtins {
	b := builtins{on: on}
	b.numbers = on[cardHits] || on[ibanHits] || on[ssnHits] || on[phoneHits]
	if b.numbers {
		for c := '0'; c <= '9'; c++ {
			b.triggers[c] = digitTrigger
		}
	}
	if on[emailHits] {
		b.triggers['@'] = atTrigger
	}
	if on[secretHits] {
		for c, shapes := range secrets.shapes {
			if shapes != nil {
				b.triggers[c] = secretTrigger
			}
		}
	}
	if on[keyHits] || on[secretHits] {
		b.triggers['-'] = dashTrigger
	}
	return b
}

// scan looks at the places of t from at that begin before end, counts what it
// finds and returns where to go on. Text beyond end may belong to a finding.
// found is where the last one ended, or less than 0: what one call returns goes
// into the next, so that it makes no difference where a text is cut.
func (b *builtins) scan(hits []int64, t []byte, at, end, found int) (next, last int) {
	i := at
	for i < end {
		if i+8 <= end {
			w := t[i : i+8 : i+8]
			if b.triggers[w[0]]|b.triggers[w[1]]|b.triggers[w[2]]|b.triggers[w[3]]|
				b.triggers[w[4]]|b.triggers[w[5]]|b.triggers[w[6]]|b.triggers[w[7]] == 0 {
				i += 8
				continue
			}
		}
		for i < end && b.triggers[t[i]] == noTrigger {
			i++
		}
		if i == end {
			break
		}
		if b.triggers[t[i]] == secretTrigger && !secrets.likely(t, i) {
			i++
			continue
		}
		next, hit := b.look(hits, t, i, found)
		if i = next; hit {
			found = next
		}
	}
	return i, found
}

// look examines the trigger at t[i] and returns where to go on, and whether that
// is the end of a finding. found is the end of the last one.
func (b *builtins) look(hits []int64, t []byte, i, found int) (next int, hit bool) {
	end, kind := 0, 0
	switch b.triggers[t[i]] {
	case digitTrigger:
		return b.number(hits, t, i, found)
	case dashTrigger:
		return b.dash(hits, t, i)
	case atTrigger:
		end, kind = email(t, i), emailHits
	case secretTrigger:
		end, kind = secret(t, i), secretHits
	}
	if end == 0 {
		return i + 1, false
	}
	hits[kind]++
	return end, true
}

// dash examines a dash: the armour of a key, or the end of a secret's prefix.
func (b *builtins) dash(hits []int64, t []byte, i int) (next int, hit bool) {
	end := i + 1
	for end < len(t) && t[end] == '-' {
		end++
	}
	if b.on[keyHits] {
		if to := privateKey(t, i, end); to > 0 {
			hits[keyHits]++
			return to, true
		}
	}
	if b.on[secretHits] && end == i+1 {
		if to := secret(t, i); to > 0 {
			hits[secretHits]++
			return to, true
		}
	}
	return end, false
}

func isDigit(c byte) bool { return c-'0' <= 9 }

func isLetter(c byte) bool { return c|0x20-'a' <= 25 }

func isAlnum(c byte) bool { return isDigit(c) || isLetter(c) }

// alphabet is a set of bytes.
type alphabet [256]bool

func newAlphabet(chars string) *alphabet {
	var a alphabet
	for i := range len(chars) {
		a[chars[i]] = true
	}
	return &a
}

const (
	digitChars = "0123456789"
	lowerChars = "abcdefghijklmnopqrstuvwxyz"
	upperChars = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

var (
	alnumBytes  = newAlphabet(digitChars + lowerChars + upperChars)
	wordBytes   = newAlphabet(digitChars + lowerChars + upperChars + "_-")
	base64Byte  = newAlphabet(digitChars + lowerChars + upperChars + "+/=_-")
	hexBytes    = newAlphabet(digitChars + "abcdefABCDEF")
	base32Bytes = newAlphabet("234567" + upperChars)
)

// span returns the end of the longest run of bytes of a that begins at i.
func (a *alphabet) span(t []byte, i int) int {
	for i < len(t) && a[t[i]] {
		i++
	}
	return i
}
