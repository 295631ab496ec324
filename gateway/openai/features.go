package openai

import "github.com/sluicegate/sluice/gateway/wire"

// featureOf returns the feature that a top-level key stands for, or 0.
func featureOf(key []byte) wire.Feature {
	switch string(key) {
	case "chat_template_kwargs", "documents", "reasoning_effort":
		return wire.TemplateSettings
	case "add_generation_prompt", "continue_final_message", "add_special_tokens", "echo", "suffix":
		return wire.PromptSettings
	case "chat_template":
		return wire.OwnTemplate
	}
	return 0
}

// noteKey notes the feature of a top-level key whose value comes next.
func (s *scanner) noteKey(key []byte) {
	if f := featureOf(key); f != 0 && s.Peek() != 'n' {
		s.Req.Features |= f
	}
}

// noteMessageKey notes the feature of a message's key whose value comes next.
func (s *scanner) noteMessageKey(key []byte) {
	switch string(key) {
	case "tool_calls", "function_call", "tool_call_id":
		if s.Peek() != 'n' {
			s.Req.Features |= wire.ToolCalls
		}
	case "reasoning", "reasoning_content", "thinking":
		if s.Peek() != 'n' {
			s.Req.Features |= wire.TemplateSettings
		}
	}
}

// noteRole notes the feature of a message's role. other is how many messages
// before this one have another role than system and developer.
func (s *scanner) noteRole(role []byte, other *int) {
	switch string(role) {
	case "system", "developer":
		s.Req.Features |= wire.SystemMessage
		return
	case "tool", "function":
		s.Req.Features |= wire.ToolCalls
	}
	if *other++; *other > 1 {
		s.Req.Features |= wire.Turns
	}
}
