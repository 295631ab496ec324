package jsonscan

// Integer reads the text of a JSON number that must be integral, from 0 to
// limit. It works on the decimal digits, so 1, 1.0 and 10e-1 are the same
// number and 1.00000000000000000001 is none, whatever a float makes of it.
func Integer(text []byte, limit int64) (v int64, ok bool) {
	negative := len(text) > 0 && text[0] == '-'
	if negative {
		text = text[1:]
	}
	mantissa, exponent := splitExponent(text)
	// The number is digits × 10^exponent once the point is taken out. Zeros at
	// the end wait, since only a digit after them makes them count.
	zeros, fraction := 0, false
	for _, ch := range mantissa {
		if ch == '.' {
			fraction = true
			continue
		}
		if fraction {
			exponent--
		}
		if ch == '0' {
			zeros++
			continue
		}
		if v > 0 {
			for ; zeros > 0; zeros-- {
				if v = v * 10; v > limit {
					return 0, false
				}
			}
		}
		zeros = 0
		if v = v*10 + int64(ch-'0'); v > limit {
			return 0, false
		}
	}
	if v == 0 {
		return 0, true
	}
	for exponent += zeros; exponent > 0; exponent-- {
		if v *= 10; v > limit {
			return 0, false
		}
	}
	if exponent != 0 || negative {
		return 0, false
	}
	return v, true
}

// splitExponent cuts a number's text at its exponent, which is held to a range
// in which no number of interest lies outside.
func splitExponent(text []byte) (mantissa []byte, exponent int) {
	const bound = 1 << 30
	for i, ch := range text {
		if ch != 'e' && ch != 'E' {
			continue
		}
		negative := false
		for _, ch := range text[i+1:] {
			switch ch {
			case '-':
				negative = true
			case '+':
			default:
				exponent = min(exponent*10+int(ch-'0'), bound)
			}
		}
		if negative {
			exponent = -exponent
		}
		return text[:i], exponent
	}
	return text, 0
}
