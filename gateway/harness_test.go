package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/ratelimit"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/secretstest"
)

// patience bounds every wait of these tests: what takes longer never comes.
const patience = time.Minute

// The secrets of a rig. No test may find one in its log or in a row.
const (
	goodKey   = "slk_test_MarkedKeyOfTheCallerOfTheseTests"
	workerKey = "MarkedKeyOfTheWorkersOfTheseTests"
	cacheKey  = "a key of thirty-two bytes or more"
)

// rig is a whole gateway on a real listener, with doubles for its parts.
type rig struct {
	t       testing.TB
	g       *Gateway
	addr    string
	fleet   *scoring.Fleet
	limiter *ratelimit.Limiter
	ledger  *memoryLedger
	meter   *memoryMeter
	health  *memoryHealth
	decider *fakeDecider
	tokens  *fakeTokenizer
	tenant  *tenancy.Tenant
	tls     *gatewaytest.Certificate
	wrap    func(net.Listener) net.Listener
	swap    []func(*Parts)
	alter   []func(*State)
}

type rigOption func(*rig, *Config)

func withTLS() rigOption {
	return func(r *rig, _ *Config) { r.tls = gatewaytest.NewCertificate(r.t) }
}

// withListener puts something between the gateway and its listener.
func withListener(wrap func(net.Listener) net.Listener) rigOption {
	return func(r *rig, _ *Config) { r.wrap = wrap }
}

// withParts changes what the gateway works with.
func withParts(swap func(*Parts)) rigOption {
	return func(r *rig, _ *Config) { r.swap = append(r.swap, swap) }
}

// withState changes the generation that the gateway begins with.
func withState(alter func(*State)) rigOption {
	return func(r *rig, _ *Config) { r.alter = append(r.alter, alter) }
}

func withConfig(set func(*Config)) rigOption {
	return func(_ *rig, c *Config) { set(c) }
}

// newRig starts a gateway before the given worker base URLs, all in pool p and
// all ready, and stops it with the test.
func newRig(t testing.TB, workers []string, opts ...rigOption) *rig {
	t.Helper()
	r := &rig{
		t: t, fleet: scoring.NewFleet(scoring.DefaultConfig()), limiter: ratelimit.New(ratelimit.DefaultConfig()),
		ledger: &memoryLedger{}, meter: &memoryMeter{}, health: &memoryHealth{}, tokens: &fakeTokenizer{},
		tenant: &tenancy.Tenant{ID: "acme", Team: "search", Models: []string{"m*"}},
	}
	r.decider = &fakeDecider{}
	now := time.Now()
	for i, url := range workers {
		id, err := r.fleet.Add(now, scoring.WorkerSpec{Name: fmt.Sprintf("w%d", i+1), Pool: "p", Address: url, Models: []string{"m"}})
		if err != nil {
			t.Fatal(err)
		}
		r.fleet.SetReady(now, id, true, "")
	}
	cfg := DefaultConfig()
	for _, o := range opts {
		o(r, &cfg)
	}
	models, err := NewModels([]Model{
		{Name: "m", Aliases: []string{"m-alias"}, Upstream: "m", BytesPerToken: 3, ContextLength: 4096, DefaultMaxTokens: 100},
		{Name: "secret", Upstream: "secret", BytesPerToken: 3},
	})
	if err != nil {
		t.Fatal(err)
	}
	st := &State{
		Identifier: identifierFunc(func(cred []byte, _ time.Time) (*tenancy.Principal, error) {
			if string(cred) != goodKey {
				return nil, errors.New("unknown key")
			}
			return &tenancy.Principal{Kind: "api_key", ID: "key:test", KeyID: "test", Tenant: r.tenant}, nil
		}),
		Policies: r.decider, Models: models, Pools: map[string]Pool{"p": {APIKey: workerKey}},
		CacheKey: []byte(cacheKey), Generation: 1,
	}
	for _, alter := range r.alter {
		alter(st)
	}
	parts := Parts{
		Router: inOrder{r.fleet}, Limiter: r.limiter, Tokenizer: r.tokens, Ledger: r.ledger, Meter: r.meter,
		Health: r.health, Ready: func() []string { return nil }, Log: slog.New(slog.NewTextHandler(testWriter{t}, nil)),
	}
	for _, swap := range r.swap {
		swap(&parts)
	}
	if _, ok := t.(*testing.T); ok {
		parts.Log = r.keepSecrets(parts.Log)
	}
	r.g, err = New(cfg, parts, st)
	if err != nil {
		t.Fatal(err)
	}
	r.serve()
	return r
}

// keepSecrets looks for secrets in what a test has logged, at any level, and in its
// rows, when it has ended.
func (r *rig) keepSecrets(log *slog.Logger) *slog.Logger {
	secrets := new(secretstest.Secrets)
	secrets.Add("the caller's key", strings.TrimPrefix(goodKey, "slk_test_"))
	secrets.Add("the worker's key", workerKey)
	secrets.Add("the key of the caches", cacheKey)
	r.t.Cleanup(func() {
		for _, row := range r.ledger.all() {
			for _, found := range secrets.Find(fmt.Appendf(nil, "%+v", *row)) {
				r.t.Errorf("row %s: %s", row.ID, found)
			}
		}
	})
	return secrets.Log(r.t, log)
}

func (r *rig) serve() {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	r.addr = ln.Addr().String()
	if r.wrap != nil {
		ln = r.wrap(ln)
	}
	var cfg *tls.Config
	if r.tls != nil {
		cfg = r.tls.Server
	}
	served := make(chan error, 1)
	go func() { served <- r.g.Serve(ln, cfg) }()
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := r.g.Shutdown(ctx); err != nil {
			r.t.Errorf("shutdown: %v", err)
		}
		if err := <-served; err != nil {
			r.t.Errorf("serve: %v", err)
		}
		if err := r.g.Close(); err != nil {
			r.t.Errorf("close: %v", err)
		}
	})
}

// dial connects a raw client in the rig's way.
func (r *rig) dial() *gatewaytest.Client {
	if r.tls != nil {
		return gatewaytest.DialTLS(r.t, r.addr, r.tls.Client)
	}
	return gatewaytest.Dial(r.t, r.addr)
}

// chat sends a chat request on a connection of its own.
func (r *rig) chat(body string, header ...string) *gatewaytest.Client {
	c := r.dial()
	c.Send("POST", "/v1/chat/completions", body, append([]string{"Authorization: Bearer " + goodKey}, header...)...)
	return c
}

// row waits for the one ledger row that a request must leave, and fails if
// there are more.
func (r *rig) row() *tenancy.Row {
	r.t.Helper()
	eventually(r.t, "a ledger row", func() bool { return len(r.ledger.all()) > 0 })
	r.idle()
	rows := r.ledger.all()
	if len(rows) != 1 {
		r.t.Fatalf("the ledger has %d rows, want 1: %+v", len(rows), rows)
	}
	if err := rows[0].Check(); err != nil {
		r.t.Errorf("unfit row: %v", err)
	}
	return rows[0]
}

// idle waits until nothing of any request is left anywhere.
func (r *rig) idle() {
	r.t.Helper()
	eventually(r.t, "no request in flight", func() bool { return r.g.InFlight() == 0 })
	eventually(r.t, "no rehearsal under way", func() bool { return r.g.rehearsals.open.Load() == 0 })
	if n := r.g.rehearsals.bytes.Load(); n != 0 {
		r.t.Errorf("%d bytes of bodies are left held for rehearsals", n)
	}
	for _, w := range r.fleet.Snapshot(time.Now()) {
		if w.InFlight != 0 || w.Ahead != 0 {
			r.t.Errorf("worker %s is left with %d requests and %d tokens ahead", w.Worker.Name, w.InFlight, w.Ahead)
		}
	}
	r.g.work.mu.Lock()
	if n := len(r.g.work.workers); n != 0 {
		r.t.Errorf("the GPU time of requests at %d workers is still being measured", n)
	}
	r.g.work.mu.Unlock()
	if n := r.meter.reserved.Load(); n != 0 {
		r.t.Errorf("%d tokens are left reserved", n)
	}
	eventually(r.t, "no memory taken", func() bool { return r.g.Memory().Used == 0 })
	if n := r.limiter.Stats().OpenLeases; n != 0 {
		r.t.Errorf("%d leases are left open", n)
	}
	t := r.g.turns
	eventually(r.t, "every room to be told of", func() bool { return !t.suspecting.Load() })
	t.mu.Lock()
	defer t.mu.Unlock()
	if n, m := t.waiting.Load(), len(t.members); n != 0 || m != 0 || t.queue != nil && t.queue.Waiting() != 0 {
		r.t.Errorf("the queue is left with %d requests, of which %d are known", n, m)
	}
	if n := t.late.Load(); n != 0 {
		r.t.Errorf("%d late wake-ups", n)
	}
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// wantError checks an answer's status and error code.
func wantError(t testing.TB, resp *http.Response, body string, status int, code string) {
	t.Helper()
	if resp.StatusCode != status || !strings.Contains(body, `"code":"`+code+`"`) {
		t.Fatalf("got %d %s, want %d with code %s", resp.StatusCode, body, status, code)
	}
	if resp.Header.Get("X-Request-Id") == "" {
		t.Error("the answer has no x-request-id")
	}
}

const chatBody = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`
const streamBody = `{"model":"m","messages":[{"role":"user","content":"hello"}],"stream":true}`

type identifierFunc func([]byte, time.Time) (*tenancy.Principal, error)

func (f identifierFunc) Identify(_ context.Context, c *tenancy.Credentials, now time.Time) (*tenancy.Principal, error) {
	return f(c.Bearer, now)
}

func (f identifierFunc) Refuses(c *tenancy.Credentials, now time.Time) bool {
	p, err := f(c.Bearer, now)
	return err != nil || p.Tenant.Disabled
}

// fakeDecider allows everything unless told otherwise.
type fakeDecider struct {
	mu     sync.Mutex
	decide func(context.Context, *policy.Input) *policy.Decision
}

func (d *fakeDecider) set(f func(context.Context, *policy.Input) *policy.Decision) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.decide = f
}

func allow(in *policy.Input) *policy.Decision {
	return &policy.Decision{
		Allow: true, Pools: []string{"p"}, Class: "standard", N: in.Request.N, CacheIsolation: "tenant", Revision: "sha256:test",
	}
}

func (d *fakeDecider) Decide(ctx context.Context, in *policy.Input) *policy.Decision {
	d.mu.Lock()
	f := d.decide
	d.mu.Unlock()
	if f == nil {
		return allow(in)
	}
	return f(ctx, in)
}

func (d *fakeDecider) Revision() string { return "sha256:test" }

// fakeTokenizer has no tokens unless told otherwise.
type fakeTokenizer struct {
	mu     sync.Mutex
	append func(context.Context, []uint32, []byte) ([]uint32, error)
	// find is asked instead of append; it is set before the first request.
	find func(context.Context, []uint32) Tokens
}

func (f *fakeTokenizer) set(fn func(context.Context, []uint32, []byte) ([]uint32, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.append = fn
}

func (f *fakeTokenizer) Remote(context.Context, []uint32, *Model, []string, *wire.Request, []byte) Tokens {
	return Tokens{}
}

func (f *fakeTokenizer) Sample(*Model, []string, *wire.Request, []byte) {}

func (f *fakeTokenizer) Decode(*Model, []uint32) (string, bool) { return "", false }

func (f *fakeTokenizer) Local(ctx context.Context, dst []uint32, _ *Model, _ *wire.Request, body []byte) Tokens {
	f.mu.Lock()
	fn := f.append
	f.mu.Unlock()
	if f.find != nil {
		return f.find(ctx, dst)
	}
	if fn == nil {
		return Tokens{}
	}
	ids, err := fn(ctx, dst, body)
	if err != nil {
		return Tokens{}
	}
	return Tokens{IDs: ids, Count: len(ids), Exact: true}
}

type memoryLedger struct {
	mu      sync.Mutex
	rows    []*tenancy.Row
	intents []*tenancy.Intent
	fail    error
}

func (l *memoryLedger) Begin(_ context.Context, in *tenancy.Intent) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.intents = append(l.intents, in)
	return l.fail
}

// begun is how many requests a worker was to get.
func (l *memoryLedger) begun() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.intents)
}

func (l *memoryLedger) Record(_ context.Context, row *tenancy.Row) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rows = append(l.rows, row)
	return l.fail
}

func (l *memoryLedger) RecordLater(ctx context.Context, row *tenancy.Row) error {
	return l.Record(ctx, row)
}

func (l *memoryLedger) all() []*tenancy.Row {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]*tenancy.Row(nil), l.rows...)
}

type memoryMeter struct {
	mu         sync.Mutex
	unrecorded int
	summaries  []*Summary
	auth       []string
	reserved   atomic.Int64
	framing    []string
	handshake  []string
	ignored    atomic.Int64 // labels of callers that are not trusted
	skipped    atomic.Int64 // rehearsals
	rehearsed  []policy.RehearsalOutcome

	thresholds, storeFailures []string
}

func (m *memoryMeter) LabelIgnored()     { m.ignored.Add(1) }
func (m *memoryMeter) RehearsalSkipped() { m.skipped.Add(1) }

func (m *memoryMeter) LimitReached(l *policy.Limit, percent int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.thresholds = append(m.thresholds, fmt.Sprintf("%s %d", l.Rule, percent))
}

func (m *memoryMeter) StoreFailed(state ratelimit.StoreState, how string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.storeFailures = append(m.storeFailures, string(state)+" "+how)
}

func (m *memoryMeter) Rehearsed(_ string, o policy.RehearsalOutcome) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rehearsed = append(m.rehearsed, o)
}

func (m *memoryMeter) rehearsals() []policy.RehearsalOutcome {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.rehearsed)
}

func (m *memoryMeter) Observe(s *Summary) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.summaries = append(m.summaries, s)
}

func (m *memoryMeter) Reserved(_, _ string, tokens int64) func() {
	m.reserved.Add(tokens)
	return func() { m.reserved.Add(-tokens) }
}

func (m *memoryMeter) Unrecorded() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unrecorded++
}

func (m *memoryMeter) AuthFailed(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.auth = append(m.auth, reason)
}

func (m *memoryMeter) FramingRejected(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.framing = append(m.framing, reason)
}

func (m *memoryMeter) HandshakeFailed(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.handshake = append(m.handshake, reason)
}

func (m *memoryMeter) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.summaries)
}

func (m *memoryMeter) last() *Summary {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.summaries) == 0 {
		return nil
	}
	return m.summaries[len(m.summaries)-1]
}

type memoryHealth struct {
	mu                  sync.Mutex
	failures, successes int
	blamed              []string // fault and principal of each failure
	causes              []error
}

func (h *memoryHealth) ReportFailure(_ scoring.WorkerID, f scoring.Fault, principal string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		panic("BUG: a failure without an error")
	}
	h.blamed, h.causes = append(h.blamed, f.String()+" "+principal), append(h.causes, err)
	h.failures++
}

func (h *memoryHealth) ReportSuccess(scoring.WorkerID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.successes++
}

// inOrder picks the workers of a fleet in the order they were added, so that a
// test knows whose turn it is.
type inOrder struct{ *scoring.Fleet }

func (o inOrder) Pick(now time.Time, req *scoring.Request) (*scoring.Reservation, error) {
	one := *req
	one.Exclude = slices.Clone(req.Exclude)
	first := true
	for _, w := range o.Snapshot(now) {
		if slices.Contains(req.Exclude, w.Worker.ID) {
			continue
		}
		if !first {
			one.Exclude = append(one.Exclude, w.Worker.ID)
		}
		first = false
	}
	return o.Fleet.Pick(now, &one)
}

// testWriter sends the gateway's log to the test's.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// setReady makes a worker ready or not.
func (r *rig) setReady(name string, ready bool) {
	for _, w := range r.fleet.Snapshot(time.Now()) {
		if w.Worker.Name == name {
			r.fleet.SetReady(time.Now(), w.Worker.ID, ready, "")
		}
	}
}
