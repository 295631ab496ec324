package gateway

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
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
