package strictyaml

import (
	"time"

	"github.com/goccy/go-yaml/ast"
)

// Node is a value of a document. The zero Node is no value at all.
type Node struct{ ast ast.Node }

// AST returns the parser's own node, for an editor that needs its layout; nil
// for the zero Node.
func (n Node) AST() ast.Node { return n.ast }

// Line is the line, counted from 1, of the value's first character; of a mapping
// that of its first key. It is 1 for the zero Node.
func (n Node) Line() int {
	line, _ := n.firstKey().position()
	return line
}

// Column is the column, counted from 1, in the line that Line returns.
func (n Node) Column() int {
	_, column := n.firstKey().position()
	return column
}

// firstKey returns the first key of a mapping that has one, else the value.
func (n Node) firstKey() Node {
	if m, ok := n.ast.(*ast.MappingNode); ok && len(m.Values) > 0 {
		return Node{m.Values[0].Key}
	}
	return n
}

// position is where problems of the value are shown.
func (n Node) position() (line, column int) {
	// A block mapping's own token is its first colon.
	if m, ok := n.ast.(*ast.MappingNode); ok && !m.IsFlowStyle {
		n = n.firstKey()
	}
	if n.ast == nil || n.ast.GetToken() == nil {
		return 1, 1
	}
	p := n.ast.GetToken().Position
	return p.Line, p.Column
}

// Scalar returns the value as a string, bool, float64, int64 or uint64; nil if
// it is none of these. A number that is not negative comes as uint64.
func (n Node) Scalar() any {
	switch v := n.ast.(type) {
	case *ast.StringNode:
		return v.Value
	case *ast.LiteralNode:
		return v.Value.Value
	case *ast.BoolNode:
		return v.Value
	case *ast.FloatNode:
		return v.Value
	case *ast.IntegerNode:
		return v.Value
	}
	return nil
}

// Instant returns what a text that is no block names: a date, which means its
// first instant in UTC, or an RFC 3339 time. It reports false for anything else.
func (n Node) Instant() (time.Time, bool) {
	if s, ok := n.ast.(*ast.StringNode); ok {
		for _, layout := range []string{time.DateOnly, time.RFC3339} {
			if t, err := time.Parse(layout, s.Value); err == nil {
				return t.UTC(), true
			}
		}
	}
	return time.Time{}, false
}
