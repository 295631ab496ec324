package translate

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// script is an answer as a worker may come to it, part by part.
type script struct {
	reasoning, text string
	calls           []scriptCall
	finish, stop    string
}

type scriptCall struct{ id, name, args string }

func drawScript(t *rapid.T) script {
	words := rapid.StringOfN(rapid.SampledFrom([]rune("ab \n\"\\\u00e9😀{}[]\x7f")), 0, 12, -1)
	s := script{reasoning: words.Draw(t, "reasoning"), text: words.Draw(t, "text"), finish: `"stop"`, stop: `null`}
	for i := range rapid.IntRange(0, 4).Draw(t, "calls") {
		input := rapid.MapOfN(words, words, 0, 3).Draw(t, "input")
		args, _ := json.Marshal(input)
		if len(input) == 0 && rapid.Bool().Draw(t, "empty") {
			args = nil
		}
		s.calls = append(s.calls, scriptCall{"c" + string(rune('0'+i)), "f" + string(rune('0'+i)), string(args)})
		s.finish = `"tool_calls"`
	}
	if rapid.Bool().Draw(t, "matched") {
		s.finish, s.stop = `"stop"`, `"END"`
	}
	return s
}

// whole is the script as one answer.
func (s *script) whole() string {
	m := map[string]any{"role": "assistant", "content": s.text, "reasoning": s.reasoning}
	var calls []any
	for _, c := range s.calls {
		calls = append(calls, map[string]any{"id": c.id, "type": "function", "function": map[string]any{"name": c.name, "arguments": c.args}})
	}
	if calls != nil {
		m["tool_calls"] = calls
	}
	text, _ := json.Marshal(m)
	return whole(string(text), s.finish, s.stop)
}

// chunks is the script as a stream: its calls in any mix, each text in any pieces.
func (s *script) chunks(t *rapid.T) []string {
	out := []string{chunk(`{"role":"assistant","content":""}`)}
	for _, part := range []struct{ key, text string }{{"reasoning", s.reasoning}, {"content", s.text}} {
		for _, p := range cut(t, part.text) {
			text, _ := json.Marshal(p)
			out = append(out, chunk(`{"`+part.key+`":`+string(text)+`}`))
		}
	}
	pieces := make([][]string, len(s.calls))
	for i, c := range s.calls {
		parts := cut(t, c.args)
		if len(parts) == 0 {
			parts = []string{""}
		}
		for j, p := range parts {
			id, name := "", ""
			if j == 0 {
				id, name = c.id, c.name
			}
			pieces[i] = append(pieces[i], piece(i, id, name, p))
		}
	}
	// A call begins after the one before it has, in whatever mix they go on.
	for begun := 0; ; {
		var ready []int
		for i := range pieces {
			if len(pieces[i]) > 0 && i <= begun {
				ready = append(ready, i)
			}
		}
		if len(ready) == 0 {
			break
		}
		i := rapid.SampledFrom(ready).Draw(t, "next")
		if i == begun {
			begun++
		}
		out = append(out, chunk(calls(pieces[i][0])))
		pieces[i] = pieces[i][1:]
	}
	return append(out, finishChunk(s.finish, s.stop))
}

// cut cuts a text into pieces between its characters.
func cut(t *rapid.T, text string) (pieces []string) {
	var b strings.Builder
	for _, r := range text {
		b.WriteRune(r)
		if rapid.IntRange(0, 2).Draw(t, "cut") == 0 {
			pieces = append(pieces, b.String())
			b.Reset()
		}
	}
	if b.Len() > 0 {
		pieces = append(pieces, b.String())
	}
	return pieces
}

// TestStreamedAndWholeAgree shows that a client puts the same message together from a
// stream, however its parts are cut and mixed, as it gets in one answer.
func TestStreamedAndWholeAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawScript(t)
		streamed, err := translate(s.chunks(t)...)
		if err != nil {
			t.Fatal(err)
		}
		h, err := hearAll(streamed)
		if err != nil || !h.done {
			t.Fatalf("%v\n%s", err, streamed)
		}
		text, err := AppendMessage(nil, []byte(s.whole()), "msg_r1", testUsage)
		if err != nil {
			t.Fatal(err)
		}
		var m struct {
			ID, Model string
			Content   []map[string]any
			Reason    string         `json:"stop_reason"`
			Matched   any            `json:"stop_sequence"`
			Usage     map[string]any `json:"usage"`
		}
		if err := json.Unmarshal(text, &m); err != nil {
			t.Fatal(err)
		}
		for _, b := range h.content {
			if raw, ok := b["raw"]; ok {
				delete(b, "raw")
				if !json.Valid([]byte(raw.(string))) {
					t.Fatalf("the pieces make %q", raw)
				}
			}
		}
		if len(h.content) == 0 {
			h.content = []map[string]any{{"type": "text", "text": ""}} // a stream never opens an empty text
		}
		if !reflect.DeepEqual(h.content, m.Content) || h.reason != m.Reason || h.matched != m.Matched ||
			h.id != m.ID || h.model != m.Model || !reflect.DeepEqual(h.usage, m.Usage) {
			t.Fatalf("%s\nstreamed %+v\n   whole %s", streamed, h, text)
		}
	})
}
