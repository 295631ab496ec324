package classify

// ssnWords say that nine digits near them are a social security number.
var ssnWords = wordList("ssn", "social security", "soc sec", "social sec", "ss#")

// ssn returns the end of a US social security number that begins the run, or 0:
// three, two and four digits between equal separators, or nine in one piece with
// a word near that says so.
func (r *digitRun) ssn(t []byte) int {
	const digits = 9
	switch {
	case r.sizes(0, "324") && r.uniform(1, 2, bySpace|byDash|byDot):
		if end := r.end(2); r.isolated(t) && endsAt(t, end) && !r.goesOnLike(3, r.before[2]) && ssnParts(&r.digits) {
			return end
		}
	case r.size[0] == digits:
		if end := r.end(0); r.isolated(t) && endsAt(t, end) && ssnParts(&r.digits) && near(t, r.start, end, wordsAfter, ssnWords) {
			return end
		}
	}
	return 0
}

// goesOnLike reports that group g exists behind the separator sep.
func (r *digitRun) goesOnLike(g int, sep separator) bool {
	return g < r.groups && r.before[g]&sep != 0
}

// ssnParts checks area, group and serial by the rules of the Social Security
// Administration: none is all zeros, areas 666 and from 900 are never given out.
func ssnParts(d *[maxRunDigits]byte) bool {
	area := int(d[0])*100 + int(d[1])*10 + int(d[2])
	return area != 0 && area != 666 && area < 900 && d[3]|d[4] != 0 && d[5]|d[6]|d[7]|d[8] != 0
}
