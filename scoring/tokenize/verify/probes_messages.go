package verify

import (
	"encoding/json"
	"maps"

	"github.com/sluicegate/sluice/scoring/tokenize"
)

// MessagesProbes returns the probes by which the chat is judged that is made of a
// body of Anthropic's Messages API. A worker without that API is not judged by them.
func MessagesProbes() []Probe {
	var out []Probe
	for _, c := range messagesProbes() {
		body := m{"model": "m", "messages": c.messages}
		maps.Copy(body, c.more)
		out = append(out, Probe{Shape: c.shape, Kind: tokenize.Messages, Body: mustMarshal(body)})
	}
	return out
}

func blocks(role string, list ...any) m { return m{"role": role, "content": list} }

func messagesProbes() []chatProbe {
	tools := m{"tools": []any{
		json.RawMessage(`{"name":"get_weather","description":"Weather in <b>any</b> city & \"town\", 東京 too.",` +
			`"input_schema":{"type":"object","required":["city"],"properties":{"unit":{"type":"string","enum":["C","F",null]},"city":{"type":"string"}}}}`),
		json.RawMessage(`{"name":"get_time","input_schema":{"properties":{}}}`),
	}}
	use := m{"type": "tool_use", "id": "t1", "name": "get_weather", "input": json.RawMessage(`{"unit":"C","city":"Zürich"}`)}
	result := m{"type": "tool_result", "tool_use_id": "t1", "content": "18 degrees, naïve \n"}
	thinking := m{"type": "thinking", "thinking": "They greet me.", "signature": "s"}

	return []chatProbe{
		{MessagesPlain, []any{user("Once upon a time")}, nil},
		{MessagesPlain, []any{user(prose), assistant(" " + world + "\n"), user("go on")}, m{"system": "Be brief."}},
		{MessagesParts, []any{blocks("user", part("part one"), part("part two"))}, m{"system": []any{part("x-anthropic-billing-header: 1"), part("Be "), part("brief.")}}},
		{MessagesParts, []any{user("Hello there"), blocks("assistant", part("How can "), part("I help?")), blocks("user", part(""), part(world))}, nil},
		{MessagesTools, []any{user("What is the weather like?")}, tools},
		{MessagesTools, []any{user("weather in Paris please"), blocks("assistant", part("Let me see."), use), blocks("user", result, part("thank you"))}, tools},
		{MessagesTools, []any{user("weather?"), blocks("assistant", use), blocks("user", m{"type": "tool_result", "tool_use_id": "t1", "content": []any{part("mild"), part("dry")}})}, nil},
		{MessagesSettings, []any{user("Once upon a time")}, m{"thinking": m{"type": "disabled"}}},
		{MessagesSettings, []any{user(prose)}, m{"output_config": m{"effort": "low"}}},
		{MessagesSettings, []any{user("Hello there"), blocks("assistant", thinking, part("Well.")), user("and so on")}, nil},
	}
}
