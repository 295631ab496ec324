package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/sluicegate/sluice/policy/yamltext"
)

// Bounds of the YAML layer.
const (
	maxFileSize  = 1 << 20
	maxTotalSize = 16 << 20 // of all files of one load
	maxFiles     = 2048
	maxFlowDepth = 32 // nested brackets, and dashes on one line
	// Signs of one file, and tokens of all files together: what a load takes of memory goes by them.
	maxFileSigns   = 250_000
	maxTotalTokens = 1_000_000
)

// yamlFile is the text of one file, cut into documents before it is parsed:
// the library drops documents that follow an empty one.
type yamlFile struct {
	name  string
	lines []string
}

// yamlDoc is one parsed document. Line numbers of its tokens count from the
// document's start; shift makes them lines of the file.
type yamlDoc struct {
	file  *yamlFile
	shift int
	root  ast.Node
	// tokens of the document.
	tokens int
}

// readYAML reads and parses one file. Faults go to p; the documents that could
// be parsed and the size of the file are returned.
func readYAML(p *problems, fsys fs.FS, name string) (docs []yamlDoc, size int) {
	raw, err := readBounded(fsys, name)
	if err != nil {
		p.addAt(name, 0, 0, "", fmt.Sprintf("cannot read file: %v", err))
		return nil, 0
	}
	text := strings.ReplaceAll(string(raw), "\r\n", "\n")
	if line := badTextLine(text); line > 0 {
		p.addAt(name, line, 1, "", "the file is not UTF-8 text: save it as UTF-8 without control characters")
		return nil, len(raw)
	}
	text = strings.TrimPrefix(text, "\ufeff")
	if yamltext.Signs(text) > maxFileSigns {
		p.addAt(name, 0, 0, "", fmt.Sprintf("the file has more than %d brackets, commas, quotes and other signs: split it", maxFileSigns))
		return nil, len(raw)
	}
	f := &yamlFile{name: name, lines: strings.Split(text, "\n")}
	for _, c := range f.chunks() {
		if root, n, ok := f.parse(p, c); ok && root != nil {
			docs = append(docs, yamlDoc{file: f, shift: c.first, root: root, tokens: n})
		}
	}
	return docs, len(raw)
}

func readBounded(fsys fs.FS, name string) ([]byte, error) {
	info, err := fs.Stat(fsys, name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is no regular file") // to open a pipe is to wait for whoever writes to it
	}
	if info.Size() > maxFileSize {
		return nil, fmt.Errorf("it has %d bytes, at most %d are allowed: split it", info.Size(), maxFileSize)
	}
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err == nil && len(raw) > maxFileSize {
		err = fmt.Errorf("it has more than %d bytes: split it", maxFileSize)
	}
	return raw, err
}

// badTextLine returns the line of the first byte that is not text, or 0.
func badTextLine(text string) int {
	for i, r := range text {
		bad := r < ' ' && r != '\n' && r != '\t' || r == 0x7f
		if r == utf8.RuneError {
			_, size := utf8.DecodeRuneInString(text[i:])
			bad = bad || size == 1
		}
		if bad {
			return 1 + strings.Count(text[:i], "\n")
		}
	}
	return 0
}

// chunk is the text of one document; first is the number of lines before it.
type chunk struct {
	text  string
	first int
}

// chunks cuts the file at its document markers. YAML allows a marker at the
// start of a line only between documents, never inside a scalar.
func (f *yamlFile) chunks() []chunk {
	var out []chunk
	var b strings.Builder
	first, empty := 0, true
	flush := func(next int) {
		if !empty {
			out = append(out, chunk{b.String(), first})
		}
		b.Reset()
		first, empty = next, true
	}
	for i, line := range f.lines {
		if rest, ok := cutMarker(line); ok {
			flush(i)
			line = "   " + rest // keeps the columns
		}
		if t := strings.TrimSpace(line); t != "" && t[0] != '#' {
			empty = false
		}
		b.WriteString(line)
		b.WriteByte('\n')
	}
	flush(len(f.lines))
	return out
}

// cutMarker cuts a document marker (--- or ...) off the start of a line.
func cutMarker(line string) (rest string, ok bool) {
	for _, m := range []string{"---", "..."} {
		rest, ok = strings.CutPrefix(line, m)
		if ok && (rest == "" || rest[0] == ' ' || rest[0] == '\t') {
			return rest, true
		}
	}
	return line, false
}

// parse parses one document, and counts its tokens.
func (f *yamlFile) parse(p *problems, c chunk) (root ast.Node, size int, ok bool) {
	tokens, fault := yamltext.Tokenize(c.text, yamltext.Small)
	if fault != nil {
		p.addAt(f.name, c.first+fault.Line, fault.Column, "", fault.Text)
		return nil, 0, false
	}
	if !f.checkTokens(p, tokens, c.first) {
		return nil, 0, false
	}
	file, err := yamltext.Parse(tokens)
	if err != nil {
		f.syntaxError(p, err, c.first)
		return nil, 0, false
	}
	if len(file.Docs) != 1 || countMappings(file.Docs[0].Body) != countTokens(tokens, token.MappingValueType) {
		p.addAt(f.name, c.first+1, 1, "", "cannot parse this document as YAML: a part of it would be dropped")
		return nil, 0, false
	}
	return file.Docs[0].Body, len(tokens), true
}

// syntaxError reports the library's error without its source excerpt.
func (f *yamlFile) syntaxError(p *problems, err error, shift int) {
	var se yaml.Error
	if errors.As(err, &se) && se.GetToken() != nil {
		pos := se.GetToken().Position
		p.addAt(f.name, shift+pos.Line, pos.Column, "", "YAML: "+firstLine(se.GetMessage()))
		return
	}
	p.addAt(f.name, shift+1, 1, "", "YAML: "+firstLine(err.Error()))
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// forbiddenTokens are YAML features that the format leaves out, since each lets
// a document say something else than what a reviewer reads.
func forbiddenToken(t token.Type) string {
	switch t {
	case token.AnchorType:
		return "anchors are not allowed: write the value out, or quote a text that starts with &"
	case token.AliasType:
		return "aliases are not allowed: write the value out, or quote a text that starts with *"
	case token.TagType:
		return "tags are not allowed: quote a text that starts with !"
	case token.MergeKeyType:
		return "merge keys are not allowed: write the fields out"
	case token.DirectiveType:
		return "directives are not allowed: remove the line"
	case token.MappingKeyType:
		return "complex keys are not allowed: write key: value"
	}
	return ""
}

func (f *yamlFile) checkTokens(p *problems, tokens token.Tokens, shift int) bool {
	ok := true
	depth, dashes, dashLine := 0, 0, 0
	for _, t := range tokens {
		if text := forbiddenToken(t.Type); text != "" {
			p.addAt(f.name, shift+t.Position.Line, t.Position.Column, "", text)
			ok = false
		}
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			depth++
		case token.MappingEndType, token.SequenceEndType:
			depth--
		case token.SequenceEntryType:
			if t.Position.Line != dashLine {
				dashes, dashLine = 0, t.Position.Line
			}
			dashes++
		}
		if max(depth, dashes) > maxFlowDepth {
			p.addAt(f.name, shift+t.Position.Line, t.Position.Column, "", fmt.Sprintf("values are nested deeper than %d levels", maxFlowDepth))
			return false
		}
	}
	return ok
}

func countTokens(tokens token.Tokens, want token.Type) int {
	n := 0
	for _, t := range tokens {
		if t.Type == want {
			n++
		}
	}
	return n
}

// countMappings counts the key: value pairs of a tree.
func countMappings(n ast.Node) int {
	total := 0
	switch v := n.(type) {
	case *ast.MappingNode:
		for _, e := range v.Values {
			total += countMappings(e)
		}
	case *ast.MappingValueNode:
		total = 1 + countMappings(v.Value)
	case *ast.SequenceNode:
		for _, e := range v.Values {
			total += countMappings(e)
		}
	}
	return total
}

// scalar is a text with a way from a place inside it to a place in its file.
type scalar struct {
	text string
	file string
	// line and col of the value's start.
	line, col int
	// exact: the text stands in one line from textCol on (block false), or line
	// by line from the line below the start, indented by textCol-1 (block true).
	exact, block bool
	textCol      int
}

// locate maps a line (from 1) and column (from 0, in code points) of the text
// to the file, or to the start of the value where that is not exact.
func (s scalar) locate(line, col int) (int, int) {
	switch {
	case !s.exact || line < 1 || col < 0:
		return s.line, s.col
	case s.block:
		return s.line + line, s.textCol + col
	case line == 1:
		return s.line, s.textCol + col
	}
	return s.line, s.col
}

// scalarOf reads any scalar by its text: an unquoted true or 10 is the text
// "true" or "10".
func (n node) scalarOf() (scalar, bool) {
	line, col := n.position()
	s := scalar{file: n.doc.file.name, line: line, col: col}
	switch v := n.n.(type) {
	case *ast.StringNode:
		s.text = v.Value
		n.locateLine(&s, v.Token)
	case *ast.LiteralNode:
		s.text = v.Value.Value
		n.locateBlock(&s)
	case *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		s.text = n.n.GetToken().Value
		n.locateLine(&s, n.n.GetToken())
	default:
		return scalar{}, false
	}
	return s, true
}

// locateLine finds out whether a plain or quoted scalar stands in its line as
// it is, without escapes.
func (n node) locateLine(s *scalar, t *token.Token) {
	quote := 0
	switch t.Type {
	case token.SingleQuoteType, token.DoubleQuoteType:
		quote = 1
	}
	start := s.col + quote
	s.exact = hasAt(n.doc.file.lines, s.line, start, s.text)
	s.textCol = start
}

// hasAt reports whether a line (from 1) of the file holds text at a column
// (from 1, in code points).
func hasAt(lines []string, line, col int, text string) bool {
	if line < 1 || line > len(lines) || strings.Contains(text, "\n") {
		return false
	}
	rest := lines[line-1]
	for i := 1; i < col; i++ {
		_, size := utf8.DecodeRuneInString(rest)
		if size == 0 {
			return false
		}
		rest = rest[size:]
	}
	return strings.HasPrefix(rest, text)
}

// locateBlock finds the indentation of a | scalar and checks that every line
// of the text is a line of the file. A folded scalar has no such places.
func (n node) locateBlock(s *scalar) {
	lines := strings.Split(strings.TrimRight(s.text, "\n"), "\n")
	file := n.doc.file.lines
	if v, ok := n.n.(*ast.LiteralNode); !ok || v.Start.Type != token.LiteralType || s.line >= len(file) {
		return
	}
	indent := -1
	for i, l := range lines {
		if strings.TrimSpace(l) == "" {
			continue
		}
		at := strings.Index(lineAt(file, s.line+1+i), l)
		if at < 0 || (indent >= 0 && at != indent) || !blank(lineAt(file, s.line+1+i)[:at]) {
			return
		}
		indent = at
	}
	if indent >= 0 {
		s.exact, s.block, s.textCol = true, true, indent+1
	}
}

func lineAt(lines []string, line int) string {
	if line < 1 || line > len(lines) {
		return ""
	}
	return lines[line-1]
}

func blank(s string) bool { return len(bytes.TrimLeft([]byte(s), " ")) == 0 }
