package openai

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/wire"
)

// recording is one exchange with a real engine.
type recording struct {
	Name         string          `json:"name"`
	Path         string          `json:"path"`
	Status       int             `json:"status"`
	ContentType  string          `json:"content_type"`
	RequestBody  json.RawMessage `json:"request_body"`
	ResponseBody string          `json:"response_body"`
}

func recordings(t testing.TB) map[string]recording {
	t.Helper()
	b, err := os.ReadFile("testdata/vllm-0.32.0.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []recording
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	byName := map[string]recording{}
	for _, r := range list {
		byName[r.Name] = r
	}
	return byName
}

func (r recording) isStream() bool { return strings.HasPrefix(r.ContentType, "text/event-stream") }

// events returns the data of a recorded stream's events. The recorded engine
// writes each as one line.
func (r recording) events() []string {
	var events []string
	for event := range strings.SplitSeq(strings.TrimSuffix(r.ResponseBody, "\n\n"), "\n\n") {
		events = append(events, strings.TrimPrefix(event, "data: "))
	}
	return events
}

func (r recording) operation() wire.Operation {
	switch r.Path {
	case "/v1/chat/completions":
		return wire.Chat
	case "/v1/completions":
		return wire.Completion
	}
	return 0
}
