package strictyaml

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/sluicegate/sluice/policy/yamltext"
)

// MaxProblems is how many problems of one file an Error lists: a file of another
// format should not fill the screen.
const MaxProblems = 50

// Reader walks one document and collects its problems. It is not safe for
// concurrent use.
type Reader struct {
	// File is the file's name in messages.
	File string
	// ShowKey is how messages show a key that the file has made up. Nil quotes it.
	ShowKey func(key string) string
	// Nearest returns which of the known keys, in their order, a misspelt one
	// stands for, or "". Nil never knows.
	Nearest func(key string, known []string) string
	// KindName names a kind in messages. Nil is Kind.String.
	KindName func(Kind) string

	problems []problem
}

type problem struct {
	line, column int
	text         string
}

// Fail records a problem at the start of a value; of the zero Node, at the start
// of the file.
func (r *Reader) Fail(at Node, format string, args ...any) {
	line, column := at.position()
	r.problems = append(r.problems, problem{line, column, fmt.Sprintf(format, args...)})
}

// FailKind records that a value is of another kind than it should be.
func (r *Reader) FailKind(n Node, what, should string) {
	r.Fail(n, "%s should be %s, not %s", what, should, r.kindOf(n))
}

func (r *Reader) kindOf(n Node) string {
	if r.KindName != nil {
		return r.KindName(n.Kind())
	}
	return n.Kind().String()
}

// Problems counts the problems so far.
func (r *Reader) Problems() int { return len(r.problems) }

// Err returns an *Error of all problems in the order of the file, nil if there
// are none.
func (r *Reader) Err() error {
	if len(r.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(r.problems, func(a, b problem) int {
		return cmp.Or(cmp.Compare(a.line, b.line), cmp.Compare(a.column, b.column))
	})
	var lines []string
	for i, p := range r.problems {
		if i == MaxProblems {
			lines = append(lines, fmt.Sprintf("%s: %d more problems", r.File, len(r.problems)-i))
			break
		}
		lines = append(lines, fmt.Sprintf("%s:%d:%d: %s", r.File, p.line, p.column, p.text))
	}
	return &Error{lines: lines}
}

// Error lists what is wrong with a file.
type Error struct{ lines []string }

// Error joins the problems with line breaks, each as file:line:column: message.
func (e *Error) Error() string { return strings.Join(e.lines, "\n") }

// Lines are the problems, in the order of the file.
func (e *Error) Lines() []string { return e.lines }

// Parse returns the only document of a file that holds everything in one list;
// list is the key of it, for messages. It reports false, after a problem, when
// there is no document to read.
func (r *Reader) Parse(text []byte, list string) (Node, bool) {
	if !utf8.Valid(text) {
		r.Fail(Node{}, "the file is not UTF-8 text")
		return Node{}, false
	}
	// Pairs finds repeated keys; its message has no values in it.
	tokens, fault := yamltext.Tokenize(string(text), yamltext.Large)
	if fault != nil {
		r.problems = append(r.problems, problem{fault.Line, fault.Column, fault.Text})
		return Node{}, false
	}
	file, err := yamltext.Parse(tokens)
	if err != nil {
		r.problems = append(r.problems, syntaxProblem(err))
		return Node{}, false
	}
	var body Node
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil:
		case body.ast == nil:
			body = Node{doc.Body}
		default:
			r.Fail(Node{doc.Body}, "a second document; put all %[1]s under one `%[1]s:` list", list)
		}
	}
	if body.ast == nil {
		r.Fail(Node{}, "the file is empty; it should hold a `%s:` list", list)
	}
	return body, body.ast != nil
}

func syntaxProblem(err error) problem {
	p := problem{line: 1, column: 1, text: "not valid YAML"}
	if ye, ok := errors.AsType[yaml.Error](err); ok {
		p.text += ": " + ye.GetMessage()
		if tk := ye.GetToken(); tk != nil {
			p.line, p.column = tk.Position.Line, tk.Position.Column
		}
	}
	return p
}

// Fields reads a mapping, each known key by its function. what names the mapping
// in messages. It reports false, after a problem, if n is no mapping.
func (r *Reader) Fields(n Node, what string, known map[string]func(Node)) bool {
	pairs, ok := r.Pairs(n, what)
	if !ok {
		return false
	}
	for _, p := range pairs {
		read, ok := known[p.Key]
		if !ok {
			r.Fail(p.At, "unknown key %s in %s; %s", r.showKey(p.Key), what, r.suggest(p.Key, slices.Sorted(maps.Keys(known))))
			continue
		}
		read(p.Value)
	}
	return true
}

func (r *Reader) showKey(key string) string {
	if r.ShowKey != nil {
		return r.ShowKey(key)
	}
	return strconv.Quote(key)
}

func (r *Reader) suggest(key string, known []string) string {
	if r.Nearest != nil {
		if nearest := r.Nearest(key, known); nearest != "" {
			return fmt.Sprintf("did you mean %q?", nearest)
		}
	}
	return "known keys are " + strings.Join(known, ", ")
}

// Pair is a key of a mapping and its value.
type Pair struct {
	Key   string
	At    Node // the key's place
	Value Node
}

// Pairs splits a mapping whose keys are not known beforehand. A key that is not
// text or that was there before is a problem, and left out. It reports false,
// after a problem, if n is no mapping.
func (r *Reader) Pairs(n Node, what string) ([]Pair, bool) {
	m, ok := n.ast.(*ast.MappingNode)
	if !ok {
		r.FailKind(n, what, "a mapping")
		return nil, false
	}
	var out []Pair
	seen := make(map[string]int)
	for _, v := range m.Values {
		at := Node{v.Key}
		key, ok := v.Key.(*ast.StringNode)
		if !ok {
			r.FailKind(at, "a key of "+what, "plain text")
			continue
		}
		if line, dup := seen[key.Value]; dup {
			r.Fail(at, "key %s appears twice in %s, first in line %d", r.showKey(key.Value), what, line)
			continue
		}
		seen[key.Value] = at.Line()
		out = append(out, Pair{Key: key.Value, At: at, Value: Node{v.Value}})
	}
	return out, true
}

// Items returns the entries of a list, none after a problem.
func (r *Reader) Items(n Node, what string) []Node {
	seq, ok := n.ast.(*ast.SequenceNode)
	if !ok {
		r.FailKind(n, what, "a list")
		return nil
	}
	out := make([]Node, len(seq.Values))
	for i, v := range seq.Values {
		out[i] = Node{v}
	}
	return out
}
