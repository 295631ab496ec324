package gateway

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/tenancy"
)

// Config holds the numbers of the HTTP edge. DefaultConfig gives the
// contract's defaults.
type Config struct {
	// BodyBytes bounds a request body, HeaderBytes all request headers together.
	BodyBytes, HeaderBytes int
	// HeaderRead is the time for a request's headers, BodyRead for its body,
	// BodyIdle for each next byte of it, IdleConnection how long a kept
	// connection may wait for the next request.
	HeaderRead, BodyRead, BodyIdle, IdleConnection time.Duration
	// ClientWrite is how long one write to a client may block.
	ClientWrite time.Duration
	// Connect is the time to reach a worker; FirstByteStream and FirstByteUnary
	// to its first byte; StreamIdle between the bytes of a stream.
	Connect, FirstByteStream, FirstByteUnary, StreamIdle time.Duration
	// ResponseBytes bounds a response that is not a stream, EventBytes one event.
	ResponseBytes, EventBytes int
	// MemoryBytes bounds the memory of all bodies in flight together, and of the answers
	// that are held until their clients have them. One tenant can have half of it.
	MemoryBytes int64
	// KeepAliveComment is the time without an event after which a dispatched
	// stream gets a comment, and between comments. Zero turns them off.
	KeepAliveComment time.Duration
	// TokenBudget is how long policies may have the prompt's tokens counted for
	// them; what takes longer is estimated.
	TokenBudget time.Duration
	// Retries is how many further workers may be tried before a first byte.
	Retries int
	// CORS says for which web pages a browser may call.
	CORS CORS
	// Connections bounds the client connections, ConnectionsPerAddress those of one
	// address that is no trusted proxy; an IPv6 address counts as its /64. Zero is no
	// bound.
	Connections, ConnectionsPerAddress int
	// StoredResponses is how many responses are remembered for StoredFor after they
	// were made, so that they can be gone on from and asked for; zero is none.
	StoredResponses int
	StoredFor       time.Duration
	// RetryShare is the part of a pool's requests that may be sent on to another
	// worker, from 0 to 1. A few a second always may.
	RetryShare float64
	// TrustedProxies are the networks whose X-Forwarded-For is believed.
	TrustedProxies []netip.Prefix
	// WorkerTLS is used for https workers; nil means the system's roots.
	WorkerTLS *tls.Config
}

// DefaultConfig returns the HTTP contract's defaults (its sections 2.1 and 7) and
// the policy format's (its section 2).
func DefaultConfig() Config {
	return Config{
		BodyBytes: 32 << 20, HeaderBytes: 64 << 10,
		HeaderRead: 10 * time.Second, BodyRead: 300 * time.Second, BodyIdle: 30 * time.Second, IdleConnection: 75 * time.Second,
		ClientWrite: 30 * time.Second,
		Connect:     2 * time.Second, FirstByteStream: 120 * time.Second, FirstByteUnary: 600 * time.Second,
		StreamIdle: 60 * time.Second, ResponseBytes: 64 << 20, EventBytes: 16 << 20, MemoryBytes: 1 << 30,
		KeepAliveComment: 15 * time.Second, TokenBudget: 50 * time.Millisecond, Retries: 2, RetryShare: 0.2,
	}
}

// Pool is what the edge needs to know of a pool.
type Pool struct {
	// APIKey is sent to the pool's workers as a bearer token, if not empty.
	APIKey string
	// GPUs is how many each of the pool's workers computes with; 0 counts as 1.
	GPUs int
	// Models are the names of the models that it serves; nil means all.
	Models []string
	// Endpoints are the operations that it offers; nil leaves it to its workers to
	// say, see [Offers].
	Endpoints *wire.Endpoints
	// Salted are the operations for which its engines keep caches apart by
	// cache_salt. The policies know which of its own operations a request may go to
	// the pool for; this is for those that stand in for them.
	Salted wire.Endpoints
	// PriorityScheduling says that its engines schedule by the priority of requests, so
	// that they are sent that of their class.
	PriorityScheduling bool
}

// State is one generation of what reloads together: the policies and all that
// they were compiled against. It does not change once it was given to a Gateway.
// A request keeps the generation it began with until it is settled.
type State struct {
	Identifier Identifier
	// ConnectionIdentity says that callers may be known without a bearer
	// credential: by the certificate of their connection, or by the word of a proxy.
	ConnectionIdentity bool
	Policies           Decider
	Models             *Models
	Pools              map[string]Pool
	// Pricer puts prices into ledger rows; nil leaves them without.
	Pricer Pricer
	// Classifier scans bodies for content labels; nil means that there are no
	// detectors.
	Classifier Classifier
	// PolicyHeaders are the lower-case names of headers that policies may read.
	PolicyHeaders []string
	// LabelPrincipals are the ids of principals whose x-sluice-content-labels
	// header is believed.
	LabelPrincipals []string
	// LabelClaim is the claim of a caller's token that holds content labels, a
	// list or a space-separated text; empty means that no claim does.
	LabelClaim string
	// CacheKey keys the salts of cache isolation; 32 bytes or more.
	CacheKey []byte
	// Queue is how requests wait for workers. Its classes are those that policies may
	// name, in their order.
	Queue qos.Config
	// Targets are the times to first token that classes promise where requests don't
	// wait in a queue; of a class that is not there nothing is promised.
	Targets map[string]time.Duration
	// Generation counts the loads, from 1; for logs and debug pages.
	Generation uint64
}

// Parts are what a Gateway works with, whatever the generation; all but
// Offers, Decisions, Health, Log and Details must be given.
type Parts struct {
	Router  Router
	Limiter Limiter
	// LocalLimiter holds the counters of limits that say Local while theirs can't be
	// had, with LocalFraction of their size, above 0 and at most 1; nil refuses them,
	// like those that say Deny.
	LocalLimiter  Limiter
	LocalFraction float64
	Tokenizer     Tokenizer
	Ledger        Ledger
	Meter         Meter
	// Offers is what the workers say that they offer; nil if nobody asks them.
	Offers Offers
	// Decisions is the decision log, nil for none.
	Decisions Decisions
	Health    Health
	Log       *slog.Logger
	// Ready reports why the gateway can't serve, by the contract's words, or
	// nothing if it can.
	Ready func() []string
	// Details reports, in words of a fixed list, what is amiss although the
	// gateway can serve, such as reload_failed. They stand in /readyz, which
	// anybody may read: no names, no paths, no addresses.
	Details func() []string
}

// Gateway serves the data listener. Its methods are safe for concurrent use.
type Gateway struct {
	cfg     Config
	parts   Parts
	state   atomic.Pointer[State]
	watch   *watcher
	ups     *upstreams
	retries *retryBudget
	server  *server
	log     *slog.Logger

	rehearsals rehearsals
	work       *workClock
	lengths    lengths // of answers to requests that said nothing of them
	answers    lengths // of all, by what was said
	responses  *responseStore
	crossings  crossings
	store      storeWatch
	memory     *memoryBudget
	turns      *turns

	// The end of a gateway, in its order: responses end their connections; requests
	// that come are refused; those that run are cut.
	draining, closing, stopping atomic.Bool

	conns    connSet
	gate     *gate
	inFlight atomic.Int64
	byRoute  map[*route]*atomic.Int64 // filled once
	live     liveSet
}

// New returns a Gateway that serves st. Close releases it.
func New(cfg Config, parts Parts, st *State) (*Gateway, error) {
	watch, err := newWatcher()
	if err != nil {
		return nil, err
	}
	g := &Gateway{
		cfg: cfg, parts: parts, watch: watch, log: parts.Log,
		ups: newUpstreams(cfg.Connect, cfg.WorkerTLS), retries: newRetryBudget(cfg.RetryShare), byRoute: make(map[*route]*atomic.Int64), work: newWorkClock(),
		memory: newMemoryBudget(cfg.MemoryBytes),
	}
	for _, r := range allRoutes {
		g.byRoute[r] = new(atomic.Int64)
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	g.live.init()
	g.lengths.init()
	g.answers.init()
	g.responses = newResponseStore(cfg.StoredResponses, cfg.StoredFor)
	g.conns.init()
	g.gate = &gate{
		Admission: NewAdmission(cfg.Connections, cfg.ConnectionsPerAddress, cfg.TrustedProxies), log: g.log, told: make(map[string]time.Time),
	}
	g.state.Store(st)
	g.turns = startTurns(parts.Router, st, g.log)
	g.rehearsals.start(g)
	g.server = newServer(g)
	return g, nil
}

// discardLogger drops fasthttp's own lines: they can quote a client's bytes,
// and the gateway reports the same events itself.
type discardLogger struct{}

// Printf implements fasthttp.Logger.
func (discardLogger) Printf(string, ...any) {}

// Serve accepts connections on ln, a TCP listener, until Shutdown. A non-nil
// tlsConfig makes it speak TLS.
func (g *Gateway) Serve(ln net.Listener, tlsConfig *tls.Config) error {
	served := &listener{Listener: ln, watch: g.watch, writeTimeout: g.cfg.ClientWrite, readIdle: g.cfg.BodyIdle, open: &g.conns, gate: g.gate, log: g.log}
	if err := g.server.serve(served, tlsConfig); err != nil {
		return fmt.Errorf("cannot serve on %s: %w", ln.Addr(), err)
	}
	return nil
}

// Swap makes st the generation of every request that starts from now on.
func (g *Gateway) Swap(st *State) {
	g.turns.configure(st)
	g.state.Store(st)
}

// State returns the generation in force.
func (g *Gateway) State() *State { return g.state.Load() }

// BeginDrain turns readiness red and asks every client to leave its connection
// after its next response. Requests are still served.
func (g *Gateway) BeginDrain() { g.draining.Store(true) }

// Draining reports whether BeginDrain was called.
func (g *Gateway) Draining() bool { return g.draining.Load() }

// Shutdown stops accepting, refuses what comes on connections that are still open,
// waits for running requests until ctx ends, then
// cuts those that are left, each with its dialect's error, and waits until
// they have been settled. A client that has not taken its answer a few seconds later
// doesn't get the rest. Rehearsals are waited for until ctx ends as well, and then given up: no
// part is called any more once Shutdown has returned.
func (g *Gateway) Shutdown(ctx context.Context) error {
	defer g.rehearsals.finish(ctx)
	g.draining.Store(true)
	g.closing.Store(true)
	done := make(chan error, 1)
	go func() { done <- g.server.Shutdown() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	g.stopping.Store(true)
	g.live.cutAll()
	g.conns.stop(time.Now().Add(lastWrites))
	return <-done
}

// lastWrites is how long clients have after the deadline of a shutdown to take the end
// of their answers.
const lastWrites = 3 * time.Second

// Close releases the watcher and the kept worker connections. Shutdown comes first,
// if anything was served.
func (g *Gateway) Close() error {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	g.rehearsals.finish(ended)
	g.turns.stop()
	g.ups.Close()
	return g.watch.Close()
}

// Connections is the number of open client connections.
func (g *Gateway) Connections() int64 { return int64(g.conns.len()) }

// MaxConnections is how many client connections there may be; 0 is without bound.
func (g *Gateway) MaxConnections() int { return g.cfg.Connections }

// Refused is how many connections were refused, by reason.
func (g *Gateway) Refused() map[string]uint64 { return g.gate.Refused() }

// MemoryStats says how much memory the bodies in flight take and may take, and how
// many requests found no room: in all, and in their tenant's half.
type MemoryStats struct {
	Used, Limit                 int64
	RefusedTotal, RefusedTenant int64
}

// Memory returns what the bodies in flight take.
func (g *Gateway) Memory() MemoryStats {
	used, refused := g.memory.stats()
	return MemoryStats{Used: used, Limit: g.memory.limit, RefusedTotal: refused.total, RefusedTenant: refused.tenant}
}

// InFlight is the number of requests between their first check and their end.
func (g *Gateway) InFlight() int64 { return g.inFlight.Load() }

// InFlightByRoute is InFlight by route template, for requests on a route.
func (g *Gateway) InFlightByRoute() map[string]int64 {
	out := make(map[string]int64, len(g.byRoute))
	for r, n := range g.byRoute {
		out[r.template] = n.Load()
	}
	return out
}

// Handle serves one request. It is the whole order of steps.
func (g *Gateway) Handle(ctx *fasthttp.RequestCtx) {
	if c := clientConn(ctx.Conn()); c != nil && c.closing.Load() && !g.stopping.Load() {
		_ = ctx.Conn().Close() // the request came behind an answer that ends the connection
		return
	}
	ex := g.begin(ctx)
	defer ex.unlessRelayed(ctx)

	r, rej := ex.checkRoute(ctx)
	if rej != nil {
		ex.reject(ctx, rej)
		return
	}
	if r == nil {
		return // answered: OPTIONS
	}
	if rej := ex.inTime(r); rej != nil {
		ex.reject(ctx, rej)
		return
	}
	if !r.open {
		if rej := ex.identify(ctx); rej != nil {
			ex.reject(ctx, rej)
			return
		}
	}
	r.handle(g, ctx, ex)
}

// infer serves the operations that reach a worker.
func (g *Gateway) infer(ctx *fasthttp.RequestCtx, ex *exchange) {
	ex.muteWhenGone()
	for _, step := range [...]func(*exchange, *fasthttp.RequestCtx) *rejection{
		(*exchange).checkMedia,
		(*exchange).readBody,
		(*exchange).stillKnown,
		(*exchange).scan,
		(*exchange).decide,
		(*exchange).narrow,
		(*exchange).reserve,
		(*exchange).awaitOffers,
		(*exchange).prepareRoute,
		(*exchange).forward,
	} {
		rej := step(ex, ctx)
		if rej == nil && ex.gone.Load() {
			ex.leave()
			return
		}
		if rej != nil {
			if ex.wasCut.Load() {
				rej = ex.cutShort() // what failed did so because of that
			}
			ex.reject(ctx, rej)
			return
		}
	}
	ex.respond(ctx)
}

// inTime refuses a request that comes when the gateway takes no more. Whether it
// is alive can still be asked.
func (ex *exchange) inTime(r *route) *rejection {
	if !ex.g.closing.Load() || r.open {
		return nil
	}
	rej := shuttingDown()
	rej.closeConn = true
	return rej
}

// begin sets up what every request has: its ids, its place among the running
// ones and the watch on its client.
func (g *Gateway) begin(ctx *fasthttp.RequestCtx) *exchange {
	ex := &exchange{g: g, st: g.state.Load(), start: time.Now(), route: routeNone, phase: tenancy.PhaseRead}
	ex.ctx, ex.cancel = context.WithCancel(context.Background())
	ex.id = newRowID(ex.start)
	if ex.requestID = requestID(ctx, ""); ex.requestID == "" {
		ex.requestID = newID()
	}
	ex.setRequestID(&ctx.Response.Header)
	g.cfg.CORS.allow(ctx)
	g.inFlight.Add(1)
	g.live.add(ex)
	if ex.conn = clientConn(ctx.Conn()); ex.conn != nil {
		ex.conn.answered() // the last one on the connection
		if !ex.conn.attach(ex.clientLeft) {
			ex.clientLeft()
		}
	}
	if g.stopping.Load() {
		ex.cut() // Shutdown may have looked for running requests before this one
	}
	if g.draining.Load() {
		ctx.SetConnectionClose()
	}
	return ex
}

// unlessRelayed finishes a request that was not handed to a relay, and turns a
// panic into an answer.
func (ex *exchange) unlessRelayed(ctx *fasthttp.RequestCtx) {
	if p := recover(); p != nil {
		ex.failed(ctx, p, false)
	}
	if !ex.relayed && !ex.finished {
		ex.failed(ctx, "BUG: a request left its handler without being finished", true)
	}
}

// newRowID is 48 bits of Unix milliseconds and 80 random ones in hex. Rows of one
// moment lie side by side in a ledger's index, so that a commit of many changes
// few of its pages.
func newRowID(now time.Time) string {
	var b [16]byte
	if _, err := rand.Read(b[6:]); err != nil {
		panic("BUG: crypto/rand can't fail: " + err.Error())
	}
	ms := uint64(now.UnixMilli())
	for i := range 6 {
		b[i] = byte(ms >> (8 * (5 - i)))
	}
	return hex.EncodeToString(b[:])
}

// newID is 128 random bits in hex.
func newID() string {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic("BUG: crypto/rand can't fail: " + err.Error())
	}
	return hex.EncodeToString(b[:])
}
