package yamltext

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml/lexer"
	"pgregory.net/rapid"
)

func entries(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// TestRefused: each text takes the library a minute, a gigabyte or the process without the bound.
func TestRefused(t *testing.T) {
	nested := func(open string) string { return strings.Repeat(open, 1<<20/len(open)) }
	deep := strings.Builder{}
	for i := range 1000 {
		deep.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	for name, c := range map[string]struct{ text, want string }{
		"nested lists":             {nested("["), "1:100001: more than 100000 brackets"},
		"nested mappings":          {nested("{a: "), "1:200001: more than 100000 brackets"}, // {a: has two signs
		"complex keys":             {nested("? "), "1:200001: more than 100000 brackets"},
		"dashes":                   {nested("- "), "1:200001: more than 100000 brackets"},
		"empty lists":              {"[" + nested("[],"), "more than 100000 brackets"},
		"blank lines":              {"x: |\n a\n" + strings.Repeat("\n", 101), "103:1: more than 100 blank lines in a row"},
		"blank lines of CR":        {"x: |\r a\r" + strings.Repeat("\r", 101), "103:1: more than 100 blank lines in a row"},
		"blank lines of CRLF":      {"x: |\r\n a\r\n" + strings.Repeat("\r\n", 101), "103:1: more than 100 blank lines in a row"},
		"lines of spaces":          {"x: |\n a\n" + strings.Repeat(" \n", 101), "103:1: more than 100 blank lines in a row"},
		"tabs":                     {"x: \"é" + strings.Repeat("\t", 101) + "\"", "1:106: more than 100 tabs in a line"},
		"signs <":                  {"x" + strings.Repeat("<", 101), "1:102: more than 100 signs < in a row"},
		"depth of brackets":        {strings.Repeat("[", 129), "1:129: values are nested deeper than 128 levels"},
		"depth of blocks":          {deep.String(), "129:130: values are nested deeper than 128 levels"},
		"depth of dashes":          {strings.Repeat("- ", 129), "1:257: values are nested deeper than 128 levels"},
		"a long mapping":           {entries(10_001, "a%d: 1\n"), "10001:1: a mapping has at most 10000 entries"},
		"a long mapping in a list": {"- a\n-\n  b:\n" + entries(10_001, "    a%d:\n      - 1\n"), "20004:5: a mapping has at most 10000 entries"},
		"long keys":                {strings.Repeat("k", 100_000) + ":\n" + entries(9000, " a%d: 1\n"), "the keys are too long for how many and how deep they are"},
		"long keys in brackets":    {"{" + strings.Repeat("k", 100_000) + ": {" + entries(9000, "a%d: 1, ") + "}}", "the keys are too long"},
		"tags":                     {"x: " + strings.Repeat("!a ", 1001) + "y", "more than 1000 anchors, aliases and tags"},
		"anchors":                  {"x: " + strings.Repeat("&a ", 1001) + "y", "more than 1000 anchors, aliases and tags"},
		"markers":                  {strings.Repeat("---\n", 101), "101:1: more than 100 document markers"},
		"tokens":                   {"[" + strings.Repeat("a,", 25_000) + "]", "1:50001: a document has at most 50000 words and signs"},
	} {
		tokens, fault := Tokenize(c.text, Small)
		if fault == nil || !strings.Contains(fault.Error(), c.want) {
			t.Errorf("%s: got %d tokens, %v, want %s", name, len(tokens), fault, c.want)
		}
	}
	omitted := map[string]string{
		"values of keys":   entries(13_000, "- a%d:\n  b:\n") + strings.Repeat("- 1\n", 20_000),
		"values of dashes": strings.Repeat("-\n", 25_000) + strings.Repeat("- 1\n", 40_000),
		"values of a flow": "- {" + strings.Repeat("a, ", 25_000) + "}\n" + strings.Repeat("- 1\n", 40_000),
	}
	for name, text := range omitted {
		if _, fault := Tokenize(text, Large); fault == nil || !strings.Contains(fault.Text, "values are left out: write them, or null") {
			t.Errorf("%s: got %v", name, fault)
		}
	}
}

// TestAdmitted: what is just inside of the bounds is read, and in seconds at most.
func TestAdmitted(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":             "",
		"blank lines":         "x: |\n a\n" + strings.Repeat("\n", 99) + " b\n",
		"tabs":                "x: \"" + strings.Repeat("\t", 100) + "\"",
		"tabs in many lines":  entries(10_000, "- a\tb%d\n"),
		"depth":               strings.Repeat("[", 128) + strings.Repeat("]", 128),
		"a long mapping":      entries(10_000, "a%d: 1\n"),
		"many mappings":       entries(8_000, "- { a%d: 1 }\n"),
		"as long, then again": "a:\n" + entries(7000, "  a%d: 1\n") + "b:\n" + entries(7000, "  a%d: 1\n"),
		"lists as far left":   entries(5000, "a%d:\n- 1\n"),
		"left out":            entries(9000, "a%d:\n"),
		"a long text":         "x: |\n" + strings.Repeat("  words and more words\n", 40_000),
	} {
		start := time.Now()
		tokens, fault := Tokenize(text, Small)
		if fault != nil {
			t.Errorf("%s: %v", name, fault)
			continue
		}
		if _, err := Parse(tokens); err != nil {
			t.Errorf("%s: %.200v", name, err)
		}
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("%s: took %s", name, took)
		}
	}
}

// TestMemoryOfHostileTexts: what a refusal takes is bounded, whatever the text is made of.
func TestMemoryOfHostileTexts(t *testing.T) {
	for _, unit := range []string{"[", "? ", "- ", "{a: ", "[],", "''", "a:\n", "&a ", "*a ", "!a ", "{a,", "@", "`", "%", "|\n", "x\n", "#\n", "- - ", "\"\" ", "a: b: "} {
		// As much as is cut into tokens: more is refused before.
		text := strings.Repeat(unit, min(1<<20/len(unit), Small.Signs/max(1, Signs(unit))))
		before := allocated()
		start := time.Now()
		tokens, fault := Tokenize(text, Small)
		took, bytes := time.Since(start), allocated()-before
		t.Logf("%-6q %7d bytes, refused %-5t %3d tokens, %4d MB allocated, %s", unit, len(text), fault != nil, len(tokens), bytes>>20, took.Round(time.Millisecond))
		if bytes > 150<<20 {
			t.Errorf("%q: %d MB were allocated for a text of %d bytes", unit, bytes>>20, len(text))
		}
		if _, fault := Tokenize(strings.Repeat(unit, 1<<20/len(unit)), Small); fault == nil {
			t.Errorf("%q: a mebibyte of it is read", unit)
		}
	}
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// TestSignsBoundTokens: the count that is made before there are tokens holds them.
func TestSignsBoundTokens(t *testing.T) {
	piece := rapid.SampledFrom([]string{
		"[", "]", "{", "}", ",", ":", ": ", "-", "- ", "?", "? ", "#", " #", "&", "*", "!", "|", ">", "'", "\"", "%", "@", "`", "\n", "\r", "\r\n", "\t", " ", "  ",
		"a", "b", "é", "<<", "<<: ", "---", "---\n", "...\n", "\\", "\\q", "\\x", "|\n", ">-\n", "|2\n", "null", "1", "~", "\n\n", "http://",
	})
	rapid.Check(t, func(rt *rapid.T) {
		text := strings.Join(rapid.SliceOfN(piece, 0, 60).Draw(rt, "pieces"), "")
		if tokens, signs := len(lexer.Tokenize(text)), Signs(text); tokens > 2*signs+2 {
			rt.Fatalf("%q: %d tokens, %d signs", text, tokens, signs)
		}
	})
}

// FuzzTokenize: a text that is let through is parsed without a panic, or fails with an error.
func FuzzTokenize(f *testing.F) {
	for _, text := range []string{"a: [b, {c: d}]\n", "- a\n-\n  b: |\n    x\n", "{a, b: , c}", "? a\n: b\n", "a: &x !t y\nb: *x\n", "\t- 'a''b'\r\n", "<<: {a: 1}\n", "]]]}}}"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if signs, tokens := Signs(text), len(lexer.Tokenize(text)); tokens > 2*signs+2 {
			t.Errorf("%d tokens, %d signs", tokens, signs)
		}
		tokens, fault := Tokenize(text, Small)
		if fault != nil {
			if fault.Line < 1 || fault.Column < 1 {
				t.Errorf("no place: %v", fault)
			}
			return
		}
		_, _ = Parse(tokens)
	})
}
