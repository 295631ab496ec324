// Package yamltext bounds what a YAML text may cost before it is parsed.
//
// The YAML library takes time by the square, in a few places, and memory of some hundred bytes for each
// sign of a text, or a stack as deep as the text is nested or a mapping long. A file of a megabyte could so
// hold a core for half an hour, take a gigabyte, or end the process, which no recover prevents. Everything
// of that kind that was found is refused here: what can be told from the text before it is cut into tokens,
// the rest before tokens are put together to a tree. docs/0018-policy-safety.md has the measurements.
package yamltext

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds are the most that a text may have.
type Bounds struct {
	// Signs are characters that can begin or end a token, wherever they stand: [Signs] counts them. They bound
	// the tokens before there are any.
	Signs int
	// Tokens are words and signs as YAML has them: a quoted text is one, and a block of text is two.
	Tokens int
	// Paths are the bytes of the paths that lead to all keys together, as the parser keeps one at each node.
	Paths int
}

// Small is for what people write: a policy, a configuration.
var Small = Bounds{Signs: 100_000, Tokens: 50_000, Paths: 32 << 20}

// Large is for lists that programs write: tenants with their keys.
var Large = Bounds{Signs: 4_000_000, Tokens: 4_000_000, Paths: 256 << 20}

// Bounds of every text.
const (
	maxBlankLines = 100    // in a row
	maxTabs       = 100    // in a line
	maxAngles     = 100    // "<" in a row
	maxDepth      = 128    // of values in values
	maxEntries    = 10_000 // of a mapping
	maxProperties = 1000   // anchors, aliases and tags
	maxDocuments  = 100    // markers between documents
	// maxMoves bounds values that are left out, times tokens: the parser moves the tokens that follow up by
	// one for each.
	maxMoves = 2_000_000_000
)

// Fault is what is too much in a text, and where. It quotes nothing of the text.
type Fault struct {
	Line, Column int // from 1
	Text         string
}

// Error writes the place and the text.
func (f *Fault) Error() string { return fmt.Sprintf("%d:%d: %s", f.Line, f.Column, f.Text) }

// Tokenize cuts a text of UTF-8 into tokens that are safe to parse, or returns a fault.
func Tokenize(text string, b Bounds) (tokens token.Tokens, fault *Fault) {
	if f := scan(text, b.Signs); f != nil {
		return nil, f
	}
	defer func() {
		if recover() != nil { // a bug of the library, and a fault of this text only
			tokens, fault = nil, &Fault{Line: 1, Column: 1, Text: textPanic}
		}
	}()
	tokens = lexer.Tokenize(text)
	if len(tokens) > b.Tokens {
		return nil, faultAt(tokens[b.Tokens], "a document has at most %d words and signs: split it", b.Tokens)
	}
	if f := shapeOf(tokens, b); f != nil {
		return nil, f
	}
	return tokens, nil
}

// textPanic names nothing of the panic, which may quote the text.
const textPanic = "cannot parse this as YAML"

// Parse puts the tokens of [Tokenize] together. Repeated keys are left to the caller, who can say more about
// them. The error is a yaml.Error unless the library fails in a way of its own.
func Parse(tokens token.Tokens) (file *ast.File, err error) {
	defer func() {
		if recover() != nil {
			file, err = nil, errors.New(textPanic)
		}
	}()
	return parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
}

func faultAt(t *token.Token, format string, args ...any) *Fault {
	return &Fault{Line: t.Position.Line, Column: t.Position.Column, Text: fmt.Sprintf(format, args...)}
}

// signs are the characters that can begin or end a token, other than dashes and line breaks.
var signs = func() (set [256]bool) {
	for _, c := range []byte("[]{},:?&*!|>%@`'\"") {
		set[c] = true
	}
	return set
}()

// isSign reports whether the character at i is a sign. A dash is one before white space, a line break at the
// end of a line that is not blank, and of several # in a row the first.
func isSign(text string, i int, blank bool) bool {
	switch c := text[i]; c {
	case '-':
		return i+1 == len(text) || text[i+1] <= ' '
	case '\n', '\r':
		return !blank
	case '#':
		return i == 0 || text[i-1] != '#'
	default:
		return signs[c]
	}
}

// Signs counts the characters of a text that can begin or end a token. There are at most two tokens for
// each, and two more.
func Signs(text string) int {
	n, blank := 0, true
	for i := range len(text) {
		if isSign(text, i, blank) {
			n++
		}
		switch text[i] {
		case '\n', '\r':
			blank = true
		case ' ', '\t':
		default:
			blank = false
		}
	}
	return n
}

// scanner keeps count in one pass over a text.
type scanner struct {
	line, start         int // the line, and where it begins
	blank, tabs, angles int // lines in a row so far, of the line so far, in a row so far
	empty               bool
}

// scan refuses what can be told from the text alone.
func scan(text string, most int) *Fault {
	s, n := scanner{line: 1, empty: true}, 0
	for i := range len(text) {
		if isSign(text, i, s.empty) {
			if n++; n > most {
				return s.fault(text, i, "more than %d brackets, commas, quotes and other signs: split the file", most)
			}
		}
		if f := s.next(text, i); f != nil {
			return f
		}
	}
	return nil
}

func (s *scanner) next(text string, i int) *Fault {
	c := text[i]
	if c != '<' {
		s.angles = 0
	}
	switch c {
	case '\n':
		return s.newLine(text, i)
	case '\t':
		if s.tabs++; s.tabs > maxTabs {
			return s.fault(text, i, "more than %d tabs in a line: use spaces", maxTabs)
		}
	case '\r':
		if i+1 == len(text) || text[i+1] != '\n' {
			return s.newLine(text, i)
		}
	case ' ':
	case '<':
		s.empty = false
		if s.angles++; s.angles > maxAngles {
			return s.fault(text, i, "more than %d signs < in a row: remove them", maxAngles)
		}
	default:
		s.empty = false
	}
	return nil
}

func (s *scanner) newLine(text string, i int) *Fault {
	if !s.empty {
		s.blank = 0
	} else if s.blank++; s.blank > maxBlankLines {
		return s.fault(text, s.start, "more than %d blank lines in a row: remove them", maxBlankLines)
	}
	s.line, s.start, s.tabs, s.empty = s.line+1, i+1, 0, true
	return nil
}

// fault places a fault at a byte of the present line.
func (s *scanner) fault(text string, at int, format string, args ...any) *Fault {
	column := len([]rune(strings.ToValidUTF8(text[s.start:at], "?"))) + 1
	return &Fault{Line: s.line, Column: column, Text: fmt.Sprintf(format, args...)}
}
