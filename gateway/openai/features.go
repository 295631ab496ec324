package openai

// Feature is a set of the things in a chat body that a chat template treats
// each in a way of its own, so that two bodies with the same features are
// written into a prompt by the same rules.
type Feature uint16

const (
	// SystemMessage is a message of the role system or developer.
	SystemMessage Feature = 1 << iota
	// Turns is more than one message of another role.
	Turns
	// ContentParts is a message whose content is a list.
	ContentParts
	// Tools is a list of tools.
	Tools
	// ToolCalls is a message that calls a tool or holds what one returned.
	ToolCalls
	// TemplateSettings are variables for the template: chat_template_kwargs,
	// documents, reasoning_effort, or a message's reasoning.
	TemplateSettings
	// PromptSettings change how the prompt begins or ends: add_generation_prompt,
	// continue_final_message, add_special_tokens, echo, suffix.
	PromptSettings
	// OwnTemplate is a template that comes with the request.
	OwnTemplate
)

// featureOf returns the feature that a top-level key stands for, or 0.
func featureOf(key []byte) Feature {
	switch string(key) {
	case "chat_template_kwargs", "documents", "reasoning_effort":
		return TemplateSettings
	case "add_generation_prompt", "continue_final_message", "add_special_tokens", "echo", "suffix":
		return PromptSettings
	case "chat_template":
		return OwnTemplate
	}
	return 0
}

// noteKey notes the feature of a top-level key whose value comes next.
func (s *scanner) noteKey(key []byte) {
	if f := featureOf(key); f != 0 && s.peek() != 'n' {
		s.req.Features |= f
	}
}

// noteMessageKey notes the feature of a message's key whose value comes next.
func (s *scanner) noteMessageKey(key []byte) {
	switch string(key) {
	case "tool_calls", "function_call", "tool_call_id":
		if s.peek() != 'n' {
			s.req.Features |= ToolCalls
		}
	case "reasoning", "reasoning_content", "thinking":
		if s.peek() != 'n' {
			s.req.Features |= TemplateSettings
		}
	}
}

// noteRole notes the feature of a message's role. other is how many messages
// before this one have another role than system and developer.
func (s *scanner) noteRole(role []byte, other *int) {
	switch string(role) {
	case "system", "developer":
		s.req.Features |= SystemMessage
		return
	case "tool", "function":
		s.req.Features |= ToolCalls
	}
	if *other++; *other > 1 {
		s.req.Features |= Turns
	}
}
