package classify

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// FuzzWalk compares the strings that the walker hands over with those that
// encoding/json reads. What isn't JSON must not panic and is scanned all the same.
func FuzzWalk(f *testing.F) {
	for _, seed := range []string{
		`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b\n"}]}]}`,
		`{"prompt":[1,2,3],"x":[[1],["y"]],"z":1234567890123,"a":{"n":1234567890123}}`,
		`{"input":[{"type":"tool_use","input":{"\u0061":"\ud83d\ude00\ud800"}}]}`,
		`[[[{"a":{"b":[]}}]]]`, `"x"`, `{"a":"`, `{"a":1`, `nul`, "", " ", `{"image_url":{"url":"data:image/png;base64,` + strings.Repeat("A", 300) + `"}}`,
		`{"a":"{\"b\":\"[1,\\\"c\\\"]\"}"}`, `{"text":[],"content":["a",["b"],{"text":"c"}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var text string
		keep := fake{name: "x", detect: func(_ context.Context, s string) (map[string]int64, error) { text = s; return nil, nil }}
		cfg := each()
		cfg.MaxBytes = maxBytesLimit
		cfg.External = []External{keep}
		got := scanBody(mustNew(t, cfg), string(body))
		if !slices.Contains(statusWords[:], got.ScanStatus) {
			t.Fatalf("the status is %q", got.ScanStatus)
		}
		if !json.Valid(body) || !utf8.Valid(body) || bytes.Count(body, []byte("[")) > 500 {
			return
		}
		want, size, ok := readStrings(t, body)
		if !ok {
			return
		}
		if len(text) != size {
			t.Fatalf("%d bytes of text, want %d: %q for %q", len(text), size, text, want)
		}
		for _, s := range want {
			if !strings.Contains(text, s) {
				t.Fatalf("%q lacks %q", text, s)
			}
		}
	})
}

// readStrings reads the texts of a body with encoding/json, by the rules of the
// walker but not by its code, and how long they are together, a line break between
// each. It reports false where a text is so long that it may be media.
func readStrings(t *testing.T, body []byte) (texts []string, size int, ok bool) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	type open struct {
		array bool
		key   string // of the member at hand
		under string // of the container
		name  bool   // a key comes next
	}
	var stack []open
	keep := func(s string) {
		if s != "" {
			texts = append(texts, s)
			size += len(s) + 1
		}
	}
	for {
		token, err := d.Token()
		if err == io.EOF {
			return texts, max(0, size-1), true
		}
		if err != nil {
			t.Fatal(err)
		}
		key := ""
		top := len(stack) - 1
		if top >= 0 {
			if key = stack[top].key; stack[top].array {
				key = stack[top].under
			}
			if stack[top].name {
				if s, ok := token.(string); ok {
					stack[top].key, stack[top].name = s, false
					if fieldOf([]byte(s)) == unknownField {
						keep(s)
					}
					continue
				}
			}
			stack[top].name = !stack[top].array
		}
		switch v := token.(type) {
		case json.Delim:
			if v == '{' || v == '[' {
				stack = append(stack, open{array: v == '[', under: key, name: v == '{'})
			} else {
				stack = stack[:top]
			}
		case json.Number:
			if len(v) >= 9 && len(stack) > 1 {
				keep(v.String())
			}
		case string:
			word := (key == "role" || key == "type") && (place{key: fieldOf([]byte(key))}).protocolWord([]byte(v))
			if word || key == "model" && len(stack) == 1 && !stack[0].array {
				continue
			}
			if len(v) >= minMedia {
				return nil, 0, false
			}
			keep(v)
		}
	}
}

// FuzzUnescape compares the text of strings with what encoding/json makes of them.
func FuzzUnescape(f *testing.F) {
	for _, seed := range []string{`a`, `\n\t\"\\\/`, `\u00e9\ud83d\ude00`, `\ud83d`, `\ud83d\u0041`, `\udc00\ud83d\ude00`, `\u12`, `\x`, `\`, "é"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		got := appendUnescaped(nil, raw, len(raw)*2)
		var want string
		if !utf8.Valid(raw) || json.Unmarshal(slices.Concat([]byte(`"`), raw, []byte(`"`)), &want) != nil {
			return
		}
		soft := func(r rune) rune {
			if r < ' ' && r != '\n' && r != '\r' && r != '\t' || r == del {
				return softBreak
			}
			return r
		}
		if got, want := strings.Map(soft, string(got)), strings.Map(soft, want); got != want {
			t.Fatalf("%q gives %q, want %q", raw, got, want)
		}
	})
}

// FuzzDetect feeds text to the detectors: they don't panic, end in time, and find
// the same in parts of any size that the clock cuts.
func FuzzDetect(f *testing.F) {
	for _, seed := range []string{
		"4111 1111 1111 1111", "GB82 WEST 1234 5698 7654 32", "219-09-9999 ssn", "ann@example.com", "+49 30 901820", "(212) 555-0134", "sk-_A-=./", "-----BEGIN PRIVATE KEY-----",
		"PuTTY-User-Key-File-2", "1\x1f2\x1f3 4", "é٤١١١", "AccountKey=", "\xff\xfe", "0049 30 1234567", "a@b.c@d.e", "4111\t1111\t1111\t1111", "4111, 1111, 1111, 1111", "\"a b\"@c.de", "1\u0301 \x7f", "4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1",
	} {
		f.Add([]byte(seed), 7)
	}
	cfg := each()
	cfg.Custom = []Custom{{Name: "d", Label: "d", Patterns: []string{`\bEMP-\d+\b`}, Keywords: []string{"falcon", "機密"}}}
	c := mustNew(f, cfg)
	f.Fuzz(func(t *testing.T, text []byte, size int) {
		s := c.pool.Get().(*scan)
		defer s.release()
		s.begin(context.Background(), &Request{})
		s.deadline = time.Now().Add(time.Minute)
		s.detect(text)
		whole := slices.Clone(s.hits)
		clear(s.hits)
		size = max(size%(len(text)+1), 1)
		text = s.soften(text)
		if !isASCII(text) {
			text = s.fold.text(text, never)
		}
		for at, found := 0, -1; at < len(text); {
			at, found = c.builtin.scan(s.hits, text, at, min(at+size, len(text)), found)
		}
		if n := builtinCount; !slices.Equal(s.hits[:n], whole[:n]) {
			t.Fatalf("%q by %d: %v, want %v", text, size, s.hits[:n], whole[:n])
		}
	})
}

// FuzzCustom compiles patterns and keywords of any kind: what New accepts scans any
// text, and finds as many matches as package regexp where the text is one piece.
func FuzzCustom(f *testing.F) {
	f.Add(`\bEMP-\d{6}\b`, "falcon", "Falcon EMP-123456")
	f.Add(`(?i)^a|b$|(?m)^c`, "機密 x", "a\nc b機密 X")
	f.Add(`[^a]{1,3}`, "ß", "ẞ\x1f\u0301")
	f.Fuzz(func(t *testing.T, pattern, keyword, text string) {
		c, err := New(only(Custom{Name: "p", Label: "p", Patterns: []string{pattern}}, Custom{Name: "k", Label: "k", Keywords: []string{keyword}}))
		if err != nil {
			return
		}
		got := scanText(c, text)
		seen := string(new(folder).text([]byte(strings.ToValidUTF8(text, "\ufffd")), never))
		if isASCII([]byte(text)) {
			seen = text
		}
		if len(seen) >= chunk/100 || holdsJSON([]byte(text)) || !utf8.ValidString(text) {
			return
		}
		seen = strings.ReplaceAll(seen, string(rune(softBreak)), "\n")
		if want := int64(len(regexp.MustCompile(pattern).FindAllStringIndex(seen, -1))); got.Findings["p"] != want {
			t.Fatalf("%q in %q: %d, want %d", pattern, seen, got.Findings["p"], want)
		}
	})
}
