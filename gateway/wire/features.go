package wire

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
