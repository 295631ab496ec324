package gateway

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
)

// TestTextBeyondTheContext is estimated, not tokenised: the time and memory
// that takes would be every tenant's.
func TestTextBeyondTheContext(t *testing.T) {
	worker := gatewaytest.NewWorker(t)
	r := newRig(t, []string{worker.URL()}) // a context of 4096 tokens
	var tokenised atomic.Int32
	r.tokens.set(func(_ context.Context, dst []uint32, _ []byte) ([]uint32, error) {
		tokenised.Add(1)
		return append(dst, 1, 2, 3), nil
	})
	for _, tt := range []struct{ textBytes, want int }{
		{4096 * 16, 1},
		{4096*16 + 16, 1},
		{8 << 20, 1},
	} {
		body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", tt.textBytes) + `"}]}`
		resp, answer := r.chat(body).Answer()
		if resp.StatusCode != 200 {
			t.Fatalf("%d bytes: %d %s", tt.textBytes, resp.StatusCode, answer)
		}
		if int(tokenised.Load()) != tt.want {
			t.Errorf("after %d bytes: tokenised %d times, want %d", tt.textBytes, tokenised.Load(), tt.want)
		}
	}
}

// TestPromptsOfACompletion are each answered, which policies reserve for.
func TestPromptsOfACompletion(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := newRig(t, []string{worker.URL()})
	seen := make(chan int64, 1)
	r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
		seen <- in.Request.Prompts
		return allow(in)
	})
	for prompt, want := range map[string]int64{`"a"`: 1, `["a","b","c"]`: 3, `[1,2,3]`: 1, `[[1],[2,3]]`: 2} {
		c := r.dial()
		c.Send("POST", "/v1/completions", `{"model":"m","prompt":`+prompt+`}`, "Authorization: Bearer "+goodKey)
		if resp, body := c.Answer(); resp.StatusCode != 200 {
			t.Fatalf("%s: %d %s", prompt, resp.StatusCode, body)
		}
		if got := <-seen; got != want {
			t.Errorf("%s: %d prompts, want %d", prompt, got, want)
		}
	}
}
