package classify

// mailByte are the bytes of a local part. Those of other scripts are letters.
var mailByte = func() *alphabet {
	a := newAlphabet(digitChars + lowerChars + upperChars + "._%+-'#!$&*=?^`{|}~/")
	for c := 0x80; c < 256; c++ {
		a[c] = true
	}
	return a
}()

// hostByte are the bytes of a domain name.
var hostByte = func() *alphabet {
	a := newAlphabet(digitChars + lowerChars + upperChars + "-.")
	for c := 0x80; c < 256; c++ {
		a[c] = true
	}
	return a
}()

// email returns the end of the e-mail address around the @ at t[at], or 0: a
// local part of RFC 5321, and a domain name of two labels or more whose last is
// no number and no kind of file.
func email(t []byte, at int) int {
	const longestLocal, longestDomain = 64, 253
	start := at
	for start > 0 && at-start < longestLocal && mailByte[t[start-1]] {
		start--
	}
	// Punctuation that an address may begin with more often stands around it.
	for start < at && !isAlnum(t[start]) && t[start] < 0x80 && t[start] != '_' {
		start++
	}
	end := at + 1
	for end < len(t) && end-at <= longestDomain && hostByte[t[end]] {
		end++
	}
	for end > at+1 && (t[end-1] == '.' || t[end-1] == '-') {
		end--
	}
	local, domain := t[start:at], t[at+1:end]
	if !localPart(local) && !quotedPart(t[max(0, at-longestLocal-3):at]) || !domainName(domain) || userInfo(t, start) || scpPath(t, end, local) {
		return 0
	}
	return end
}

func localPart(l []byte) bool {
	if len(l) == 0 || l[len(l)-1] == '.' {
		return false
	}
	for i := 1; i < len(l); i++ {
		if l[i] == '.' && l[i-1] == '.' {
			return false
		}
	}
	switch string(l) {
	case "this", "super", "self": // Kotlin's and Scala's qualified this
		return false
	}
	return true
}

// quotedPart reports whether text ends in a quoted local part: printable
// characters between quotes, of which those inside stand behind backslashes.
func quotedPart(t []byte) bool {
	end := len(t) - 1
	if end < 2 || t[end] != '"' {
		return false
	}
	for i := end - 1; i >= 0; i-- {
		switch c := t[i]; {
		case c < ' ':
			return false
		case c != '"', i > 0 && t[i-1] == '\\':
		default:
			return i < end-1 && (i == 0 || !isAlnum(t[i-1]))
		}
	}
	return false
}

// domainName checks the labels of a domain name.
func domainName(d []byte) bool {
	const longestLabel = 63
	label, labels := 0, 1
	for i := range len(d) {
		if d[i] != '.' {
			continue
		}
		if !domainLabel(d[label:i], longestLabel) {
			return false
		}
		label = i + 1
		labels++
	}
	return labels > 1 && domainLabel(d[label:], longestLabel) && topLevel(d[label:])
}

func domainLabel(l []byte, longest int) bool {
	return len(l) > 0 && len(l) <= longest && l[0] != '-' && l[len(l)-1] != '-'
}

// topLevel reports whether a label may be a top-level domain: two letters or
// more, or punycode; and no extension of files whose names hold an @, such as
// logo@2x.png.
func topLevel(l []byte) bool {
	if len(l) < 2 {
		return false
	}
	if len(l) > 4 && string(l[:4]) == "xn--" {
		return true
	}
	for _, c := range l {
		if !isLetter(c) && c < 0x80 {
			return false
		}
	}
	switch string(l) {
	case "png", "jpg", "jpeg", "gif", "webp", "svg", "css", "js", "json", "service", "target", "timer", "socket":
		return false
	}
	return true
}

// userInfo reports that the @ ends the user and password of a URL.
func userInfo(t []byte, start int) bool {
	const longest = 128
	if start == 0 || t[start-1] != ':' && t[start-1] != '/' {
		return false
	}
	for i := start - 1; i >= 2 && i > start-longest; i-- {
		switch c := t[i]; {
		case c <= ' ':
			return false
		case c == '/' && t[i-1] == '/' && t[i-2] == ':':
			return true
		}
	}
	return false
}

// scpPath reports that the @ belongs to a repository's address for ssh, such as
// git@host:group/name.
func scpPath(t []byte, end int, local []byte) bool {
	return string(local) == "git" && end+1 < len(t) && (t[end] == ':' || t[end] == '/') && isAlnum(t[end+1])
}
