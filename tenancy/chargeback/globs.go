package chargeback

import (
	"errors"
	"path"
	"strings"
)

// glob names models: with '*' for any characters but '/', and '?' for any one. A
// "*" alone is every model.
type glob string

var errGlob = errors.New("only * and ? stand for other characters; write the name without brackets and backslashes")

func (g glob) check() error {
	if strings.ContainsAny(string(g), `[]\`) {
		return errGlob
	}
	return nil
}

// plain reports whether the glob is a name.
func (g glob) plain() bool { return !strings.ContainsAny(string(g), "*?") }

func (g glob) matches(model string) bool {
	if g == "*" || string(g) == model {
		return true
	}
	ok, err := path.Match(string(g), model)
	return ok && err == nil
}

// weight orders globs that match the same model: of two the heavier one says more.
// A name is heavier than any glob, and among those more letters are.
func (g glob) weight() int {
	if g.plain() {
		return int(^uint(0) >> 1)
	}
	n := 0
	for _, r := range g {
		if r != '*' && r != '?' {
			n++
		}
	}
	return n
}

// meets reports whether some model matches both globs.
func (g glob) meets(h glob) bool {
	if g == "*" || h == "*" {
		return true
	}
	a, b := []rune(string(g)), []rune(string(h))
	// may[i][j]: a[i:] and b[j:] have a word in common.
	may := make([][]bool, len(a)+1)
	for i := len(a); i >= 0; i-- {
		may[i] = make([]bool, len(b)+1)
		for j := len(b); j >= 0; j-- {
			switch {
			case i < len(a) && a[i] == '*':
				may[i][j] = may[i+1][j] || j < len(b) && b[j] != '/' && may[i][j+1]
			case j < len(b) && b[j] == '*':
				may[i][j] = may[i][j+1] || i < len(a) && a[i] != '/' && may[i+1][j]
			case i == len(a) || j == len(b):
				may[i][j] = i == len(a) && j == len(b)
			case a[i] == '?':
				may[i][j] = b[j] != '/' && may[i+1][j+1]
			case b[j] == '?':
				may[i][j] = a[i] != '/' && may[i+1][j+1]
			default:
				may[i][j] = a[i] == b[j] && may[i+1][j+1]
			}
		}
	}
	return may[0][0]
}
