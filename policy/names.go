package policy

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const maxName = 63

// isName reports whether s matches [a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?, the form
// of policies, bindings, rules and content labels.
func isName(s string) bool {
	if len(s) == 0 || len(s) > maxName || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// reservedWords cannot be CEL identifiers.
var reservedWords = []string{
	"as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in",
	"let", "loop", "package", "namespace", "null", "return", "true", "var", "void", "while",
}

// isIdentifier reports whether s can stand behind the dot of a CEL name.
func isIdentifier(s string) bool {
	if s == "" || len(s) > maxName || slices.Contains(reservedWords, s) {
		return false
	}
	for i := range len(s) {
		c := s[i]
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// didYouMean returns "; did you mean X?" for the nearest of the names, or
// nothing when none is near.
func didYouMean(name string, names []string) string {
	if best := nearest(name, names); best != "" {
		return "; did you mean " + strconv.Quote(best) + "?"
	}
	return ""
}

// nearest returns the name with the smallest edit distance, if that is at most
// a third of the length. Names of one or two characters are near to anything.
func nearest(name string, names []string) string {
	if len(name) < 3 || len(name) > 256 {
		return ""
	}
	best, bestDist := "", max(1, utf8.RuneCountInString(name)/3)+1
	for _, n := range slices.Sorted(slices.Values(names)) {
		if d := editDistance(name, n, bestDist); d < bestDist {
			best, bestDist = n, d
		}
	}
	return best
}

// editDistance counts insertions, deletions, substitutions and swaps of
// neighbours between two texts, or returns limit once it cannot be below.
func editDistance(a, b string, limit int) int {
	if d := len(a) - len(b); d >= limit || -d >= limit {
		return limit
	}
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}

// cut shortens a text to at most n bytes without breaking a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// globMatch matches a name against a pattern in which * stands for any run of
// characters, slashes included; everything else stands for itself.
func globMatch(pattern, name string) bool {
	prefix, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == name
	}
	name, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return false
	}
	for {
		part, more, star := strings.Cut(rest, "*")
		if !star {
			return strings.HasSuffix(name, part)
		}
		i := strings.Index(name, part)
		if i < 0 {
			return false
		}
		name, rest = name[i+len(part):], more
	}
}

// isPattern reports whether a name stands for more than itself.
func isPattern(name string) bool { return strings.Contains(name, "*") }

func compareErrors(a, b Error) int {
	return cmp.Or(
		cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col),
		cmp.Compare(a.Path, b.Path), cmp.Compare(a.Text, b.Text),
	)
}
