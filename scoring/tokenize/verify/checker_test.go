package verify

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicegate/sluice/scoring/tokenize"
)

// logbook keeps what is logged.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logbook) count(text string) int { return strings.Count(l.String(), text) }

func newChecker(local Source, workers []Worker, every int) (*Checker, *logbook) {
	log := &logbook{}
	return New(Options{
		Model: "m", Local: local, Workers: func() []Worker { return workers }, Every: every,
		Log: slog.New(slog.NewTextHandler(log, nil)),
	}), log
}

// run runs a Checker until what it returns is called.
func run(t *testing.T, c *Checker) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	return func() { cancel(); <-done }
}

// byLength is a tokenizer: one id for each byte. Bodies that hold the word other
// have another first id there.
func byLength(other string) Source {
	return func(_ context.Context, dst *tokenize.Prompts, _ tokenize.Kind, body []byte) error {
		start := len(dst.IDs)
		for _, b := range body {
			dst.IDs = append(dst.IDs, uint32(b))
		}
		if other != "" && bytes.Contains(body, []byte(other)) {
			dst.IDs[start] = 1000
		}
		dst.Ends = append(dst.Ends, len(dst.IDs))
		return nil
	}
}

// pools are where the requests of these tests may go.
var pools = []string{"p"}

// offer has a request offered, and waits for the verdict.
func offer(c *Checker, s Shape, body string) {
	time.Sleep(samplePause)
	c.Offer(s, tokenize.Chat, []byte(body), pools)
	synctest.Wait()
}

func state(c *Checker, s Shape) State { return c.Status().Shapes[s].State }

// TestOneShapeIsSetAside: what disagrees goes to the workers, the rest stays, and
// neither the log nor the status holds text of a request.
func TestOneShapeIsSetAside(t *testing.T) {
	c, log := newChecker(byLength(""), []Worker{{ID: 1, Name: "w1", Pool: "p", Tokenise: byLength("get_weather")}}, 200)
	c.probeAll(t.Context())
	for _, s := range Shapes() {
		want := s != ChatTools && s != ChatToolCalls
		if c.Trusts(s) != want {
			t.Errorf("%v is trusted: %v, want %v", s, c.Trusts(s), want)
		}
	}
	if n := log.count("the local tokenizer disagrees with the worker"); n != 2 {
		t.Errorf("the log tells of %d disagreements, want 2:\n%s", n, log)
	}
	if strings.Contains(log.String(), "weather") {
		t.Errorf("the log quotes a request:\n%s", log)
	}
	s := c.Status().Shapes[ChatTools]
	if s.Worker != "w1" || s.At != 0 || s.When.IsZero() || s.Disagreed != 1 {
		t.Errorf("the status is %+v", s)
	}
}

// TestEvidenceMustAgree: a shape that one live request showed to be wrong is not
// trusted again because the probes agree; it is when that request does.
func TestEvidenceMustAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		workers := []Worker{{ID: 1, Name: "w1", Pool: "p", Tokenise: byLength("rare")}}
		c, log := newChecker(byLength(""), nil, 1)
		var mu sync.Mutex
		c.opts.Workers = func() []Worker { mu.Lock(); defer mu.Unlock(); return workers }
		defer run(t, c)()
		synctest.Wait()
		offer(c, ChatPlain, "a common request")
		if state(c, ChatPlain) != Verified {
			t.Fatalf("the shape is %v after one that agrees", state(c, ChatPlain))
		}
		offer(c, ChatPlain, "a rare request")
		if state(c, ChatPlain) != Mismatch {
			t.Fatalf("the shape is %v after one that disagrees", state(c, ChatPlain))
		}
		if state(c, ChatTurns) != Verified {
			t.Errorf("another shape is %v", state(c, ChatTurns))
		}
		// Time alone changes nothing, and less and less is asked.
		asked := c.Status().Shapes[ChatPlain].Disagreed
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		s := c.Status().Shapes[ChatPlain]
		if s.State != Mismatch || s.Disagreed-asked < 5 || s.Disagreed-asked > 12 {
			t.Errorf("a day later the shape is %v and was compared %d times, want a few", s.State, s.Disagreed-asked)
		}
		// A new version of the worker has it right.
		mu.Lock()
		workers = []Worker{{ID: 2, Name: "w1", Pool: "p", Tokenise: byLength("")}}
		mu.Unlock()
		time.Sleep(2 * tick)
		synctest.Wait()
		if state(c, ChatPlain) != Verified || log.count("agrees with the workers again") != 1 {
			t.Errorf("with a new worker the shape is %v:\n%s", state(c, ChatPlain), log)
		}
		if strings.Contains(log.String(), "rare") {
			t.Errorf("the log quotes a request:\n%s", log)
		}
	})
}

// TestRequestsStayInTheirPools: neither a sample nor, ever after, the evidence that
// it becomes is put to a worker of another pool than the request's own, while the
// probes, which hold nothing of a client, go to all.
func TestRequestsStayInTheirPools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		leaked, probed := 0, 0
		outside := func(ctx context.Context, dst *tokenize.Prompts, kind tokenize.Kind, body []byte) error {
			mu.Lock()
			defer mu.Unlock()
			probed++
			if bytes.Contains(body, []byte("restricted")) {
				leaked++
			}
			return byLength("")(ctx, dst, kind, body)
		}
		inside := Worker{ID: 2, Name: "w2", Pool: "p", Tokenise: byLength("restricted")}
		workers := []Worker{{ID: 1, Name: "w1", Pool: "general", Tokenise: outside}, inside, {ID: 3, Name: "w3", Pool: "general", Tokenise: outside}}
		c, _ := newChecker(byLength(""), nil, 1)
		c.opts.Workers = func() []Worker { mu.Lock(); defer mu.Unlock(); return workers }
		defer run(t, c)()
		synctest.Wait()
		for range 3 {
			offer(c, ChatPlain, "a restricted request")
		}
		if state(c, ChatPlain) != Mismatch {
			t.Fatalf("the shape is %v after one that disagrees", state(c, ChatPlain))
		}
		// With nobody left who may see the evidence, nobody can clear the shape.
		mu.Lock()
		workers = []Worker{workers[0], workers[2]}
		mu.Unlock()
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if state(c, ChatPlain) != Mismatch {
			t.Error("the shape was cleared by workers that were not shown what disagreed")
		}
		mu.Lock()
		inside.ID, inside.Tokenise = 4, byLength("")
		workers = append(workers, inside)
		mu.Unlock()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if state(c, ChatPlain) != Verified {
			t.Errorf("the shape is %v with a worker that may see it and agrees", state(c, ChatPlain))
		}
		mu.Lock()
		defer mu.Unlock()
		if leaked != 0 || probed < 2*len(DefaultProbes()) {
			t.Errorf("workers of another pool saw the request %d times and %d probes", leaked, probed)
		}
	})
}

// TestPassingTimeIsNoMismatch: a template that prints the time gives other ids a
// moment later, at both ends.
func TestPassingTimeIsNoMismatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := func(_ context.Context, dst *tokenize.Prompts, _ tokenize.Kind, _ []byte) error {
			dst.IDs = append(dst.IDs, uint32(time.Now().Unix()))
			dst.Ends = append(dst.Ends, len(dst.IDs))
			return nil
		}
		slow := false // the worker answers when the second has passed, once
		c, _ := newChecker(clock, []Worker{{ID: 1, Name: "w1", Pool: "p", Tokenise: func(ctx context.Context, dst *tokenize.Prompts, kind tokenize.Kind, body []byte) error {
			err := clock(ctx, dst, kind, body)
			if slow {
				slow = false
				time.Sleep(time.Second)
			}
			return err
		}}}, 1)
		c.probeAll(t.Context())
		slow = true
		c.Offer(ChatPlain, tokenize.Chat, []byte("{}"), pools)
		s := <-c.samples
		c.judge(t.Context(), &s)
		if got := c.Status().Shapes[ChatPlain]; got.State != Verified || got.Undecided != 1 {
			t.Errorf("the status is %+v, want verified and one without a result", got)
		}
	})
}

// TestSamplingIsBounded: at most one a second and a few at a time, the first
// requests of a shape always, then one in so many; copies only.
func TestSamplingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never, _ := newChecker(byLength(""), nil, 0)
		never.Offer(ChatPlain, tokenize.Chat, []byte("{}"), pools)
		if len(never.samples) != 0 {
			t.Error("a sample was taken at the rate 0")
		}
		c, _ := newChecker(byLength(""), nil, 1)
		body := []byte("{}")
		for range 100 {
			c.Offer(ChatPlain, tokenize.Chat, body, pools)
		}
		if len(c.samples) != 1 {
			t.Fatalf("%d samples were taken at once, want 1", len(c.samples))
		}
		body[0] = 'x'
		if s := <-c.samples; string(s.Body) != "{}" {
			t.Errorf("the sample changed to %q", s.Body)
		}
		time.Sleep(samplePause)
		c.Offer(ChatPlain, tokenize.Chat, body, nil)
		if len(c.samples) != 0 {
			t.Error("a request that may go nowhere was taken")
		}
		for range 2 * maxQueue {
			time.Sleep(samplePause)
			c.Offer(ChatPlain, tokenize.Chat, body, pools)
		}
		if len(c.samples) != maxQueue || c.Status().Dropped != maxQueue {
			t.Errorf("%d samples wait and %d were dropped, want %d and %d", len(c.samples), c.Status().Dropped, maxQueue, maxQueue)
		}
		time.Sleep(samplePause)
		c.Offer(ChatPlain, tokenize.Chat, make([]byte, maxSample+1), pools)
		if c.Status().Dropped != maxQueue {
			t.Error("a body beyond the bound was considered")
		}

		seldom, _ := newChecker(byLength(""), nil, 20)
		taken := 0
		const requests = 4000
		for range requests {
			time.Sleep(samplePause)
			seldom.Offer(ChatTurns, tokenize.Chat, body, pools)
			select {
			case <-seldom.samples:
				taken++
			default:
			}
		}
		if taken < 120 || taken > 300 {
			t.Errorf("%d of %d requests were taken at 1 in 20", taken, requests)
		}
	})
}

// TestAnswersCauseDoubt: three in a row of another length have the workers
// probed again, at most once a minute.
func TestAnswersCauseDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		probed, wrong := 0, ""
		c, log := newChecker(byLength(""), []Worker{{ID: 1, Name: "w1", Pool: "p", Tokenise: func(ctx context.Context, dst *tokenize.Prompts, kind tokenize.Kind, body []byte) error {
			mu.Lock()
			probed++
			engine := byLength(wrong)
			mu.Unlock()
			return engine(ctx, dst, kind, body)
		}}}, 200)
		defer run(t, c)()
		synctest.Wait()
		once := len(DefaultProbes())
		count := func() int { mu.Lock(); defer mu.Unlock(); return probed }
		for _, same := range []bool{false, false, true, false, false, true} {
			c.Answered(time.Now(), same)
		}
		synctest.Wait()
		if n := count(); n != once {
			t.Fatalf("%d probes after two in a row, want %d", n, once)
		}
		for range 10 * doubtAfter {
			c.Answered(time.Now(), false)
		}
		synctest.Wait()
		if n := count(); n != 2*once {
			t.Fatalf("%d probes after many in a row, want %d", n, 2*once)
		}
		if n := c.Status().Disagreements; n != 4+10*doubtAfter {
			t.Errorf("%d answers were counted", n)
		}
		mu.Lock()
		wrong = "story"
		mu.Unlock()
		time.Sleep(doubtPause)
		c.Answered(time.Now(), false)
		synctest.Wait()
		if state(c, ChatTurns) != Mismatch || log.count("have another length") != 2 {
			t.Errorf("the shape is %v:\n%s", state(c, ChatTurns), log)
		}
	})
}

// TestWorkersThatCannotBeAsked are tried again, less and less often, and one that
// comes later is judged by itself.
func TestWorkersThatCannotBeAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		calls, up := 0, false
		down := Worker{ID: 1, Name: "w1", Pool: "p", Tokenise: func(ctx context.Context, dst *tokenize.Prompts, kind tokenize.Kind, body []byte) error {
			mu.Lock()
			defer mu.Unlock()
			if calls++; !up {
				return errors.New("cannot reach the worker")
			}
			return byLength("")(ctx, dst, kind, body)
		}}
		workers := []Worker{down}
		c, _ := newChecker(byLength(""), nil, 200)
		c.opts.Workers = func() []Worker { mu.Lock(); defer mu.Unlock(); return workers }
		defer run(t, c)()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		mu.Lock()
		if c.Status().Compared || calls < 45 || calls > 120 {
			t.Errorf("compared: %v, after %d calls in ten minutes", c.Status().Compared, calls)
		}
		up = true
		mu.Unlock()
		time.Sleep(lastWait + tick)
		synctest.Wait()
		if !c.Status().Compared || state(c, ChatPlain) != Verified {
			t.Fatalf("the shape is %v once the worker is there", state(c, ChatPlain))
		}
		mu.Lock()
		workers = append(workers, Worker{ID: 2, Name: "w2", Pool: "p", Tokenise: byLength("story")})
		mu.Unlock()
		time.Sleep(2 * tick)
		synctest.Wait()
		if s := c.Status().Shapes[ChatTurns]; s.State != Mismatch || s.Worker != "w2" {
			t.Errorf("after a second worker: %+v", s)
		}
		if state(c, ChatPlain) != Verified {
			t.Errorf("the other shape is %v", state(c, ChatPlain))
		}
	})
}

// TestOneProbeMayFail: a body that breaks the worker decides nothing and leaves
// the other shapes judged.
func TestOneProbeMayFail(t *testing.T) {
	broken := func(ctx context.Context, dst *tokenize.Prompts, kind tokenize.Kind, body []byte) error {
		if bytes.Contains(body, []byte("reasoning_effort")) {
			return &tokenize.StatusError{Code: 500}
		}
		return byLength("")(ctx, dst, kind, body)
	}
	c, _ := newChecker(byLength(""), []Worker{{ID: 1, Name: "w1", Pool: "p", Tokenise: broken}}, 200)
	c.probeAll(t.Context())
	for _, s := range c.Status().Shapes {
		if s.State != Verified || (s.Undecided == 1) != (s.Shape == ChatKwargs) {
			t.Errorf("%+v", s)
		}
	}
	if !c.Status().Compared {
		t.Error("the worker is not taken as compared")
	}
}

// TestEvidenceThatIsTooLong is not kept: then time does not clear the shape,
// another worker does.
func TestEvidenceThatIsTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		workers := []Worker{{ID: 1, Name: "w1", Pool: "p", Tokenise: byLength("rare")}}
		c, _ := newChecker(byLength(""), nil, 1)
		c.opts.Workers = func() []Worker { mu.Lock(); defer mu.Unlock(); return workers }
		defer run(t, c)()
		synctest.Wait()
		offer(c, ChatPlain, "rare"+strings.Repeat("x", maxEvidence))
		time.Sleep(7 * 24 * time.Hour)
		synctest.Wait()
		if s := c.Status().Shapes[ChatPlain]; s.State != Mismatch || s.Disagreed != 1 {
			t.Errorf("a week later: %+v", s)
		}
		mu.Lock()
		workers = []Worker{{ID: 2, Name: "w2", Pool: "p", Tokenise: byLength("")}}
		mu.Unlock()
		time.Sleep(2 * tick)
		synctest.Wait()
		if s := state(c, ChatPlain); s != Verified {
			t.Errorf("with another worker the shape is %v", s)
		}
	})
}

func TestCompare(t *testing.T) {
	ids := func(ends []int, ids ...uint32) *tokenize.Prompts { return &tokenize.Prompts{IDs: ids, Ends: ends} }
	one := ids([]int{3}, 1, 2, 3)
	none := ids(nil)
	rejection := error(&tokenize.RenderError{Message: "no"})
	refusal := error(&tokenize.StatusError{Code: 400})
	for _, c := range []struct {
		name      string
		local     *tokenize.Prompts
		localErr  error
		engine    *tokenize.Prompts
		engineErr error
		want      result
		at        int
	}{
		{"equal", one, nil, ids([]int{3}, 1, 2, 3), nil, agree, 0},
		{"one id", one, nil, ids([]int{3}, 1, 9, 3), nil, disagree, 1},
		{"shorter", one, nil, ids([]int{2}, 1, 2), nil, disagree, 2},
		{"longer", one, nil, ids([]int{4}, 1, 2, 3, 4), nil, disagree, 3},
		{"cut elsewhere", ids([]int{1, 3}, 1, 2, 3), nil, ids([]int{2, 3}, 1, 2, 3), nil, disagree, 3},
		{"both reject", none, rejection, none, refusal, agree, 0},
		{"both find it invalid", none, tokenize.ErrInvalid, none, refusal, agree, 0},
		{"the template rejects here only", none, rejection, one, nil, disagree, 0},
		{"a failure here", none, errors.New("x"), one, nil, disagree, 0},
		{"the engine refuses", one, nil, none, refusal, undecided, 0},
		{"nobody can", none, tokenize.ErrUnsupported, none, refusal, undecided, 0},
		{"not exact here", none, tokenize.ErrUnsupported, one, nil, undecided, 0},
		{"no such route", one, nil, none, &tokenize.StatusError{Code: 404}, unavailable, 0},
		{"no worker", one, nil, none, errors.New("x"), unavailable, 0},
	} {
		if got, at := compare(c.local, c.localErr, c.engine, c.engineErr); got != c.want || at != c.at {
			t.Errorf("%s: got %d at %d, want %d at %d", c.name, got, at, c.want, c.at)
		}
	}
}
