//go:build cgo && !notokenizers

package tokenize

import (
	"strings"
	"testing"
	"testing/fstest"
	"unicode/utf8"
)

// FuzzLoad feeds arbitrary files of a model: they load or are refused with an
// error that can be printed, and what loads also tokenises or refuses.
func FuzzLoad(f *testing.F) {
	const minimal = `{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0,"<unk>":1},"unk_token":"<unk>"},"added_tokens":[]}`
	for _, seed := range [][3]string{
		{minimal, `{}`, ``},
		{minimal, `{"chat_template":"{{ messages[0].content }}","added_tokens_decoder":{"5":{"content":"<s>","special":true}},"bos_token":"<s>"}`, `{}`},
		{minimal, `{"chat_template":[{"name":"default","template":"{{ bos_token }}"},{"name":"tool_use","template":"x"}]}`, `{"bos_token":{"content":"<s>","lstrip":true}}`},
		{minimal, `{"added_tokens_decoder":{"-1":{"content":""},"x":{}}}`, `{"eos_token":null}`},
		{minimal, `{"chat_template":"{% for m in messages %}{{ m }}"}`, `[]`},
		{`{"model":{"type":"BPE","vocab":{},"merges":["a b"]}}`, `{"add_bos_token":true}`, `{"unk_token":7}`},
		{`{`, `nul`, "\xff"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, tokenizer, config, named string) {
		files := fstest.MapFS{"tokenizer.json": {Data: []byte(tokenizer)}, "tokenizer_config.json": {Data: []byte(config)}}
		if named != "" {
			files["special_tokens_map.json"] = &fstest.MapFile{Data: []byte(named)}
		}
		tok, err := LoadFS(files, Options{})
		if err != nil {
			if !utf8.ValidString(err.Error()) || strings.Contains(err.Error(), "BUG") {
				t.Fatalf("error %q", err)
			}
			return
		}
		defer tok.Close()
		var dst Prompts
		for kind, body := range map[Kind]string{
			Chat: `{"messages":[{"role":"user","content":"a a"}]}`, Completion: `{"prompt":"a a"}`,
		} {
			if err := tok.Append(t.Context(), &dst, kind, []byte(body)); err != nil && strings.Contains(err.Error(), "BUG") {
				t.Fatalf("error %q", err)
			}
		}
	})
}
