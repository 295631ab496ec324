//go:build cgo && !notokenizers

package tokenize

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
)

// settings is the document that the native library reads besides
// tokenizer.json. Field names are those of native/src/settings.rs.
type settings struct {
	ChatTemplate       *string           `json:"chat_template"`
	ToolTemplate       *string           `json:"tool_template"`
	ContentFormat      string            `json:"content_format"`
	Variables          map[string]string `json:"variables"`
	Kwargs             json.RawMessage   `json:"kwargs"`
	AddedTokens        []addedToken      `json:"added_tokens"`
	SplitSpecialTokens bool              `json:"split_special_tokens"`
}

// addedToken is a token of the added vocabulary, as the files write it.
type addedToken struct {
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// namedTokens are the special tokens that templates know by name.
var namedTokens = []string{
	"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
}

// readModel reads a model's files and puts the settings together.
func readModel(fsys fs.FS, opts Options) (tokenizer, doc []byte, err error) {
	tokenizer, err = fs.ReadFile(fsys, "tokenizer.json")
	if err != nil {
		return nil, nil, err
	}
	config, err := readObject(fsys, "tokenizer_config.json")
	if err != nil {
		return nil, nil, err
	}
	named, err := readObject(fsys, "special_tokens_map.json")
	if err != nil {
		return nil, nil, err
	}
	s := settings{
		ContentFormat: opts.ContentFormat,
		Variables:     map[string]string{},
		Kwargs:        opts.TemplateKwargs,
		AddedTokens:   []addedToken{},
	}
	if err := s.check(); err != nil {
		return nil, nil, err
	}
	if err := s.readTokens(config, named); err != nil {
		return nil, nil, err
	}
	if err := s.readTemplates(fsys, config, opts); err != nil {
		return nil, nil, err
	}
	doc, err = json.Marshal(s)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot write the settings: %w", err)
	}
	return tokenizer, doc, nil
}

// check fills in the defaults of what the options set.
func (s *settings) check() error {
	switch s.ContentFormat {
	case "":
		s.ContentFormat = "auto"
	case "auto", "string", "openai":
	default:
		return fmt.Errorf("content format %q is unknown; use auto, string or openai", s.ContentFormat)
	}
	if len(bytes.TrimSpace(s.Kwargs)) == 0 {
		s.Kwargs = json.RawMessage("{}")
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(s.Kwargs, &object); err != nil || object == nil {
		return errors.New("template kwargs must be a JSON object")
	}
	return nil
}

// readTokens takes over the tokens that the configuration adds to the tokenizer,
// in the order in which the engine adds them, and the ones it names.
func (s *settings) readTokens(config, named map[string]json.RawMessage) error {
	const file = "tokenizer_config.json"
	decoder := map[string]addedToken{}
	if err := field(config, "added_tokens_decoder", &decoder); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	byID := map[int]addedToken{}
	for key, token := range decoder {
		id, err := strconv.Atoi(key)
		if err != nil {
			return fmt.Errorf("%s: added_tokens_decoder: key %q is no token id", file, key)
		}
		byID[id] = token
	}
	known := map[string]bool{}
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		s.AddedTokens = append(s.AddedTokens, byID[id])
		known[byID[id].Content] = true
	}
	add := func(raw json.RawMessage) (string, error) {
		token, ok, err := readToken(raw)
		if ok && !known[token.Content] {
			known[token.Content] = true
			s.AddedTokens = append(s.AddedTokens, token)
		}
		return token.Content, err
	}
	extra := map[string]json.RawMessage{}
	var list []json.RawMessage
	for _, name := range []string{"extra_special_tokens", "additional_special_tokens"} {
		raw := bytes.TrimSpace(config[name])
		var err error
		if len(raw) > 0 && raw[0] == '{' {
			err = json.Unmarshal(raw, &extra)
		} else {
			err = field(config, name, &list)
		}
		if err != nil {
			return fmt.Errorf("%s: %s: must be a list or an object of tokens", file, name)
		}
	}
	for _, name := range namedTokens {
		if raw, ok := config[name]; ok {
			extra[name] = raw
		} else if raw, ok := named[name]; ok {
			extra[name] = raw
		}
	}
	for _, name := range slices.Sorted(maps.Keys(extra)) {
		content, err := add(extra[name])
		if err != nil {
			return fmt.Errorf("%s: %s: %w", file, name, err)
		}
		if content != "" {
			s.Variables[name] = content
		}
	}
	for _, raw := range list {
		if _, err := add(raw); err != nil {
			return fmt.Errorf("%s: additional_special_tokens: %w", file, err)
		}
	}
	if err := field(config, "split_special_tokens", &s.SplitSpecialTokens); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// readToken reads a token that is a text or an object; null is none.
func readToken(raw json.RawMessage) (token addedToken, ok bool, err error) {
	if isNull(raw) {
		return token, false, nil
	}
	token.Special = true
	if json.Unmarshal(raw, &token.Content) != nil && json.Unmarshal(raw, &token) != nil {
		return token, false, errors.New("must be a text or an object with content")
	}
	token.Special = true
	return token, token.Content != "", nil
}

// readTemplates chooses the chat template: the operator's, a file of its own, or
// the configuration's, which may have one more for requests with tools.
func (s *settings) readTemplates(fsys fs.FS, config map[string]json.RawMessage, opts Options) error {
	if opts.ChatTemplate != "" {
		s.ChatTemplate = &opts.ChatTemplate
		return nil
	}
	file, err := fs.ReadFile(fsys, "chat_template.jinja")
	if err == nil {
		text := string(file)
		s.ChatTemplate = &text
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	raw := config["chat_template"]
	if isNull(raw) {
		return nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		s.ChatTemplate = &text
		return nil
	}
	var list []struct{ Name, Template string }
	if err := json.Unmarshal(raw, &list); err != nil {
		return errors.New("tokenizer_config.json: chat_template: must be a text or a list of named texts")
	}
	for _, t := range list {
		switch t.Name {
		case "default":
			s.ChatTemplate = &t.Template
		case "tool_use":
			s.ToolTemplate = &t.Template
		}
	}
	return nil
}

// readObject reads a file with a JSON object. A file that does not exist is an
// empty object.
func readObject(fsys fs.FS, name string) (map[string]json.RawMessage, error) {
	data, err := fs.ReadFile(fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(data, &object); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return object, nil
}

// field reads one field of an object into v; absent and null leave v alone.
func field(object map[string]json.RawMessage, name string, v any) error {
	raw := object[name]
	if isNull(raw) {
		return nil
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
