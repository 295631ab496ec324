package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
)

// A connection that is given back is another request's at once. What the one before
// still has of it, the memory of its last bytes, is no longer the connection's.
func TestConnectionsAreGivenBackWithoutTheirReader(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	c := newUpstream(ours, "key")
	c.br = bufio.NewReaderSize(strings.NewReader("5\r\nhello\r\n0\r\n\r\n"), upstreamHeader)
	if _, err := c.br.Peek(1); err != nil {
		t.Fatal(err)
	}
	b := &upstreamBody{c: c, left: -1, chunks: &chunkDecoder{}}
	data, err := b.next(time.Now().Add(time.Minute))
	if string(data) != "hello" || !errors.Is(err, io.EOF) || !b.reusable() {
		t.Fatalf("%q, %v, reusable %v", data, err, b.reusable())
	}
	b.letGo()
	next := c.reader() // of the next request
	b.free()
	if c.br != next {
		t.Error("the request before has taken the reader of the next one")
	}
}

// Streams that come whole with their header, over connections that go from one
// request to the next without a pause.
func TestStreamsInOneWriteOverKeptConnections(t *testing.T) {
	worker := gatewaytest.NewWorker(t)
	worker.Handle("/v1/chat/completions", func(x *gatewaytest.Exchange) {
		_, after, _ := strings.Cut(string(x.Seen.Body), "mark-")
		mark, _, _ := strings.Cut(after, `"`)
		text := `data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"mark-` + mark +
			`"},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"
		x.Raw(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(text), text))
		x.Finished()
	})
	r := newRig(t, []string{worker.URL()})
	var group sync.WaitGroup
	for client := range 8 {
		c := r.dial()
		group.Go(func() {
			for i := range 50 {
				mark := fmt.Sprintf("mark-%d-%d.", client, i)
				c.Send("POST", "/v1/chat/completions", fmt.Sprintf(`{"model":"m","stream":true,"messages":[{"role":"user","content":%q}]}`, mark),
					"Authorization: Bearer "+goodKey)
				resp, body := c.Answer()
				if resp.StatusCode != 200 || !strings.Contains(body, mark) || !strings.HasSuffix(body, "data: [DONE]\n\n") {
					t.Errorf("%s: status %d: %s", mark, resp.StatusCode, body)
					return
				}
			}
		})
	}
	group.Wait()
}
