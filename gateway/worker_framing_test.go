package gateway

import (
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
)

// TestWorkerFraming: a worker whose answer has two readings gets no chance to answer
// the next request with what is left of it.
func TestWorkerFraming(t *testing.T) {
	body := gatewaytest.ChatBody("first", gatewaytest.Usage(10, 1))
	events := gatewaytest.RoleEvent + gatewaytest.ContentEvent("first", "stop") + gatewaytest.DoneEvent
	second := gatewaytest.Chat("second")
	for _, c := range []struct {
		name   string
		worker gatewaytest.Behaviour
		stream bool
		status int
	}{
		{"two lengths", gatewaytest.TwoLengths("application/json", body), false, 502},
		{"two lengths of a stream", gatewaytest.TwoLengths(gatewaytest.EventStream, events), true, 502},
		{"length and chunks", gatewaytest.LengthAndChunks("application/json", body), false, 502},
		// Its chunks count, as they do for everybody, and its mark has come.
		{"length and chunks of a stream", gatewaytest.LengthAndChunks(gatewaytest.EventStream, events), true, 200},
		{"bad chunk size", gatewaytest.BadChunkSize("application/json", body), false, 502},
		{"bytes after the answer", gatewaytest.ExtraBytes(gatewaytest.JSON(200, body)), false, 200},
		{"bytes after a stream", gatewaytest.ExtraBytes(gatewaytest.Chat("first")), true, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			worker := gatewaytest.NewWorker(t, c.worker, second)
			r := newRig(t, []string{worker.URL()})
			ask := chatBody
			if c.stream {
				ask = streamBody
			}
			status, text, err := read(t, r.chat(ask))
			if status != c.status || err != nil {
				t.Errorf("got %d %v %s, want %d", status, err, text, c.status)
			}
			eventually(t, "the request's end", func() bool { return r.g.InFlight() == 0 })
			status, text, err = read(t, r.chat(chatBody))
			if status != 200 || err != nil || !strings.Contains(text, `"content":"second"`) {
				t.Errorf("the next request got %d %v %s", status, err, text)
			}
			if seen := worker.Seen(); len(seen) == 2 && seen[0].Conn == seen[1].Conn {
				t.Error("the connection serves on")
			}
		})
	}
}
