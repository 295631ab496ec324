package classify

// separator is a set of the characters between two groups of digits.
type separator uint8

const (
	bySpace separator = 1 << iota
	byDash
	byDot
	byLine
	byParen
	bySlash
)

// separators are the characters that a written number may contain. Soft breaks
// aren't among them: they are nothing at all.
var separators = [256]separator{
	' ': bySpace, '-': byDash, '.': byDot, '\n': byLine, '\r': byLine, '(': byParen, ')': byParen, '/': bySlash,
}

const (
	maxRunDigits = 20 // one more than any number here has
	maxSeparator = 3  // characters
	shortNumber  = 7  // no number of fewer digits is anything
)

// digitRun is the groups of digits from a place on, as far as they may belong to
// one number.
type digitRun struct {
	start  int
	n      int                // digits
	digits [maxRunDigits]byte // their values
	groups int
	size   [maxRunDigits]uint8  // digits of each group
	until  [maxRunDigits]uint32 // offset behind each group, from start
	before [maxRunDigits]separator
	// more says that the run does not end here.
	more bool
}

// number examines the digits from t[i], of which t[i-1] is none, and returns
// where to go on. found is where the last finding ended.
func (b *builtins) number(hits []int64, t []byte, i, found int) (next int, hit bool) {
	if b.on[ibanHits] && i >= 2 && (isLetter(t[i-1]) || t[i-1] == softBreak) {
		if end := iban(t, i); end > 0 {
			hits[ibanHits]++
			return end, true
		}
	}
	j := i + 1
	for j < len(t) && isDigit(t[j]) {
		j++
	}
	if b.on[cardHits] && j-i == 4 {
		if end := markedCard(t, i); end > 0 {
			hits[cardHits]++
			return end, true
		}
	}
	if j-i > maxRunDigits || !worth(t, i, j) {
		return j, false
	}
	var r digitRun
	r.read(t, i)
	if b.on[cardHits] {
		if end := r.card(t, found); end > 0 {
			hits[cardHits]++
			return end, true
		}
	}
	if b.on[ssnHits] {
		if end := r.ssn(t); end > 0 {
			hits[ssnHits]++
			return end, true
		}
	}
	if b.on[phoneHits] {
		if end := r.phone(t); end > 0 {
			hits[phoneHits]++
			return end, true
		}
	}
	return r.end(0), false
}

// worth reports whether the group of digits t[i:j] may begin a number of any kind,
// going by its size and that of the next group: most numbers in a text are too
// short, and in a table each would have to be read with all that follow.
func worth(t []byte, i, j int) bool {
	size := j - i
	if size >= shortNumber {
		return true
	}
	next, soft := nextGroup(t, j)
	switch {
	case soft:
		return true
	case next == 0:
		return false
	case size >= 4 && next >= 3: // a card
		return true
	case size == 3 && next <= 3: // a social security number, or a telephone number
		return true
	case size > 1 && t[i] == '0' || i > 0 && (t[i-1] == '+' || t[i-1] == softBreak): // a telephone number
		return true
	case size == 1 && t[i] == '1' && next == 3:
		return true
	}
	// Anything may be a telephone number that a word says to be one, and single
	// digits a card, but not in the middle of other numbers.
	return i < 2 || separators[t[i-1]]&(bySpace|byDash|byDot|bySlash) == 0 || !isDigit(t[i-2])
}

// nextGroup returns the size of the group of digits behind t[:j], at most 4, and
// whether a soft break is in reach.
func nextGroup(t []byte, j int) (size int, soft bool) {
	const enough = 4
	t = t[j:min(len(t), j+maxSeparator+enough)]
	k := 0
	for k < len(t) && k <= maxSeparator && separators[t[k]] != 0 {
		k++
	}
	if k < len(t) && t[k] == softBreak {
		return 0, true
	}
	if k == 0 || k > maxSeparator {
		return 0, false
	}
	for k < len(t) && isDigit(t[k]) && size < enough {
		size++
		k++
	}
	return size, k < len(t) && t[k] == softBreak
}

// end is the offset behind a group.
func (r *digitRun) end(group int) int { return r.start + int(r.until[group]) }

// read collects groups until there is no more, or more digits than a number has.
func (r *digitRun) read(t []byte, i int) {
	r.start = i
	for {
		end, full := r.group(t, i)
		r.until[r.groups] = uint32(end - r.start)
		r.groups++
		if full {
			r.more = true
			return
		}
		next, sep := separate(t, end)
		if next < 0 {
			return
		}
		if r.n == maxRunDigits {
			r.more = true
			return
		}
		r.before[r.groups] = sep
		i = next
	}
}

// group reads digits, over soft breaks between them.
func (r *digitRun) group(t []byte, i int) (end int, full bool) {
	for i < len(t) {
		switch {
		case isDigit(t[i]):
			if r.n == maxRunDigits {
				full = true
			} else {
				r.digits[r.n] = t[i] - '0'
				r.n++
				r.size[r.groups]++
			}
			i++
			end = i
		case t[i] == softBreak:
			i++
		default:
			return end, full
		}
	}
	return end, full
}

// separate reads what is between two groups of digits. next is where the second
// begins, or -1 if there is none.
func separate(t []byte, i int) (next int, sep separator) {
	const softBreaks = 8
	for n, soft := 0, 0; i < len(t); i++ {
		c := t[i]
		switch {
		case isDigit(c):
			return i, sep
		case c == softBreak && soft < softBreaks:
			soft++
		case separators[c] != 0 && n < maxSeparator:
			n++
			sep |= separators[c]
		default:
			return -1, 0
		}
	}
	return -1, 0
}

// uniform reports whether all separators of the groups from first to last are one
// and the same of the allowed ones. A line break counts as a space, and a dash
// between spaces as a dash.
func (r *digitRun) uniform(first, last int, allowed separator) bool {
	want := separator(0)
	for g := first; g <= last; g++ {
		sep := r.before[g]
		if sep&byLine != 0 {
			sep = sep&^byLine | bySpace
		}
		if sep == bySpace|byDash {
			sep = byDash
		}
		if want == 0 {
			want = sep
		}
		if sep != want {
			return false
		}
	}
	return want&^allowed == 0 && want&(want-1) == 0
}

// sizes reports whether the groups have these sizes, one digit of want each.
func (r *digitRun) sizes(from int, want string) bool {
	if r.groups < from+len(want) {
		return false
	}
	for i := range len(want) {
		if r.size[from+i] != want[i]-'0' {
			return false
		}
	}
	return true
}

// isolated reports that nothing is written up against the start of the run that
// makes it part of something longer: a word, or a number with a decimal point or
// a dash.
func (r *digitRun) isolated(t []byte) bool {
	if r.start == 0 {
		return true
	}
	switch t[r.start-1] {
	case '+':
		return false
	case '.', '-':
		return r.start < 2 || !isDigit(t[r.start-2])
	}
	return beginsAt(t, r.start)
}

// beginsAt reports that no letter or digit stands before t[i]. The letter of an
// escaped line break is none: text may hold JSON or code that holds text.
func beginsAt(t []byte, i int) bool {
	if i == 0 || !isAlnum(t[i-1]) {
		return true
	}
	c := t[i-1]
	return (c == 'n' || c == 'r' || c == 't') && i > 1 && t[i-2] == '\\'
}

// endsAt reports that no letter or digit follows t[:end].
func endsAt(t []byte, end int) bool { return end >= len(t) || !isAlnum(t[end]) }

// previous returns the index of the byte before i, over soft breaks, or -1.
func previous(t []byte, i int) int {
	for i--; i >= 0 && t[i] == softBreak; i-- {
	}
	return i
}
