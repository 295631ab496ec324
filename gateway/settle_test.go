package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy"
)

// TestPartialChargeOfAWholeAnswer: a client that leaves when its answer has
// come whole is charged what the worker counted.
func TestPartialChargeOfAWholeAnswer(t *testing.T) {
	ex := &exchange{
		route: routeChat, model: &Model{BytesPerToken: 3, ContextLength: 100}, req: &wire.Request{TextBytes: 30}, dispatched: time.Now(),
		answerBegan: true, unary: []byte("{}"), unaryUsage: wire.Usage{Input: 7, Output: 3, Known: true},
	}
	ex.gone.Store(true)
	if c := ex.partialCharge(); !c.settle || c.estimated || c.outputUnknown || c.usage.Input != 7 || c.usage.Output != 3 {
		t.Errorf("got %+v", c)
	}
	ex.unary = nil
	if c := ex.partialCharge(); !c.settle || !c.estimated || !c.outputUnknown || c.usage.Input != 10 || c.usage.Output != 0 {
		t.Errorf("without the answer: got %+v", c)
	}
}

// leavingLedger has something happen while a row is written.
type leavingLedger struct {
	*memoryLedger
	then func()
}

func (l *leavingLedger) Record(ctx context.Context, row *tenancy.Row) error {
	l.then()
	return l.memoryLedger.Record(ctx, row)
}

// noErrors is the log of a gateway that has none to report.
type noErrors struct{ t testing.TB }

func (l noErrors) Write(p []byte) (int, error) {
	l.t.Errorf("logged: %s", p)
	return len(p), nil
}

// TestClientLeavesAtTheEnd: an answer that came in one piece is settled before
// its first byte goes out, and stays so if its client leaves at that moment.
func TestClientLeavesAtTheEnd(t *testing.T) {
	events := gatewaytest.ContentEvent("a", "stop") + gatewaytest.UsageEvent(gatewaytest.Usage(10, 1)) + gatewaytest.DoneEvent
	worker := gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
		x.Raw("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(events))
	})
	book := &leavingLedger{}
	r := newRig(t, []string{worker.URL()}, withParts(func(p *Parts) {
		book.memoryLedger = p.Ledger.(*memoryLedger)
		p.Ledger = book
		p.Log = slog.New(slog.NewTextHandler(noErrors{t}, &slog.HandlerOptions{Level: slog.LevelError}))
	}))
	var client *gatewaytest.Client
	dialled := make(chan struct{})
	book.then = func() {
		<-dialled
		client.Leave(gatewaytest.RST)
		eventually(t, "the client's leaving to be seen", func() bool {
			r.g.live.mu.Lock()
			defer r.g.live.mu.Unlock()
			for ex := range r.g.live.set {
				if !ex.gone.Load() {
					return false
				}
			}
			return true
		})
	}
	client = r.chat(streamBody)
	close(dialled)
	if row := r.row(); row.Outcome != tenancy.OutcomeCompleted || row.Status != 200 || row.InputTokens != 10 || row.OutputTokens != 1 {
		t.Errorf("row %+v", row)
	}
}

// TestPolicyErrorsAreLogged: what a rule died of is for whoever owns it, in the
// log and nowhere else.
func TestPolicyErrorsAreLogged(t *testing.T) {
	var out bytes.Buffer
	ex := &exchange{
		g: &Gateway{log: slog.New(slog.NewTextHandler(&out, nil))}, route: routeChat,
		decision: &policy.Decision{Errors: []policy.RuleRef{{Rule: "a/b", Binding: "c", ErrorKind: policy.ErrorValue, Detail: "no such key: zone"}}},
	}
	ex.log(&ending{status: 403}, &tenancy.Row{ID: "r1"})
	for _, want := range []string{`msg="policy error" id=r1 rule=a/b binding=c`, `detail="no such key: zone"`, "msg=request"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, out.String())
		}
	}
}

// TestUnrecordedRowsAreLoggedWhole: whoever puts a row in by hand finds every
// column of it in the log. A row that the ledger still holds is no failure.
func TestUnrecordedRowsAreLoggedWhole(t *testing.T) {
	row := &tenancy.Row{
		ID: "r1", RequestID: "c1", DecisionID: "d1", PolicyRevision: "sha256:1", PolicyRule: "p/r", Tenant: "acme", Team: "search",
		Principal: "key:k1", KeyID: "k1", Operation: "chat", Dialect: "openai", Model: "qwen", RequestedModel: "q", Pool: "a",
		Worker: "w", Class: "batch", Labels: []string{"pii"}, Status: 200, ErrorCode: "none", Outcome: tenancy.OutcomeCompleted,
		Phase: tenancy.PhaseDone, Flags: tenancy.FlagStream, Attempts: 2, InputTokens: 9, CachedTokens: 6, OutputTokens: 25, ReasoningTokens: 5,
		Currency: "USD", Prices: tenancy.Prices{Input: 15, CachedInput: 1, Output: 60}, Costs: tenancy.Costs{Input: 45, CachedInput: 9, Output: 150},
		Start: time.Date(2026, 3, 10, 12, 0, 0, 123, time.UTC), Queue: 3, TTFT: 90, Duration: 4000,
	}
	for cause, want := range map[error]string{errors.New("disk full"): "ERROR", tenancy.ErrPending: "WARN"} {
		var out bytes.Buffer
		logUnrecorded(slog.New(slog.NewJSONHandler(&out, nil)), row, cause)
		var line struct{ Level, Row string }
		if err := json.Unmarshal(out.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		var got tenancy.Row
		if err := json.Unmarshal([]byte(line.Row), &got); err != nil || !reflect.DeepEqual(&got, row) || line.Level != want {
			t.Errorf("%s: logged %s (%v)", cause, out.String(), err)
		}
	}
}

// pendingLedger holds rows without saying that they are durable.
type pendingLedger struct{ *memoryLedger }

func (l pendingLedger) Record(ctx context.Context, row *tenancy.Row) error {
	_ = l.memoryLedger.Record(ctx, row)
	return tenancy.ErrPending
}

// TestPendingRowsAreCounted: the client gets its answer, and the meters count the
// row: it will come.
func TestPendingRowsAreCounted(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := newRig(t, []string{worker.URL()}, withParts(func(p *Parts) { p.Ledger = pendingLedger{p.Ledger.(*memoryLedger)} }))
	if resp, body := r.chat(chatBody).Answer(); resp.StatusCode != 200 {
		t.Fatalf("got %d %s", resp.StatusCode, body)
	}
	r.idle()
	r.meter.mu.Lock()
	defer r.meter.mu.Unlock()
	if len(r.meter.summaries) != 1 || r.meter.unrecorded != 0 {
		t.Errorf("summaries %+v, %d unrecorded", r.meter.summaries, r.meter.unrecorded)
	}
}

// laterLedger tells rows that were waited for from the others.
type laterLedger struct {
	*memoryLedger
	later atomic.Int64
}

func (l *laterLedger) RecordLater(ctx context.Context, row *tenancy.Row) error {
	l.later.Add(1)
	return l.Record(ctx, row)
}

// TestRefusalsDoNotWaitForTheLedger: only a request that a worker may have seen
// waits for its row.
func TestRefusalsDoNotWaitForTheLedger(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	book := &laterLedger{}
	r := newRig(t, []string{worker.URL()}, withParts(func(p *Parts) {
		book.memoryLedger = p.Ledger.(*memoryLedger)
		p.Ledger = book
	}))
	r.chat(chatBody).Answer()
	r.idle()
	if n := book.later.Load(); n != 0 || len(r.ledger.all()) != 1 {
		t.Errorf("%d rows later, %d in all", n, len(r.ledger.all()))
	}
	r.tenant.Disabled = true
	resp, body := r.chat(chatBody).Answer()
	wantError(t, resp, body, 403, "tenant_disabled")
	r.idle()
	if n := book.later.Load(); n != 1 || len(r.ledger.all()) != 2 {
		t.Errorf("%d rows later, %d in all", n, len(r.ledger.all()))
	}
}
