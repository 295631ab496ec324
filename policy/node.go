package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// problems collects the faults of a load.
type problems struct {
	list []Error
}

func (p *problems) addAt(file string, line, col int, path, text string) {
	p.list = append(p.list, Error{File: file, Line: line, Col: col, Path: path, Text: text})
}

// sorted returns the faults in the order of files and lines, without repeats.
func (p *problems) sorted() []Error {
	slices.SortStableFunc(p.list, compareErrors)
	return slices.Compact(p.list)
}

// node is a place in a document: a value and the path that leads to it.
type node struct {
	doc  yamlDoc
	path string
	n    ast.Node
}

// position returns the line and column of the value's first character.
func (n node) position() (line, col int) {
	t := n.n.GetToken()
	switch v := n.n.(type) {
	case *ast.MappingNode:
		if !v.IsFlowStyle && len(v.Values) > 0 {
			t = v.Values[0].Key.GetToken()
		}
	case *ast.MappingValueNode:
		t = v.Key.GetToken()
	case *ast.SequenceNode:
		t = v.Start
	case *ast.LiteralNode:
		t = v.Start
	}
	if t == nil || t.Position == nil {
		return n.doc.shift + 1, 1
	}
	return n.doc.shift + t.Position.Line, t.Position.Column
}

// errorf records a fault at the value's start.
func (n node) errorf(p *problems, format string, args ...any) {
	line, col := n.position()
	p.addAt(n.doc.file.name, line, col, n.path, fmt.Sprintf(format, args...))
}

// kind names the kind of value for messages.
func (n node) kind() string {
	switch v := n.n.(type) {
	case nil, *ast.NullNode:
		return "nothing"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.StringNode, *ast.LiteralNode:
		return "a string"
	case *ast.BoolNode:
		return "a boolean"
	case *ast.IntegerNode:
		return "an integer"
	case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	default:
		return fmt.Sprintf("a %s", strings.ToLower(v.Type().String()))
	}
}

func (n node) isNull() bool {
	_, null := n.n.(*ast.NullNode)
	return n.n == nil || null
}

// entry is one key: value pair.
type entry struct {
	key   string
	keyAt node
	value node
}

// entries returns the pairs of a mapping, without repeated keys. An empty
// value counts as an empty mapping.
func (n node) entries(p *problems) []entry {
	var pairs []*ast.MappingValueNode
	switch v := n.n.(type) {
	case *ast.MappingNode:
		pairs = v.Values
	case *ast.MappingValueNode:
		pairs = []*ast.MappingValueNode{v}
	case nil, *ast.NullNode:
		return nil
	default:
		n.errorf(p, "expected a mapping, found %s", n.kind())
		return nil
	}
	out := make([]entry, 0, len(pairs))
	seen := make(map[string]bool, len(pairs))
	for _, pair := range pairs {
		keyAt := node{doc: n.doc, path: n.path, n: pair.Key}
		key, ok := keyAt.scalarOf()
		if !ok {
			keyAt.errorf(p, "a key must be a plain text")
			continue
		}
		if seen[key.text] {
			keyAt.errorf(p, "duplicate key %s", strconv.Quote(key.text))
			continue
		}
		seen[key.text] = true
		out = append(out, entry{key.text, keyAt, node{doc: n.doc, path: n.child(key.text), n: pair.Value}})
	}
	return out
}

func (n node) child(key string) string {
	if n.path == "" {
		return key
	}
	return n.path + "." + key
}

// fields returns the pairs of a mapping whose keys are known, and reports the
// others with the nearest known name.
func (n node) fields(p *problems, known ...string) map[string]node {
	out := make(map[string]node)
	for _, e := range n.entries(p) {
		if !slices.Contains(known, e.key) {
			e.keyAt.errorf(p, "unknown field %s%s", strconv.Quote(cut(e.key, 80)), didYouMean(e.key, known))
			continue
		}
		out[e.key] = e.value
	}
	return out
}

// list returns the elements of a sequence; an empty value has none.
func (n node) list(p *problems) []node {
	switch v := n.n.(type) {
	case *ast.SequenceNode:
		out := make([]node, len(v.Values))
		for i, e := range v.Values {
			out[i] = node{doc: n.doc, path: fmt.Sprintf("%s[%d]", n.path, i), n: e}
		}
		return out
	case nil, *ast.NullNode:
		return nil
	}
	n.errorf(p, "expected a list, found %s", n.kind())
	return nil
}

// listMax is list with a maximum length.
func (n node) listMax(p *problems, most int) []node {
	l := n.list(p)
	if len(l) > most {
		n.errorf(p, "%d entries, at most %d are allowed: split the policy", len(l), most)
		return l[:most]
	}
	return l
}

// str reads a string. An unquoted number or boolean is refused, as the author
// may have meant either.
func (n node) str(p *problems) string {
	switch n.n.(type) {
	case *ast.StringNode, *ast.LiteralNode:
		s, _ := n.scalarOf()
		return s.text
	}
	n.errorf(p, "expected a string, found %s%s", n.kind(), n.quoteHint())
	return ""
}

func (n node) quoteHint() string {
	switch n.n.(type) {
	case *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return ": quote it"
	}
	return ""
}

// strs reads a list of strings.
func (n node) strs(p *problems) []string {
	list := n.list(p)
	out := make([]string, 0, len(list))
	for _, e := range list {
		out = append(out, e.str(p))
	}
	return out
}

// expr reads an expression: a string, or any other scalar by its text.
func (n node) expr(p *problems) scalar {
	s, ok := n.scalarOf()
	if !ok {
		n.errorf(p, "expected an expression (a string), found %s", n.kind())
	}
	if ok && strings.TrimSpace(s.text) == "" {
		n.errorf(p, "the expression is empty")
	}
	return s
}

func (n node) boolean(p *problems) bool {
	if v, ok := n.n.(*ast.BoolNode); ok {
		return v.Value
	}
	n.errorf(p, "expected true or false, found %s", n.kind())
	return false
}

// integer reads a decimal integer; other notations are refused, since readers
// disagree on them.
func (n node) integer(p *problems) int64 {
	if v, ok := n.n.(*ast.IntegerNode); ok {
		i, err := strconv.ParseInt(v.Token.Value, 10, 64)
		if err == nil && (v.Token.Value == "0" || v.Token.Value[0] != '0') {
			return i
		}
		n.errorf(p, "write the integer in decimal digits, between -2^63 and 2^63-1")
		return 0
	}
	n.errorf(p, "expected an integer, found %s", n.kind())
	return 0
}

// stringMap reads a mapping of strings to strings.
func (n node) stringMap(p *problems) map[string]string {
	out := make(map[string]string)
	for _, e := range n.entries(p) {
		out[e.key] = e.value.str(p)
	}
	return out
}

// oneOf reads a string that must be one of a few words.
func (n node) oneOf(p *problems, words ...string) string {
	s := n.str(p)
	if s != "" && !slices.Contains(words, s) {
		n.errorf(p, "unknown value %s%s: use %s", strconv.Quote(cut(s, 80)), didYouMean(s, words), strings.Join(words, ", "))
		return ""
	}
	return s
}
