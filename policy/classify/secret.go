package classify

import "bytes"

// secretShape is what a provider's secrets look like: the characters before the
// anchor, those behind it, and how many.
type secretShape struct {
	before, behind string // around the anchor, which is the byte between them
	chars          *alphabet
	least, most    int  // characters after the prefix
	mixed          bool // has digits, capital and small letters
}

// secretTable lists the shapes by anchor: a byte of the prefix that is rare in
// text, so that few places need a closer look. Left out are kinds that nothing
// tells from a hash.
var secretTable = []struct {
	anchor byte
	secretShape
}{
	// Amazon Web Services: access key ids, and a secret key behind its name.
	{'A', secretShape{"", "KIA", base32Bytes, 16, 16, false}},
	{'A', secretShape{"", "SIA", base32Bytes, 16, 16, false}},
	{'A', secretShape{"", "BIA", base32Bytes, 16, 16, false}},
	{'A', secretShape{"", "CCA", base32Bytes, 16, 16, false}},
	// Google: API keys, OAuth client secrets.
	{'A', secretShape{"", "Iza", wordBytes, 35, 35, false}},
	{'-', secretShape{"GOCSPX", "", wordBytes, 28, 28, false}},
	// GitHub.
	{'_', secretShape{"ghp", "", alnumBytes, 36, 255, false}},
	{'_', secretShape{"gho", "", alnumBytes, 36, 255, false}},
	{'_', secretShape{"ghu", "", alnumBytes, 36, 255, false}},
	{'_', secretShape{"ghs", "", alnumBytes, 36, 255, false}},
	{'_', secretShape{"ghr", "", alnumBytes, 36, 255, false}},
	{'_', secretShape{"github", "pat_", wordBytes, 82, 82, false}},
	// GitLab.
	{'-', secretShape{"glpat", "", wordDotBytes, 20, 255, false}},
	{'-', secretShape{"gldt", "", wordBytes, 20, 64, false}},
	{'-', secretShape{"glrt", "", wordDotBytes, 20, 255, false}},
	{'-', secretShape{"glptt", "", hexBytes, 40, 40, false}},
	// Slack.
	{'-', secretShape{"xoxb", "", wordBytes, 24, 255, false}},
	{'-', secretShape{"xoxp", "", wordBytes, 24, 255, false}},
	{'-', secretShape{"xoxa", "", wordBytes, 24, 255, false}},
	{'-', secretShape{"xoxr", "", wordBytes, 24, 255, false}},
	{'-', secretShape{"xoxs", "", wordBytes, 24, 255, false}},
	{'-', secretShape{"xapp", "", wordBytes, 40, 255, false}},
	// Stripe.
	{'_', secretShape{"sk", "live_", alnumBytes, 24, 255, false}},
	{'_', secretShape{"rk", "live_", alnumBytes, 24, 255, false}},
	{'_', secretShape{"sk", "test_", alnumBytes, 24, 255, false}},
	{'_', secretShape{"rk", "test_", alnumBytes, 24, 255, false}},
	{'_', secretShape{"whsec", "", base64Byte, 32, 255, false}},
	// Model providers.
	{'-', secretShape{"sk", "", wordBytes, 32, 255, true}},
	{'_', secretShape{"hf", "", alnumBytes, 34, 40, true}},
	{'_', secretShape{"gsk", "", alnumBytes, 52, 52, true}},
	// Package registries.
	{'_', secretShape{"npm", "", alnumBytes, 36, 36, false}},
	{'-', secretShape{"pypi", "AgEI", wordBytes, 70, 512, false}},
	// Hosting and other services.
	{'_', secretShape{"dop", "v1_", hexBytes, 64, 64, false}},
	{'_', secretShape{"doo", "v1_", hexBytes, 64, 64, false}},
	{'_', secretShape{"dor", "v1_", hexBytes, 64, 64, false}},
	{'_', secretShape{"shpat", "", hexBytes, 32, 32, false}},
	{'_', secretShape{"shpca", "", hexBytes, 32, 32, false}},
	{'_', secretShape{"shppa", "", hexBytes, 32, 32, false}},
	{'_', secretShape{"shpss", "", hexBytes, 32, 32, false}},
	{'_', secretShape{"glsa", "", wordBytes, 41, 41, false}},
	{'_', secretShape{"lin", "api_", alnumBytes, 40, 40, false}},
	{'-', secretShape{"NRAK", "", alnumBytes, 27, 27, false}},
	{'-', secretShape{"AGE", "SECRET-KEY-1", base32UpperBytes, 58, 58, false}},
	{'.', secretShape{"SG", "", wordDotBytes, 66, 66, false}},
	{'.', secretShape{"hvs", "", wordBytes, 24, 255, false}},
	{'=', secretShape{"AccountKey", "", alnumSlash, 88, 88, false}},
	{'/', secretShape{"hooks.slack.com", "services/T", slackHookBytes, 36, 64, false}},
}

var (
	wordDotBytes     = newAlphabet(digitChars + lowerChars + upperChars + "_-.")
	base32UpperBytes = newAlphabet(digitChars + upperChars)
	slackHookBytes   = newAlphabet(digitChars + lowerChars + upperChars + "/")
)

// neighbours are the shapes of one anchor, by the byte next to it that they ask
// for: the one before, or for shapes that begin with their anchor the one behind.
type neighbours struct{ before, behind [256][]secretShape }

// anchorSet is a set of anchors, one bit each.
type anchorSet uint8

// secretIndex is secretTable by anchor. Nearly all anchors in a text have other
// neighbours than those in a secret, which two small tables tell.
type secretIndex struct {
	shapes         [256]*neighbours // nil is no anchor
	bit            [256]anchorSet
	before, behind [256]anchorSet // anchors that ask for this byte
}

var secrets = func() (x secretIndex) {
	anchors := 0
	for _, s := range secretTable {
		if x.shapes[s.anchor] == nil {
			x.shapes[s.anchor] = &neighbours{}
			x.bit[s.anchor] = 1 << anchors
			anchors++
		}
		n := x.shapes[s.anchor]
		if s.before != "" {
			c := s.before[len(s.before)-1]
			n.before[c] = append(n.before[c], s.secretShape)
			x.before[c] |= x.bit[s.anchor]
		} else {
			c := s.behind[0]
			n.behind[c] = append(n.behind[c], s.secretShape)
			x.behind[c] |= x.bit[s.anchor]
		}
	}
	// The last underscore of aws_secret_access_key, in either case.
	x.before['s'] |= x.bit['_']
	x.before['S'] |= x.bit['_']
	if anchors > 8 {
		panic("BUG: more anchors than an anchorSet has bits")
	}
	return x
}()

// likely reports whether the neighbours of the anchor t[i] may be a secret's.
func (x *secretIndex) likely(t []byte, i int) bool {
	bit := x.bit[t[i]]
	return i > 0 && x.before[t[i-1]]&bit != 0 || i+1 < len(t) && x.behind[t[i+1]]&bit != 0
}

// secret returns the end of the secret whose anchor is t[i], or 0.
func secret(t []byte, i int) int {
	n := secrets.shapes[t[i]]
	if n == nil || !secrets.likely(t, i) {
		return 0
	}
	if i > 0 {
		if end := matchAny(n.before[t[i-1]], t, i); end > 0 {
			return end
		}
		if t[i] == '_' && t[i-1]|0x20 == 's' {
			return awsSecretKey(t, i)
		}
	}
	if i+1 < len(t) {
		return matchAny(n.behind[t[i+1]], t, i)
	}
	return 0
}

func matchAny(shapes []secretShape, t []byte, i int) int {
	for k := range shapes {
		if end := shapes[k].match(t, i); end > 0 {
			return end
		}
	}
	return 0
}

func (s *secretShape) match(t []byte, anchor int) int {
	start, from := anchor-len(s.before), anchor+1+len(s.behind)
	if start < 0 || from > len(t) || string(t[start:anchor]) != s.before || string(t[anchor+1:from]) != s.behind {
		return 0
	}
	if !beginsAt(t, start) {
		return 0
	}
	// No further than needed: text may be one secret's beginning after another.
	end := s.chars.span(t[:min(len(t), from+s.most+1)], from)
	// A full stop or dash at the end belongs to the sentence.
	for end > from && (t[end-1] == '.' || t[end-1] == '-') {
		end--
	}
	n := end - from
	if n < s.least || n > s.most || end < len(t) && isAlnum(t[end]) || !random(t[from:end], s.mixed) {
		return 0
	}
	return end
}

// random reports whether text is likely to come from a generator of keys: enough
// different characters for its length, and a digit unless there are few
// characters; mixed asks for digits and letters of both cases. It sorts out
// placeholders such as xxxxxxxx and names in words.
func random(t []byte, mixed bool) bool {
	const least = 8
	if distinct(t) < least {
		return false
	}
	digits, capitals, small := 0, 0, 0
	for _, c := range t {
		switch {
		case isDigit(c):
			digits++
		case c-'A' <= 25:
			capitals++
		case isLetter(c):
			small++
		}
	}
	if mixed {
		return digits > 1 && capitals > 1 && small > 1
	}
	return digits > 0 || capitals > 0 && small > 0 || len(t) <= 16
}

// awsSecretKey finds an AWS secret access key behind its name. By itself it is
// forty characters of base64, which nothing tells from other data. t[i] is the
// last underscore of the name.
func awsSecretKey(t []byte, i int) int {
	const name, size = "secret_access", 40
	if i < len(name) || !bytes.EqualFold(t[i-len(name):i], []byte(name)) || len(t) < i+4 || !bytes.EqualFold(t[i+1:i+4], []byte("key")) {
		return 0
	}
	from := i + 4
	for from < len(t) && from < i+12 && bytes.IndexByte([]byte(`"'=: `), t[from]) >= 0 {
		from++
	}
	end := alnumSlash.span(t[:min(len(t), from+size+1)], from)
	if end-from != size || !random(t[from:end], true) {
		return 0
	}
	return end
}
