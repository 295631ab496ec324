//go:build cgo && !notokenizers

package tokenize

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

const picture = `{"type":"image_url","image_url":{"url":"http://a/b.png"}}`

// beginning tokenises a body that has parts which are no text.
func beginning(t *testing.T, tok *Tokenizer, body string) []uint32 {
	t.Helper()
	var got Prompts
	if err := tok.Append(t.Context(), &got, Chat, []byte(body)); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	if !got.Beginning || got.Len() != 1 {
		t.Fatalf("%s: got %d prompts, beginning %v", body, got.Len(), got.Beginning)
	}
	return got.IDs
}

func whole(t *testing.T, tok *Tokenizer, body string) []uint32 {
	t.Helper()
	var got Prompts
	if err := tok.Append(t.Context(), &got, Chat, []byte(body)); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	if got.Beginning {
		t.Fatalf("%s: is taken for a beginning", body)
	}
	return got.IDs
}

// TestBeginningBeforeAPicture: the ids end with the special token that opens the
// message with the first picture, whatever is in it and after it, and are those
// of the same conversation without pictures.
func TestBeginningBeforeAPicture(t *testing.T) {
	const before = `{"role":"system","content":"Be brief."},{"role":"user","content":"Hello"},{"role":"assistant","content":"Hi, how can I help?"},`
	const text = `{"type":"text","text":"what is this"}`
	for model, opening := range map[string]string{"qwen3": "<|im_start|>", "gemma3": "<start_of_turn>", "llama3_1": "<|end_header_id|>"} {
		t.Run(model, func(t *testing.T) {
			tok := load(t, model)
			plain := whole(t, tok, `{"messages":[`+before+`{"role":"user","content":"what is this"}]}`)
			var first []uint32
			for _, parts := range []string{
				picture, text + "," + picture, picture + "," + text, text + "," + picture + "," + text + "," + picture,
				`{"type":"input_audio","input_audio":{"data":"AA","format":"wav"}}`, `{"type":"video_url","video_url":{"url":"http://a"}}`,
				`{"type":"image_url","image_url":{"url":"http://other"},"uuid":"x"},` + text,
			} {
				got := beginning(t, tok, `{"messages":[`+before+`{"role":"user","content":[`+parts+`]}]}`)
				if first == nil {
					first = got
				}
				if !slices.Equal(got, first) {
					t.Errorf("with %s: %d ids, want the %d of the other ones", parts, len(got), len(first))
				}
			}
			if len(first) == 0 || len(first) >= len(plain) || !slices.Equal(first, plain[:len(first)]) {
				t.Fatalf("%d ids, which are no beginning of the %d of the text alone", len(first), len(plain))
			}
			if text := tok.Decode(first, false); !strings.HasSuffix(text, opening) || strings.Count(text, "Hi, how can I help?") != 1 {
				t.Errorf("the beginning is %q, want it up to the last %s", text, opening)
			}
			// What comes later, with text alone, changes nothing either.
			later := beginning(t, tok, `{"messages":[`+before+`{"role":"user","content":[`+picture+`]},{"role":"assistant","content":"A cat."},{"role":"user","content":"sure?"}]}`)
			if n := min(len(later), len(first)); n == 0 || !slices.Equal(later[:n], first[:n]) {
				t.Errorf("a later turn changes the beginning")
			}
		})
	}
}

// TestBeginningFollowsTheTemplate uses templates that treat pictures in ways of
// their own.
func TestBeginningFollowsTheTemplate(t *testing.T) {
	const loop = `{% for m in messages %}<|im_start|>{{ m.role }}
{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% elif p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}{% endfor %}<|im_end|>
{% endfor %}`
	const messages = `{"messages":[{"role":"system","content":"S"},{"role":"user","content":[{"type":"text","text":"a"},` + picture + `,{"type":"text","text":"b"}]}]}`
	for _, c := range []struct{ name, template, body, want string }{
		{"parts", loop, messages, "<|im_start|>system\nS<|im_end|>\n<|im_start|>"},
		{
			"a head that tells of pictures", `{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}{% set x = 1 %}PICTURES<|im_end|>{% endif %}{% endfor %}{% endfor %}` + loop,
			messages, "PICTURES<|im_end|><|im_start|>system\nS<|im_end|>\n<|im_start|>",
		},
		{"no picture shown", strings.Replace(loop, "elif p.type == 'image'", "elif false", 1), messages, "<|im_start|>system\nS<|im_end|>\n<|im_start|>"},
		{"texts", `{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content | trim }}<|im_end|>
{% endfor %}`, messages, "<|im_start|>system\nS<|im_end|>\n<|im_start|>"},
		{
			"the picture comes first", loop, `{"messages":[{"role":"user","content":[` + picture + `]}]}`, "<|im_start|>",
		},
		{"nothing before it", `{% for m in messages %}{{ m.content }}{% endfor %}`, `{"messages":[{"role":"user","content":[` + picture + `]}]}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			fsys := smallModel(t)
			tok, err := LoadFS(fsys, Options{ChatTemplate: c.template, CacheBytes: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			defer tok.Close()
			if got := tok.Decode(beginning(t, tok, c.body), false); got != c.want {
				t.Errorf("the beginning is %q, want %q", got, c.want)
			}
		})
	}
}

func TestBeginningsThatCannotBeFound(t *testing.T) {
	for _, c := range []struct{ template, messages, more string }{
		{"{% for m in messages %}{{ m.role }}{% endfor %}", `{"role":"user","content":[` + picture + `]}`, ""},
		{"", `{"role":"user","content":[{"type":"image_url","image_url":null}]}`, ""},
		{"", `{"role":"user","content":[{"type":"file","file":{"file_id":"x"}}]}`, ""},
		{"", `{"role":"user","content":[{"type":"prompt_embeds","prompt_embeds":"x"}]}`, ""},
		{"", `{"role":"user","content":[` + picture + `]},{"role":"assistant","content":"a"}`, `,"continue_final_message":true,"add_generation_prompt":false`},
		{"", `{"role":"developer","content":"d"},{"role":"user","content":[` + picture + `]}`, ""},
		{"{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}", `{"role":"tool","content":[` + picture + `]}`, ""},
	} {
		tok, err := LoadFS(smallModel(t), Options{ChatTemplate: c.template, CacheBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		var got Prompts
		err = tok.Append(t.Context(), &got, Chat, []byte(`{"messages":[`+c.messages+`]`+c.more+`}`))
		if !errors.Is(err, ErrUnsupported) || got.Len() != 0 {
			t.Errorf("%s: got %+v, %v, want it left to the engine", c.messages, got, err)
		}
		_ = tok.Close()
	}
}

// TestBeginningsOfRealConversations puts a picture into each message of the
// recorded requests in turn: the ids are always a beginning of those without it.
func TestBeginningsOfRealConversations(t *testing.T) {
	for _, model := range []string{"qwen3", "llama3_1", "gemma3"} {
		tok := load(t, model)
		for _, row := range readParity(t, model) {
			// The order of keys inside tools is the request's own.
			var body map[string]json.RawMessage
			var messages []map[string]json.RawMessage
			if row.TokenIDs == nil || row.kind() != Chat || json.Unmarshal(row.Request, &body) != nil || json.Unmarshal(body["messages"], &messages) != nil {
				continue
			}
			for i, m := range messages {
				content := m["content"]
				if len(content) == 0 || content[0] != '"' || string(m["role"]) != `"user"` {
					continue
				}
				m["content"] = fmt.Appendf(nil, `[%s,{"type":"text","text":%s}]`, picture, content)
				body["messages"] = mustMarshal(messages)
				data := mustMarshal(body)
				m["content"] = content
				got := beginning(t, tok, string(data))
				// The last turn of another length may be written in another way.
				if n := len(got); n > len(row.TokenIDs) || !slices.Equal(got, row.TokenIDs[:n]) {
					t.Errorf("%s %s, message %d: %d ids, which are no beginning of the request's", model, row.Name, i, n)
				}
			}
		}
	}
}

// TestBeginningIsExplained shows the segments that count.
func TestBeginningIsExplained(t *testing.T) {
	tok := load(t, "qwen3")
	e, err := tok.Explain(Chat, fmt.Appendf(nil, `{"messages":[{"role":"system","content":"S"},{"role":"user","content":[%s]}]}`, picture))
	if err != nil {
		t.Fatal(err)
	}
	p := e.Prompts[0]
	if last := p.Segments[len(p.Segments)-1]; !p.Beginning || last.Text != "<|im_start|>" || !last.Special {
		t.Errorf("got %+v", p)
	}
}
