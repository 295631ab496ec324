package jsonscan

import (
	"bytes"
	"encoding/json"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/sluicegate/sluice/gateway/wire/wiretest"
)

// skipAll tells whether a text is one value by the cursor's grammar.
func skipAll(text []byte, depth int) bool {
	c := Cursor{B: text, MaxDepth: depth}
	c.Document()
	c.Skip()
	c.Finish()
	return c.Bad == FaultNone
}

// FuzzCursor checks the grammar against the standard library's, which is as
// strict but for depth and for bytes that are not UTF-8.
func FuzzCursor(f *testing.F) {
	for _, text := range []string{
		`{}`, `[]`, `""`, `0`, `-1.5e+10`, `null`, `tru`, `{"a":[1,{"b":"\u00e9\ud83d\ude00\n"}],"c":null}`, `[1,]`, `{"a":1,}`,
		"\"\xff\"", "\"é\"", `"\`, `01`, `1.`, `1e`, `-`, `--1`, ` [ 1 , 2 ] `, "[1\x002]", `{"a" : {}}x`, `"\ud800"`,
		"\xef\xbb\xbf{}", strings.Repeat("[", 200) + strings.Repeat("]", 200), `"aaaaaaa"`, `"aaaaaaaaaaaaaa\"aa"`,
	} {
		f.Add([]byte(text))
	}
	recorded, err := filepath.Glob("../openai/testdata/*.json")
	if err != nil || len(recorded) == 0 {
		f.Fatalf("no recordings (%v)", err)
	}
	for _, name := range recorded {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		want := json.Valid(text) && utf8.Valid(text) && wiretest.Nesting(text) <= RequestDepth
		if got := skipAll(text, RequestDepth); got != want {
			t.Errorf("%q is valid: %v, want %v", text, got, want)
		}
	})
}

func TestPlainASCII(t *testing.T) {
	slow := func(b []byte, i int) int {
		for ; i < len(b) && b[i] >= 0x20 && b[i] != '"' && b[i] != '\\' && b[i] < 0x80; i++ {
		}
		return i
	}
	for length := range 20 {
		for at := range length {
			for ch := range 256 {
				for _, next := range []byte{'a', 0x7f, ' ', '!', '#', '[', ']', 0x00, 0x80, 0xff, '"'} {
					b := bytes.Repeat([]byte{'a'}, length)
					b[at] = byte(ch)
					if at+1 < length {
						b[at+1] = next
					}
					if got, want := plainASCII(b, 0), slow(b, 0); got != want {
						t.Fatalf("plainASCII(%q) = %d, want %d", b, got, want)
					}
				}
			}
		}
	}
}

// Sizes and unescaped texts must agree with the standard library's.
func TestStringsAgainstStandard(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := wiretest.DrawString(t, "string")
		var want string
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatalf("the generator made %s: %v", text, err)
		}
		c := Cursor{B: []byte(text), MaxDepth: 1}
		tok := c.Str()
		c.Finish()
		if c.Bad != FaultNone {
			t.Fatalf("%s: %v", text, c.Bad)
		}
		got := AppendUnescaped(nil, c.B[tok.Start:tok.End])
		if string(got) != want || tok.Size != len(want) {
			t.Fatalf("%s reads as %q of size %d, want %q of size %d", text, got, tok.Size, want, len(want))
		}
		quoted := AppendQuoted(nil, want)
		var back string
		if err := json.Unmarshal(quoted, &back); err != nil || back != want {
			t.Fatalf("%q quoted is %s, which reads as %q (%v)", want, quoted, back, err)
		}
	})
}

func TestAppendQuotedRepairs(t *testing.T) {
	f := func(s, want string) {
		t.Helper()
		if got := string(AppendQuoted(nil, s)); got != want {
			t.Errorf("%q quoted is %s, want %s", s, got, want)
		}
		if got := string(AppendQuoted(nil, []byte(s))); got != want {
			t.Errorf("%q quoted as bytes is %s, want %s", s, got, want)
		}
	}
	f("", `""`)
	f("a\xff\xfeb", `"a`+"\ufffd\ufffd"+`b"`)
	f("\xe6\xbc", `"`+"\ufffd\ufffd"+`"`)
	f("a\x00\x1f\x7f\"\\\r\n\t<>&", `"a\u0000\u001f\u007f\"\\\r\n\t<>&"`)
	f("漢😀", `"漢😀"`)
}

// limit is the one of most integers in requests.
const limit = 1<<31 - 1

func TestInteger(t *testing.T) {
	f := func(text string, want int64, ok bool) {
		t.Helper()
		if got, gotOK := Integer([]byte(text), limit); gotOK != ok || ok && got != want {
			t.Errorf("integer(%s) = %d, %v, want %d, %v", text, got, gotOK, want, ok)
		}
	}
	f("0", 0, true)
	f("-0", 0, true)
	f("-0.0e5", 0, true)
	f("0e999999999999999999999", 0, true)
	f("2147483647", 2147483647, true)
	f("2147483648", 0, false)
	f("2147483647.0", 2147483647, true)
	f("2147483647.0000000000000001", 0, false)
	f("21474836470e-1", 2147483647, true)
	f("0.0000000002147483647e+19", 2147483647, true)
	f("1e9", 1000000000, true)
	f("1e10", 0, false)
	f("1e999999999999999999999", 0, false)
	f("1e-999999999999999999999", 0, false)
	f("100000000000000000000e-20", 1, true)
	f("-1", 0, false)
	f("0.5", 0, false)
	f("5e-1", 0, false)
	f("1.000000000000000000000000000001", 0, false)
}

func TestIntegerAgainstRational(t *testing.T) {
	number := rapid.StringMatching(`-?(0|[1-9][0-9]{0,12})(\.[0-9]{1,6})?([eE][+-]?[0-9]{1,2})?`)
	rapid.Check(t, func(t *rapid.T) {
		text := number.Draw(t, "number")
		if !skipAll([]byte(text), 1) {
			t.Fatalf("%s is no number", text)
		}
		exact, ok := new(big.Rat).SetString(text)
		if !ok {
			t.Fatalf("the reference cannot read %s", text)
		}
		want := exact.IsInt() && exact.Sign() >= 0 && exact.Num().Cmp(big.NewInt(limit)) <= 0
		got, gotOK := Integer([]byte(text), limit)
		if gotOK != want || want && got != exact.Num().Int64() {
			t.Fatalf("integer(%s) = %d, %v, want %v, %v", text, got, gotOK, exact, want)
		}
	})
}
