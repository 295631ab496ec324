package openai

import (
	"fmt"
	"net/http"

	"github.com/sluicegate/sluice/gateway/bodyscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

func errNoMessages() *wire.Error {
	return bodyscan.Invalid("messages", "`messages` is missing. Send the conversation as an array of messages.")
}

func errNoInput() *wire.Error {
	return bodyscan.Invalid("input", "`input` is missing. Send a text, or an array of items.")
}

func errNeverStreams() *wire.Error {
	return bodyscan.Invalid("stream", "`stream` must be false or absent: this endpoint never streams.")
}

// errStore refuses what only a store of responses could know of.
func errStore(path string) *wire.Error {
	return &wire.Error{
		Status: http.StatusBadRequest, Code: "response_store_unavailable", Param: path,
		Message: fmt.Sprintf("`%s` needs something that was stored before, and it is not stored here. Send its content instead.", path),
	}
}

func errServerURL(path string) *wire.Error {
	return bodyscan.Invalid(path, "`%s` would make the model's server call an address of the client's choice. Use a tool that its operator has set up.", path)
}
