package simworker

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// chatMessage is a message in the chat form of a messages body.
type chatMessage struct {
	Role       string     `json:"role"`
	Content    any        `json:"content,omitempty"`
	Reasoning  string     `json:"reasoning,omitempty"`
	ToolCalls  []chatCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

type chatCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function chatFunction `json:"function"`
}

type chatFunction struct {
	Name        string          `json:"name"`
	Arguments   string          `json:"arguments,omitempty"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
}

type chatTool struct {
	Type     string       `json:"type"`
	Function chatFunction `json:"function"`
}

// chatForm is the chat body that the engine makes of a messages body, streaming
// aside.
type chatForm struct {
	Model              string          `json:"model"`
	Messages           []chatMessage   `json:"messages"`
	Tools              []chatTool      `json:"tools,omitempty"`
	ReasoningEffort    string          `json:"reasoning_effort,omitempty"`
	ChatTemplateKwargs json.RawMessage `json:"chat_template_kwargs,omitempty"`
	ToolChoice         any             `json:"tool_choice,omitempty"`
	MaxTokens          int             `json:"max_tokens,omitempty"`
	Stop               []string        `json:"stop,omitempty"`
	CacheSalt          string          `json:"cache_salt,omitempty"`
	XArgs              json.RawMessage `json:"vllm_xargs,omitempty"`
}

func (form *chatForm) body() []byte {
	b, err := json.Marshal(form)
	if err != nil {
		panic("BUG: a chat form that is no JSON: " + err.Error())
	}
	return b
}

// block is a content block of a message, or of the system text.
type block struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Source    imageSource     `json:"source"`
	ID        string          `json:"id"`
	ToolUseID string          `json:"tool_use_id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`
	Content   json.RawMessage `json:"content"`
	Thinking  string          `json:"thinking"`
}

type imageSource struct {
	Type      string `json:"type"`
	MediaType string `json:"media_type"`
	Data      string `json:"data"`
	URL       string `json:"url"`
}

func (s imageSource) url() string {
	if s.Type == "url" {
		return s.URL
	}
	if s.MediaType == "" {
		s.MediaType = "image/jpeg"
	}
	return "data:" + s.MediaType + ";base64," + s.Data
}

// blockTypes are the types that the engine knows.
var blockTypes = []string{"text", "image", "tool_use", "tool_result", "tool_reference", "thinking", "redacted_thinking"}

// parseMessages reads a body of the messages route, or of count_tokens, which
// knows fewer members, and makes a chat body of it.
func parseMessages(body []byte, count bool) (form *chatForm, stream bool, err *apiError) {
	f, err := parseObject(body)
	if err != nil {
		return nil, false, err
	}
	form = &chatForm{Model: f.str("model")}
	if f.get("model") == nil {
		f.missing("model")
	}
	form.readSystem(f)
	form.readMessages(f)
	form.ChatTemplateKwargs = f.get("chat_template_kwargs")
	form.readEffort(f)
	form.readTools(f)
	if !count {
		form.readSampling(f)
		stream = f.boolean("stream")
	}
	return form, stream, f.err()
}

func (form *chatForm) readSampling(f *fields) {
	if f.get("max_tokens") == nil {
		f.missing("max_tokens")
	} else if form.MaxTokens = f.integer("max_tokens", 1); form.MaxTokens < 1 {
		f.wrong("max_tokens", "value_error", "Value error, max_tokens must be positive", f.get("max_tokens"))
	}
	for _, name := range []string{"temperature", "top_p"} {
		f.float(name)
	}
	f.integer("top_k", 0)
	if raw := f.get("stop_sequences"); raw != nil && json.Unmarshal(raw, &form.Stop) != nil {
		f.wrong("stop_sequences", "list_type", "Input should be a valid list", raw)
	}
	if form.CacheSalt = f.str("cache_salt"); form.CacheSalt == "" && f.get("cache_salt") != nil {
		f.wrong("cache_salt", "string_too_short", "String should have at least 1 character", f.get("cache_salt"))
	}
	form.XArgs = f.get("vllm_xargs")
}

// billing is how a text block begins that a coding agent puts before its system
// text, with a number that differs from call to call. The engine leaves it out.
const billing = "x-anthropic-billing-header"

// systemText joins the texts of a system prompt.
func systemText(blocks []block) string {
	var sb strings.Builder
	for _, b := range blocks {
		if b.Type == "text" && !strings.HasPrefix(b.Text, billing) {
			sb.WriteString(b.Text)
		}
	}
	return sb.String()
}

func (form *chatForm) readSystem(f *fields) {
	raw := f.get("system")
	if raw == nil {
		return
	}
	if raw[0] != '"' {
		form.addSystem(f.blocks("system", raw))
	} else if text := f.str("system"); text != "" { // Here a billing header stays.
		form.Messages = append(form.Messages, chatMessage{Role: "system", Content: text})
	}
}

// addSystem adds a system message, unless it has no text.
func (form *chatForm) addSystem(blocks []block) {
	if text := systemText(blocks); text != "" {
		form.Messages = append(form.Messages, chatMessage{Role: "system", Content: text})
	}
}

// readEffort reads how hard the model shall think, which templates may show.
func (form *chatForm) readEffort(f *fields) {
	config, thinking := f.object("output_config"), f.object("thinking")
	form.ReasoningEffort = config.str("effort")
	if thinking.str("type") == "disabled" {
		form.ReasoningEffort = "none"
	}
	f.found = append(append(f.found, config.found...), thinking.found...)
}

// blocks reads a list of content blocks.
func (f *fields) blocks(name string, raw json.RawMessage) []block {
	var list []block
	if json.Unmarshal(raw, &list) != nil {
		f.wrong(name, "list_type", "Input should be a valid list", raw)
		return nil
	}
	for i, b := range list {
		if !slices.Contains(blockTypes, b.Type) {
			f.wrong(name+"."+strconv.Itoa(i)+".type", "literal_error", "Input should be '"+strings.Join(blockTypes, "', '")+"'", quoted(b.Type))
		}
	}
	return list
}

func quoted(s string) json.RawMessage { return appendString(nil, s) }

func (form *chatForm) readMessages(f *fields) {
	raw := f.get("messages")
	if raw == nil {
		f.missing("messages")
		return
	}
	var list []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal(raw, &list) != nil {
		f.wrong("messages", "list_type", "Input should be a valid list", raw)
		return
	}
	for i, m := range list {
		at := "messages." + strconv.Itoa(i)
		if m.Role != "user" && m.Role != "assistant" && m.Role != "system" {
			f.wrong(at+".role", "literal_error", "Input should be 'user', 'assistant' or 'system'", quoted(m.Role))
		}
		content := bytes.TrimSpace(m.Content)
		var text string
		switch {
		case len(content) == 0 || string(content) == "null":
			f.wrong(at+".content", "missing", "Field required", quoted(""))
		case json.Unmarshal(content, &text) == nil && m.Role == "system":
			form.addSystem([]block{{Type: "text", Text: text}})
		case json.Unmarshal(content, &text) == nil:
			form.Messages = append(form.Messages, chatMessage{Role: m.Role, Content: text})
		case m.Role == "system":
			form.addSystem(f.blocks(at+".content", content))
		default:
			form.addBlocks(m.Role, f.blocks(at+".content", content))
		}
	}
}

// addBlocks adds a message of content blocks. What tools returned comes before
// the rest of its turn, each as a message of its own.
func (form *chatForm) addBlocks(role string, blocks []block) {
	m := chatMessage{Role: role}
	var parts []map[string]any
	for _, b := range blocks {
		switch b.Type {
		case "text":
			if b.Text != "" {
				parts = append(parts, map[string]any{"type": "text", "text": b.Text})
			}
		case "image":
			parts = append(parts, imagePart(b.Source))
		case "thinking":
			m.Reasoning += b.Thinking
		case "tool_use":
			if len(b.Input) == 0 || string(b.Input) == "null" {
				b.Input = json.RawMessage("{}")
			}
			m.ToolCalls = append(m.ToolCalls, chatCall{ID: b.ID, Type: "function", Function: chatFunction{Name: b.Name, Arguments: string(b.Input)}})
		case "tool_result":
			if role == "user" {
				form.addResult(b)
			} else {
				parts = append(parts, map[string]any{"type": "text", "text": "Tool result: " + resultText(b.Content)})
			}
		}
	}
	if len(parts) == 1 && parts[0]["type"] == "text" {
		m.Content = parts[0]["text"]
	} else if len(parts) > 0 {
		m.Content = parts
	}
	if role != "user" || m.Content != nil {
		form.Messages = append(form.Messages, m)
	}
}

func imagePart(s imageSource) map[string]any {
	return map[string]any{"type": "image_url", "image_url": map[string]string{"url": s.url()}}
}

// addResult adds what a tool returned: its text, and then its images in a
// message of the user.
func (form *chatForm) addResult(b block) {
	form.Messages = append(form.Messages, chatMessage{Role: "tool", ToolCallID: b.ToolUseID, Content: resultText(b.Content)})
	var images []map[string]any
	for _, item := range items(b.Content) {
		if item.Type == "image" {
			images = append(images, imagePart(item.Source))
		}
	}
	if len(images) > 0 {
		form.Messages = append(form.Messages, chatMessage{Role: "user", Content: images})
	}
}

// items returns what a tool returned as a list; a text is none.
func items(content json.RawMessage) []block {
	var list []block
	_ = json.Unmarshal(content, &list)
	return list
}

// resultText returns the text of what a tool returned.
func resultText(content json.RawMessage) string {
	var text string
	if json.Unmarshal(content, &text) == nil {
		return text
	}
	var texts []string
	for _, item := range items(content) {
		if item.Type == "text" {
			texts = append(texts, item.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// readTools reads the tools and which of them the client wants.
func (form *chatForm) readTools(f *fields) {
	var list []struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		InputSchema json.RawMessage `json:"input_schema"`
	}
	if raw := f.get("tools"); raw != nil && json.Unmarshal(raw, &list) != nil {
		f.wrong("tools", "list_type", "Input should be a valid list", raw)
	}
	for i, t := range list {
		if len(t.InputSchema) == 0 || t.InputSchema[0] != '{' {
			f.wrong("tools."+strconv.Itoa(i)+".input_schema", "dict_type", "Input should be a valid dictionary", quoted(""))
			continue
		}
		form.Tools = append(form.Tools, chatTool{Type: "function", Function: chatFunction{
			Name: t.Name, Description: t.Description, Parameters: withType(t.InputSchema),
		}})
	}
	choice := f.object("tool_choice")
	switch kind := choice.str("type"); kind {
	case "":
	case "any":
		form.ToolChoice = "required"
	case "tool":
		form.ToolChoice = chatTool{Type: "function", Function: chatFunction{Name: choice.str("name")}}
	case "auto", "none":
		form.ToolChoice = kind
	default:
		f.wrong("tool_choice.type", "literal_error", "Input should be 'auto', 'any', 'tool' or 'none'", quoted(kind))
	}
	f.found = append(f.found, choice.found...)
}

// withType adds the type that a schema without one gets.
func withType(schema json.RawMessage) json.RawMessage {
	var s map[string]json.RawMessage
	if json.Unmarshal(schema, &s) != nil || s["type"] != nil {
		return schema
	}
	inner := bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(schema), []byte("}")))
	if len(s) > 0 {
		inner = append(slices.Clip(inner), ',')
	}
	return append(slices.Clip(inner), `"type":"object"}`...)
}
