package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy"
)

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// TestLogHoldsNoText: however a request ends, and at the log's most talkative, neither
// its prompt nor a tool's arguments, a credential or words of a worker are in the log,
// in a ledger row, or in an answer that is not the worker's own.
func TestLogHoldsNoText(t *testing.T) {
	marks := []string{"MarkedPrompt", "MarkedArgument", "MarkedKey", "MarkedCookie", "MarkedSalt", "secret words", goodKey}
	const failing = `
  validations:
    - { name: v, expression: "tenant.labels['absent'] == 'a'" }
`
	all := bound("scans", "Audit", scanning) + bound("audited", "Audit", failing) + bound("warned", "Warn", failing)
	body := func(stream bool) string {
		return fmt.Sprintf(`{"model":"m","cache_salt":"MarkedSalt","stream":%v,"messages":[{"role":"user","content":"MarkedPrompt"},`+
			`{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\":\"MarkedArgument\"}"}}]}]}`, stream)
	}
	for _, c := range []struct {
		name, policies, body string
		worker               gatewaytest.Behaviour
		key                  string
	}{
		{"answered", all, body(false), gatewaytest.Chat("a"), goodKey},
		{"streamed", all, body(true), gatewaytest.Chat("a"), goodKey},
		{"failed by a rule", all + bound("failing", "Deny", failing), body(false), gatewaytest.Chat("a"), goodKey},
		{"failed by the worker", all, body(false), gatewaytest.Fail(500), goodKey},
		{"refused by the worker", all, body(true), gatewaytest.Fail(400), goodKey},
		{"failed within a stream", all, body(true), gatewaytest.ErrorInStream(500, "a"), goodKey},
		{"cut off", all, body(true), gatewaytest.DropAfter(gatewaytest.RST, gatewaytest.RoleEvent), goodKey},
		{"no HTTP", all, body(false), gatewaytest.NotHTTP(), goodKey},
		{"broken JSON", all, body(false)[:80], gatewaytest.Chat("a"), goodKey},
		{"wrong type", all, `{"model":"m","messages":"MarkedPrompt","stream":"MarkedPrompt"}`, gatewaytest.Chat("a"), goodKey},
		{"unknown model", all, `{"model":"MarkedPrompt","messages":[]}`, gatewaytest.Chat("a"), goodKey},
		{"unknown key", all, body(false), gatewaytest.Chat("a"), "MarkedKey"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := &lockedBuffer{}
			scan := &scanner{finds: policy.Content{ScanStatus: "complete", Labels: []string{"pii"}}}
			r := newRig(t, []string{gatewaytest.NewWorker(t, c.worker).URL()}, withPolicies(t, c.policies), withState(func(st *State) { st.Classifier = scan }),
				withParts(func(p *Parts) {
					p.Log = slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug, AddSource: true}))
				}))
			conn := r.dial()
			conn.Send("POST", "/v1/chat/completions", c.body, "Authorization: Bearer "+c.key, "Cookie: MarkedCookie")
			resp, text := conn.Answer()
			r.idle()
			said := out.String()
			if !strings.Contains(said, "msg=request") {
				t.Errorf("the log does not tell of the request:\n%s", said)
			}
			for _, row := range r.ledger.all() {
				said += fmt.Sprintf("%+v\n", *row)
			}
			said += fmt.Sprint(resp.Header) + text
			for _, mark := range marks {
				if c.name == "refused by the worker" && mark == "secret words" {
					said = strings.Replace(said, mark, "", 1) // what is wrong with a request, its sender is told
				}
				if strings.Contains(said, mark) {
					t.Errorf("%s is told:\n%s", mark, said)
				}
			}
		})
	}
}

// TestBadHeadIsNotTold: what has come of an answer whose head is late, or is none, is in no
// log, and in nothing that the health keeper is told.
func TestBadHeadIsNotTold(t *testing.T) {
	answer := gatewaytest.ChatBody("secret words", gatewaytest.Usage(10, 1))
	for _, c := range []struct {
		body, head string
		status     int
		says       string
	}{
		{chatBody, "HTTP/1.1 200 OK\r\nX-Said: " + answer, 504, "header was not there in time"},
		{streamBody, "HTTP/1.1 200 OK\r\nX-Said: " + answer, 504, "header was not there in time"},
		{chatBody, "HTTP/1.1 200 OK\n\n" + answer, 502, "is no HTTP response header"},
		{streamBody, answer, 502, "is no HTTP response header"},
	} {
		worker := gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
			x.Raw(c.head)
			x.WaitLeft()
		})
		out := &lockedBuffer{}
		r := newRig(t, []string{worker.URL()}, withConfig(func(cfg *Config) {
			if c.status == 504 {
				cfg.FirstByteUnary, cfg.FirstByteStream = 300*time.Millisecond, 300*time.Millisecond
			}
		}), withParts(func(p *Parts) {
			p.Log = slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug}))
		}))
		status, text, err := read(t, r.chat(c.body))
		if status != c.status || err != nil {
			t.Fatalf("got %d %v %s", status, err, text)
		}
		r.idle()
		said := out.String() + text + fmt.Sprint(r.health.causes)
		if !strings.Contains(said, c.says) || strings.Contains(said, "secret words") {
			t.Errorf("told is:\n%s", said)
		}
	}
}

// loud panics with what it was given, as a bug in a part may.
type loud struct {
	Classifier
	Meter
	Ledger
	in string // the part that panics
}

func (l *loud) Classify(ctx context.Context, r *ClassifyRequest) policy.Content {
	if l.in == "classifier" {
		panic(errors.New(string(r.Body)))
	}
	return policy.Content{ScanStatus: "complete"}
}

func (l *loud) Observe(s *Summary) {
	if l.in == "meter" {
		panic(goodKey)
	}
	l.Meter.Observe(s)
}

func (l *loud) Record(ctx context.Context, row *tenancy.Row) error {
	if l.in == "ledger" {
		panic(fmt.Sprint(row, goodKey))
	}
	return l.Ledger.Record(ctx, row)
}

// TestPanicsHoldNoText: a panic's value may be anything, and nobody is told it. The
// log has the place.
func TestPanicsHoldNoText(t *testing.T) {
	body := `{"model":"m","messages":[{"role":"user","content":"MarkedPrompt"}],"stream":`
	for _, in := range []string{"classifier", "meter", "ledger"} {
		for _, stream := range []string{"false}", "true}"} {
			t.Run(in+" "+stream, func(t *testing.T) {
				out, part := &lockedBuffer{}, &loud{in: in}
				r := newRig(t, []string{gatewaytest.NewWorker(t, gatewaytest.Chat("a")).URL()},
					withPolicies(t, bound("scans", "Audit", scanning)),
					withState(func(st *State) { st.Classifier = part }),
					withParts(func(p *Parts) {
						part.Meter, part.Ledger = p.Meter, p.Ledger
						p.Meter, p.Ledger = part, part
						p.Log = slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug}))
					}))
				resp, text := r.chat(body + stream).Answer()
				r.idle()
				said := out.String()
				if !strings.Contains(said, "panic") {
					t.Errorf("the log does not tell of the panic:\n%s", said)
				}
				said += fmt.Sprint(resp.Header) + text
				for _, mark := range []string{"MarkedPrompt", goodKey} {
					if strings.Contains(said, mark) {
						t.Errorf("%s is told:\n%s", mark, said)
					}
				}
			})
		}
	}
}
