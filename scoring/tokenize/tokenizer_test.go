//go:build cgo && !notokenizers

package tokenize

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"
	"unicode/utf8"
	"unsafe"

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

// loadChanged loads the demo model after a change to its tokenizer.json.
func loadChanged(tb testing.TB, change func(file map[string]any)) *Tokenizer {
	tb.Helper()
	data, err := os.ReadFile(filepath.Join("..", "simworker", "model", "tokenizer.json"))
	if err != nil {
		tb.Fatal(err)
	}
	var file map[string]any
	if err := json.Unmarshal(data, &file); err != nil {
		tb.Fatal(err)
	}
	change(file)
	if data, err = json.Marshal(file); err != nil {
		tb.Fatal(err)
	}
	tok, err := LoadFS(fstest.MapFS{"tokenizer.json": {Data: data}}, Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = tok.Close() })
	return tok
}

func TestNULDoesNotCutAPrompt(t *testing.T) {
	tok := load(t, "qwen3")
	var got Prompts
	if err := tok.Append(&got, Completion, []byte(`{"prompt":"ab\u0000cd"}`)); err != nil {
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
		if err := tok.Append(&got, Completion, []byte(body)); err != nil {
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
	if err := tok.Append(&plain, Chat, fmt.Appendf(nil, body, "")); err != nil {
		t.Fatal(err)
	}
	if err := tok.Append(&added, Chat, fmt.Appendf(nil, body, `,"add_special_tokens":true`)); err != nil {
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
		err := tok.Append(&dst, kind, []byte(body))
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
	f(Chat, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"swordfish"}}]}]}`, ErrUnsupported, "messages[0].content[0]")
	f(Chat, `{"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"swordfish"}}]}]}`, ErrUnsupported, "messages[0].content[0]")
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
			if err := tok.Append(&want, row.kind(), row.Request); err != nil {
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
		if err := tok.Append(&got, Completion, body); err != nil {
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

func TestOptionsReachTheTemplate(t *testing.T) {
	zone := time.FixedZone("", 2*3600)
	now := func() time.Time { return time.Date(2026, 3, 1, 0, 30, 0, 0, zone) }
	tok := demo(t, Options{
		ChatTemplate:   "{{ strftime_now('%d %b %Y %H:%M') }}|{{ a }}|{{ messages[0].content }}",
		ContentFormat:  "openai",
		TemplateKwargs: json.RawMessage(`{"a": 1.0}`),
		Now:            now,
	})
	got, err := tok.Explain(Chat, []byte(`{"messages":[{"role":"user","content":"x"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if want := "01 Mar 2026 00:30|1.0|[{'type': 'text', 'text': 'x'}]"; got.Prompts[0].Text != want {
		t.Errorf("got %q, want %q", got.Prompts[0].Text, want)
	}
}

// TestTemplateFiles: where the template comes from.
func TestTemplateFiles(t *testing.T) {
	tokenizer, err := os.ReadFile(filepath.Join("..", "simworker", "model", "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	const tools = `,"tools":[{"type":"function","function":{"name":"f"}}]`
	f := func(files fstest.MapFS, fields, want string) {
		t.Helper()
		files["tokenizer.json"] = &fstest.MapFile{Data: tokenizer}
		tok, err := LoadFS(files, Options{})
		if err != nil {
			t.Error(err)
			return
		}
		defer tok.Close()
		got, err := tok.Explain(Chat, []byte(`{"messages":[{"role":"user","content":"x"}]`+fields+`}`))
		if err != nil {
			t.Error(err)
			return
		}
		if got.Prompts[0].Text != want {
			t.Errorf("got %q, want %q", got.Prompts[0].Text, want)
		}
	}
	config := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	named := `{"chat_template":[{"name":"default","template":"d"},{"name":"tool_use","template":"t{{ tools | length }}"},{"name":"rag","template":"r"}]}`
	f(fstest.MapFS{"tokenizer_config.json": config(`{"chat_template":"c{{ eos_token }}{{ pad_token }}{{ mask_token }}{{ bos_token }}{{ image_token }}","eos_token":"<E>","pad_token":{"content":"<P>","lstrip":false},"bos_token":null,"extra_special_tokens":{"image_token":"<I>"}}`), "special_tokens_map.json": config(`{"mask_token":"<M>","eos_token":"no"}`)}, "", "c<E><P><M><I>")
	f(fstest.MapFS{"tokenizer_config.json": config(named)}, "", "d")
	f(fstest.MapFS{"tokenizer_config.json": config(named)}, tools, "t1")
	f(fstest.MapFS{"tokenizer_config.json": config(named), "chat_template.jinja": config("file\n")}, tools, "file")
}

// TestAddedTokensOfTheConfiguration: a token that only the configuration knows is
// one id, as in the engine.
func TestAddedTokensOfTheConfiguration(t *testing.T) {
	tokenizer, err := os.ReadFile(filepath.Join("..", "simworker", "model", "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	tok, err := LoadFS(fstest.MapFS{
		"tokenizer.json": {Data: tokenizer},
		"tokenizer_config.json": {Data: []byte(`{"added_tokens_decoder":{
			"4097":{"content":"<second>","lstrip":false,"rstrip":false,"single_word":false,"normalized":false,"special":false},
			"4096":{"content":"<first>","lstrip":false,"rstrip":false,"single_word":false,"normalized":false,"special":true},
			"0":{"content":"<|endoftext|>","lstrip":false,"rstrip":false,"single_word":false,"normalized":false,"special":true}},
			"eos_token":"<eos>","additional_special_tokens":["<more>"]}`)},
	}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tok.Close()
	var got Prompts
	if err := tok.Append(&got, Completion, []byte(`{"prompt":"<first><second><eos><more><|endoftext|>"}`)); err != nil {
		t.Fatal(err)
	}
	if want := []uint32{4096, 4097, 4098, 4099, 0}; !slices.Equal(got.IDs, want) {
		t.Errorf("got %v, want %v", got.IDs, want)
	}
}

func TestLoadErrors(t *testing.T) {
	tokenizer, err := os.ReadFile(filepath.Join("..", "simworker", "model", "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	f := func(files fstest.MapFS, opts Options, want string) {
		t.Helper()
		if files["tokenizer.json"] == nil {
			files["tokenizer.json"] = &fstest.MapFile{Data: tokenizer}
		}
		tok, err := LoadFS(files, opts)
		if err == nil {
			_ = tok.Close()
			t.Errorf("loaded, want an error with %q", want)
			return
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	f(fstest.MapFS{"tokenizer.json": file("")}, Options{}, "tokenizer.json")
	f(fstest.MapFS{"tokenizer.json": file("{}")}, Options{}, "tokenizer.json")
	f(fstest.MapFS{"tokenizer_config.json": file("[]")}, Options{}, "tokenizer_config.json")
	f(fstest.MapFS{"tokenizer_config.json": file(`{"chat_template":3}`)}, Options{}, "chat_template")
	f(fstest.MapFS{"tokenizer_config.json": file(`{"added_tokens_decoder":{"x":{}}}`)}, Options{}, "added_tokens_decoder")
	f(fstest.MapFS{"tokenizer_config.json": file(`{"eos_token":3}`)}, Options{}, "eos_token")
	f(fstest.MapFS{"chat_template.jinja": file("a\n{% if %}")}, Options{}, "chat template line 2")
	f(fstest.MapFS{}, Options{ContentFormat: "parts"}, "content format")
	f(fstest.MapFS{}, Options{TemplateKwargs: json.RawMessage("[]")}, "JSON object")
	if _, err := LoadFS(fstest.MapFS{}, Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no files: got %v", err)
	}
	for _, dir := range []string{"nowhere", "tokenizer_test.go"} {
		if _, err := Load(dir, Options{}); err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: got %v", dir, err)
		}
	}
}

func TestNoTemplateServesCompletionsOnly(t *testing.T) {
	tok := loadChanged(t, func(map[string]any) {})
	var dst Prompts
	if err := tok.Append(&dst, Chat, []byte(`{"messages":[{"role":"user","content":"x"}]}`)); !errors.Is(err, ErrUnsupported) {
		t.Errorf("chat: got %v", err)
	}
	if err := tok.Append(&dst, Completion, []byte(`{"prompt":"x"}`)); err != nil {
		t.Errorf("completion: %v", err)
	}
}

func TestPanicsStayInside(t *testing.T) {
	for range 3 {
		err := nativePanic()
		if err == nil || !strings.Contains(err.Error(), "BUG: the native library panicked in border.rs:") {
			t.Fatalf("got %v", err)
		}
		if strings.Contains(err.Error(), "stays inside") {
			t.Errorf("the error quotes the panic: %v", err)
		}
	}
}

// TestEmptyViewsAreNil: the collector stops the process when it meets a pointer
// that is none, such as the address an empty list has in Rust.
func TestEmptyViewsAreNil(t *testing.T) {
	tok := demo(t, Options{})
	p, err := tok.plan(Completion, []byte(`{"prompt":[""]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer p.free()
	if unsafe.StringData(p.text) != nil || unsafe.SliceData(p.pieces) != nil || unsafe.SliceData(p.ids) != nil {
		t.Error("an empty part of a plan has an address")
	}
	q, err := tok.plan(Completion, []byte(`{"prompt":[1]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer q.free()
	if unsafe.StringData(q.text) != nil || unsafe.SliceData(q.pieces) != nil || len(q.prompts) != 1 {
		t.Error("an empty part of a plan has an address")
	}
	if tok.native.before != nil || tok.native.after != nil {
		t.Error("the demo model adds nothing")
	}
}

// TestCollectorRunsAmidCalls keeps the collector and the stacks moving while
// native memory is in view.
func TestCollectorRunsAmidCalls(t *testing.T) {
	tok := demo(t, Options{CacheBytes: -1})
	body := completionBody(t, newTexts(13).next(200), true)
	var want Prompts
	if err := tok.Append(&want, Completion, body); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var calls, collector sync.WaitGroup
	collector.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				runtime.GC()
			}
		}
	})
	for range 4 {
		calls.Go(func() {
			for range 100 {
				var p Prompts
				if err := tok.Append(&p, Completion, body); err != nil || !slices.Equal(p.IDs, want.IDs) {
					t.Errorf("got %v, %v", p.IDs, err)
					return
				}
			}
		})
	}
	calls.Wait()
	close(done)
	collector.Wait()
}

func TestConcurrentUse(t *testing.T) {
	tok := demo(t, Options{CacheBytes: 256 << 10, Parallel: 2})
	want := map[string][]uint32{}
	gen := newTexts(5)
	var bodies []string
	for i := range 40 {
		text := gen.next(30)
		if i%4 == 0 {
			text = strings.Repeat(text+"x", 3000/(len(text)+1)+2)
		}
		body := string(completionBody(t, text, true))
		var p Prompts
		if err := tok.Append(&p, Completion, []byte(body)); err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, body)
		want[body] = p.IDs
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 2))
			var p Prompts
			for range 300 {
				body := bodies[rng.IntN(len(bodies))]
				p.Reset()
				if err := tok.Append(&p, Completion, []byte(body)); err != nil {
					t.Error(err)
					return
				}
				if !slices.Equal(p.IDs, want[body]) {
					t.Error("ids differ between calls")
					return
				}
				if rng.IntN(10) == 0 {
					_ = tok.Decode(p.IDs, true)
					_ = tok.Stats()
				}
			}
		})
	}
	wg.Wait()
}

// TestCloseWaitsForCalls: a call that runs when Close is called either finishes
// or is told; nothing touches freed memory.
func TestCloseWaitsForCalls(t *testing.T) {
	for range 20 {
		tok := demo(t, Options{})
		body := completionBody(t, strings.Repeat("some words to encode ", 2000), true)
		started := make(chan struct{}, 4)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					var p Prompts
					err := tok.Append(&p, Completion, body)
					select {
					case started <- struct{}{}:
					default:
					}
					if errors.Is(err, ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		<-started
		if err := tok.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if err := tok.Close(); err == nil {
			t.Error("closing twice is not noticed")
		}
		if text := tok.Decode([]uint32{1}, false); text != "" {
			t.Errorf("decoded %q after Close", text)
		}
	}
}

// TestCloseFreesMemory loads and closes a large tokenizer a few times. Without
// the release each round would keep tens of megabytes.
func TestCloseFreesMemory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Log("resident memory is read from /proc; only the calls are exercised here")
	}
	round := func() {
		tok, err := Load(filepath.Join(cacheDir, "llama3_1"), Options{})
		if err != nil {
			t.Fatal(err)
		}
		var p Prompts
		if err := tok.Append(&p, Completion, completionBody(t, newTexts(9).next(5000), true)); err != nil {
			t.Error(err)
		}
		if err := tok.Close(); err != nil {
			t.Error(err)
		}
	}
	round()
	before := residentMemory(t)
	for range 4 {
		round()
	}
	if grown := residentMemory(t) - before; grown > 40<<20 {
		t.Errorf("four rounds of load and close grew the process by %d MiB", grown>>20)
	}
}

func residentMemory(t *testing.T) int64 {
	t.Helper()
	debug.FreeOSMemory()
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	pages, err := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
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
		if err := tok.Append(&p, Chat, body); err != nil {
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
	if err := tok.Append(&first, Completion, bytes.Clone(body)); err != nil {
		t.Fatal(err)
	}
	scratch := bytes.Clone(body)
	if err := tok.Append(&again, Completion, scratch); err != nil {
		t.Fatal(err)
	}
	for i := range scratch {
		scratch[i] = 'x'
	}
	again.Reset()
	if err := tok.Append(&again, Completion, body); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(first.IDs, again.IDs) {
		t.Errorf("got %v, then %v", first.IDs, again.IDs)
	}
}

// FuzzAppend feeds arbitrary bodies: no crash, no half result, no text of the
// body in an error.
func FuzzAppend(f *testing.F) {
	for _, seed := range []string{
		`{"messages":[{"role":"user","content":"hi"}]}`,
		`{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":1e400}"}}]}],"tools":[{"function":{"name":"f","parameters":{"a":[1.5,null,true]}}}]}`,
		`{"messages":[{"role":"developer","content":[{"type":"text","text":"<|im_start|>\u0000"}]}],"continue_final_message":true,"add_generation_prompt":false}`,
		`{"prompt":"a<|im_end|>b"}`, `{"prompt":["a","b"]}`, `{"prompt":[1,2]}`, `{"prompt":[[1],[2]]}`,
		`{"messages":[],"prompt":-0}`, "\xff", "", "[[[[", `{"prompt":"` + strings.Repeat("é ", 300) + `"}`,
	} {
		f.Add([]byte(seed))
	}
	tok := demo(f, Options{CacheBytes: 1 << 20})
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, kind := range []Kind{Chat, Completion} {
			dst := Prompts{IDs: []uint32{9}, Ends: []int{1}}
			err := tok.Append(&dst, kind, body)
			if err != nil {
				if len(dst.IDs) != 1 || len(dst.Ends) != 1 {
					t.Fatal("an error left something in dst")
				}
				if !utf8.ValidString(err.Error()) || strings.Contains(err.Error(), "BUG") {
					t.Fatalf("error %q", err)
				}
				continue
			}
			if dst.Len() < 2 || dst.Ends[dst.Len()-1] != len(dst.IDs) || !slices.IsSorted(dst.Ends) {
				t.Fatalf("ends %v do not fit %d ids", dst.Ends, len(dst.IDs))
			}
			e, err := tok.Explain(kind, body)
			if err != nil {
				t.Fatalf("Append takes what Explain refuses: %v", err)
			}
			var ids []uint32
			for _, p := range e.Prompts {
				for _, s := range p.Segments {
					ids = append(ids, s.IDs...)
				}
			}
			if !slices.Equal(ids, dst.IDs[1:]) {
				t.Fatalf("Explain gives %v, Append %v", ids, dst.IDs[1:])
			}
		}
	})
}
