package gateway

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/gateway/openai"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy"
)

// TestPartialChargeOfAWholeAnswer: a client that leaves when its answer has
// come whole is charged what the worker counted.
func TestPartialChargeOfAWholeAnswer(t *testing.T) {
	ex := &exchange{
		model: &Model{BytesPerToken: 3, ContextLength: 100}, req: &openai.Request{TextBytes: 30}, dispatched: time.Now(),
		answerBegan: true, unary: []byte("{}"), unaryUsage: openai.Usage{Input: 7, Output: 3, Known: true},
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
	ex.log(&ending{status: 403}, &tenancy.Row{ID: "r1"}, nil)
	for _, want := range []string{`msg="policy error" id=r1 rule=a/b binding=c`, `detail="no such key: zone"`, "msg=request"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, out.String())
		}
	}
}
