package chargeback

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// reader walks a price table strictly and collects every problem with its
// place, as file:line:col: message.
type reader struct {
	file     string
	problems []problem
}

type problem struct {
	line, col int
	text      string
}

// maxProblems keeps a file of another format from filling the screen.
const maxProblems = 50

func (r *reader) fail(n ast.Node, format string, args ...any) {
	p := problem{line: 1, col: 1, text: fmt.Sprintf(format, args...)}
	if m, ok := n.(*ast.MappingNode); ok && !m.IsFlowStyle && len(m.Values) > 0 {
		n = m.Values[0].Key // the mapping's own token is its first colon
	}
	if n != nil && n.GetToken() != nil {
		p.line, p.col = n.GetToken().Position.Line, n.GetToken().Position.Column
	}
	r.problems = append(r.problems, p)
}

func (r *reader) err() error {
	if len(r.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(r.problems, func(a, b problem) int {
		if a.line != b.line {
			return a.line - b.line
		}
		return a.col - b.col
	})
	var lines []string
	for i, p := range r.problems {
		if i == maxProblems {
			lines = append(lines, fmt.Sprintf("%s: %d more problems", r.file, len(r.problems)-i))
			break
		}
		lines = append(lines, fmt.Sprintf("%s:%d:%d: %s", r.file, p.line, p.col, p.text))
	}
	return errors.New(strings.Join(lines, "\n"))
}

// parse returns the body of the only document, nil if there is none.
func (r *reader) parse(text []byte) ast.Node {
	file, err := parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey()) // fields finds repeated keys
	if err != nil {
		p := problem{line: 1, col: 1, text: "not valid YAML"}
		if ye, ok := errors.AsType[yaml.Error](err); ok {
			p.text += ": " + ye.GetMessage()
			if tk := ye.GetToken(); tk != nil {
				p.line, p.col = tk.Position.Line, tk.Position.Column
			}
		}
		r.problems = append(r.problems, p)
		return nil
	}
	var body ast.Node
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil:
		case body == nil:
			body = doc.Body
		default:
			r.fail(doc.Body, "a second document; put all prices under one `prices:` list")
		}
	}
	return body
}

// fields reads a mapping, each known key by its function.
func (r *reader) fields(n ast.Node, what string, known map[string]func(ast.Node)) bool {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		r.fail(n, "%s should be a mapping, not %s", what, kindOf(n))
		return false
	}
	seen := make(map[string]int)
	for _, v := range m.Values {
		key, ok := v.Key.(*ast.StringNode)
		if !ok {
			r.fail(v.Key, "a key of %s should be plain text, not %s", what, kindOf(v.Key))
			continue
		}
		if line, dup := seen[key.Value]; dup {
			r.fail(key, "key %q appears twice in %s, first in line %d", key.Value, what, line)
			continue
		}
		seen[key.Value] = key.GetToken().Position.Line
		read, ok := known[key.Value]
		if !ok {
			r.fail(key, "unknown key %q in %s; known keys are %s", key.Value, what, keyList(known))
			continue
		}
		read(v.Value)
	}
	return true
}

func keyList(known map[string]func(ast.Node)) string {
	names := make([]string, 0, len(known))
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func (r *reader) items(n ast.Node, what string) []ast.Node {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		r.fail(n, "%s should be a list, not %s", what, kindOf(n))
		return nil
	}
	return seq.Values
}

func (r *reader) text(n ast.Node, what string) string {
	s, ok := n.(*ast.StringNode)
	if !ok {
		r.fail(n, "%s should be text, not %s", what, kindOf(n))
		return ""
	}
	return s.Value
}

// amount reads a whole number from 0 to most.
func (r *reader) amount(n ast.Node, what string, most int64) int64 {
	var v uint64
	switch i, ok := n.(*ast.IntegerNode); {
	case !ok:
		r.fail(n, "%s should be a whole number of micro-units, not %s", what, kindOf(n))
		return 0
	default:
		switch x := i.Value.(type) {
		case uint64:
			v = x
		case int64:
			if x < 0 {
				r.fail(n, "%s should not be negative", what)
				return 0
			}
			v = uint64(x)
		}
	}
	if v > uint64(most) {
		r.fail(n, "%s should be at most %d micro-units", what, most)
		return 0
	}
	return int64(v)
}

// instant reads a date, which means its first instant in UTC, or an RFC 3339 time.
func (r *reader) instant(n ast.Node, what string) time.Time {
	if s, ok := n.(*ast.StringNode); ok {
		for _, layout := range []string{time.DateOnly, time.RFC3339} {
			if t, err := time.Parse(layout, s.Value); err == nil {
				return t.UTC()
			}
		}
	}
	r.fail(n, "%s should be a date like 2026-07-01 or a time like 2026-07-01T12:00:00Z", what)
	return time.Time{}
}

func kindOf(n ast.Node) string {
	switch n.(type) {
	case nil, *ast.NullNode:
		return "nothing"
	case *ast.MappingNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.BoolNode:
		return "true or false"
	case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number with a fraction"
	case *ast.IntegerNode:
		return "a number"
	case *ast.StringNode, *ast.LiteralNode:
		return "text"
	}
	return "an anchor, alias or tag, which is not allowed here"
}
