package authn

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluicegate/sluice/tenancy/strictyaml"
)

// reader reads the kinds of values that a tenants file has.
type reader struct{ strictyaml.Reader }

func newReader(file string) reader {
	return reader{strictyaml.Reader{File: file, ShowKey: showKey, Nearest: nearest}}
}

// text reads a text, empty after a failure.
func (r *reader) text(n strictyaml.Node, what string) string {
	s, _ := r.textOf(n, what)
	return s
}

func (r *reader) textOf(n strictyaml.Node, what string) (string, bool) {
	if s, ok := n.Scalar().(string); ok {
		return s, true
	}
	switch k := n.Kind(); k {
	case strictyaml.Integer, strictyaml.Float, strictyaml.Bool:
		r.Fail(n, "%s should be text, not %s; put it in quotes", what, k)
	default:
		r.FailKind(n, what, "text")
	}
	return "", false
}

func (r *reader) boolean(n strictyaml.Node, what string) bool {
	b, ok := n.Scalar().(bool)
	if !ok {
		r.FailKind(n, what, "true or false")
	}
	return b
}

func (r *reader) texts(n strictyaml.Node, what string, most, size int) []string {
	var out []string
	items := r.Items(n, what)
	for _, item := range items {
		s := r.text(item, "an entry of "+what)
		if len(s) > size {
			r.Fail(item, "an entry of %s has %d bytes, at most %d are allowed", what, len(s), size)
		}
		out = append(out, s)
	}
	if len(items) > most {
		r.Fail(n, "%s has %d entries, at most %d are allowed", what, len(items), most)
	}
	return out
}

// instant reads a date or time, the zero time after a failure.
func (r *reader) instant(n strictyaml.Node, what string) time.Time {
	t, ok := n.Instant()
	switch {
	case ok:
	case n.Kind() != strictyaml.Text:
		r.FailKind(n, what, "a date or time")
	default:
		r.Fail(n, "%s should be a date like 2027-01-31 or a time like 2027-01-31T12:00:00Z", what)
	}
	return t
}

// showKey quotes a key that looks like one; a stray credential does not.
func showKey(key string) string {
	if len(key) > 40 || strings.Contains(key, "slk_") {
		return "(not shown)"
	}
	return fmt.Sprintf("%q", key)
}

// nearest returns the known key closest to a misspelt one, "" if none is close.
func nearest(key string, known []string) string {
	best, least := "", 3
	for _, name := range known {
		if d := distance(strings.ToLower(key), strings.ToLower(name)); d < least {
			best, least = name, d
		}
	}
	return best
}

// distance is the edit distance of two short strings, in which two letters the
// wrong way round count once.
func distance(a, b string) int {
	before, above := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range above {
		above[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			row[j+1] = 1 + min(above[j+1], row[j])
			if a[i] == b[j] {
				row[j+1] = min(row[j+1], above[j])
			} else {
				row[j+1] = min(row[j+1], above[j]+1)
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, above = above, row
	}
	return above[len(b)]
}
