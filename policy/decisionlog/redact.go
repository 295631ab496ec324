package decisionlog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicegate/sluice/policy"
)

// records are the types that pointers may point into.
var records = []reflect.Type{
	reflect.TypeFor[policy.Record](), reflect.TypeFor[policy.ShadowRecord](), reflect.TypeFor[policy.SettlementRecord](),
}

// needed are the fields without which a line can't be read or judged again.
var needed = []string{"type", "decision_id", "timestamp", "revision", "verdict", "outcome", "dropped", "masked", "erased"}

// splitPointer reads a JSON pointer (RFC 6901).
func splitPointer(p string) ([]string, error) {
	if p == "" || p[0] != '/' {
		return nil, fmt.Errorf("%q is no JSON pointer, should begin with a slash, as in /input/request/user", clip(p))
	}
	parts := strings.Split(p[1:], "/")
	for i, part := range parts {
		rest := strings.NewReplacer("~0", "", "~1", "").Replace(part)
		if strings.Contains(rest, "~") {
			return nil, fmt.Errorf("%q is no JSON pointer: a tilde is written ~0, a slash in a name ~1", clip(p))
		}
		parts[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
	}
	return parts, nil
}

// checkPointer refuses pointers that name nothing in any record, since a
// misspelt one would hide nothing.
func checkPointer(p string) error {
	parts, err := splitPointer(p)
	if err != nil {
		return err
	}
	if slices.Contains(needed, parts[0]) {
		return fmt.Errorf("%q can't be taken away: no record can be read without it", clip(p))
	}
	for _, t := range records {
		if leads(t, parts) {
			return nil
		}
	}
	return fmt.Errorf("%q names nothing in a decision, shadow or settlement record", clip(p))
}

// leads says whether a value of the type can have something at the path.
func leads(t reflect.Type, path []string) bool {
	if len(path) == 0 {
		return true
	}
	switch t.Kind() {
	case reflect.Pointer:
		return leads(t.Elem(), path)
	case reflect.Map:
		return leads(t.Elem(), path[1:])
	case reflect.Interface:
		return true
	case reflect.Slice:
		n, err := strconv.Atoi(path[0])
		return err == nil && n >= 0 && strconv.Itoa(n) == path[0] && leads(t.Elem(), path[1:])
	case reflect.Struct:
		if t == reflect.TypeFor[time.Time]() { // written as text
			return false
		}
		for field := range t.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if field.IsExported() && name == path[0] {
				return leads(field.Type, path[1:])
			}
		}
	}
	return false
}

// action is what happens to a value.
type action int

const (
	keep action = iota
	mask
	drop
)

// redaction is a tree of pointers: a node for each name on the way.
type redaction struct {
	action   action
	pointer  string // of a node with an action, as it was configured
	children map[string]*redaction
}

// newRedaction builds the tree of checked pointers; nil for none.
func newRedaction(masks, drops []string) *redaction {
	if len(masks)+len(drops) == 0 {
		return nil
	}
	root := &redaction{}
	for _, p := range masks {
		root.insert(p, mask)
	}
	for _, p := range drops {
		root.insert(p, drop) // after the masks: dropping wins
	}
	return root
}

func (r *redaction) insert(pointer string, a action) {
	parts, err := splitPointer(pointer)
	if err != nil {
		panic("BUG: decisionlog: unchecked pointer")
	}
	for _, part := range parts {
		if r.children == nil {
			r.children = map[string]*redaction{}
		}
		if r.children[part] == nil {
			r.children[part] = &redaction{}
		}
		r = r.children[part]
	}
	r.action, r.pointer = a, pointer
}

// apply returns a copy of one record, a JSON object without white space, with
// the tree's values masked and dropped. The copy lists the pointers that met a
// value, in masked and erased.
func (r *redaction) apply(src []byte) []byte {
	e := &editor{src: src, dst: make([]byte, 0, len(src)+256)}
	e.value(r, false)
	if len(e.masked)+len(e.erased) == 0 {
		return e.dst
	}
	e.dst = e.dst[:len(e.dst)-1]
	e.list("masked", e.masked)
	e.list("erased", e.erased)
	return append(e.dst, '}')
}

// editor copies JSON that encoding/json has written, which is valid and has no
// white space between its tokens.
type editor struct {
	src, dst       []byte
	at             int
	masked, erased []string
}

func (e *editor) list(name string, pointers []string) {
	if len(pointers) == 0 {
		return
	}
	text, err := json.Marshal(pointers)
	if err != nil {
		panic("BUG: decisionlog: texts do not encode")
	}
	e.dst = append(e.dst, `,"`+name+`":`...)
	e.dst = append(e.dst, text...)
}

// value copies the value at the cursor. Beneath r nothing is edited if r is
// nil; with hide every leaf is masked.
func (e *editor) value(r *redaction, hide bool) {
	switch c := e.src[e.at]; {
	case c == '{':
		e.object(r, hide)
	case c == '[':
		e.array(r, hide)
	case hide && c == '"':
		e.skip()
		e.dst = append(e.dst, `"***"`...)
	case hide:
		e.skip()
		e.dst = append(e.dst, "null"...)
	default:
		from := e.at
		e.skip()
		e.dst = append(e.dst, e.src[from:e.at]...)
	}
}

func (e *editor) object(r *redaction, hide bool) {
	e.copyByte()
	first := true
	for e.src[e.at] != '}' {
		if e.src[e.at] == ',' {
			e.at++
		}
		from := e.at
		e.skip()
		key := e.src[from:e.at]
		e.at++ // the colon
		child := r.child(key)
		if child.is(drop) {
			e.erased = append(e.erased, child.pointer)
			e.skip()
			continue
		}
		if !first {
			e.dst = append(e.dst, ',')
		}
		first = false
		e.dst = append(append(e.dst, key...), ':')
		e.edit(child, hide)
	}
	e.copyByte()
}

func (e *editor) array(r *redaction, hide bool) {
	e.copyByte()
	first := true
	for i := 0; e.src[e.at] != ']'; i++ {
		if e.src[e.at] == ',' {
			e.at++
		}
		var child *redaction
		if r != nil {
			child = r.children[strconv.Itoa(i)]
		}
		if child.is(drop) {
			e.erased = append(e.erased, child.pointer)
			e.skip()
			continue
		}
		if !first {
			e.dst = append(e.dst, ',')
		}
		first = false
		e.edit(child, hide)
	}
	e.copyByte()
}

// edit copies the value of a member or element.
func (e *editor) edit(child *redaction, hide bool) {
	if child.is(mask) {
		e.masked = append(e.masked, child.pointer)
		hide = true
	}
	e.value(child, hide)
}

func (e *editor) copyByte() {
	e.dst = append(e.dst, e.src[e.at])
	e.at++
}

// skip moves the cursor behind the value or name at it.
func (e *editor) skip() {
	depth := 0
	for {
		switch e.src[e.at] {
		case '"':
			e.skipText()
		case '{', '[':
			depth++
			e.at++
		case '}', ']':
			depth--
			e.at++
		case ',', ':':
			e.at++
		default:
			e.skipWord()
		}
		if depth == 0 {
			return
		}
	}
}

func (e *editor) skipText() {
	for e.at++; e.src[e.at] != '"'; e.at++ {
		if e.src[e.at] == '\\' {
			e.at++
		}
	}
	e.at++
}

// skipWord passes a number, true, false or null.
func (e *editor) skipWord() {
	for e.at < len(e.src) {
		switch e.src[e.at] {
		case ',', ':', '}', ']':
			return
		}
		e.at++
	}
}

// child is the node for a member, whose name is given as JSON text; nil where
// nothing is edited.
func (r *redaction) child(key []byte) *redaction {
	if r == nil || len(r.children) == 0 {
		return nil
	}
	name := key[1 : len(key)-1]
	if !bytes.Contains(name, []byte{'\\'}) {
		return r.children[string(name)]
	}
	var plain string
	if err := json.Unmarshal(key, &plain); err != nil {
		panic("BUG: decisionlog: a name does not decode")
	}
	return r.children[plain]
}

func (r *redaction) is(a action) bool { return r != nil && r.action == a }
