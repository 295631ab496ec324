package openai

import (
	"strings"

	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/gateway/wire/wiretest"
)

// events returns the data of a recorded stream's events. The recorded engine
// writes each as one line.
func eventsOf(r wiretest.Recording) []string {
	var events []string
	for event := range strings.SplitSeq(strings.TrimSuffix(r.ResponseBody, "\n\n"), "\n\n") {
		events = append(events, strings.TrimPrefix(event, "data: "))
	}
	return events
}

func operationOf(r wiretest.Recording) wire.Operation {
	switch r.Path {
	case "/v1/chat/completions":
		return wire.Chat
	case "/v1/completions":
		return wire.Completion
	}
	return 0
}
