package openai

// Model is one model of the models list.
type Model struct {
	// ID is the name clients use.
	ID string
	// Created is when the model was first configured, in Unix seconds.
	Created int64
	// MaxModelLen is the context length in tokens, 0 when unknown.
	MaxModelLen int64
}
