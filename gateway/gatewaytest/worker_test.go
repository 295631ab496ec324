package gatewaytest

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	chatRequest   = `{"model":"m","messages":[],"max_tokens":3}`
	streamRequest = `{"model":"m","messages":[],"stream":true}`
	usageRequest  = `{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true}}`
)

func ask(t testing.TB, w *Worker, body string) *Client {
	t.Helper()
	c := Dial(t, w.Addr())
	c.Send("POST", "/v1/chat/completions", body, "X-Request-Id: r-1")
	return c
}

// closed fails the test unless ch is closed in time.
func closed(t testing.TB, what string, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(patience):
		t.Fatalf("%s: not seen within %v", what, patience)
	}
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func TestWorkerRecordsRequests(t *testing.T) {
	w := NewWorker(t, Chat("a", "b"))
	w.Handle("/health", JSON(200, ""))
	c := ask(t, w, chatRequest)
	resp, body := c.Answer()
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/json" || !strings.Contains(body, `"content":"ab"`) || !strings.Contains(body, Usage(10, 2)) {
		t.Errorf("the answer is %d %v %s", resp.StatusCode, resp.Header, body)
	}
	seen := w.Next(t)
	closed(t, "the end of the behaviour", seen.Done)
	if seen.Method != "POST" || seen.Target != "/v1/chat/completions" || string(seen.Body) != chatRequest || seen.Host != "gateway.test" ||
		seen.Header.Get("X-Request-Id") != "r-1" || seen.Conn != 1 || isClosed(seen.Left) {
		t.Errorf("the worker saw %+v", seen)
	}

	// The connection is kept, and a path of its own takes nothing from the script.
	c.Send("GET", "/health", "")
	if resp, _ := c.Answer(); resp.StatusCode != 200 {
		t.Errorf("/health answers %d", resp.StatusCode)
	}
	c.Send("POST", "/v1/chat/completions", chatRequest)
	c.Answer()
	if second := w.Next(t); second.Conn != 1 || len(w.Seen()) != 2 || w.Connections() != 1 {
		t.Errorf("the second request came on connection %d, %d seen, %d connections", second.Conn, len(w.Seen()), w.Connections())
	}
}

func TestWorkerPlaysItsScript(t *testing.T) {
	w := NewWorker(t, Fail(503), Fail(500), JSON(200, `{"a":1}`, "X-Extra: yes"))
	c := Dial(t, w.Addr())
	for _, want := range []int{503, 500, 200, 200} {
		c.Send("POST", "/v1/chat/completions", chatRequest)
		resp, body := c.Answer()
		if resp.StatusCode != want || (want == 200) != (resp.Header.Get("X-Extra") == "yes") || (want != 200) != strings.Contains(body, `"error"`) {
			t.Errorf("the answer is %d %s, want %d", resp.StatusCode, body, want)
		}
	}
	w.Script(Fail(429))
	c.Send("POST", "/v1/chat/completions", chatRequest)
	if resp, _ := c.Answer(); resp.StatusCode != 429 {
		t.Errorf("after a new script the answer is %d", resp.StatusCode)
	}
	if c := ask(t, NewWorker(t), chatRequest); true {
		if resp, body := c.Answer(); resp.StatusCode != 200 || body != "{}" {
			t.Errorf("without a script the answer is %d %s", resp.StatusCode, body)
		}
	}
}

// texts returns the data of a stream's events, and the error that ends it.
func texts(t testing.TB, resp *http.Response) (data []string, err error) {
	t.Helper()
	if got := resp.Header.Get("Content-Type"); got != EventStream {
		t.Errorf("the content type is %q", got)
	}
	events, err := NewEventReader(resp.Body).All()
	for _, ev := range events {
		data = append(data, ev.Data)
	}
	return data, err
}

func TestWorkerStreams(t *testing.T) {
	f := func(name string, b Behaviour, body string, events int, last string, wantErr error) {
		t.Run(name, func(t *testing.T) {
			t.Helper()
			w := NewWorker(t, b)
			data, err := texts(t, ask(t, w, body).Head())
			if len(data) != events || !strings.Contains(data[events-1], last) || !errors.Is(err, wantErr) {
				t.Errorf("%d events, the last %q, error %v, want %d, %q, %v", len(data), data[len(data)-1], err, events, last, wantErr)
			}
		})
	}
	f("chat", Chat("a", "b"), streamRequest, 4, "[DONE]", nil)
	f("chat with usage", Chat("a", "b"), usageRequest, 5, "[DONE]", nil)
	f("without done", WithoutDone("a", "b"), streamRequest, 3, `"finish_reason":"stop"`, nil)
	f("trickle", Trickle(7, time.Microsecond, "a"), streamRequest, 3, "[DONE]", nil)
	f("error in the stream", ErrorInStream(500, "a"), streamRequest, 4, "[DONE]", nil)
	f("bad usage", BadUsage(`{"prompt_tokens":-1}`, "a"), streamRequest, 4, "[DONE]", nil)
	f("FIN", DropAfter(FIN, RoleEvent, ContentEvent("a", "")), streamRequest, 2, `"content":"a"`, io.ErrUnexpectedEOF)
	f("RST", DropAfter(RST, RoleEvent), streamRequest, 1, "assistant", syscall.ECONNRESET)
	f("FIN within an event", DropAfter(FIN, RoleEvent, "data: {"), streamRequest, 1, "assistant", io.ErrUnexpectedEOF)
	f("half a chunk", HalfChunk(FIN, RoleEvent), streamRequest, 1, "assistant", io.ErrUnexpectedEOF)
}

func TestWorkerAnswersBadly(t *testing.T) {
	read := func(b Behaviour, body string) (*http.Response, string, error) {
		t.Helper()
		resp := ask(t, NewWorker(t, b), body).Head()
		got, err := io.ReadAll(resp.Body)
		return resp, string(got), err
	}
	if resp, _, err := read(WrongContentType(), streamRequest); resp.Header.Get("Content-Type") != "application/json" || err != nil {
		t.Errorf("a stream is answered with %v, %v", resp.Header, err)
	}
	if resp, _, err := read(WrongContentType(), chatRequest); resp.Header.Get("Content-Type") != EventStream || err != nil {
		t.Errorf("a chat is answered with %v, %v", resp.Header, err)
	}
	if _, body, err := read(BadUsage(`"many"`, "a"), chatRequest); !strings.Contains(body, `"usage":"many"`) || err != nil {
		t.Errorf("the bad usage is %s, %v", body, err)
	}
	if _, body, err := read(HalfBody(FIN, "{"), chatRequest); body != "{" || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("half a body is %s, %v", body, err)
	}
	if resp, _, err := read(HugeHeaders(100<<10), chatRequest); len(resp.Header) < 100 || err != nil {
		t.Errorf("huge headers are %d lines, %v", len(resp.Header), err)
	}
	for _, how := range []Close{FIN, RST} {
		if got := ask(t, NewWorker(t, CloseBeforeHead(how)), chatRequest).Closed(); got != "" {
			t.Errorf("before it closes, the worker sends %q", got)
		}
	}
	if got := ask(t, NewWorker(t, NotHTTP()), chatRequest).Closed(); !strings.HasPrefix(got, "SSH-") {
		t.Errorf("what is not HTTP is %q", got)
	}
}

func TestWorkerNoticesALeavingClient(t *testing.T) {
	for name, b := range map[string]Behaviour{
		"stall": Stall(), "head only": HeadOnly(), "stall after": StallAfter(RoleEvent),
		"trickle": Trickle(1, time.Hour, "a"), "gate": Gate(nil, []string{RoleEvent}, nil),
	} {
		for _, how := range []Close{FIN, RST} {
			t.Run(name, func(t *testing.T) {
				w := NewWorker(t, b)
				c := ask(t, w, streamRequest)
				seen := w.Next(t)
				if isClosed(seen.Left) || isClosed(seen.Done) {
					t.Fatal("the client has left before it leaves")
				}
				c.Leave(how)
				closed(t, "the client leaves", seen.Left)
				closed(t, "the behaviour ends", seen.Done)
			})
		}
	}
}

func TestWorkerGate(t *testing.T) {
	open := make(chan struct{})
	w := NewWorker(t, Gate(open, []string{RoleEvent, ContentEvent("a", "")}, []string{DoneEvent}))
	resp := ask(t, w, streamRequest).Head()
	events := NewEventReader(resp.Body)
	for range 2 {
		if _, err := events.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if seen := w.Next(t); isClosed(seen.Done) {
		t.Error("the behaviour ends before the gate opens")
	}
	close(open)
	if rest, err := events.All(); len(rest) != 1 || rest[0].Data != "[DONE]" || err != nil {
		t.Errorf("behind the gate: %+v, %v", rest, err)
	}
}

// A client that leaves after the whole answer has not left it.
func TestWorkerCompleteAnswerIsNotLeft(t *testing.T) {
	w := NewWorker(t, Chat("a"))
	c := ask(t, w, streamRequest)
	c.Answer()
	c.Leave(RST)
	seen := w.Next(t)
	closed(t, "the behaviour ends", seen.Done)
	w.Close()
	if isClosed(seen.Left) {
		t.Error("a client that read all counts as one that left")
	}
}

// A worker that ends a connection itself has not seen its client leave.
func TestWorkerOwnEndIsNotLeft(t *testing.T) {
	for _, b := range []Behaviour{CloseBeforeHead(FIN), DropAfter(RST, RoleEvent)} {
		w := NewWorker(t, b)
		c := ask(t, w, streamRequest)
		seen := w.Next(t)
		closed(t, "the behaviour ends", seen.Done)
		c.Closed()
		w.Close()
		if isClosed(seen.Left) {
			t.Error("the worker's own end counts as the client's")
		}
	}
}

func TestWorkerDropAll(t *testing.T) {
	w := NewWorker(t, StallAfter(RoleEvent))
	c := ask(t, w, streamRequest)
	events := NewEventReader(c.Head().Body)
	if _, err := events.Next(); err != nil {
		t.Fatal(err)
	}
	w.DropAll()
	if ev, err := events.Next(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after the drop: %+v, %v", ev, err)
	}
	w.Script(Chat("a"))
	if resp, _ := ask(t, w, chatRequest).Answer(); resp.StatusCode != 200 {
		t.Errorf("after the drop a new connection gets %d", resp.StatusCode)
	}
}

func TestWorkerClose(t *testing.T) {
	w := NewWorker(t, Stall())
	c := ask(t, w, chatRequest)
	seen := w.Next(t)
	w.Close()
	w.Close()
	if !isClosed(seen.Done) {
		t.Error("a closed worker still runs a behaviour")
	}
	c.Closed()
	if resp, err := http.Get(w.URL()); err == nil {
		resp.Body.Close()
		t.Error("a closed worker still answers")
	}
}

func TestChunkBeforeHeadPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	(&Exchange{}).Chunk("x")
}
