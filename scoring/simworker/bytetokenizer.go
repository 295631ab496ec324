package simworker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// ByteTokenizer is a tokenizer without a model, for tests that need no real
// one: one id a byte and a few special ones for a ChatML template. Printable
// ASCII has the lowest ids and is what generated text is drawn from, so a
// generated answer sent back in the next turn gives the ids it was cached under.
type ByteTokenizer struct{}

// NewByteTokenizer returns a ByteTokenizer.
func NewByteTokenizer() *ByteTokenizer { return &ByteTokenizer{} }

const (
	bytePrintable = '~' - ' ' + 1 // ids below this are printable ASCII
	byteStart     = 256           // <|im_start|>
	byteEnd       = 257           // <|im_end|>
)

var byteSpecials = []struct {
	text string
	id   uint32
}{{"<|im_start|>", byteStart}, {"<|im_end|>", byteEnd}}

// byteID returns the id of byte b.
func byteID(b byte) uint32 {
	switch {
	case b >= ' ' && b <= '~':
		return uint32(b - ' ')
	case b < ' ':
		return bytePrintable + uint32(b)
	}
	return uint32(b)
}

// idByte is the inverse of byteID for ids below 256.
func idByte(id uint32) byte {
	switch {
	case id < bytePrintable:
		return byte(id) + ' '
	case id < bytePrintable+' ':
		return byte(id - bytePrintable)
	}
	return byte(id)
}

// encode turns text into ids; special tokens written out in it become
// themselves, as in the real engine.
func (*ByteTokenizer) encode(dst []uint32, text string) []uint32 {
next:
	for len(text) > 0 {
		if text[0] == '<' {
			for _, s := range byteSpecials {
				if rest, ok := strings.CutPrefix(text, s.text); ok {
					dst, text = append(dst, s.id), rest
					continue next
				}
			}
		}
		dst, text = append(dst, byteID(text[0])), text[1:]
	}
	return dst
}

// Render returns the ChatML text of a chat body's messages: each turn between
// <|im_start|>ROLE and <|im_end|>, texts of list content joined by line breaks,
// then the opening of the assistant's turn unless add_generation_prompt is false.
func (*ByteTokenizer) Render(body []byte) (string, error) {
	var req struct {
		Messages []struct {
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		} `json:"messages"`
		AddGenerationPrompt *bool `json:"add_generation_prompt"`
	}
	if err := json.Unmarshal(body, &req); err != nil {
		return "", fmt.Errorf("cannot read messages: %w", err)
	}
	if len(req.Messages) == 0 {
		return "", errors.New("cannot render an empty list of messages")
	}
	var sb strings.Builder
	for i, m := range req.Messages {
		text, err := contentText(m.Content)
		if err != nil {
			return "", fmt.Errorf("messages[%d].content: %w", i, err)
		}
		sb.WriteString("<|im_start|>" + m.Role + "\n" + text + "<|im_end|>\n")
	}
	if req.AddGenerationPrompt == nil || *req.AddGenerationPrompt {
		sb.WriteString("<|im_start|>assistant\n")
	}
	return sb.String(), nil
}

// contentText returns a message's content as one text.
func contentText(raw json.RawMessage) (string, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	if raw[0] == '"' {
		var s string
		err := json.Unmarshal(raw, &s)
		return s, err
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", errors.New("must be a string or a list of parts")
	}
	var texts []string
	for _, p := range parts {
		if p.Type != "text" {
			return "", fmt.Errorf("parts of type %q are not supported by this model", p.Type)
		}
		texts = append(texts, p.Text)
	}
	return strings.Join(texts, "\n"), nil
}

// EncodeChat implements Tokenizer.
func (t *ByteTokenizer) EncodeChat(body []byte) ([]uint32, error) {
	text, err := t.Render(body)
	if err != nil {
		return nil, err
	}
	return t.encode(make([]uint32, 0, len(text)), text), nil
}

// EncodeCompletion implements Tokenizer.
func (t *ByteTokenizer) EncodeCompletion(body []byte) ([][]uint32, error) {
	var req struct {
		Prompt json.RawMessage `json:"prompt"`
	}
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, fmt.Errorf("cannot read prompt: %w", err)
	}
	var text string
	if json.Unmarshal(req.Prompt, &text) == nil {
		return [][]uint32{t.encode(nil, text)}, nil
	}
	var texts []string
	if json.Unmarshal(req.Prompt, &texts) == nil {
		prompts := make([][]uint32, len(texts))
		for i, s := range texts {
			prompts[i] = t.encode(nil, s)
		}
		return prompts, nil
	}
	var ids []uint32
	if json.Unmarshal(req.Prompt, &ids) == nil {
		return [][]uint32{ids}, nil
	}
	var lists [][]uint32
	if json.Unmarshal(req.Prompt, &lists) == nil {
		return lists, nil
	}
	return nil, errors.New("prompt must be a string, a list of strings, a list of token ids or a list of such lists")
}

// Decode implements Tokenizer. Special tokens have no text.
func (*ByteTokenizer) Decode(ids []uint32) string {
	b := make([]byte, 0, len(ids))
	for _, id := range ids {
		if id < 256 {
			b = append(b, idByte(id))
		}
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

// VocabSize implements Tokenizer.
func (*ByteTokenizer) VocabSize() int { return bytePrintable }
