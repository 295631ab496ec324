//go:build cgo && !notokenizers

package tokenize

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// demo loads the demo model, which is small.
func demo(tb testing.TB, opts Options) *Tokenizer {
	tb.Helper()
	tok, err := Load(filepath.Join("..", "simworker", "model"), opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = tok.Close() })
	return tok
}

func TestNULDoesNotCutAPrompt(t *testing.T) {
	tok := load(t, "qwen3")
	var got Prompts
	if err := tok.Append(t.Context(), &got, Completion, []byte(`{"prompt":"ab\u0000cd"}`)); err != nil {
		t.Fatal(err)
	}
	if want := []uint32{370, 188, 4385}; !slices.Equal(got.IDs, want) {
		t.Errorf("got %v, the engine gives %v", got.IDs, want)
	}
	if text := tok.Decode(got.IDs, false); text != "ab\x00cd" {
		t.Errorf("decoded %q", text)
	}
}

func TestCompletionForms(t *testing.T) {
	tok := load(t, "llama3_1")
	f := func(body string, want ...[]uint32) {
		t.Helper()
		got := Prompts{IDs: []uint32{7}, Ends: []int{1}}
		if err := tok.Append(t.Context(), &got, Completion, []byte(body)); err != nil {
			t.Errorf("%s: %v", body, err)
			return
		}
		if got.Len() != len(want)+1 {
			t.Errorf("%s: %d prompts, want %d", body, got.Len()-1, len(want))
			return
		}
		for i := range want {
			if !slices.Equal(got.At(i+1), want[i]) {
				t.Errorf("%s: prompt %d is %v, want %v", body, i, got.At(i+1), want[i])
			}
		}
	}
	const bos = 128000
	f(`{"prompt":"hello"}`, []uint32{bos, 15339})
	f(`{"prompt":"hello","add_special_tokens":false}`, []uint32{15339})
	f(`{"prompt":["hello","","hello"]}`, []uint32{bos, 15339}, []uint32{bos}, []uint32{bos, 15339})
	f(`{"prompt":[1,2,3]}`, []uint32{1, 2, 3})
	f(`{"prompt":[[1],[2,3]]}`, []uint32{1}, []uint32{2, 3})
}

// TestChatWithSpecialTokens: add_special_tokens puts the tokenizer's own tokens
// before the ones of the template.
func TestChatWithSpecialTokens(t *testing.T) {
	tok := load(t, "llama3_1")
	var plain, added Prompts
	body := `{"messages":[{"role":"user","content":"hello"}]%s}`
	if err := tok.Append(t.Context(), &plain, Chat, fmt.Appendf(nil, body, "")); err != nil {
		t.Fatal(err)
	}
	if err := tok.Append(t.Context(), &added, Chat, fmt.Appendf(nil, body, `,"add_special_tokens":true`)); err != nil {
		t.Fatal(err)
	}
	if want := append([]uint32{128000}, plain.IDs...); !slices.Equal(added.IDs, want) {
		t.Errorf("got %v, want %v", added.IDs, want)
	}
}

// TestRefusals: each refusal has its kind, names the field and leaves dst alone.
func TestRefusals(t *testing.T) {
	tok := demo(t, Options{})
	const secret = "swordfish"
	f := func(kind Kind, body string, want error, word string) {
		t.Helper()
		dst := Prompts{IDs: []uint32{1, 2}, Ends: []int{2}}
		err := tok.Append(t.Context(), &dst, kind, []byte(body))
		if !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", body, err, want)
			return
		}
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%s: error %q does not name %q", body, err, word)
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: error %q quotes the body", body, err)
		}
		if !slices.Equal(dst.IDs, []uint32{1, 2}) || !slices.Equal(dst.Ends, []int{2}) {
			t.Errorf("%s: dst was changed", body)
		}
		if _, err := tok.Explain(kind, []byte(body)); !errors.Is(err, want) {
			t.Errorf("%s: Explain gives %v", body, err)
		}
	}
	user := `"messages":[{"role":"user","content":"swordfish"}]`
	f(Chat, ``, ErrInvalid, "JSON")
	f(Chat, `{"messages":[{"role":"user","content":"swordfish`, ErrInvalid, "line 1")
	f(Chat, `["swordfish"]`, ErrInvalid, "object")
	f(Chat, `{}`, ErrInvalid, "messages")
	f(Chat, `{"messages":"swordfish"}`, ErrInvalid, "messages")
	f(Chat, `{"messages":[{"content":"swordfish"}]}`, ErrInvalid, "messages[0].role")
	f(Chat, `{"messages":[{"role":"user","content":{"a":"swordfish"}}]}`, ErrInvalid, "messages[0].content")
	f(Chat, `{`+user+`,"tools":[{"swordfish":1}]}`, ErrInvalid, "tools[0].function")
	f(Chat, `{`+user+`,"chat_template":"{{ swordfish }}"}`, ErrUnsupported, "chat_template")
	f(Chat, `{`+user+`,"chat_template_kwargs":{"tokenize":"swordfish"}}`, ErrUnsupported, "chat_template_kwargs.tokenize")
	f(Chat, `{`+user+`,"chat_template_kwargs":{"tools":["swordfish"]}}`, ErrUnsupported, "chat_template_kwargs.tools")
	f(Chat, `{`+user+`,"truncate_prompt_tokens":3}`, ErrUnsupported, "truncate_prompt_tokens")
	f(Chat, `{`+user+`,"kv_transfer_params":{"prompt_token_ids":[1]}}`, ErrUnsupported, "kv_transfer_params")
	f(Chat, `{`+user+`,"add_generation_prompt":"swordfish"}`, ErrUnsupported, "add_generation_prompt")
	f(Chat, `{`+user+`,"continue_final_message":true}`, ErrInvalid, "add_generation_prompt")
	f(Chat, `{"messages":[{"role":"user","content":[{"type":"file","file":{"file_id":"swordfish"}}]}]}`, ErrUnsupported, "messages[0].content[0]")
	f(Chat, `{"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":null,"text":"swordfish"}]}]}`, ErrUnsupported, "messages[0].content[0]")
	f(Chat, `{"messages":[{"role":"assistant","content":"swordfish","tool_calls":[{"id":"1"}]}]}`, ErrInvalid, "messages[0].tool_calls[0].type")
	f(Chat, `{"messages":[{"role":"user","content":`+strings.Repeat("[", 500)+`"swordfish"`+strings.Repeat("]", 500)+`}]}`, ErrUnsupported, "line 1")
	f(Chat, `{"messages":[{"role":"user","content":"\ud800"}]}`, ErrUnsupported, "line 1")
	f(Chat, `{"messages":[{"role":"assistant","content":"swordfish","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":NaN}"}}]}]}`, ErrUnsupported, "messages[0].tool_calls[0].function.arguments")
	f(Chat, `{`+user+`,"n":-0,"x":1e20,"y":100000000000000000000}`, ErrUnsupported, "64 bits")
	f(Completion, `{`+user+`}`, ErrInvalid, "prompt")
	f(Completion, `{"prompt":["swordfish",1]}`, ErrInvalid, "prompt[1]")
	f(Completion, `{"prompt":"swordfish","prompt_embeds":"AA"}`, ErrUnsupported, "prompt_embeds")
}

func TestTemplateRejection(t *testing.T) {
	tok := demo(t, Options{})
	_, err := tok.Explain(Chat, []byte(`{"messages":[{"role":"critic","content":"a"}]}`))
	var rejected *RenderError
	if !errors.As(err, &rejected) {
		t.Fatalf("got %v, want a RenderError", err)
	}
	if want := "The role of a message must be system, user, assistant or tool, not critic"; rejected.Message != want {
		t.Errorf("message %q, want %q", rejected.Message, want)
	}
}

// TestExplainCoversTheIDs: segments cover the text and their ids are Append's.
func TestExplainCoversTheIDs(t *testing.T) {
	for _, model := range models {
		tok := load(t, model)
		for _, row := range readParity(t, model) {
			var want Prompts
			if err := tok.Append(t.Context(), &want, row.kind(), row.Request); err != nil {
				continue
			}
			got, err := tok.Explain(row.kind(), row.Request)
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			var ids []uint32
			for _, s := range got.Prompts[0].Segments {
				text.WriteString(s.Text)
				ids = append(ids, s.IDs...)
				if s.Special && len(s.IDs) != 1 {
					t.Errorf("%s %s: special segment %q has ids %v", model, row.Name, s.Text, s.IDs)
				}
				if !s.Special && !s.Cached && s.Text != "" {
					t.Errorf("%s %s: segment %q was not remembered", model, row.Name, s.Text)
				}
			}
			if text.String() != got.Prompts[0].Text || !slices.Equal(ids, want.IDs) {
				t.Errorf("%s %s: segments do not add up to the prompt", model, row.Name)
			}
		}
	}
}

// TestDemoModelRoundTrips: any UTF-8 comes back as it was.
func TestDemoModelRoundTrips(t *testing.T) {
	tok := demo(t, Options{})
	check := func(t interface{ Fatalf(string, ...any) }, text string) {
		body, err := json.Marshal(map[string]any{"prompt": []string{text}})
		if err != nil {
			t.Fatalf("%v", err)
		}
		var got Prompts
		if err := tok.Append(context.Background(), &got, Completion, body); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if back := tok.Decode(got.IDs, false); back != text {
			t.Fatalf("%q came back as %q", text, back)
		}
	}
	rapid.Check(t, func(t *rapid.T) { check(t, rapid.String().Draw(t, "text")) })
	gen := newTexts(3)
	for range 500 {
		check(t, gen.next(40))
	}
}

func TestDemoModelTemplate(t *testing.T) {
	tok := demo(t, Options{})
	f := func(body, want string) {
		t.Helper()
		got, err := tok.Explain(Chat, []byte(body))
		if err != nil {
			t.Error(err)
			return
		}
		if text := got.Prompts[0].Text; text != want {
			t.Errorf("%s:\n got %q\nwant %q", body, text, want)
		}
	}
	f(`{"messages":[{"role":"user","content":"hi"}]}`, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
	f(`{"messages":[{"role":"system","content":"s"},{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}],"add_generation_prompt":false}`,
		"<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n")
	f(`{"messages":[{"role":"user","content":"w?"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":\"é\"}"}}]},{"role":"tool","tool_call_id":"1","content":"ok"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}]}`,
		"<|im_start|>system\nThese tools can be called, one JSON object each:\n"+
			`{"type": "function", "function": {"name": "f", "description": null, "parameters": {"z": 1, "a": 2}}}`+
			"\nTo call one, answer with its name and arguments in <tool_call></tool_call>.<|im_end|>\n"+
			"<|im_start|>user\nw?<|im_end|>\n<|im_start|>assistant\n\n"+
			`<tool_call>{"name": "f", "arguments": {"b": 1, "a": "é"}}</tool_call>`+
			"<|im_end|>\n<|im_start|>tool\n<tool_response>ok</tool_response><|im_end|>\n<|im_start|>assistant\n")
}

// TestRepeatsAreRemembered: the next turn of a conversation encodes only itself.
func TestRepeatsAreRemembered(t *testing.T) {
	tok := demo(t, Options{})
	var messages []map[string]string
	long := strings.Repeat("A sentence of the conversation. ", 400)
	var p Prompts
	for turn := range 6 {
		messages = append(messages, map[string]string{"role": "user", "content": fmt.Sprint(turn, long)})
		body, err := json.Marshal(map[string]any{"messages": messages})
		if err != nil {
			t.Fatal(err)
		}
		before := tok.Stats().EncodedBytes
		p.Reset()
		if err := tok.Append(t.Context(), &p, Chat, body); err != nil {
			t.Fatal(err)
		}
		if grown := tok.Stats().EncodedBytes - before; grown > uint64(len(long)+100) {
			t.Errorf("turn %d encoded %d bytes, the turn itself has %d", turn, grown, len(long))
		}
		messages = append(messages, map[string]string{"role": "assistant", "content": "Yes."})
	}
	if st := tok.Stats(); st.Hits == 0 || st.CacheEntries == 0 || st.CacheBytes == 0 {
		t.Errorf("stats %+v count nothing", st)
	}
}

// TestBodyIsNotKept: the caller may reuse the body's memory.
func TestBodyIsNotKept(t *testing.T) {
	tok := demo(t, Options{})
	body := []byte(`{"prompt":"first words of a prompt"}`)
	var first, again Prompts
	if err := tok.Append(t.Context(), &first, Completion, bytes.Clone(body)); err != nil {
		t.Fatal(err)
	}
	scratch := bytes.Clone(body)
	if err := tok.Append(t.Context(), &again, Completion, scratch); err != nil {
		t.Fatal(err)
	}
	for i := range scratch {
		scratch[i] = 'x'
	}
	again.Reset()
	if err := tok.Append(t.Context(), &again, Completion, body); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(first.IDs, again.IDs) {
		t.Errorf("got %v, then %v", first.IDs, again.IDs)
	}
}

// TestWorkThatCannotEndInTimeIsNotBegun: a call with a deadline encodes nothing that
// it has no time for, whatever its size, and takes what is remembered all the same.
func TestWorkThatCannotEndInTimeIsNotBegun(t *testing.T) {
	tok := demo(t, Options{})
	body := []byte(`{"prompt":"` + strings.Repeat("A long text of many words. ", 40_000) + `"}`) // a second's work at first
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(200*time.Millisecond))
	defer cancel()
	p := Prompts{IDs: []uint32{1}, Ends: []int{1}}
	if err := tok.Append(ctx, &p, Completion, body); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want that the deadline is too near", err)
	}
	if n := tok.Stats().EncodedBytes; n != 0 || len(p.IDs) != 1 || len(p.Ends) != 1 {
		t.Errorf("%d bytes were encoded and dst is %v", n, p)
	}
	if err := tok.Append(t.Context(), &p, Completion, body); err != nil || len(p.Ends) != 2 {
		t.Fatalf("without a deadline: %v", err)
	}
	far, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	again := Prompts{}
	if err := tok.Append(far, &again, Completion, body); err != nil || !slices.Equal(again.IDs, p.IDs[1:]) {
		t.Errorf("with time enough: %v, and %d ids instead of %d", err, len(again.IDs), len(p.IDs)-1)
	}
	past, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if err := tok.Append(past, &again, Completion, []byte(`{"prompt":"a"}`)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after the deadline: %v", err)
	}
}

// TestSeenBeforeIsNotEncodedAgain: of a conversation of 220 KB that was seen
// before nothing is encoded, and where it grew by a short turn no more than the
// segments that the turn touches.
func TestSeenBeforeIsNotEncodedAgain(t *testing.T) {
	tok := load(t, "qwen3")
	encoded := func(body []byte) uint64 {
		t.Helper()
		var p Prompts
		before := tok.Stats().EncodedBytes
		if err := tok.Append(t.Context(), &p, Chat, body); err != nil {
			t.Fatal(err)
		}
		return tok.Stats().EncodedBytes - before
	}
	body := conversationBody(t, 220<<10, 1<<20)
	encoded(body)
	if n := encoded(body); n != 0 {
		t.Errorf("the same again encoded %d bytes, want none", n)
	}
	turn := fmt.Appendf(nil, `},{"role":"user","content":"and then, about %s?"}]`, rand.Text())
	if n := encoded(bytes.Replace(body, []byte("}]"), turn, 1)); n == 0 || n > 8<<10 {
		t.Errorf("one short turn more encoded %d bytes, want between 1 and 8,192", n)
	}
}
