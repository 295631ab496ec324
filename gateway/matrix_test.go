package gateway

import (
	"context"
	"hash/fnv"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/tenancy"
)

// matrixPolicies hold a slot and tokens of each request, so that what is not given
// back, or given back twice, shows.
const matrixPolicies = `
  limits:
    - { name: slots, unit: concurrency, limit: 4, key: [] }
    - { name: tokens, unit: tokens, window: day, limit: 100000000, key: [], estimate: 50, charge: "usage.input_tokens + usage.output_tokens" }
`

// TestFaultMatrix plays every fault in every phase of every route, as a stream and not,
// and checks what becomes of the request, of its worker and of the books. Cells that
// can't be played are named in impossible, with the reason; a cell that neither is
// played nor named fails.
func TestFaultMatrix(t *testing.T) {
	t.Run("first", func(t *testing.T) { // what the process starts once and keeps
		r := newRig(t, []string{gatewaytest.NewWorker(t, gatewaytest.Chat("a")).URL()})
		r.chat(chatBody).Answer()
	})
	goroutines, descriptors := runtime.NumGoroutine(), openDescriptors()
	var cells []matrixCell
	named, left := 0, 0
	for _, d := range matrixDialects() {
		for _, stream := range []bool{true, false} {
			for _, phase := range matrixPhases {
				for _, fault := range matrixFaults {
					c := matrixCell{phase: phase, fault: fault, dialect: d, stream: stream}
					why := whyImpossible(phase, fault, d, stream)
					_, known := matrixExpected[phase][fault]
					switch {
					case why != "":
						named++
					case !known:
						t.Errorf("nothing is expected of %s, and it is not said why", c.name())
					case testing.Short() && !c.inThird():
						left++
					default:
						cells = append(cells, c)
					}
				}
			}
		}
	}
	set := compile(t, bound("p", "Deny", matrixPolicies))
	t.Run("cells", func(t *testing.T) {
		queue := make(chan matrixCell)
		var players sync.WaitGroup
		for range 16 {
			players.Go(func() {
				for c := range queue {
					t.Run(c.name(), func(t *testing.T) { c.run(t, set) })
				}
			})
		}
		for _, c := range cells {
			queue <- c
		}
		close(queue)
		players.Wait()
	})
	t.Logf("%d cells played, %d left out for -short, %d that can't be played", len(cells), left, named)
	defer func() {
		if t.Failed() {
			stacks := make([]byte, 1<<20)
			t.Logf("%s", stacks[:runtime.Stack(stacks, true)])
		}
	}()
	// The server's own may sleep for as long as patience lasts before they end.
	for deadline := time.Now().Add(3 * patience); runtime.NumGoroutine() > goroutines && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	eventually(t, "the goroutines to end", func() bool { return runtime.NumGoroutine() <= goroutines })
	eventually(t, "the descriptors to be closed", func() bool { return openDescriptors() <= descriptors })
}

// TestImpossibleCells: what can't be played is named where it occurs, and nowhere else.
func TestImpossibleCells(t *testing.T) {
	for i, x := range impossible {
		if x.reason == "" {
			t.Errorf("entry %d has no reason", i)
		}
		for _, phase := range x.phases {
			for _, fault := range x.faults {
				if !slices.Contains(matrixFaults, fault) || !slices.Contains(matrixPhases, phase) {
					t.Errorf("there is no cell %s/%s", phase, fault)
				}
				if _, known := matrixExpected[phase][fault]; known {
					t.Errorf("%s/%s is said to be impossible and expected all the same", phase, fault)
				}
			}
		}
	}
	for phase, faults := range matrixExpected {
		for fault := range faults {
			if !slices.Contains(matrixFaults, fault) || !slices.Contains(matrixPhases, phase) {
				t.Errorf("there is no cell %s/%s", phase, fault)
			}
		}
	}
}

// inThird reports whether a cell is among those that are played with -short.
func (c matrixCell) inThird() bool {
	h := fnv.New32a()
	_, _ = io.WriteString(h, c.name())
	return h.Sum32()%3 == 0
}

// openDescriptors is always 0 on systems without a list of them, where all else of
// the matrix still holds.
func openDescriptors() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil && runtime.GOOS == "linux" {
		panic("BUG: Linux lists a process's own descriptors: " + err.Error())
	}
	return len(list)
}

// run plays the cell before a gateway of its own.
func (c matrixCell) run(t *testing.T, set *policy.Set) {
	url, reached := c.play(t)
	second := gatewaytest.NewWorker(t, c.dialect.good())
	r := newRig(t, []string{url, second.URL()}, c.dialect.endpoints(), withConfig(func(cfg *Config) {
		// What is waited for in vain is waited for shortly. Nothing else that the cell
		// needs may take part of that time: a busy machine takes seconds for anything.
		const soon, later = time.Second, 4 * time.Second
		cfg.Connect = time.Minute // a black hole is left, unless it is what is waited for
		switch {
		case c.fault == "blackhole" || c.phase == "tls" && c.fault == "stall":
			cfg.Connect = soon // the second worker's queue takes a connection at once
		case c.phase == "write":
			cfg.ClientWrite = later
		case c.fault == "client-stall":
			cfg.ClientWrite = soon
		case c.fault == "stall" && (c.phase == "head" || c.phase == "first-byte"):
			cfg.FirstByteStream, cfg.FirstByteUnary = soon, soon
		case c.fault == "stall":
			cfg.StreamIdle = later
		}
	}))
	if c.phase == "write" {
		r.fewBuffers()
	}
	var limits []policy.Limit
	var mu sync.Mutex
	r.decider.set(func(ctx context.Context, in *policy.Input) *policy.Decision {
		d := set.Decide(ctx, in)
		mu.Lock()
		limits = slices.Clone(d.Limits)
		mu.Unlock()
		return d
	})
	want := c.expected()
	client := r.dial()
	sent := make(chan error, 1)
	go func() {
		sent <- client.Write(gatewaytest.RequestText("POST", c.dialect.path, c.request(), "Authorization: Bearer "+goodKey))
	}()
	status, text, err := c.act(t, r, client, reached)
	if werr := <-sent; werr != nil {
		t.Errorf("the request could not be sent: %v", werr)
	}
	row := r.row()
	if want.status != 0 {
		c.checkAnswer(t, want, status, text, err)
	}
	c.checkRow(t, want, row)
	c.checkWorkers(t, want, r, row, url)
	mu.Lock()
	defer mu.Unlock()
	c.checkBooks(t, r, row, limits)
}

// act does what is not the worker's doing, and reads the answer if there is anybody to
// read it.
func (c matrixCell) act(t *testing.T, r *rig, client *gatewaytest.Client, reached <-chan struct{}) (status int, text string, err error) {
	if c.byWorker() {
		return read(t, client)
	}
	select {
	case <-reached:
	case <-time.After(patience):
		t.Fatal("the phase is not reached")
	}
	eventually(t, "the ledger to know of the request", func() bool { return r.ledger.begun() == 1 })
	var before strings.Builder
	var body io.Reader
	if c.phase == "mid" && c.fault != "client-stall" || c.phase == "after-mark" {
		resp := client.Head()
		status, body = resp.StatusCode, io.TeeReader(resp.Body, &before)
		events := gatewaytest.NewEventReader(body)
		for range 2 {
			if _, err := events.Next(); err != nil {
				t.Fatal(err)
			}
		}
	}
	switch c.fault {
	case "client-fin":
		client.Leave(gatewaytest.FIN)
		return 0, "", nil
	case "client-rst":
		client.Leave(gatewaytest.RST)
		return 0, "", nil
	case "client-stall":
		return 0, "", nil
	case "shutdown":
		r.shutdownAtOnce()
	case "revoke":
		eventually(t, "the request to be cut", func() bool { return r.g.Cut(func(*tenancy.Principal) bool { return true }) == 1 })
	}
	if body == nil {
		return read(t, client)
	}
	_, err = io.Copy(io.Discard, body)
	return status, before.String(), err
}

func (c matrixCell) checkAnswer(t *testing.T, want expected, status int, text string, err error) {
	if status != want.status || err != nil {
		t.Errorf("the client got %d %s, %v, want %d", status, clip(text), err, want.status)
	}
	if strings.Contains(text, "secret words") {
		t.Errorf("the worker's words are passed on: %s", text)
	}
	mark := ""
	if c.stream {
		mark = c.dialect.end(c.dialect.usage)
		if c.fault == "usage" {
			mark = c.dialect.end(badUsage)
		}
	}
	if whole := strings.HasSuffix(text, mark); want.code == "" && (!whole || strings.Contains(text, `"error"`)) {
		t.Errorf("the client got %s, want success", clip(text))
	}
	if want.code == "" {
		return
	}
	if strings.Count(text, `"`+want.code+`"`) == 0 || c.stream && strings.Contains(text, mark) {
		t.Errorf("the client got %s, want the code %s and no mark", clip(text), want.code)
	}
	if want.event && !strings.HasSuffix(text, "\n\n") || !want.event && !strings.HasPrefix(text, "{") {
		t.Errorf("the client got %s, want an event: %v", clip(text), want.event)
	}
}

func clip(s string) string {
	if len(s) > 2000 {
		return s[:1000] + "…" + s[len(s)-1000:]
	}
	return s
}

// checkRow compares how the row says that the request ended.
func (want expected) checkRow(t *testing.T, row *tenancy.Row) {
	t.Helper()
	status := want.status
	switch want.outcome {
	case tenancy.OutcomeClientAborted:
		status = statusClientGone
	case tenancy.OutcomeCompleted:
		status = 200
	}
	if row.Outcome != want.outcome || row.Status != status || row.ErrorCode != want.code {
		t.Errorf("the row says %s, %d, %q, want %s, %d, %q", row.Outcome, row.Status, row.ErrorCode, want.outcome, status, want.code)
	}
}

func (c matrixCell) checkRow(t *testing.T, want expected, row *tenancy.Row) {
	want.checkRow(t, row)
	input, output, estimated := row.InputTokens > 0, row.OutputTokens, row.Flags.Has(tenancy.FlagEstimated)
	ok := false
	switch {
	case !c.dialect.bills || want.charge == chargeNone:
		ok = !input && output == 0 && !estimated
	case want.charge == chargeAll:
		ok = row.InputTokens == c.dialect.input && output == c.dialect.output && !estimated
	case want.charge == chargePrompt:
		ok = input && output == 0 && estimated
	case want.charge == chargePart, want.charge == chargeGuess:
		ok = input && estimated
	}
	if !ok {
		t.Errorf("%d and %d tokens are charged, flags %s, want charge %d", row.InputTokens, output, row.Flags, want.charge)
	}
	attempts := 1
	if want.again {
		attempts = 2
	}
	if row.Attempts != attempts || want.again && row.Worker != "w2" {
		t.Errorf("%d attempts, the last at %s, want %d", row.Attempts, row.Worker, attempts)
	}
}

func (c matrixCell) checkWorkers(t *testing.T, want expected, r *rig, row *tenancy.Row, url string) {
	var blamed []string
	if want.blame != "" {
		blamed = []string{want.blame + " acme/key:test"}
	}
	successes := 0
	if row.Outcome == tenancy.OutcomeCompleted && c.phase != "after-mark" {
		successes = 1
	}
	r.health.mu.Lock()
	if !slices.Equal(r.health.blamed, blamed) || c.phase != "after-mark" && r.health.successes != successes {
		t.Errorf("blamed %v and praised %d times, want %v and %d", r.health.blamed, r.health.successes, blamed, successes)
	}
	r.health.mu.Unlock()
	r.g.ups.mu.Lock()
	kept := len(r.g.ups.idle[url]) > 0
	r.g.ups.mu.Unlock()
	// A stream that is given up for what is inside may have come whole or not.
	inside := c.stream && want.code != "" && (c.fault == "error" && want.event || c.fault == "garbage" && c.dialect.translated)
	if kept != want.kept && c.fault != "shutdown" && !inside {
		t.Errorf("the first worker's connection is kept: %v, want %v", kept, want.kept)
	}
	for _, w := range r.fleet.Snapshot(time.Now()) {
		if w.InFlight != 0 {
			t.Errorf("%s has %d requests left", w.Worker.Name, w.InFlight)
		}
	}
}

// checkBooks: the limits have taken what the row says, and hold nothing more.
func (c matrixCell) checkBooks(t *testing.T, r *rig, row *tenancy.Row, limits []policy.Limit) {
	if len(limits) != 2 {
		t.Fatalf("%d limits were decided", len(limits))
	}
	charged := int64(0)
	for _, b := range row.Charges {
		if b.Unit == "tokens" {
			charged += b.Amount
		}
	}
	tokens := row.InputTokens + row.OutputTokens
	if used := limits[1].Limit - r.available(limits[1]); used != tokens || charged != tokens {
		t.Errorf("the limit has taken %d tokens and its booking says %d, the row has %d", used, charged, tokens)
	}
	if free := r.available(limits[0]); free != limits[0].Limit {
		t.Errorf("%d of %d slots are free", free, limits[0].Limit)
	}
	if n := len(r.ledger.all()); n != 1 {
		t.Errorf("%d rows", n)
	}
	if _, err := r.fleet.Pick(time.Now(), &scoring.Request{Model: "m", Pools: []string{"p"}, Estimate: 1}); err != nil {
		t.Errorf("nothing can be picked afterwards: %v", err)
	}
}
