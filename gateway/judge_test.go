package gateway

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/tenancy"
)

// TestEveryFailureIsJudged: each kind has a verdict that a client can be told, and
// what a request can bring about alone is never held against a worker by one caller.
func TestEveryFailureIsJudged(t *testing.T) {
	for kind := range failureKinds {
		again, rej, fault := judge(&failure{kind: kind, cause: errInterrupted})
		if rej.status < 500 || rej.code == "" || rej.cause == nil {
			t.Errorf("kind %d: %+v", kind, rej)
		}
		if kind < failServer && rej.message == "" {
			t.Errorf("kind %d has no message", kind)
		}
		if rej.status == 503 && rej.retryAfter <= 0 {
			t.Errorf("kind %d: a 503 without Retry-After", kind)
		}
		if (kind == failLocal || kind == failCut) && (again || fault != 0) {
			t.Errorf("kind %d: tried again %v, fault %v", kind, again, fault)
		}
		if (kind == failSize || kind == failRequest || kind == failEndpoint || kind == failSaturated) && fault != 0 {
			t.Errorf("kind %d is held against the worker as %v", kind, fault)
		}
	}
}

// TestBlame says what each failure is held for.
func TestBlame(t *testing.T) {
	big := gatewaytest.ChatBody(strings.Repeat("x", 64<<10), gatewaytest.Usage(10, 1))
	for _, c := range []struct {
		name   string
		worker gatewaytest.Behaviour
		stream bool
		blamed string
		status int
	}{
		{"500", gatewaytest.Fail(500), false, "answer", 502},
		{"401", gatewaytest.Fail(401), false, "credential", 502},
		{"404 of the model", gatewaytest.Fail(404), false, "stale", 502},
		{"404 of the route", gatewaytest.JSON(404, `{"detail":"Not Found"}`), false, "", 404},
		{"400", gatewaytest.Fail(400), false, "", 400},
		{"413", gatewaytest.Fail(413), false, "", 413},
		{"503", gatewaytest.Fail(503), false, "", 503},
		{"redirect", gatewaytest.Redirect("http://127.0.0.1:1/"), false, "answer", 502},
		{"lost", gatewaytest.CloseBeforeHead(gatewaytest.RST), false, "transport", 502},
		{"silent", gatewaytest.Stall(), false, "timeout", 504},
		{"slow head", gatewaytest.SlowHead(), false, "timeout", 504},
		{"half a head", gatewaytest.HalfHead(gatewaytest.FIN), false, "transport", 502},
		{"too large", gatewaytest.JSON(200, big), false, "", 502},
		{"no JSON", gatewaytest.JSON(200, "{"), false, "answer", 502},
		{"half a body", gatewaytest.HalfBody(gatewaytest.FIN, big[:100]), false, "transport", 502},
		{"silent within the body", gatewaytest.HalfAndStall(big[:100]), false, "timeout", 502},
		{"coded", gatewaytest.Encoded(false, "a"), false, "answer", 502},
		{"coded stream", gatewaytest.Encoded(false, "a"), true, "answer", 502},
		{"badly coded stream", gatewaytest.Encoded(true, "a"), true, "answer", 502},
		{"coded error", gatewaytest.JSON(500, "\x1f\x8b", "Content-Encoding: gzip"), false, "answer", 502},
		{"other form", gatewaytest.WrongContentType(), true, "answer", 502},
		{"switching", gatewaytest.Switching(), false, "transport", 502},
		{"interim responses only", gatewaytest.Interim(9, gatewaytest.Chat("a")), false, "transport", 502},
		{"no mark", gatewaytest.WithoutDone("a"), true, "answer", 200},
		{"error inside", gatewaytest.ErrorInStream(500, "a"), true, "answer", 200},
		{"refusal inside", gatewaytest.ErrorInStream(400, "a"), true, "", 200},
		{"event too large", gatewaytest.Stream(gatewaytest.RoleEvent, "data: "+strings.Repeat("x", 64<<10)), true, "", 200},
		{"stream lost", gatewaytest.DropAfter(gatewaytest.RST, gatewaytest.RoleEvent), true, "transport", 200},
		{"stream silent", gatewaytest.StallAfter(gatewaytest.RoleEvent), true, "timeout", 200},
		{"silent within the first event", gatewaytest.StallAfter("data: {"), true, "timeout", 502},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, []string{gatewaytest.NewWorker(t, c.worker).URL()}, withConfig(func(cfg *Config) {
				switch { // what is waited for in vain, and nothing else
				case c.blamed == "timeout" && c.status == 504:
					cfg.FirstByteStream, cfg.FirstByteUnary = time.Second, time.Second
				case c.blamed == "timeout":
					cfg.StreamIdle = 3 * time.Second
				}
				cfg.ResponseBytes, cfg.EventBytes = 32<<10, 32<<10
			}))
			body := chatBody
			if c.stream {
				body = streamBody
			}
			status, text, err := read(t, r.chat(body))
			if status != c.status || err != nil || !strings.Contains(text, `"error"`) || strings.Contains(text, "[DONE]") {
				t.Errorf("got %d %v %s, want %d", status, err, text, c.status)
			}
			r.row()
			var want []string
			if c.blamed != "" {
				want = []string{c.blamed + " acme/key:test"}
			}
			if !slices.Equal(r.health.blamed, want) || r.health.successes != 0 {
				t.Errorf("blamed %v, %d successes, want %v", r.health.blamed, r.health.successes, want)
			}
		})
	}
}

// TestAnswersWithoutBody: no body is waited for where there is none by the status.
func TestAnswersWithoutBody(t *testing.T) {
	for _, status := range []int{204, 304} {
		worker := gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
			x.Raw(fmt.Sprintf("HTTP/1.1 %d Nothing\r\n\r\n", status))
			x.WaitLeft()
		})
		r := newRig(t, []string{worker.URL()}, withConfig(func(cfg *Config) { cfg.StreamIdle = time.Hour }))
		for _, body := range []string{chatBody, streamBody} {
			if got, text, err := read(t, r.chat(body)); got != 502 || err != nil {
				t.Errorf("%d: got %d %v %s", status, got, err, text)
			}
		}
	}
}

// TestInterimResponses are passed over.
func TestInterimResponses(t *testing.T) {
	r := newRig(t, []string{gatewaytest.NewWorker(t, gatewaytest.Interim(3, gatewaytest.Chat("a"))).URL()})
	for _, body := range []string{chatBody, streamBody} {
		if status, text, err := read(t, r.chat(body)); status != 200 || err != nil || strings.Contains(text, "error") {
			t.Errorf("got %d %v %s", status, err, text)
		}
	}
}

// TestSlowAnswer: an answer whose parts come in time may take longer than one of them
// may, and doesn't count against its worker.
func TestSlowAnswer(t *testing.T) {
	const idle = 3 * time.Second // far longer than each pause, shorter than all of them
	body := gatewaytest.ChatBody("a", gatewaytest.Usage(10, 1))
	r := newRig(t, []string{gatewaytest.NewWorker(t, gatewaytest.UnaryTrickle(8, idle/6, body)).URL()},
		withConfig(func(cfg *Config) { cfg.StreamIdle = idle }))
	resp, text := r.chat(chatBody).Answer()
	if resp.StatusCode != 200 || text != body {
		t.Errorf("got %d %s", resp.StatusCode, text)
	}
	if row := r.row(); row.Duration < idle || r.health.failures != 0 {
		t.Errorf("%d failures after %v", r.health.failures, row.Duration)
	}
}

// largeText is more than the sockets of a rig with fewBuffers take at once.
const largeText = 1 << 20

func largeChat() string {
	return `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", largeText) + `"}]}`
}

// fewBuffers makes the sockets to workers small, so that what a worker does not read is
// soon stuck.
func (r *rig) fewBuffers() {
	r.g.ups.control = func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, 16<<10) })
	}
}

// TestEarlyAnswers: a worker that answers before it has the whole request is heard,
// whatever it does with the rest.
func TestEarlyAnswers(t *testing.T) {
	for _, c := range []struct {
		name string
		how  gatewaytest.Close
	}{{"then closes", gatewaytest.FIN}, {"then resets", gatewaytest.RST}, {"then stays", 0}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			early := gatewaytest.AnswerEarly(413, gatewaytest.ErrorBody(413, "too large"), c.how)
			addr := gatewaytest.Raw(t, func(conn *net.TCPConn) {
				asked.Add(1)
				early(conn)
			})
			other := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
			r := newRig(t, []string{"http://" + addr, other.URL()})
			r.fewBuffers()
			resp, text := r.chat(largeChat()).Answer()
			wantError(t, resp, text, 413, "request_too_large")
			if row := r.row(); row.Attempts != 1 || asked.Load() != 1 || r.health.failures != 0 {
				t.Errorf("%d attempts, %d connections, %d failures", row.Attempts, asked.Load(), r.health.failures)
			}
		})
	}
}

// TestAnswerBeforeTheRequest: success without the request is none; another worker may
// be tried, for this one can't have run it.
func TestAnswerBeforeTheRequest(t *testing.T) {
	addr := gatewaytest.Raw(t, gatewaytest.AnswerEarly(200, gatewaytest.ChatBody("a", gatewaytest.Usage(1, 1)), 0))
	other := gatewaytest.NewWorker(t, gatewaytest.Chat("b"))
	r := newRig(t, []string{"http://" + addr, other.URL()})
	r.fewBuffers()
	resp, text := r.chat(largeChat()).Answer()
	if resp.StatusCode != 200 || !strings.Contains(text, `"content":"b"`) {
		t.Errorf("got %d %s", resp.StatusCode, text)
	}
	if row := r.row(); row.Attempts != 2 || row.Worker != "w2" {
		t.Errorf("row %+v", row)
	}
}

// TestDeafWorker: one that takes no request for too long is given up.
func TestDeafWorker(t *testing.T) {
	addr := gatewaytest.Raw(t, gatewaytest.Deaf)
	other := gatewaytest.NewWorker(t, gatewaytest.Chat("b"))
	r := newRig(t, []string{"http://" + addr, other.URL()}, withConfig(func(cfg *Config) { cfg.ClientWrite = 3 * time.Second }))
	r.fewBuffers()
	resp, text := r.chat(largeChat()).Answer()
	if resp.StatusCode != 200 || !strings.Contains(text, `"content":"b"`) {
		t.Errorf("got %d %s", resp.StatusCode, text)
	}
	if row := r.row(); row.Attempts != 2 {
		t.Errorf("row %+v", row)
	}
}

// TestRetriesAfterComments: while a client has got nothing but comments, a worker that
// fails is replaced by another, whether it has sent a header or not.
func TestRetriesAfterComments(t *testing.T) {
	for name, bad := range map[string]func(open <-chan struct{}) gatewaytest.Behaviour{
		"before the header": func(open <-chan struct{}) gatewaytest.Behaviour {
			return func(x *gatewaytest.Exchange) { x.Wait(open); x.Drop(gatewaytest.RST) }
		},
		"after the header": func(open <-chan struct{}) gatewaytest.Behaviour {
			return func(x *gatewaytest.Exchange) { x.StreamHead(); x.Wait(open); x.Drop(gatewaytest.RST) }
		},
		"saturated": func(open <-chan struct{}) gatewaytest.Behaviour {
			return func(x *gatewaytest.Exchange) { x.Wait(open); gatewaytest.Fail(503)(x) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			open := make(chan struct{})
			first := gatewaytest.NewWorker(t, bad(open))
			second := gatewaytest.NewWorker(t, gatewaytest.Chat("a", "b"))
			r := newRig(t, []string{first.URL(), second.URL()}, withConfig(func(cfg *Config) { cfg.KeepAliveComment = 20 * time.Millisecond }))
			c := r.chat(streamBody)
			body := c.Head().Body
			comment := make([]byte, len(": keep-alive\n\n"))
			for range 2 {
				if _, err := io.ReadFull(body, comment); err != nil || string(comment) != ": keep-alive\n\n" {
					t.Fatalf("got %q %v", comment, err)
				}
			}
			close(open)
			rest, err := io.ReadAll(body)
			text := strings.ReplaceAll(string(rest), ": keep-alive\n\n", "")
			want := gatewaytest.RoleEvent + gatewaytest.ContentEvent("a", "") + gatewaytest.ContentEvent("b", "stop") + gatewaytest.DoneEvent
			if err != nil || text != want {
				t.Fatalf("got %q %v", text, err)
			}
			row := r.row()
			if row.Outcome != tenancy.OutcomeCompleted || row.Attempts != 2 || row.Worker != "w2" || row.InputTokens != 10 || row.OutputTokens != 2 {
				t.Errorf("row %+v", row)
			}
		})
	}
}

// TestFailureAfterComments: if no other worker is left, the stream ends with an error
// event.
func TestFailureAfterComments(t *testing.T) {
	open := make(chan struct{})
	bad := func(x *gatewaytest.Exchange) { x.Wait(open); x.Drop(gatewaytest.FIN) }
	r := newRig(t, []string{gatewaytest.NewWorker(t, bad).URL(), gatewaytest.NewWorker(t, gatewaytest.CloseBeforeHead(gatewaytest.RST)).URL()},
		withConfig(func(cfg *Config) { cfg.KeepAliveComment = 20 * time.Millisecond }))
	c := r.chat(streamBody)
	resp := c.Head()
	comment := make([]byte, len(": keep-alive\n\n"))
	if _, err := io.ReadFull(resp.Body, comment); err != nil {
		t.Fatal(err)
	}
	close(open)
	rest, err := io.ReadAll(resp.Body)
	if text := string(rest); err != nil || resp.StatusCode != 200 || strings.Count(text, `"code":"upstream_error"`) != 1 || strings.Contains(text, "[DONE]") {
		t.Errorf("got %d %q %v", resp.StatusCode, text, err)
	}
	if row := r.row(); row.Attempts != 2 || row.Outcome != tenancy.OutcomeUpstreamError || row.InputTokens != 0 {
		t.Errorf("row %+v", row)
	}
}

// TestWithoutDescriptors: a process that has no descriptor left for a connection to a
// worker says so, tries no other, and blames nobody. It runs in a child of its own,
// since the limit is the process's.
func TestWithoutDescriptors(t *testing.T) {
	const child = "SLUICE_TEST_WITHOUT_DESCRIPTORS"
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestWithoutDescriptors$", "-test.v", "-test.timeout=1m")
		cmd.Env = append(os.Environ(), child+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestWithoutDescriptors") {
			t.Fatalf("the child: %v\n%s", err, out)
		}
		return
	}
	// Workers that end each connection, so that none is kept for the next request.
	answer := gatewaytest.Body("application/json", gatewaytest.ChatBody("a", gatewaytest.Usage(10, 1)))
	r := newRig(t, []string{gatewaytest.NewWorker(t, answer).URL(), gatewaytest.NewWorker(t, answer).URL()})
	c := r.dial()
	ask := func() (int, string) {
		c.Send("POST", "/v1/chat/completions", chatBody, "Authorization: Bearer "+goodKey)
		resp, text := c.Answer()
		return resp.StatusCode, text
	}
	if status, text := ask(); status != 200 {
		t.Fatalf("got %d %s", status, text)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	few := limit
	few.Cur = 3
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	status, text := ask()
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if status != 503 || !strings.Contains(text, `"code":"unavailable"`) {
		t.Errorf("got %d %s", status, text)
	}
	if status, text := ask(); status != 200 {
		t.Errorf("with descriptors again: %d %s", status, text)
	}
	r.idle()
	if rows := r.ledger.all(); len(rows) != 3 || rows[1].Attempts != 1 || rows[1].Outcome != tenancy.OutcomeRejected {
		t.Errorf("rows %s", fmt.Sprint(len(rows)))
	}
	if len(r.health.blamed) != 0 {
		t.Errorf("blamed %v", r.health.blamed)
	}
}
