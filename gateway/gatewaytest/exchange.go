package gatewaytest

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Close is a way to end a connection.
type Close uint8

const (
	// FIN ends it in order.
	FIN Close = iota + 1
	// RST ends it at once; bytes on their way may be lost.
	RST
)

// Exchange is one request and the raw means to answer it. Writes to a client
// that has left do nothing.
type Exchange struct {
	// Seen is the request.
	*Seen

	conn    net.Conn
	closing <-chan struct{}
	left    chan struct{}
	done    chan struct{}

	mu       sync.Mutex // mu protects the fields below
	err      error
	chunked  bool
	finished bool
}

func newExchange(conn net.Conn, seen *Seen) *Exchange {
	x := &Exchange{Seen: seen, conn: conn, left: make(chan struct{}), done: make(chan struct{})}
	seen.Left, seen.Done = x.left, x.done
	return x
}

// Raw writes bytes as they are.
func (x *Exchange) Raw(p string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.writeLocked(p)
}

// Respond writes a whole answer. Extra header lines have the form "Name: value".
func (x *Exchange) Respond(status int, contentType, body string, header ...string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	header = append(header, fmt.Sprintf("Content-Length: %d", len(body)))
	x.writeLocked(head(status, contentType, header) + body)
	x.finished = x.err == nil
}

// Head writes the head of an answer in chunks.
func (x *Exchange) Head(status int, contentType string, header ...string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.chunked = true
	x.writeLocked(head(status, contentType, append(header, "Transfer-Encoding: chunked")))
}

// StreamHead writes the head of an event stream, as the engine does.
func (x *Exchange) StreamHead() {
	x.Head(http.StatusOK, "text/event-stream; charset=utf-8")
}

// Chunk writes one chunk of the body.
func (x *Exchange) Chunk(p string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.chunked {
		panic("BUG: a chunk before the head of an answer in chunks")
	}
	if p != "" {
		x.writeLocked(fmt.Sprintf("%x\r\n%s\r\n", len(p), p))
	}
}

// End writes the last chunk.
func (x *Exchange) End() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.writeLocked("0\r\n\r\n")
	x.finished = x.chunked && x.err == nil
}

// Finished says that what Raw has written is a whole answer, after which the connection
// serves on.
func (x *Exchange) Finished() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.finished = x.err == nil
}

// Drop ends the connection in the way told.
func (x *Exchange) Drop(how Close) {
	if how == RST {
		reset(x.conn)
		return
	}
	x.conn.Close()
}

// WaitLeft waits until the client has left or the worker is closed.
func (x *Exchange) WaitLeft() {
	select {
	case <-x.left:
	case <-x.closing:
	}
}

// Wait waits for ch, and reports false if the client left or the worker was
// closed before.
func (x *Exchange) Wait(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	case <-x.left:
		return false
	case <-x.closing:
		return false
	}
}

// Pause waits for d, and reports false as Wait does.
func (x *Exchange) Pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-x.left:
		return false
	case <-x.closing:
		return false
	}
}

// WantsStream tells whether the request asked for a stream.
func (x *Exchange) WantsStream() bool { return x.wants().Stream }

// WantsUsage tells whether the request asked for the usage chunk.
func (x *Exchange) WantsUsage() bool { return x.wants().StreamOptions.IncludeUsage }

type wants struct {
	Stream        bool `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

func (x *Exchange) wants() wants {
	var body wants
	if err := json.Unmarshal(x.Body, &body); err != nil {
		return wants{}
	}
	return body
}

func (x *Exchange) writeLocked(p string) {
	if x.err != nil {
		return
	}
	x.conn.SetWriteDeadline(time.Now().Add(patience))
	_, x.err = io.WriteString(x.conn, p)
}

func (x *Exchange) complete() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.finished
}

// gone notes that the connection has ended, by the client's doing or by ours.
func (x *Exchange) gone(client bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.err = errGone
	if client && !x.finished {
		close(x.left)
	}
}

// finish is called when the behaviour has returned.
func (x *Exchange) finish() {
	if !x.complete() {
		x.conn.Close()
	}
	close(x.done)
}

func head(status int, contentType string, header []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\nDate: %s\r\nServer: uvicorn\r\n",
		status, http.StatusText(status), time.Now().UTC().Format(http.TimeFormat))
	if contentType != "" {
		fmt.Fprintf(&b, "Content-Type: %s\r\n", contentType)
	}
	for _, line := range header {
		b.WriteString(line + "\r\n")
	}
	b.WriteString("\r\n")
	return b.String()
}

// reset makes the kernel send RST instead of FIN.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	conn.Close()
}
