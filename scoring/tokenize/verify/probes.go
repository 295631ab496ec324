package verify

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/sluicegate/sluice/scoring/tokenize"
)

// Probe is a request whose ids are compared.
type Probe struct {
	Shape Shape
	Kind  tokenize.Kind
	Body  []byte
	// Pools are those whose workers may see the body; nil means all, for a body
	// that holds nothing of a client.
	Pools []string
}

// mayGo reports whether a worker may be asked about p.
func (p *Probe) mayGo(w *Worker) bool { return p.Pools == nil || slices.Contains(p.Pools, w.Pool) }

// Texts that tokenizers disagree about: words with blanks between them, numbers,
// runs of whitespace, code; and scripts without blanks, accents in both of their
// spellings, a joined emoji, controls, and what looks like special tokens.
const (
	prose = "Once upon a time, in 1984, they'd paid 12,345.67 for it:\n\n\tdef f(x):  return x  # don't\r\n   end "
	world = "naïve café, cafe\u0301 日本語のテキスト 한국어 עברית हिन्दी 👩‍👩‍👧 \u00a0\u200b… <s> <|im_start|> [INST] ½"
)

// DefaultProbes returns the probes that every model is judged by: at least two
// for each shape, one of them in nothing but plain English with spaces, which is
// what most traffic is.
func DefaultProbes() []Probe {
	var out []Probe
	for _, c := range chatProbes() {
		body := m{"messages": c.messages}
		maps.Copy(body, c.more)
		out = append(out, Probe{Shape: c.shape, Kind: tokenize.Chat, Body: mustMarshal(body)})
	}
	for _, body := range []m{{"prompt": "Once upon a time"}, {"prompt": prose + world}, {"prompt": prose, "add_special_tokens": false}} {
		out = append(out, Probe{Shape: CompletionText, Kind: tokenize.Completion, Body: mustMarshal(body)})
	}
	for _, texts := range [][]string{{"Once upon a time", "there was a river"}, {prose, world}} {
		out = append(out, Probe{Shape: CompletionTexts, Kind: tokenize.Completion, Body: mustMarshal(m{"prompt": texts})})
	}
	return out
}

// m is a JSON object.
type m = map[string]any

// chatProbe is a chat body: messages, and what else there is.
type chatProbe struct {
	shape    Shape
	messages []any
	more     m
}

func user(text string) m      { return m{"role": "user", "content": text} }
func assistant(text string) m { return m{"role": "assistant", "content": text} }
func system(text string) m    { return m{"role": "system", "content": text} }
func part(text string) m      { return m{"type": "text", "text": text} }

// call is a turn that calls the tool of the probes.
func call(arguments string) m {
	return m{"role": "assistant", "content": nil, "tool_calls": []any{m{
		"id": "call_1", "type": "function", "function": m{"name": "get_weather", "arguments": arguments},
	}}}
}

func chatProbes() []chatProbe {
	// The keys are in no order, and stay so in the prompt.
	tool := json.RawMessage(`{"type":"function","function":{"name":"get_weather","description":"Weather in <b>any</b> city & \"town\", 東京 too.",` +
		`"parameters":{"type":"object","required":["city"],"properties":{"unit":{"type":"string","enum":["C","F",null]},"city":{"type":"string","nullable":true,"default":1.5}}}}}`)
	result := m{"role": "tool", "tool_call_id": "call_1", "content": "18 degrees, naïve \n"}

	return []chatProbe{
		{ChatPlain, []any{user("Once upon a time")}, nil},
		{ChatPlain, []any{user(prose)}, nil},
		{ChatPlain, []any{user(world)}, nil},
		{ChatPlain, []any{user(" ")}, nil},
		{ChatSystem, []any{system("You are a helpful assistant."), user("Tell me about rivers.")}, nil},
		{ChatSystem, []any{system(prose), user(world)}, nil},
		{ChatTurns, []any{user("Hello there"), assistant("How can I help?"), user("Tell me a story")}, nil},
		{ChatTurns, []any{system("Be brief."), user(prose), assistant(" " + world + "\n"), user("go on")}, nil},
		{ChatParts, []any{m{"role": "user", "content": []any{part("part one"), part("part two")}}}, nil},
		{ChatParts, []any{m{"role": "system", "content": []any{part(prose)}}, m{"role": "user", "content": []any{part(""), part(world)}}}, nil},
		{ChatTools, []any{user("What is the weather like?")}, m{"tools": []any{tool}}},
		{ChatTools, []any{system("Use tools."), user(prose)}, m{"tools": []any{tool, tool}}},
		{ChatToolCalls, []any{user("weather in Paris please"), call(`{"unit":"C","city":"Zürich"}`), result}, m{"tools": []any{tool}}},
		{ChatToolCalls, []any{system("Use tools."), user(prose), call("not JSON"), result, assistant("It is mild."), user("thank you")}, m{"tools": []any{tool}}},
		{ChatToolCalls, []any{user("weather in Paris please"), call("{}"), result}, nil},
		{ChatKwargs, []any{user("Once upon a time")}, m{"chat_template_kwargs": m{"enable_thinking": false}}},
		{ChatKwargs, []any{system("Be brief."), user(prose)}, m{"reasoning_effort": "low"}},
		{ChatKwargs, []any{user("Hello there"), m{"role": "assistant", "content": "Well.", "reasoning": "They greet me."}, user("and so on")}, nil},
		{ChatContinue, []any{user("Tell me a story"), assistant("Once upon a ")}, m{"continue_final_message": true, "add_generation_prompt": false}},
		{ChatContinue, []any{system("Be brief."), user(prose)}, m{"add_generation_prompt": false}},
		{ChatContinue, []any{user("Once upon a time")}, m{"add_special_tokens": true}},
	}
}

// mustMarshal encodes values of this file, none of which can fail.
func mustMarshal(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic("BUG: verify: cannot encode a probe: " + err.Error())
	}
	return data
}
