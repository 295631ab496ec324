package tokenize

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// fakeEngine answers /tokenize without a network: with status, after delay.
type fakeEngine struct {
	status int
	delay  time.Duration
	calls  int
}

// RoundTrip implements http.RoundTripper. It is used by one goroutine at a time,
// or by several that only wait.
func (e *fakeEngine) RoundTrip(r *http.Request) (*http.Response, error) {
	e.calls++
	select {
	case <-time.After(e.delay):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: e.status, Body: io.NopCloser(strings.NewReader(`{"tokens":[1,2]}`))}, nil
}

// TestBreakerLeavesAWorkerAlone: after five failures in a row nothing is sent for
// ten seconds, then one call; the first answer puts all right. Refusals of the
// prompt and callers that leave are no failures.
func TestBreakerLeavesAWorkerAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := &fakeEngine{status: 200}
		r := NewRemote(RemoteOptions{Client: &http.Client{Transport: engine}})
		to := Target{URL: "http://w", Model: "m"}
		ask := func(ctx context.Context) error {
			var dst Prompts
			return r.Append(ctx, to, &dst, Completion, []byte(`{"prompt":"a"}`))
		}
		state := func() RemoteWorker { return r.Workers()[0] }
		if err := ask(t.Context()); err != nil {
			t.Fatal(err)
		}
		engine.status = 400
		for range 10 {
			if err := ask(t.Context()); !isRefusal(err) {
				t.Fatalf("got %v, want a refusal", err)
			}
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		engine.delay = time.Millisecond
		for range 10 {
			if err := ask(gone); !errors.Is(err, context.Canceled) {
				t.Fatalf("got %v, want that the caller left", err)
			}
		}
		if s := state(); s.Breaker != "closed" || s.Refused != 10 || s.Failed != 0 {
			t.Fatalf("after refusals and callers that left: %+v", s)
		}
		engine.status, engine.calls = 503, 0
		for range 5 {
			if err := ask(t.Context()); err == nil || errors.Is(err, ErrBroken) {
				t.Fatalf("got %v, want a failure", err)
			}
		}
		for range 3 {
			if err := ask(t.Context()); !errors.Is(err, ErrBroken) {
				t.Fatalf("got %v, want that the worker is left alone", err)
			}
		}
		if s := state(); s.Breaker != "open" || s.Failed != 5 || s.Broken != 3 || engine.calls != 5 {
			t.Fatalf("after five failures: %+v and %d calls", s, engine.calls)
		}
		time.Sleep(11 * time.Second)
		if s := state(); s.Breaker != "half-open" {
			t.Fatalf("ten seconds later: %+v", s)
		}
		if err := ask(t.Context()); err == nil || errors.Is(err, ErrBroken) {
			t.Fatalf("got %v, want one try that fails", err)
		}
		if err := ask(t.Context()); !errors.Is(err, ErrBroken) || engine.calls != 6 {
			t.Fatalf("got %v and %d calls, want that the try opened it again", err, engine.calls)
		}
		time.Sleep(11 * time.Second)
		engine.status = 200
		if err := ask(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s := state(); s.Breaker != "closed" || s.Answered != 2 {
			t.Errorf("after an answer: %+v", s)
		}
		r.Keep([]string{"http://other"})
		if n := len(r.Workers()); n != 0 {
			t.Errorf("%d workers are kept, want none", n)
		}
	})
}

// TestRemoteIsNotPiledUpOn: what is beyond the bound fails at once.
func TestRemoteIsNotPiledUpOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRemote(RemoteOptions{Parallel: 3, Client: &http.Client{Transport: sleeper{}}})
		results := make(chan error, 10)
		for range 10 {
			go func() {
				var dst Prompts
				results <- r.Append(t.Context(), Target{URL: "http://w", Model: "m"}, &dst, Completion, []byte(`{"prompt":"a"}`))
			}()
		}
		synctest.Wait()
		if s := r.Workers()[0]; s.UnderWay != 3 || s.Busy != 7 {
			t.Errorf("%+v, want 3 under way and 7 refused", s)
		}
		start, busy := time.Now(), 0
		for range 10 {
			if err := <-results; errors.Is(err, ErrBusy) {
				busy++
			} else if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
				t.Errorf("got %v after %v, want a time-out after a second", err, time.Since(start))
			}
		}
		if busy != 7 {
			t.Errorf("%d were too many, want 7", busy)
		}
	})
}

// sleeper never answers.
type sleeper struct{}

// RoundTrip implements http.RoundTripper.
func (sleeper) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}
