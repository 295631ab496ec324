package verify

// Shape is a kind of request that is judged by itself. A request has one shape,
// the last in this list that fits.
type Shape uint8

// The shapes.
const (
	// ChatPlain is a single message.
	ChatPlain Shape = iota
	// ChatSystem has a system message besides.
	ChatSystem
	// ChatTurns has several messages.
	ChatTurns
	// ChatParts has content that is a list.
	ChatParts
	// ChatTools declares tools.
	ChatTools
	// ChatToolCalls has calls of tools or their results.
	ChatToolCalls
	// ChatKwargs sets template variables or brings reasoning along.
	ChatKwargs
	// ChatContinue changes how the prompt begins or ends.
	ChatContinue
	// CompletionText is a prompt that is a text.
	CompletionText
	// CompletionTexts is a list of texts.
	CompletionTexts
	// MessagesPlain is a conversation of Anthropic's Messages API in nothing but
	// texts. The shapes of that API are about the chat that the engine makes of it,
	// and only the length of the prompt is compared.
	MessagesPlain
	// MessagesParts has content of several blocks.
	MessagesParts
	// MessagesTools declares tools, calls them or holds what they returned.
	MessagesTools
	// MessagesSettings says how to think, sets template variables or brings
	// thinking along.
	MessagesSettings

	shapes // counts them
)

// Shapes lists all shapes.
func Shapes() []Shape {
	list := make([]Shape, shapes)
	for i := range list {
		list[i] = Shape(i)
	}
	return list
}

// String returns the shape's name as logs, metrics and debug pages show it.
func (s Shape) String() string {
	if s >= shapes {
		return "invalid"
	}
	return [...]string{
		"chat-plain", "chat-system", "chat-turns", "chat-parts", "chat-tools", "chat-tool-calls", "chat-kwargs",
		"chat-continue", "completion-text", "completion-texts",
		"messages-plain", "messages-parts", "messages-tools", "messages-settings",
	}[s]
}

// State is what is known of a shape.
type State uint8

// The states.
const (
	// Unverified: nothing was compared yet. It is served locally, since a model
	// that nobody could be asked about has no worker to ask either.
	Unverified State = iota
	// Verified: all that was compared was equal.
	Verified
	// Mismatch: the engine has other ids. It is left to the workers.
	Mismatch
)

// String returns the state's name as logs, metrics and debug pages show it.
func (s State) String() string {
	switch s {
	case Unverified:
		return "unverified"
	case Verified:
		return "verified"
	case Mismatch:
		return "mismatch"
	}
	return "invalid"
}

// States are the names of all states.
var States = [...]string{Unverified.String(), Verified.String(), Mismatch.String()}
