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

// TestWorkerHeadThatIsNone: a header that can't be one is judged when its first wrong
// byte has come, not when its time is over: a line that ends in LF alone, or no HTTP.
func TestWorkerHeadThatIsNone(t *testing.T) {
	for _, head := range []string{
		"HTTP/1.1 200 OK\nContent-Type: application/json\nContent-Length: 2\n\n{}",
		"HTTP/1.1 200 OK\r\nContent-Type: application/json\nContent-Length: 2\r\n\r\n{}",
		"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\n{}",
		"HTTP/1.1 200 OK\n",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\n",
		"SSH-2.0-x\r\n", "{", "\n", "\r\n",
	} {
		for _, body := range []string{chatBody, streamBody} {
			worker := gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
				x.Raw(head)
				x.WaitLeft()
			})
			r := newRig(t, []string{worker.URL()})
			status, text, err := read(t, r.chat(body))
			if status != 502 || err != nil || !strings.Contains(text, `"upstream_error"`) {
				t.Errorf("%q: got %d %v %s", head, status, err, text)
			}
			r.row()
			r.health.mu.Lock()
			if len(r.health.blamed) != 1 || !strings.HasPrefix(r.health.blamed[0], "transport ") {
				t.Errorf("%q: blamed %v", head, r.health.blamed)
			}
			r.health.mu.Unlock()
		}
	}
}

// TestWorkerHeadInPieces: a header is one however it comes, to its largest size.
func TestWorkerHeadInPieces(t *testing.T) {
	head := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Long: " + strings.Repeat("x", upstreamHeader-200) + "\r\nContent-Length: "
	answer := gatewaytest.ChatBody("a", gatewaytest.Usage(10, 1))
	text := head + itoa(int64(len(answer))) + "\r\n\r\n" + answer
	for _, n := range []int{1, 7, 4096} {
		worker := gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
			rest := text
			for i := 0; len(rest) > 0; i++ {
				some := min(n, len(rest))
				if i > 200 {
					some = len(rest)
				}
				x.Raw(rest[:some])
				rest = rest[some:]
			}
			x.Finished()
		})
		r := newRig(t, []string{worker.URL()})
		if status, got, err := read(t, r.chat(chatBody)); status != 200 || err != nil || got != answer {
			t.Errorf("pieces of %d: got %d %v %s", n, status, err, got)
		}
	}
}
