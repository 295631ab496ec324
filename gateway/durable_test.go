package gateway

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/tenancy"
)

// recording calls at before each row is recorded.
type recording struct {
	*memoryLedger
	at func()
}

// Record implements Ledger.
func (l *recording) Record(ctx context.Context, row *tenancy.Row) error {
	l.at()
	return l.memoryLedger.Record(ctx, row)
}

// TestTheEndWaitsForTheRow: while its row is not durable yet, a client has no sign
// that its answer is whole: not the terminal mark of a stream, which most take for
// the end, and nothing of another answer.
func TestTheEndWaitsForTheRow(t *testing.T) {
	content := []string{gatewaytest.RoleEvent, gatewaytest.ContentEvent("a", ""), gatewaytest.ContentEvent("b", "stop")}
	lateError := "data: " + gatewaytest.ErrorBody(500, "too late") + "\n\n"
	for _, c := range []struct {
		name, body string
		worker     gatewaytest.Behaviour
		end        string
	}{
		{"stream", streamBody, gatewaytest.Chat("a", "b"), gatewaytest.DoneEvent},
		{"a late end", streamBody, func(x *gatewaytest.Exchange) {
			x.StreamHead()
			for _, event := range append(content[:3:3], gatewaytest.DoneEvent) {
				x.Chunk(event)
			}
			x.Pause(100 * time.Millisecond)
			x.End()
		}, gatewaytest.DoneEvent},
		{"in one piece", streamBody, gatewaytest.Trickle(1<<20, 0, "a", "b"), gatewaytest.DoneEvent},
		{"more after the end", streamBody, gatewaytest.Stream(append(content, gatewaytest.DoneEvent, lateError)...), gatewaytest.DoneEvent},
		{"no stream", chatBody, gatewaytest.Chat("a", "b"), `"finish_reason"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var client net.Conn
			sent := ""
			books := &recording{at: func() {
				// All that has been written to it is there to be read.
				_ = client.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
				text, err := io.ReadAll(client)
				if !isTimeout(err) {
					t.Errorf("before its row was durable, the client had its end: %v", err)
				}
				sent = string(text)
			}}
			r := newRig(t, []string{gatewaytest.NewWorker(t, c.worker).URL()}, withParts(func(p *Parts) {
				books.memoryLedger = p.Ledger.(*memoryLedger)
				p.Ledger = books
			}))
			var err error
			if client, err = net.Dial("tcp", r.addr); err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			text := gatewaytest.RequestText("POST", "/v1/chat/completions", c.body, "Authorization: Bearer "+goodKey, "Connection: close")
			if _, err := io.WriteString(client, text); err != nil {
				t.Fatal(err)
			}
			r.row() // and Record has returned
			_ = client.SetReadDeadline(time.Now().Add(patience))
			rest, err := io.ReadAll(client)
			if err != nil || !strings.Contains(string(rest), c.end) || strings.Contains(string(rest), "too late") {
				t.Errorf("after its row was durable, the client got %v %q", err, rest)
			}
			if strings.Contains(sent, c.end) {
				t.Errorf("before its row was durable, the client had %q", sent)
			}
		})
	}
}
