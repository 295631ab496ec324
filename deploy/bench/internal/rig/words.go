package rig

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
)

// Words writes texts of a known number of tokens: words that are one token
// each, in an order that a seed decides.
type Words struct {
	list  []string
	model string
}

// NewWords takes the vocabulary from the tokenizer's file: entries that are a
// space and lower-case letters. model is named in bodies.
func NewWords(files fs.FS, model string) (*Words, error) {
	text, err := fs.ReadFile(files, "tokenizer.json")
	if err != nil {
		return nil, fmt.Errorf("cannot read the vocabulary: %w", err)
	}
	var file struct {
		Model struct {
			Vocab map[string]int `json:"vocab"`
		} `json:"model"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("cannot read the vocabulary: %w", err)
	}
	w := &Words{model: model}
	for token := range file.Model.Vocab {
		word, ok := strings.CutPrefix(token, "Ġ")
		if ok && len(word) > 2 && strings.Trim(word, "abcdefghijklmnopqrstuvwxyz") == "" {
			w.list = append(w.list, word)
		}
	}
	if len(w.list) < 100 {
		return nil, fmt.Errorf("the vocabulary has %d whole words, at least 100 are needed", len(w.list))
	}
	slices.Sort(w.list)
	return w, nil
}

// Text returns n words; the same arguments give the same text.
func (w *Words) Text(stream, seed uint64, n int) string {
	rng := rand.New(rand.NewPCG(stream, seed))
	var sb strings.Builder
	for i := range n {
		if i > 0 {
			sb.WriteByte(' ')
		}
		sb.WriteString(w.list[rng.IntN(len(w.list))])
	}
	return sb.String()
}

// Message is one of a chat.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Body encodes a streamed chat request whose answer has exactly so many tokens.
func (w *Words) Body(output int, messages ...Message) []byte {
	b, err := json.Marshal(struct {
		Model     string    `json:"model"`
		Messages  []Message `json:"messages"`
		MaxTokens int       `json:"max_tokens"`
		IgnoreEOS bool      `json:"ignore_eos"`
		Stream    bool      `json:"stream"`
	}{w.model, messages, output, true, true})
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return b
}
