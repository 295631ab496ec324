package classify

// phoneWords say that digits near them are a telephone number.
var phoneWords = wordList(
	"phone", "telephone", "tel", "mobile", "mobil", "cell", "cellphone", "fax", "call me", "callback", "hotline", "dial", "reach me", "text me",
	"whatsapp", "sms", "telefon", "telefonnummer", "handy", "handynummer", "rufnummer", "téléphone", "portable",
	"teléfono", "móvil", "celular", "telefono", "cellulare", "telefone", "telefoon", "телефон", "电话", "電話", "手机", "手機", "携帯", "전화",
)

const (
	shortestPhone = 7
	longestPhone  = 15 // ITU-T E.164
	phoneAfter    = 12 // bytes behind a number in which a word makes it one: (mobile)
	phoneMarks    = bySpace | byDash | byDot | byParen | bySlash
)

// phone returns the end of a telephone number that begins the run, or 0:
//
//   - +, a country code and the rest, 7 to 15 digits, grouped in any way;
//   - 00 and the same, in groups;
//   - the North American form: three, three and four digits;
//   - the forms with a trunk 0, in groups, or eleven digits in one piece;
//   - an area code in parentheses and the rest;
//   - 7 to 15 digits with a word near that says so.
//
// Ten digits alone are no number: times, accounts and books look the same.
func (r *digitRun) phone(t []byte) int {
	n := r.phoneGroups()
	total := r.total(n)
	if total < shortestPhone || !endsAt(t, r.end(n-1)) {
		return 0
	}
	end := r.end(n - 1)
	if p := previous(t, r.start); p >= 0 && (t[p] == '+' || t[p] == '(' && p > 0 && t[p-1] == '+') {
		if r.international(0, total) && (t[p] != '+' || p == 0 || !isAlnum(t[p-1])) && !r.isoDate(n) {
			return end
		}
		return 0
	}
	if !r.isolated(t) || r.dateLike(n) {
		return 0
	}
	// The text goes on with numbers: it is a table and not a telephone number.
	whole := !r.more && (n == r.groups || r.before[n]&byLine != 0) && !r.follows(t)
	switch {
	case whole && n > 1 && r.digits[0]|r.digits[1] == 0 && r.size[0] <= 5 && r.international(2, total):
		return end
	case r.northAmerican(n) && (whole || r.marked(n)):
		return end
	case whole && (r.trunk(n, total) || r.areaCode(t, n, total)):
		return end
	case (whole || r.marked(n)) && total <= longestPhone && r.sizesPlausible(n) && near(t, r.start, end, phoneAfter, phoneWords):
		return end
	}
	return 0
}

// phoneGroups is how many groups belong together: their separators are marks of
// telephone numbers and not line breaks, and no more digits than a number has.
func (r *digitRun) phoneGroups() int {
	total := int(r.size[0])
	for g := 1; g < r.groups; g++ {
		if r.before[g]&^phoneMarks != 0 || total+int(r.size[g]) > longestPhone+2 {
			return g
		}
		total += int(r.size[g])
	}
	return r.groups
}

func (r *digitRun) total(groups int) int {
	total := 0
	for g := range groups {
		total += int(r.size[g])
	}
	return total
}

// follows reports that a group of digits stands right before the run.
func (r *digitRun) follows(t []byte) bool {
	i := previous(t, r.start)
	return i >= 1 && separators[t[i]]&(bySpace|byDash|byDot|bySlash) != 0 && isDigit(t[i-1])
}

// international reports whether the digits from skip on are a country code of
// ITU-T E.164 with enough after it.
func (r *digitRun) international(skip, total int) bool {
	if total-skip < shortestPhone || total-skip > longestPhone || total > r.n {
		return false
	}
	d := r.digits[skip:total]
	switch d[0] {
	case 0:
		return false
	case 1: // North America: ten digits follow, area and exchange from 2 on
		return len(d) == 11 && d[1] >= 2 && d[4] >= 2
	case 7:
		return len(d) == 11
	}
	// Two-digit codes; all others have three.
	switch d[0]*10 + d[1] {
	case 20, 27, 30, 31, 32, 33, 34, 36, 39, 40, 41, 43, 44, 45, 46, 47, 48, 49, 51, 52, 53, 54, 55, 56, 57, 58,
		60, 61, 62, 63, 64, 65, 66, 81, 82, 84, 86, 90, 91, 92, 93, 94, 95, 98:
		return len(d) >= 8
	case 28, 83, 89:
		return false // not assigned
	}
	return true
}

// northAmerican reports whether the groups are area, exchange and line, with or
// without the country code.
func (r *digitRun) northAmerican(n int) bool {
	from := 0
	if n == 4 && r.size[0] == 1 && r.digits[0] == 1 {
		from = 1
	}
	if n-from != 3 || !r.sizes(from, "334") {
		return false
	}
	d := r.digits[from:]
	if d[0] < 2 || d[3] < 2 {
		return false
	}
	// (212) 555-0134 and 212/555-0134 have two kinds of separators.
	return r.before[from+1]&(byParen|bySlash) != 0 || r.uniform(from+1, from+2, bySpace|byDash|byDot)
}

// marked reports that the separators are more than spaces.
func (r *digitRun) marked(n int) bool {
	for g := 1; g < n; g++ {
		if r.before[g] == bySpace {
			return false
		}
	}
	return true
}

// trunk reports whether the groups are a national number that begins with a
// single 0: area code and subscriber in two to five groups, or pairs of digits.
func (r *digitRun) trunk(n, total int) bool {
	const shortest, longest = 9, 12
	const onePiece = 11
	if r.digits[0] != 0 || r.digits[1] == 0 {
		return false
	}
	if n == 1 {
		return total == onePiece
	}
	if n > 5 || total < shortest || total > longest {
		return false
	}
	if r.size[0] == 2 {
		pairs := n == 5 && r.sizes(0, "22222") || n == 3 && r.sizes(0, "244")
		return (pairs || n == 2 && r.size[1] >= 7) && r.uniform(1, n-1, bySpace|byDash|byDot)
	}
	if r.size[0] < 3 || r.size[0] > 6 {
		return false
	}
	for g := 1; g < n; g++ {
		if r.size[g] < 2 {
			return false
		}
	}
	return n == 2 || r.before[1]&(byParen|bySlash) != 0 || r.uniform(1, n-1, bySpace|byDash|byDot)
}

// areaCode reports whether the groups are an area code in parentheses, alone or
// behind a trunk digit, and a subscriber's number. With two digits and eight more
// it may as well be an issue of a journal and its pages.
func (r *digitRun) areaCode(t []byte, n, total int) bool {
	const shortest, longest = 10, 12
	area := 0
	if n > 2 && r.size[0] == 1 && r.before[1]&byParen != 0 {
		area = 1
	} else if p := previous(t, r.start); p < 0 || t[p] != '(' {
		return false
	}
	if n < area+2 || r.before[area+1]&byParen == 0 || total < shortest || total > longest || !r.sizesPlausible(n) {
		return false
	}
	size := r.size[area]
	return size >= 3 && size <= 5 || size == 2 && total > shortest
}

// sizesPlausible reports that groups are not single digits, but for a first one.
func (r *digitRun) sizesPlausible(n int) bool {
	for g := 1; g < n; g++ {
		if r.size[g] < 2 {
			return false
		}
	}
	return true
}

// dateLike reports whether the groups begin like a date: 2026-11-30, 30.11.2026,
// 11/30/2026, with days and months of one or two digits.
func (r *digitRun) dateLike(n int) bool {
	if n < 3 {
		return false
	}
	a, b, c := r.size[0], r.size[1], r.size[2]
	return r.isoDate(n) || a <= 2 && b <= 2 && c == 4 && r.century(int(a+b))
}

// isoDate reports whether the groups begin like a date with its year first. Such
// a line added by a patch begins with a plus.
func (r *digitRun) isoDate(n int) bool {
	return n >= 3 && r.size[0] == 4 && r.size[1] <= 2 && r.size[2] <= 2 && r.century(0)
}

// century reports whether the digits from i on may be a year.
func (r *digitRun) century(i int) bool {
	return r.digits[i] == 1 && r.digits[i+1] == 9 || r.digits[i] == 2 && r.digits[i+1] == 0
}
