package openai

import (
	"strings"

	"pgregory.net/rapid"
)

// nesting is the depth of a text that is valid JSON.
func nesting(text []byte) int {
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

// drawString draws a JSON string's text with all kinds of escapes.
func drawString(t *rapid.T, label string) string {
	piece := rapid.OneOf(
		rapid.StringMatching(`[ a-z!#-\[\]-~]{0,12}`),
		rapid.SampledFrom([]string{
			`\"`, `\\`, `\/`, `\b`, `\f`, `\n`, `\r`, `\t`, `\u0000`, `\u00e9`, `\u00E9`, `\u2028`, `\ufffd`, `\uFFFF`,
			`\ud83d\ude00`, `\ud800`, `\udc00`, `\ud800\ud800`, `\ud800\u0041`, `\udc00\udc00`, `\udfff\udc00`, `\ud800\ud83d\ude00`, `\udbff\udfff`, "é", "漢", "😀", "\u2028", "\x7f",
		}),
	)
	return `"` + strings.Join(rapid.SliceOfN(piece, 0, 6).Draw(t, label), "") + `"`
}
