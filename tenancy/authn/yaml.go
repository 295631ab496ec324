package authn

import (
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// reader walks a YAML document strictly and collects every problem with its
// place. Messages name fields and kinds, never values: a secret pasted in the
// wrong place must not reach a log.
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
	// A block mapping's own token is its first colon; its place is its first key.
	if m, ok := n.(*ast.MappingNode); ok && !m.IsFlowStyle && len(m.Values) > 0 {
		n = m.Values[0].Key
	}
	if n != nil && n.GetToken() != nil {
		p.line, p.col = n.GetToken().Position.Line, n.GetToken().Position.Column
	}
	r.problems = append(r.problems, p)
}

// err lists the problems in the order of the file, one a line.
func (r *reader) err() error {
	if len(r.problems) == 0 {
		return nil
	}
	sort.SliceStable(r.problems, func(i, j int) bool {
		a, b := r.problems[i], r.problems[j]
		return a.line < b.line || a.line == b.line && a.col < b.col
	})
	var lines []string
	for i, p := range r.problems {
		if i == maxProblems {
			lines = append(lines, fmt.Sprintf("%s: %d more problems", r.file, len(r.problems)-i))
			break
		}
		lines = append(lines, fmt.Sprintf("%s:%d:%d: %s", r.file, p.line, p.col, p.text))
	}
	return &LoadError{lines: lines}
}

// LoadError lists what is wrong with a tenants file.
type LoadError struct{ lines []string }

// Error joins the problems with line breaks, each as file:line:col: message.
func (e *LoadError) Error() string { return strings.Join(e.lines, "\n") }

// Lines are the problems, in the order of the file.
func (e *LoadError) Lines() []string { return e.lines }

// parse returns the body of the only document of the text, nil if there is none
// or it does not parse.
func (r *reader) parse(text []byte) ast.Node {
	// Repeated keys are found by fields, whose message has no values in it.
	file, err := parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		p := problem{line: 1, col: 1, text: "not valid YAML"}
		if ye, ok := errors.AsType[yaml.Error](err); ok {
			if tk := ye.GetToken(); tk != nil {
				p.line, p.col = tk.Position.Line, tk.Position.Column
			}
			p.text = "not valid YAML: " + ye.GetMessage()
		}
		r.problems = append(r.problems, p)
		return nil
	}
	var body ast.Node
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if body != nil {
			r.fail(doc.Body, "a second document; put all tenants under one `tenants:` list")
			continue
		}
		body = doc.Body
	}
	return body
}

// fields reads a mapping: each known key by its function. what names the
// mapping in messages. It returns false if n is no mapping.
func (r *reader) fields(n ast.Node, what string, known map[string]func(ast.Node)) bool {
	pairs, ok := r.pairs(n, what)
	if !ok {
		return false
	}
	for _, p := range pairs {
		read, ok := known[p.key]
		if !ok {
			r.fail(p.node, "unknown key %s in %s%s", showKey(p.key), what, suggest(p.key, known))
			continue
		}
		read(p.value)
	}
	return true
}

type pair struct {
	key   string
	node  ast.Node // the key's
	value ast.Node
}

// pairs splits a mapping, refusing what strict YAML has not: keys that are not
// text, repeated ones, merge keys, anchors, aliases and tags.
func (r *reader) pairs(n ast.Node, what string) ([]pair, bool) {
	var values []*ast.MappingValueNode
	switch m := n.(type) {
	case *ast.MappingNode:
		values = m.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{m}
	default:
		r.fail(n, "%s should be a mapping, not %s", what, kindOf(n))
		return nil, false
	}
	var out []pair
	seen := make(map[string]int)
	for _, v := range values {
		key, ok := v.Key.(*ast.StringNode)
		if !ok {
			r.fail(v.Key, "a key of %s should be plain text, not %s", what, kindOf(v.Key))
			continue
		}
		if line, dup := seen[key.Value]; dup {
			r.fail(key, "key %s appears twice in %s, first in line %d", showKey(key.Value), what, line)
			continue
		}
		seen[key.Value] = key.GetToken().Position.Line
		out = append(out, pair{key: key.Value, node: key, value: v.Value})
	}
	return out, true
}

func (r *reader) items(n ast.Node, what string) []ast.Node {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		r.fail(n, "%s should be a list, not %s", what, kindOf(n))
		return nil
	}
	return seq.Values
}

// text reads a text, empty after a failure.
func (r *reader) text(n ast.Node, what string) string {
	s, _ := r.textOf(n, what)
	return s
}

func (r *reader) textOf(n ast.Node, what string) (string, bool) {
	switch s := n.(type) {
	case *ast.StringNode:
		return s.Value, true
	case *ast.LiteralNode:
		return s.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		r.fail(n, "%s should be text, not %s; put it in quotes", what, kindOf(n))
	default:
		r.fail(n, "%s should be text, not %s", what, kindOf(n))
	}
	return "", false
}

func (r *reader) boolean(n ast.Node, what string) bool {
	b, ok := n.(*ast.BoolNode)
	if !ok {
		r.fail(n, "%s should be true or false, not %s", what, kindOf(n))
		return false
	}
	return b.Value
}

func (r *reader) texts(n ast.Node, what string, most, size int) []string {
	var out []string
	items := r.items(n, what)
	for _, item := range items {
		s := r.text(item, "an entry of "+what)
		if len(s) > size {
			r.fail(item, "an entry of %s has %d bytes, at most %d are allowed", what, len(s), size)
		}
		out = append(out, s)
	}
	if len(items) > most {
		r.fail(n, "%s has %d entries, at most %d are allowed", what, len(items), most)
	}
	return out
}

// instant reads a date, which means its first instant in UTC, or an RFC 3339 time.
func (r *reader) instant(n ast.Node, what string) time.Time {
	s, ok := n.(*ast.StringNode)
	if !ok {
		r.fail(n, "%s should be a date or time, not %s", what, kindOf(n))
		return time.Time{}
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(layout, s.Value); err == nil {
			return t.UTC()
		}
	}
	r.fail(n, "%s should be a date like 2027-01-31 or a time like 2027-01-31T12:00:00Z", what)
	return time.Time{}
}

// kindOf is a node's kind in plain words.
func kindOf(n ast.Node) string {
	switch n.(type) {
	case nil, *ast.NullNode:
		return "nothing"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.BoolNode:
		return "true or false"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.StringNode, *ast.LiteralNode:
		return "text"
	case *ast.AnchorNode:
		return "an anchor, which is not allowed here"
	case *ast.AliasNode:
		return "an alias, which is not allowed here"
	case *ast.TagNode:
		return "a tag, which is not allowed here"
	case *ast.MergeKeyNode:
		return "a merge key, which is not allowed here"
	}
	return "something else"
}

// showKey quotes a key that looks like one; a stray credential does not.
func showKey(key string) string {
	if len(key) > 40 || strings.Contains(key, "slk_") {
		return "(not shown)"
	}
	return fmt.Sprintf("%q", key)
}

// suggest names the known key closest to a misspelt one, or all of them.
func suggest(key string, known map[string]func(ast.Node)) string {
	names := make([]string, 0, len(known))
	best, least := "", 3
	for name := range known {
		names = append(names, name)
		if d := distance(strings.ToLower(key), strings.ToLower(name)); d < least || d == least && name < best {
			best, least = name, d
		}
	}
	if best != "" {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	sort.Strings(names)
	return "; known keys are " + strings.Join(names, ", ")
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
