package gateway

import (
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/openai"
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
