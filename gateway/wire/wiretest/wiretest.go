// Package wiretest has what the tests of the wire formats share: recordings of a real
// engine, and the standard library's reading of JSON.
package wiretest

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Recording is one exchange with a real engine.
type Recording struct {
	Name         string          `json:"name"`
	Path         string          `json:"path"`
	Status       int             `json:"status"`
	ContentType  string          `json:"content_type"`
	RequestBody  json.RawMessage `json:"request_body"`
	ResponseBody string          `json:"response_body"`
}

// IsStream tells whether the answer was an event stream.
func (r Recording) IsStream() bool { return strings.HasPrefix(r.ContentType, "text/event-stream") }

// Recordings reads those of the package under test, by name.
func Recordings(t testing.TB) map[string]Recording {
	t.Helper()
	b, err := os.ReadFile("testdata/vllm-0.32.0.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []Recording
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	byName := map[string]Recording{}
	for _, r := range list {
		byName[r.Name] = r
	}
	return byName
}

// Decode reads an object as the standard library does, its numbers as they are written.
func Decode(t testing.TB, body []byte) map[string]any {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var doc map[string]any
	if err := dec.Decode(&doc); err != nil {
		t.Fatalf("the standard library cannot read %q: %v", body, err)
	}
	return doc
}

// Nesting is the depth of a text that is valid JSON.
func Nesting(text []byte) int {
	deepest, depth, quoted := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch ch := text[i]; {
		case quoted && ch == '\\':
			i++
		case ch == '"':
			quoted = !quoted
		case !quoted && (ch == '{' || ch == '['):
			depth++
			deepest = max(deepest, depth)
		case !quoted && (ch == '}' || ch == ']'):
			depth--
		}
	}
	return deepest
}

// DrawString draws a JSON string's text with all kinds of escapes.
func DrawString(t *rapid.T, label string) string {
	piece := rapid.OneOf(
		rapid.StringMatching(`[ a-z!#-\[\]-~]{0,12}`),
		rapid.SampledFrom([]string{
			`\"`, `\\`, `\/`, `\b`, `\f`, `\n`, `\r`, `\t`, `\u0000`, `\u00e9`, `\u00E9`, `\u2028`, `\ufffd`, `\uFFFF`,
			`\ud83d\ude00`, `\ud800`, `\udc00`, `\ud800\ud800`, `\ud800\u0041`, `\udc00\udc00`, `\udfff\udc00`, `\ud800\ud83d\ude00`, `\udbff\udfff`, "é", "漢", "😀", "\u2028", "\x7f",
		}),
	)
	return `"` + strings.Join(rapid.SliceOfN(piece, 0, 6).Draw(t, label), "") + `"`
}
