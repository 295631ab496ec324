package translate

import (
	"bytes"

	"github.com/sluicegate/sluice/gateway/jsonscan"
)

// value is the text of one JSON value, without white space around it; nil stands
// for a member that is missing or null.
type value []byte

func (v value) isObject() bool { return len(v) > 0 && v[0] == '{' }
func (v value) isArray() bool  { return len(v) > 0 && v[0] == '[' }
func (v value) isString() bool { return len(v) > 0 && v[0] == '"' }
func (v value) isTrue() bool   { return len(v) > 0 && v[0] == 't' }
func (v value) isBool() bool   { return len(v) > 0 && (v[0] == 't' || v[0] == 'f') }
func (v value) isNumber() bool {
	return len(v) > 0 && (v[0] == '-' || v[0] >= '0' && v[0] <= '9')
}

// kind names the kind of the value.
func (v value) kind() string { return jsonscan.KindOf(v) }

// inner is what stands between the quotes of a string, as it is spelt.
func (v value) inner() []byte { return v[1 : len(v)-1] }

// appendAsString appends the value's text as a string. It is at most twice as long:
// nothing but quotes, backslashes and ends of lines in JSON text has to be escaped.
func (v value) appendAsString(dst []byte) []byte {
	dst = append(dst, '"')
	for _, ch := range v {
		switch ch {
		case '"', '\\':
			dst = append(dst, '\\', ch)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, ch)
		}
	}
	return append(dst, '"')
}

// isEmptyString reports whether the value is a string without characters.
func (v value) isEmptyString() bool { return len(v) == 2 && v[0] == '"' }

// isEmptyArray reports whether the value is an array without elements.
func (v value) isEmptyArray() bool {
	return v.isArray() && len(bytes.Trim(v[1:len(v)-1], " \t\r\n")) == 0
}

// text is the string that the value stands for.
func (v value) text() string {
	if !v.isString() {
		return ""
	}
	raw := v.inner()
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw)
	}
	return string(jsonscan.AppendUnescaped(nil, raw))
}

// is reports whether the value is the given string, which is plain ASCII and
// short.
func (v value) is(want string) bool {
	switch {
	case !v.isString():
		return false
	case string(v.inner()) == want:
		return true
	}
	// No escape of one character is longer than six bytes.
	return len(v)-2 <= 6*len(want) && v.text() == want
}

// hasPrefix reports whether the value is a string that begins with prefix, which
// is plain ASCII.
func (v value) hasPrefix(prefix string) bool {
	if !v.isString() {
		return false
	}
	raw := v.inner()
	if bytes.IndexByte(raw[:min(len(raw), len(prefix))], '\\') < 0 {
		return bytes.HasPrefix(raw, []byte(prefix))
	}
	return bytes.HasPrefix(jsonscan.AppendUnescaped(nil, raw), []byte(prefix))
}

// walker steps over the members and elements of one value, which has been found
// well formed before. Each step passes over what is inside in one go.
type walker struct {
	c jsonscan.Cursor
}

// enter returns a walker inside an object or array.
func enter(v value, depth int) walker {
	w := walker{c: jsonscan.Cursor{B: v, MaxDepth: depth}}
	w.c.Enter()
	return w
}

// member returns the next member's name and value; a null value is nil.
func (w *walker) member() (name []byte, v value, ok bool) {
	key, ok := w.c.Member()
	if !ok {
		return nil, nil, false
	}
	name = w.c.B[key.Start:key.End]
	if key.Escaped {
		name = jsonscan.AppendUnescaped(nil, name)
	}
	v = w.value()
	return name, v, w.c.Bad == jsonscan.FaultNone
}

// element returns the next element; a null is nil.
func (w *walker) element() (v value, ok bool) {
	if !w.c.Element() {
		return nil, false
	}
	v = w.value()
	return v, w.c.Bad == jsonscan.FaultNone
}

func (w *walker) value() value {
	start := w.c.I
	w.c.Skip()
	v := value(w.c.B[start:w.c.I:w.c.I])
	if len(v) > 0 && v[0] == 'n' {
		return nil
	}
	return v
}
