package gateway

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
)

// saidMessage is what a client makes of an answer, whole or streamed.
type saidMessage struct {
	Type, Role, Model string
	Content           []map[string]any
	Reason            *string        `json:"stop_reason"`
	Sequence          *string        `json:"stop_sequence"`
	Usage             map[string]any `json:"usage"`
	ID                string
}

func readMessage(t *testing.T, text string) *saidMessage {
	t.Helper()
	m := new(saidMessage)
	if err := json.Unmarshal([]byte(text), m); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return m
}

// putTogether is the message of a stream, as the SDK puts it together.
func putTogether(t *testing.T, text string) *saidMessage {
	t.Helper()
	events, err := gatewaytest.NewEventReader(strings.NewReader(text)).All()
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	m, pieces, done := new(saidMessage), "", false
	for _, ev := range events {
		var e struct {
			Type    string
			Message *saidMessage
			Block   map[string]any `json:"content_block"`
			Delta   struct {
				Text, Thinking string
				PartialJSON    string  `json:"partial_json"`
				Reason         *string `json:"stop_reason"`
				Sequence       *string `json:"stop_sequence"`
			}
			Usage map[string]any
		}
		if !ev.HasData {
			continue
		}
		if err := json.Unmarshal([]byte(ev.Data), &e); err != nil || e.Type != ev.Name {
			t.Fatalf("event %+v: %v", ev, err)
		}
		switch e.Type {
		case "message_start":
			m = e.Message
		case "content_block_start":
			m.Content, pieces = append(m.Content, e.Block), ""
		case "content_block_delta":
			pieces += e.Delta.Text + e.Delta.Thinking + e.Delta.PartialJSON
		case "content_block_stop":
			switch last := m.Content[len(m.Content)-1]; last["type"] {
			case "tool_use":
				var input any
				if json.Unmarshal([]byte(pieces), &input) == nil {
					last["input"] = input
				} else {
					last["input"] = pieces
				}
			default:
				last[last["type"].(string)] = pieces
			}
		case "message_delta":
			m.Reason, m.Sequence = e.Delta.Reason, e.Delta.Sequence
			maps.Copy(m.Usage, e.Usage)
		case "message_stop":
			done = true
		}
	}
	if !done {
		t.Fatalf("no message_stop in %s", text)
	}
	return m
}

// comparable takes out of a message what differs from one answer to the next.
func (m *saidMessage) comparable() *saidMessage {
	m.ID = ""
	for _, b := range m.Content {
		delete(b, "id")
	}
	// What the engine has newly cached is told on its own route alone; it is part of
	// the input on the other.
	if made, ok := m.Usage["cache_creation_input_tokens"].(float64); ok {
		m.Usage["input_tokens"] = m.Usage["input_tokens"].(float64) + made
		delete(m.Usage, "cache_creation_input_tokens")
	}
	return m
}
