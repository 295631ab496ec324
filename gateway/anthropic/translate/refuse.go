package translate

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// at is where in a body a translation is, for the paths in refusals: root, then
// as many of the indices as depth says, those after the first in content. It
// becomes a string only when something is refused.
type at struct {
	root    string
	object  string // the key of an object inside what stands here, or empty
	depth   int
	indices [3]int
}

// in returns the place of an element of what stands here.
func (a at) in(i int) at {
	a.indices[a.depth] = i
	a.depth++
	return a
}

// at returns the place of the object under a key of the object here.
func (a at) at(key string) at {
	a.object = key
	return a
}

// path is the path of a key of the object here, or of the value itself if the key
// is empty.
func (a at) path(key string) string {
	b := append(make([]byte, 0, 64), a.root...)
	for d := range a.depth {
		if d > 0 {
			b = append(b, ".content"...)
		}
		b = append(b, '[')
		b = strconv.AppendInt(b, int64(a.indices[d]), 10)
		b = append(b, ']')
	}
	for _, key := range [...]string{a.object, key} {
		if key != "" && len(b) > 0 {
			b = append(b, '.')
		}
		b = append(b, key...)
	}
	return string(b)
}

func refuse(code, path, format string, args ...any) *wire.Error {
	return &wire.Error{
		Status: http.StatusBadRequest, Code: code, Param: path, Message: fmt.Sprintf(format, args...),
	}
}

func invalid(path, format string, args ...any) *wire.Error {
	return refuse("invalid_request", path, format, args...)
}

// noEquivalent refuses a field for what it asks.
func noEquivalent(path string) *wire.Error {
	return invalid(path, "`%s` has no equivalent in the chat completions API, which is all that this model's servers speak. Remove it.", path)
}

// noValue refuses a value of a field that is otherwise understood. The words for
// what is possible are the caller's.
func noValue(path, possible string) *wire.Error {
	return invalid(path, "`%s` has a value without equivalent in the chat completions API, which is all that this model's servers speak. %s", path, possible)
}

func wrongType(path, want string, v value) *wire.Error {
	if v == nil {
		return missing(path, want)
	}
	return invalid(path, "`%s` must be %s, not %s.", path, want, v.kind())
}

func missing(path, want string) *wire.Error {
	return invalid(path, "`%s` is missing. It must be %s.", path, want)
}

func duplicate(path string) *wire.Error {
	return refuse("duplicate_key", path, "`%s` is given more than once in one object. Send it once.", path)
}

func notJSON(c *jsonscan.Cursor) *wire.Error {
	fix := "Send one JSON object in UTF-8."
	if c.Bad == jsonscan.FaultDepth {
		fix = fmt.Sprintf("At most %d levels are allowed.", c.MaxDepth)
	}
	return refuse("invalid_json", "", "The request body is not valid JSON: %v (at byte %d). %s", c.Bad, c.BadAt, fix)
}

// maxKey is the longest key of a client's that is repeated in an answer.
const maxKey = 64

// quotable is a key as it may stand in an error: one that is no plain word is not
// repeated.
func quotable(key []byte) string {
	if len(key) == 0 || len(key) > maxKey {
		return "(an unknown key)"
	}
	for _, ch := range key {
		if ch <= ' ' || ch > '~' || ch == '`' {
			return "(an unknown key)"
		}
	}
	return string(key)
}

// fields are the members of one object that a translation knows, by the order of
// their names. Null counts as absent.
type fields []value

// read fills f with the members of an object. It reads all of them, and returns the
// first refusal: of a name that comes twice, or that is not known, unless lenient.
func (f fields) read(v value, where at, names []string, lenient bool) (err *wire.Error) {
	clear(f)
	var seen uint64
	w := enter(v, jsonscan.RequestDepth)
	for name, v, ok := w.member(); ok; name, v, ok = w.member() {
		i := indexOf(names, name)
		switch {
		case i >= 0 && seen&(1<<i) == 0:
			f[i] = v
			seen |= 1 << i
		case err != nil:
		case i >= 0:
			err = duplicate(where.path(names[i]))
		case !lenient && v != nil:
			err = noEquivalent(where.path(quotable(name)))
		}
	}
	return err
}

func indexOf(names []string, name []byte) int {
	for i, n := range names {
		if n == string(name) {
			return i
		}
	}
	return -1
}

// only refuses the first member that is not among those allowed, a set of their
// indices.
func (f fields) only(allowed uint64, where at, names []string) *wire.Error {
	for i, v := range f {
		if v != nil && allowed&(1<<i) == 0 {
			return noEquivalent(where.path(names[i]))
		}
	}
	return nil
}
