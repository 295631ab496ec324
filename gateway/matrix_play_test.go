package gateway

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
)

// matrixCell is one request to which one thing happens in one phase.
type matrixCell struct {
	phase, fault string
	dialect      *matrixDialect
	stream       bool
}

func (c matrixCell) name() string {
	form := "unary"
	if c.stream {
		form = "stream"
	}
	return c.dialect.name + "/" + form + "/" + c.phase + "/" + c.fault
}

// byWorker reports whether the worker is who does it.
func (c matrixCell) byWorker() bool {
	return !strings.HasPrefix(c.fault, "client-") && c.fault != "shutdown" && c.fault != "revoke"
}

func (c matrixCell) request() string {
	text := "hello"
	if c.phase == "write" {
		text = strings.Repeat("x", largeText)
	}
	return c.dialect.request(text, c.stream)
}

// play starts the worker to which it happens, and says when the phase is reached.
func (c matrixCell) play(t testing.TB) (url string, reached <-chan struct{}) {
	ch := make(chan struct{})
	var once sync.Once
	reach := func() { once.Do(func() { close(ch) }) }
	switch c.phase {
	case "connect":
		reach() // or is about to be, which makes no difference
		if c.fault == "refuse" {
			return "http://127.0.0.1:1", ch
		}
		return "http://" + gatewaytest.BlackHole(t), ch
	case "tls":
		return "https://" + gatewaytest.Raw(t, c.handshake(t, reach)), ch
	case "write":
		return "http://" + gatewaytest.Raw(t, c.whileWriting(reach)), ch
	}
	return gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) { c.answer(x, reach) }).URL(), ch
}

// handshake is what happens in place of a TLS handshake.
func (c matrixCell) handshake(t testing.TB, reach func()) func(*net.TCPConn) {
	serve := gatewaytest.Silent
	switch c.fault {
	case "refuse":
		serve = gatewaytest.Untrusted(t)
	case "fin":
		serve = gatewaytest.Ended(gatewaytest.FIN)
	case "rst":
		serve = gatewaytest.Ended(gatewaytest.RST)
	case "garbage":
		serve = gatewaytest.Gibberish
	}
	return func(conn *net.TCPConn) {
		reach()
		serve(conn)
	}
}

// whileWriting is what happens while the request is being written.
func (c matrixCell) whileWriting(reach func()) func(*net.TCPConn) {
	serve := gatewaytest.Deaf
	switch c.fault {
	case "fin":
		serve = func(conn *net.TCPConn) { conn.CloseWrite(); gatewaytest.Deaf(conn) }
	case "rst":
		serve = gatewaytest.Ended(gatewaytest.RST)
	case "garbage":
		serve = func(conn *net.TCPConn) { fmt.Fprint(conn, "SSH-2.0-OpenSSH_9.9\r\n\r\n"); gatewaytest.Deaf(conn) }
	case "type":
		serve = gatewaytest.AnswerEarly(200, "{}", 0)
	case "error":
		serve = gatewaytest.AnswerEarly(500, gatewaytest.ErrorBody(500, "secret words of the worker"), gatewaytest.FIN)
	}
	return func(conn *net.TCPConn) {
		var b [1]byte
		if _, err := conn.Read(b[:]); err != nil {
			return
		}
		reach()
		serve(conn)
	}
}

// badUsage can't be true in any dialect.
const badUsage = `{"prompt_tokens":-1,"input_tokens":-1,"completion_tokens":"many","output_tokens":"many"}`

// answer is what a worker does that has the request.
func (c matrixCell) answer(x *gatewaytest.Exchange, reach func()) {
	d := c.dialect
	switch c.phase {
	case "head":
		reach()
		c.atTheHead(x)
	case "first-byte":
		c.begin(x)
		reach()
		c.breakOff(x, "")
	case "first-event":
		c.begin(x)
		first := d.events(d.usage)[0]
		switch c.fault {
		case "garbage":
			c.finish(x, append([]string{"data: no JSON\n\n"}, d.events(d.usage)...), d.usage)
		case "error":
			c.finish(x, []string{d.failed}, d.usage)
		default:
			x.Chunk(first[:len(first)/2])
			reach()
			c.breakOff(x, first[len(first)/2:])
		}
	case "mid":
		c.midStream(x, reach)
	case "after-mark":
		c.begin(x)
		events := d.events(d.usage)
		x.Chunk(events[0])
		// With the second event the gateway has read the mark, which it holds back.
		x.Chunk(strings.Join(events[1:], "") + d.mark(d.usage))
		reach()
		switch c.fault {
		case "garbage":
			x.Chunk("data: no JSON\n\n")
			x.End()
		case "error":
			x.Chunk(d.failed)
			x.End()
		default:
			c.breakOff(x, "")
		}
	case "unary":
		c.inBody(x, reach)
	}
}

func (c matrixCell) atTheHead(x *gatewaytest.Exchange) {
	switch c.fault {
	case "fin":
		gatewaytest.HalfHead(gatewaytest.FIN)(x)
	case "rst":
		gatewaytest.CloseBeforeHead(gatewaytest.RST)(x)
	case "garbage":
		gatewaytest.NotHTTP()(x)
	case "framing":
		gatewaytest.HugeHeaders(1 << 20)(x)
	case "type":
		gatewaytest.WrongContentType()(x)
	case "coding":
		gatewaytest.Encoded(false, "a")(x)
	case "error":
		gatewaytest.Fail(500)(x)
	default:
		x.WaitLeft()
	}
}

func (c matrixCell) midStream(x *gatewaytest.Exchange, reach func()) {
	d := c.dialect
	events := d.events(d.usage)
	c.begin(x)
	for _, e := range events[:2] {
		x.Chunk(e)
	}
	reach()
	switch c.fault {
	case "garbage":
		c.finish(x, append([]string{"data: no JSON\n\n"}, events[2:]...), d.usage)
	case "usage":
		c.finish(x, d.events(badUsage)[2:], badUsage)
	case "error":
		c.finish(x, []string{d.failed}, d.usage)
	case "client-stall":
		event := d.big(64 << 10)
		for range 1024 {
			x.Chunk(event)
		}
		x.WaitLeft()
	default:
		c.breakOff(x, "data: {")
	}
}

func (c matrixCell) inBody(x *gatewaytest.Exchange, reach func()) {
	d := c.dialect
	body := d.answer("ab", d.usage)
	switch c.fault {
	case "garbage":
		x.Respond(200, "application/json", `{"no":`)
	case "usage":
		x.Respond(200, "application/json", d.answer("ab", badUsage))
	case "client-stall":
		reach()
		x.Respond(200, "application/json", d.answer(strings.Repeat("x", 8<<20), d.usage))
	case "framing":
		gatewaytest.BadChunkSize("application/json", body[:len(body)/2])(x)
	default:
		x.Head(200, "application/json")
		x.Chunk(body[:len(body)/2])
		reach()
		c.breakOff(x, "")
	}
}

// begin sends the head of an answer in chunks.
func (c matrixCell) begin(x *gatewaytest.Exchange) {
	if c.stream {
		x.StreamHead()
		return
	}
	x.Head(200, "application/json")
}

// finish sends the rest of a stream and ends it.
func (c matrixCell) finish(x *gatewaytest.Exchange, events []string, usage string) {
	for _, e := range events {
		x.Chunk(e)
	}
	x.Chunk(c.dialect.mark(usage))
	x.End()
}

// breakOff is what ends an answer in chunks, or nothing while others act.
func (c matrixCell) breakOff(x *gatewaytest.Exchange, more string) {
	switch c.fault {
	case "fin":
		x.Drop(gatewaytest.FIN)
	case "rst":
		x.Pause(20 * time.Millisecond) // a reset overtakes what was sent before it
		x.Drop(gatewaytest.RST)
	case "framing":
		x.Raw("zz\r\n" + more + "\r\n")
		x.Drop(gatewaytest.FIN)
	default:
		x.WaitLeft()
	}
}
