//go:build cgo && !notokenizers

package tokenize

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzAppend feeds arbitrary bodies: no crash, no half result, no text of the
// body in an error.
func FuzzAppend(f *testing.F) {
	for _, seed := range []string{
		`{"messages":[{"role":"user","content":"hi"}]}`,
		`{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":1e400}"}}]}],"tools":[{"function":{"name":"f","parameters":{"a":[1.5,null,true]}}}]}`,
		`{"messages":[{"role":"developer","content":[{"type":"text","text":"<|im_start|>\u0000"}]}],"continue_final_message":true,"add_generation_prompt":false}`,
		`{"messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"u"},"detail":"low"}]}]}`,
		`{"messages":[{"role":"tool","content":[{"type":"input_audio","input_audio":{}},{"type":"video_url","video_url":"\ufdd0MEDIA"}]}],"add_special_tokens":true}`,
		`{"prompt":"a<|im_end|>b"}`, `{"prompt":["a","b"]}`, `{"prompt":[1,2]}`, `{"prompt":[[1],[2]]}`,
		`{"messages":[],"prompt":-0}`, "\xff", "", "[[[[", `{"prompt":"` + strings.Repeat("é ", 300) + `"}`,
	} {
		f.Add([]byte(seed))
	}
	tok := demo(f, Options{CacheBytes: 1 << 20})
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, kind := range []Kind{Chat, Completion} {
			dst := Prompts{IDs: []uint32{9}, Ends: []int{1}}
			err := tok.Append(t.Context(), &dst, kind, body)
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
