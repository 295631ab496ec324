package classify

import "slices"

// card returns the end of a payment card number that begins the run, or 0. A
// card is 13 to 19 digits with an issuer's prefix, a length that this issuer
// gives out, and a Luhn check digit; written in one piece, in groups of four or
// more of which the last may have three, or digit by digit. Groups behind
// another group of four belong to a longer number, unless that was a finding,
// which ended at found.
func (r *digitRun) card(t []byte, found int) int {
	const shortest, longest = 13, 19
	if r.n < shortest || !r.isolated(t) || r.size[0] == 4 && found != separatedFrom(t, r.start) && behindFour(t, r.start) {
		return 0
	}
	if n := r.spelled(); n > 1 {
		if n >= shortest && n <= longest && isCard(r.digits[:n]) && endsAt(t, r.end(n-1)) {
			return r.end(n - 1)
		}
		return 0
	}
	total := 0
	for g := range r.groups {
		if total += int(r.size[g]); total > longest {
			return 0
		}
		if total >= shortest && (g == 0 || r.size[g] >= 3 && r.cardGroups(g)) &&
			isCard(r.digits[:total]) && r.cardEnds(t, g) && r.usual(t, g, total) {
			return r.end(g)
		}
		if r.size[g] < 4 {
			return 0
		}
	}
	return 0
}

// cardGroups reports whether the groups up to g stand apart as those of a card do:
// all by the same, or in the groups that are printed on cards by whatever.
func (r *digitRun) cardGroups(g int) bool {
	if r.uniform(1, g, bySpace|byDash|byDot|bySlash) {
		return true
	}
	for i := 1; i <= g; i++ {
		if r.before[i]&^(bySpace|byDash|byDot|bySlash|byLine) != 0 {
			return false
		}
	}
	return r.sizes(0, "4444") || r.sizes(0, "465") || r.sizes(0, "464")
}

// cardForms are the groups that are printed on cards.
var cardForms = [...][]int{{4, 4, 4, 4}, {4, 6, 5}, {4, 6, 4}}

// markedCard returns the end of a card number whose first group of four digits is
// at t[i] and whose groups, as they are printed on cards, stand apart by tabs,
// underscores or commas; or 0. Such marks are otherwise between numbers of their
// own, so that neither a number of four digits may go before nor one follow: then
// it is a row of a table. With a space behind each comma it is a list of numbers,
// unless a word near says that it is a card.
func markedCard(t []byte, i int) int {
	mark := byte(0)
	if i+4 < len(t) {
		mark = t[i+4]
	}
	if mark != '\t' && mark != '_' && mark != ',' || !beginsAt(t, i) {
		return 0
	}
	if i > 0 && (mark == '_' && t[i-1] == '_' || t[i-1] == '.' || t[i-1] == '+') {
		return 0
	}
	for _, form := range cardForms {
		if end := marked(t, i, mark, form); end > 0 {
			listed := mark == ',' && t[i+5] == ' '
			if rowGoesOn(t, i, end, mark) || listed && !near(t, i, end, wordsAfter, cardWords) {
				return 0
			}
			return end
		}
	}
	return 0
}

// marked returns the end of a card number in groups of these sizes, or 0.
func marked(t []byte, i int, mark byte, form []int) int {
	var digits [maxRunDigits]byte
	n := 0
	for g, size := range form {
		if g > 0 {
			if i = behindMark(t, i, mark); i < 0 {
				return 0
			}
		}
		for range size {
			if i >= len(t) || !isDigit(t[i]) {
				return 0
			}
			digits[n] = t[i] - '0'
			n, i = n+1, i+1
		}
	}
	if !endsAt(t, i) || mark == '_' && i < len(t) && t[i] == '_' || !isCard(digits[:n]) {
		return 0
	}
	return i
}

// behindMark returns where the group behind a mark begins, or -1.
func behindMark(t []byte, i int, mark byte) int {
	if i >= len(t) || t[i] != mark {
		return -1
	}
	if i++; mark == ',' && i < len(t) && t[i] == ' ' {
		i++
	}
	return i
}

// rowGoesOn reports whether a number of four digits stands before t[i] or behind
// t[:end], apart from it by the mark.
func rowGoesOn(t []byte, i, end int, mark byte) bool {
	if next := behindMark(t, end, mark); next >= 0 && fourDigits(t, next) {
		return true
	}
	if mark == ',' && i > 0 && t[i-1] == ' ' {
		i--
	}
	return i > 4 && t[i-1] == mark && fourDigits(t, i-5)
}

// fourDigits reports whether a number of four digits is at t[i].
func fourDigits(t []byte, i int) bool {
	for n := range 4 {
		if i+n >= len(t) || !isDigit(t[i+n]) {
			return false
		}
	}
	return (i == 0 || !isDigit(t[i-1])) && (i+4 >= len(t) || !isDigit(t[i+4]))
}

// cardWords say that digits near them are a card.
var cardWords = wordList("card", "visa", "credit", "debit", "pan", "cc", "cvv", "cvc", "karte", "kreditkarte", "carte", "tarjeta", "cartão", "carta", "kaart", "карта", "卡", "卡号", "カード", "카드")

// usual reports whether the length is one that the issuer gives out today, or
// groups or a word near say that it is a card all the same: Visa's of 13 digits
// are no longer given out and those of 19 are few, while article numbers and
// identifiers of these lengths are many.
func (r *digitRun) usual(t []byte, g, total int) bool {
	return r.digits[0] != 4 || total == 16 || g > 0 || near(t, r.start, r.end(g), wordsAfter, cardWords)
}

// separatedFrom is where the text before t[i] ends, over one separator.
func separatedFrom(t []byte, i int) int {
	p := previous(t, i)
	if p >= 0 && separators[t[p]] != 0 {
		return previous(t, p) + 1
	}
	return -1
}

// behindFour reports that four digits and no more, a space or dash stand before t[i].
func behindFour(t []byte, i int) bool {
	p := previous(t, i)
	if p < 0 || separators[t[p]]&(bySpace|byDash) == 0 {
		return false
	}
	n := 0
	for p = previous(t, p); p >= 0 && isDigit(t[p]) && n <= 4; p = previous(t, p) {
		n++
	}
	return n == 4
}

// spelled is how many single digits the run begins with, all apart by the same.
func (r *digitRun) spelled() int {
	n := 0
	for n < r.groups && r.size[n] == 1 && (n < 2 || r.before[n] == r.before[1]) {
		n++
	}
	return n
}

// cardEnds reports that the number does not go on after group g: not with a
// letter, and not with another group after a dash, as identifiers do.
func (r *digitRun) cardEnds(t []byte, g int) bool {
	end := r.end(g)
	if !endsAt(t, end) {
		return false
	}
	dashed := g > 0 && r.before[g] == byDash
	return !dashed || end+1 >= len(t) || t[end] != '-' || !isAlnum(t[end+1])
}

func isCard(digits []byte) bool { return issued(digits) && luhn(digits) }

// luhn reports whether the last digit is the check digit of ISO/IEC 7812-1,
// annex B. digits are values, not characters.
func luhn(digits []byte) bool {
	sum := 0
	double := false
	for _, digit := range slices.Backward(digits) {
		d := int(digit)
		if double {
			if d *= 2; d > 9 {
				d -= 9
			}
		}
		sum += d
		double = !double
	}
	return sum%10 == 0
}

// issuer is a range of six-digit prefixes and the lengths given out with it.
type issuer struct {
	from, to       int
	minLen, maxLen int
}

// issuers are the ranges of ISO/IEC 7812 that card schemes publish.
var issuers = [...]issuer{
	{220000, 220499, 16, 19}, // Mir
	{222100, 272099, 16, 16}, // Mastercard
	{300000, 305999, 14, 16}, // Diners Club
	{309500, 309599, 14, 16},
	{340000, 349999, 15, 15}, // American Express
	{352800, 358999, 16, 19}, // JCB
	{360000, 369999, 14, 16}, // Diners Club
	{370000, 379999, 15, 15}, // American Express
	{380000, 399999, 14, 16}, // Diners Club
	{400000, 499999, 13, 19}, // Visa: 13, 16, 19 (issued)
	{501800, 501899, 13, 19}, // Maestro
	{502000, 502099, 13, 19},
	{503800, 503899, 13, 19},
	{506000, 506999, 16, 19}, // Verve, Elo
	{508000, 508999, 16, 16}, // RuPay
	{510000, 559999, 16, 16}, // Mastercard
	{589300, 589399, 13, 19}, // Maestro
	{601100, 601199, 16, 19}, // Discover
	{620000, 629999, 16, 19}, // UnionPay
	{630400, 630499, 13, 19}, // Maestro
	{644000, 659999, 16, 19}, // Discover
	{675900, 676399, 13, 19}, // Maestro
	{810000, 829999, 16, 19}, // UnionPay, RuPay
}

// issued reports whether an issuer gives out numbers of this prefix and length.
func issued(digits []byte) bool {
	prefix := 0
	for _, d := range digits[:6] {
		prefix = prefix*10 + int(d)
	}
	n := len(digits)
	for i := range issuers {
		is := &issuers[i]
		if prefix < is.from {
			return false
		}
		if prefix <= is.to {
			visa := digits[0] == 4
			return n >= is.minLen && n <= is.maxLen && (!visa || n%3 == 1)
		}
	}
	return false
}
