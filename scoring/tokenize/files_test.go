//go:build cgo && !notokenizers

package tokenize

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

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
	if err := tok.Append(t.Context(), &got, Completion, []byte(`{"prompt":"<first><second><eos><more><|endoftext|>"}`)); err != nil {
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
	if err := tok.Append(t.Context(), &dst, Chat, []byte(`{"messages":[{"role":"user","content":"x"}]}`)); !errors.Is(err, ErrUnsupported) {
		t.Errorf("chat: got %v", err)
	}
	if err := tok.Append(t.Context(), &dst, Completion, []byte(`{"prompt":"x"}`)); err != nil {
		t.Errorf("completion: %v", err)
	}
}
