//go:build cgo && !notokenizers

package tokenize

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// models are the four whose files the tests have.
var models = []string{"qwen3", "llama3_1", "gemma3", "deepseek_v3"}

// texts makes random texts that are hard to cut: special tokens and halves of
// them, runs of blanks, scripts without blanks, combining marks, NUL bytes.
type texts struct {
	rng   *rand.Rand
	atoms []string
}

func newTexts(seed uint64, extra ...string) *texts {
	atoms := []string{
		"the", " quick", "Brown", " FOX", "jumps'", "n't", "don't", " we'll", "  ", "\n", "\n\n", "\r\n", "\t", " \n ",
		"1", "12345", " 3.14", "e", "é", "e\u0301", "Å", "\u212b", "日本語", "テスト", "한국어", "Привет", "مرحبا", "😀", "👩‍👩‍👧", "\u200b",
		"\u00a0", "\u3000", "\x00", "\x7f", "{", "}\"", "\":", "()", ";\n", "//", "<", ">", "|", "<|", "|>", "</", "▁", "▁▁", "Ġ", "Ċ",
		"func main() {\n\treturn\n}\n", "https://example.com/a?b=c&d=%20", "_", "snake_case_name", "CamelCaseName",
		"<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "<|eot_id|>", "<|begin_of_text|>",
		"<|start_header_id|>", "<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<mask>", "<unused7>", "[multimodal]", "\n\n\n", "   ",
		"<｜User｜>", "<｜begin▁of▁sentence｜>", "<｜tool▁sep｜>", "<|place▁holder▁no▁1|>",
	}
	return &texts{rng: rand.New(rand.NewPCG(seed, 1)), atoms: append(atoms, extra...)}
}

func (g *texts) next(atoms int) string {
	var b strings.Builder
	for range g.rng.IntN(atoms + 1) {
		atom := g.atoms[g.rng.IntN(len(g.atoms))]
		if g.rng.IntN(12) == 0 {
			// A part of an atom, cut between characters.
			runes := []rune(atom)
			atom = string(runes[:g.rng.IntN(len(runes))])
		}
		b.WriteString(atom)
	}
	return b.String()
}

func completionBody(tb testing.TB, text string, addSpecial bool) []byte {
	tb.Helper()
	// The list form allows the empty text.
	body, err := json.Marshal(map[string]any{"prompt": []string{text}, "add_special_tokens": addSpecial})
	if err != nil {
		tb.Fatal(err)
	}
	return body
}

// TestSegmentsEqualTheWhole is the claim on which the memo rests: the ids of the
// pieces, one after another, are the ids of the whole text, first time and from
// the memo.
func TestSegmentsEqualTheWhole(t *testing.T) {
	for _, model := range models {
		t.Run(model, func(t *testing.T) {
			tok := load(t, model)
			if why := tok.Whole(); why != "" {
				t.Fatalf("texts are not cut: %s", why)
			}
			gen := newTexts(7, specials(t, model)...)
			for i := range 3000 {
				text := gen.next(1 + i%60)
				addSpecial := i%2 == 0
				want, err := tok.native.encode(text, addSpecial)
				if err != nil {
					t.Fatal(err)
				}
				for range 2 {
					var got Prompts
					if err := tok.Append(t.Context(), &got, Completion, completionBody(t, text, addSpecial)); err != nil {
						t.Fatal(err)
					}
					if !slices.Equal(got.IDs, want) {
						t.Fatalf("text %q: pieces give %v, the whole %v", text, got.IDs, want)
					}
				}
			}
		})
	}
}

// specials lists a few added tokens of a model's own.
func specials(t *testing.T, model string) []string {
	t.Helper()
	var out []string
	tok := load(t, model)
	for _, id := range []uint32{0, 1, 2, 3, 4, 5, 105, 106, 107, 108, 109, 128000, 128006, 128007, 128009, 128800, 128803, 128814, 151643, 151644, 151657, 151667} {
		if text := tok.Decode([]uint32{id}, false); text != "" && !strings.ContainsRune(text, '\ufffd') {
			out = append(out, text)
		}
	}
	return out
}

// TestWholeWhereCuttingIsNotExact: tokenizers with added tokens that look at
// their surroundings, or a pre-tokenizer that treats the first piece differently,
// must not be cut.
func TestWholeWhereCuttingIsNotExact(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(file map[string]any)
		whole  bool
	}{
		{"as it is", func(map[string]any) {}, false},
		{"lstrip", setAdded("lstrip"), true},
		{"rstrip", setAdded("rstrip"), true},
		{"single word", setAdded("single_word"), true},
		{"normalized with a normalizer", func(file map[string]any) {
			setAdded("normalized")(file)
			file["normalizer"] = map[string]any{"type": "Lowercase"}
		}, false},
		{"metaspace that prepends to the first piece", func(file map[string]any) {
			file["pre_tokenizer"] = map[string]any{"type": "Sequence", "pretokenizers": []any{
				map[string]any{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true},
				file["pre_tokenizer"],
			}}
		}, true},
		{"metaspace that prepends to every piece", func(file map[string]any) {
			file["pre_tokenizer"] = map[string]any{"type": "Sequence", "pretokenizers": []any{
				map[string]any{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
				file["pre_tokenizer"],
			}}
		}, false},
		{"prefix space", func(file map[string]any) {
			file["pre_tokenizer"].(map[string]any)["add_prefix_space"] = true
		}, false},
		{"unusual frame", func(file map[string]any) {
			file["post_processor"] = template("<|im_start|>", "$A", "$A", "<|im_end|>")
		}, true},
		{"frame", func(file map[string]any) {
			file["post_processor"] = template("<|im_start|>", "<|im_end|>", "$A", "<|im_end|>")
		}, false},
		{"truncation and padding", func(file map[string]any) {
			file["truncation"] = map[string]any{"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
			file["padding"] = map[string]any{
				"strategy": map[string]any{"Fixed": 20}, "direction": "Left", "pad_to_multiple_of": nil,
				"pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>",
			}
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			tok := loadChanged(t, c.change)
			if got := tok.Whole() != ""; got != c.whole {
				t.Fatalf("whole: %v (%s), want %v", got, tok.Whole(), c.whole)
			}
			gen := newTexts(11, "<|im_start|>", "<|IM_START|>", " <|im_end|> ", "a<|im_start|>b", "<tool_call>")
			for i := range 500 {
				text := gen.next(1 + i%30)
				addSpecial := i%2 == 0
				want, err := tok.native.encode(text, addSpecial)
				if err != nil {
					t.Fatal(err)
				}
				var got Prompts
				if err := tok.Append(t.Context(), &got, Completion, completionBody(t, text, addSpecial)); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(got.IDs, want) {
					t.Fatalf("text %q: got %v, the whole gives %v", text, got.IDs, want)
				}
			}
		})
	}
}

// setAdded sets a flag of the demo model's turn mark.
func setAdded(flag string) func(map[string]any) {
	return func(file map[string]any) {
		for _, token := range file["added_tokens"].([]any) {
			if token := token.(map[string]any); token["content"] == "<|im_start|>" {
				token[flag] = true
			}
		}
	}
}

// template is a post-processor that puts tokens around a text; $A is the text.
func template(items ...string) any {
	var single []any
	tokens := map[string]any{}
	ids := map[string]int{"<|im_start|>": 1, "<|im_end|>": 2}
	for _, item := range items {
		if item == "$A" {
			single = append(single, map[string]any{"Sequence": map[string]any{"id": "A", "type_id": 0}})
			continue
		}
		single = append(single, map[string]any{"SpecialToken": map[string]any{"id": item, "type_id": 0}})
		tokens[item] = map[string]any{"id": item, "ids": []int{ids[item]}, "tokens": []string{item}}
	}
	pair := append(slices.Clone(single), map[string]any{"Sequence": map[string]any{"id": "B", "type_id": 1}})
	return map[string]any{"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}
}
