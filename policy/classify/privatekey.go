package classify

import "bytes"

const (
	keyBody   = 40      // base64 characters in a row that a key has at least
	keyReach  = 1024    // bytes behind the header in which they begin
	puttyBody = 4 << 10 // bytes behind a PuTTY header in which its private part begins
	keyLabel  = 48      // bytes of a header's label
	keyAlpha  = 16      // different characters in keyBody of them
)

// privateKey returns where to go on behind the header of a private key at the
// dashes t[i:end], or 0. A header without the base64 text of a key behind it is a
// mention of one. The formats: PEM (RFC 7468, with OpenSSH's and OpenPGP's
// labels), SSH2 (RFC 4716) and PuTTY.
func privateKey(t []byte, i, end int) int {
	switch dashes := end - i; {
	case dashes >= 5:
		return armoured(t, end, "BEGIN ", "-----")
	case dashes == 4:
		return armoured(t, end, " BEGIN ", " ----")
	case dashes == 1:
		return putty(t, i)
	}
	return 0
}

// armoured reads a header's label from t[i] on.
func armoured(t []byte, i int, begin, closing string) int {
	if !bytes.HasPrefix(t[i:], []byte(begin)) {
		return 0
	}
	i += len(begin)
	label := t[i:min(len(t), i+keyLabel)]
	n := bytes.Index(label, []byte(closing))
	if n < 0 || !bytes.Contains(label[:n], []byte("PRIVATE KEY")) {
		return 0
	}
	i += n + len(closing)
	if !hasKeyBody(t[i:min(len(t), i+keyReach)]) {
		return 0
	}
	return i
}

// hasKeyBody reports whether text holds base64 such as a key is made of.
func hasKeyBody(t []byte) bool {
	for i := 0; i < len(t); i++ {
		end := alnumSlash.span(t, i)
		if end-i >= keyBody && distinct(t[i:end]) >= keyAlpha {
			return true
		}
		i = end
		if bytes.HasPrefix(t[i:], []byte("-----")) {
			return false
		}
	}
	return false
}

var alnumSlash = newAlphabet(digitChars + lowerChars + upperChars + "+/=")

// distinct counts the different bytes of t.
func distinct(t []byte) int {
	var seen alphabet
	n := 0
	for _, c := range t {
		if !seen[c] {
			seen[c] = true
			n++
		}
	}
	return n
}

// putty checks the header and the private part of a PuTTY key whose name ends at
// the dash t[i].
func putty(t []byte, i int) int {
	const name, rest = "PuTTY", "-User-Key-File-"
	if i < len(name) || string(t[i-len(name):i]) != name || !bytes.HasPrefix(t[i:], []byte(rest)) {
		return 0
	}
	i += len(rest)
	part := t[i:min(len(t), i+puttyBody)]
	n := bytes.Index(part, []byte("Private-Lines:"))
	if n < 0 || !hasKeyBody(part[n:min(len(part), n+keyReach)]) {
		return 0
	}
	return i + n
}
