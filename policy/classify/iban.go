package classify

import "strings"

// ibanFormats are the account formats of the IBAN registry (ISO 13616) by
// country: counts of n digits, a capital letters, c either. The IBAN is four
// characters longer.
const ibanFormats = `AD 8n12c|AE 19n|AL 8n16c|AT 16n|AZ 4a20c|BA 16n|BE 12n|BG 4a6n8c|BH 4a14c|BI 23n|BR 23n1a1c|BY 4c4n16c|` +
	`CH 5n12c|CR 18n|CY 8n16c|CZ 20n|DE 18n|DJ 23n|DK 14n|DO 4c20n|EE 16n|EG 25n|ES 20n|FI 14n|FK 2a12n|FO 14n|FR 10n11c2n|` +
	`GB 4a14n|GE 2a16n|GI 4a15c|GL 14n|GR 7n16c|GT 4c20c|HN 4a20n|HR 17n|HU 24n|IE 4a14n|IL 19n|IQ 4a15n|IS 22n|IT 1a10n12c|` +
	`JO 4a4n18c|KW 4a22c|KZ 3n13c|LB 4n20c|LC 4a24c|LI 5n12c|LT 16n|LU 3n13c|LV 4a13c|LY 21n|MC 10n11c2n|MD 2c18c|ME 18n|` +
	`MK 3n10c2n|MN 16n|MR 23n|MT 4a5n18c|MU 4a19n3a|NI 4a20n|NL 4a10n|NO 11n|OM 3n16c|PK 4a16c|PL 24n|PS 4a21c|PT 21n|` +
	`QA 4a21c|RO 4a16c|RS 18n|RU 14n15c|SA 2n18c|SC 4a20n3a|SD 14n|SE 20n|SI 15n|SK 20n|SM 1a10n12c|SO 19n|ST 21n|SV 4a20n|` +
	`TL 19n|TN 20n|TR 6n16c|UA 6n19c|VA 18n|VG 4a16n|XK 16n|YE 4a4n18c`

// longestIBAN is the length of the longest: RU.
const longestIBAN = 33

// ibanTable holds for each pair of letters the format of the account, one byte of
// n, a or c a character; "" is no country.
var ibanTable = func() (table [26 * 26]string) {
	for entry := range strings.SplitSeq(ibanFormats, "|") {
		var format strings.Builder
		n := 0
		for _, c := range entry[3:] {
			if c >= '0' && c <= '9' {
				n = n*10 + int(c-'0')
				continue
			}
			format.WriteString(strings.Repeat(string(c), n))
			n = 0
		}
		table[int(entry[0]-'A')*26+int(entry[1]-'A')] = format.String()
	}
	return table
}()

// iban returns the end of the IBAN whose check digits begin at t[i], or 0. It has
// a country's length and format and the check digits of ISO 7064 MOD 97-10, and
// is written in one piece or in groups of four.
func iban(t []byte, i int) int {
	second := previous(t, i)
	first := previous(t, second)
	if first < 0 || !isLetter(t[second]) || !isLetter(t[first]) || !beginsAt(t, first) {
		return 0
	}
	format := ibanTable[int(t[first]&0x1f-1)*26+int(t[second]&0x1f-1)]
	if format == "" {
		return 0
	}
	var chars [longestIBAN]byte
	chars[0], chars[1] = t[first]&^0x20, t[second]&^0x20
	end := ibanChars(chars[2:4+len(format)], t, i)
	if end == 0 || !endsAt(t, end) {
		return 0
	}
	account := chars[4 : 4+len(format)]
	if !checkDigits(chars[2], chars[3]) || !fitsFormat(account, format) || !mod97(chars[:4+len(format)]) {
		return 0
	}
	return end
}

// ibanChars fills dst with the capital letters and digits from t[i] on, over
// separators between groups of four, and returns the end in t, or 0.
func ibanChars(dst, t []byte, i int) int {
	const group = 4
	grouped := false
	for n := 0; n < len(dst); i++ {
		if i >= len(t) {
			return 0
		}
		c := t[i]
		switch {
		case isAlnum(c):
			if c > '9' {
				c &^= 0x20
			}
			// Two characters came before dst.
			if place := n + 2; grouped && place > group && place%group == 0 && separatorBefore(t, i) == 0 {
				return 0
			}
			dst[n] = c
			n++
			if n == len(dst) {
				return i + 1
			}
		case c == softBreak:
		case separators[c]&(bySpace|byDash|byLine) != 0:
			if (n+2)%group != 0 || n+2 > group && !grouped {
				return 0
			}
			if separatorBefore(t, i) != 0 {
				return 0 // two in a row
			}
			grouped = true
		default:
			return 0
		}
	}
	return 0
}

// separatorBefore returns the separator before t[i], over soft breaks.
func separatorBefore(t []byte, i int) separator {
	if p := previous(t, i); p >= 0 {
		return separators[t[p]]
	}
	return 0
}

// checkDigits reports whether a and b are check digits that the algorithm yields:
// 02 to 98. Others may leave 1 as well.
func checkDigits(a, b byte) bool {
	n := int(a-'0')*10 + int(b-'0')
	return isDigit(a) && isDigit(b) && n >= 2 && n <= 98
}

func fitsFormat(account []byte, format string) bool {
	for i, c := range account {
		switch format[i] {
		case 'n':
			if !isDigit(c) {
				return false
			}
		case 'a':
			if !isLetter(c) {
				return false
			}
		}
	}
	return true
}

// mod97 checks an IBAN of capital letters and digits by ISO 7064: the account and
// then the first four characters, letters as 10 to 35, leave 1.
func mod97(chars []byte) bool {
	rest := 0
	for i := range chars {
		c := chars[(i+4)%len(chars)]
		if isDigit(c) {
			rest = (rest*10 + int(c-'0')) % 97
		} else {
			rest = (rest*100 + int(c-'A') + 10) % 97
		}
	}
	return rest == 1
}
