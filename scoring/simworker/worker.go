package simworker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// Worker is a running simulated worker. All methods are safe for concurrent
// use; after Close or Kill the observers still answer.
type Worker struct {
	cfg         Config
	tok         Tokenizer
	log         *slog.Logger
	fingerprint string
	started     time.Time
	mux         map[string]map[string]handler

	core   *core
	faults *faults
	pub    *publisher // nil without events

	ln     *trackedListener
	srv    *http.Server
	cancel context.CancelFunc
	wg     sync.WaitGroup
	end    sync.Once
	endErr error

	mu       sync.Mutex // protects what follows
	received []ReceivedRequest
	seen     uint64
	open     int
	idle     chan struct{} // closed and replaced when open falls to 0
	closing  bool          // no handler may begin any more

	handlers sync.WaitGroup // grows only while closing is false
}

// Start listens, starts the worker's goroutines and returns once requests can
// be sent. The caller must call Close or Kill.
func Start(cfg Config, tok Tokenizer) (*Worker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if tok == nil || tok.VocabSize() < 1 {
		return nil, errors.New("simworker: a tokenizer with a vocabulary is required; NewByteTokenizer gives one")
	}
	eng, err := engine.New(engine.Config{
		BlockSize: cfg.BlockSize, Blocks: cfg.Blocks, MaxModelLen: cfg.MaxModelLen,
		MaxSeqs: cfg.MaxSeqs, BatchTokens: cfg.BatchTokens, OutputTokens: cfg.OutputTokens,
		Priority: cfg.PriorityScheduling,
		Vocab:    tok.VocabSize(), Timing: cfg.Timing, Seed: cfg.Seed,
	})
	if err != nil {
		return nil, err
	}
	w := &Worker{
		cfg: cfg, tok: tok, log: cfg.Log, started: time.Now(),
		faults: newFaults(), idle: make(chan struct{}),
	}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	digest := sha256.Sum256([]byte(cfg.Name + "\x00" + cfg.Model))
	w.fingerprint = "vllm-" + cfg.Version + "-" + hex.EncodeToString(digest[:4])
	w.mux = w.routes()
	if err := w.listen(); err != nil {
		return nil, err
	}
	w.core = newCore(eng, cfg.TimeScale, newMeters(), w.publish)
	w.run()
	return w, nil
}

// listen binds every socket, or none.
func (w *Worker) listen() error {
	if w.cfg.EventsAddr != "" {
		pub, err := newPublisher(&w.cfg, w.topic(), w.log)
		if err != nil {
			return err
		}
		w.pub = pub
	}
	ln, err := net.Listen("tcp", w.cfg.HTTPAddr)
	if err != nil {
		if w.pub != nil {
			w.pub.close(false)
		}
		return fmt.Errorf("cannot listen for HTTP: %w", err)
	}
	w.ln = &trackedListener{Listener: ln, conns: make(map[net.Conn]struct{})}
	return nil
}

// run starts the goroutines.
func (w *Worker) run() {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	w.wg.Go(func() { w.core.run(ctx) })
	if w.pub != nil {
		w.wg.Go(func() { w.pub.run(ctx) })
		w.wg.Go(w.pub.pub.run)
		if w.pub.router != nil {
			w.wg.Go(w.pub.router.run)
		}
	}
	w.srv = &http.Server{
		Handler: http.HandlerFunc(w.serveHTTP),
		// The engine's server closes connections that were idle for 5 s.
		IdleTimeout: 5 * time.Second,
		ErrorLog:    log.New(io.Discard, "", 0),
	}
	w.wg.Go(func() { _ = w.srv.Serve(w.ln) })
}

func (w *Worker) publish(at time.Time, events []engine.Event) {
	if w.pub != nil {
		w.pub.publish(at, events)
	}
}

func (w *Worker) topic() string {
	if w.cfg.NoTopic {
		return ""
	}
	return "kv@" + w.cfg.Name + "@" + w.cfg.Model
}

// Config returns the configuration that the worker was started with.
func (w *Worker) Config() Config { return w.cfg }

// URL returns the base URL, such as http://127.0.0.1:41234.
func (w *Worker) URL() string { return "http://" + w.ln.Addr().String() }

// EventsEndpoint returns the address to subscribe to, such as
// tcp://127.0.0.1:41235, or "" for a worker without events.
func (w *Worker) EventsEndpoint() string {
	if w.pub == nil {
		return ""
	}
	return "tcp://" + w.pub.eventsAddr().String()
}

// ReplayEndpoint returns the address that answers replays, or "".
func (w *Worker) ReplayEndpoint() string {
	if w.pub == nil || w.pub.router == nil {
		return ""
	}
	return "tcp://" + w.pub.replayAddr().String()
}

// advertised returns the endpoint to show: the configured one, or the bound
// port on any host.
func (w *Worker) advertised(configured string, bound net.Addr) string {
	if configured != "" {
		return configured
	}
	_, port, err := net.SplitHostPort(bound.String())
	if err != nil {
		panic("BUG: listener address without a port: " + err.Error())
	}
	return "tcp://*:" + port
}

// Stats returns a snapshot.
func (w *Worker) Stats() Stats {
	e := w.core.stats()
	s := Stats{
		Running: e.Running, Waiting: e.Waiting,
		Finished:       make(map[string]uint64, len(engine.Reasons)),
		Aborted:        e.Finished[engine.Abort],
		PromptComputed: e.Prompt - e.PromptCached, PromptCached: e.PromptCached,
		GenerationTokens: e.Generated, Preemptions: e.Preemptions,
		BlocksHeld: e.BlocksHeld, BlocksCached: e.BlocksCached, BlocksTotal: e.BlocksTotal,
		Steps: e.Steps,
	}
	for _, r := range engine.Reasons {
		s.Finished[r.String()] = e.Finished[r]
	}
	if w.pub != nil {
		s.Batches = w.pub.published()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s.Seen, s.Open = w.seen, w.open
	return s
}

// Requests returns the last requests received, oldest first, on all routes but
// /metrics and /health. The caller must not change headers and bodies.
func (w *Worker) Requests() []ReceivedRequest {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.received)
}

// WaitIdle returns nil once no generating request is open, or the context's
// error. A request that was sent but not yet read does not count as open.
func (w *Worker) WaitIdle(ctx context.Context) error {
	w.mu.Lock()
	open, idle := w.open, w.idle
	w.mu.Unlock()
	if open == 0 {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// SetFault replaces the fault in force. Requests that it hit already keep it,
// except that hung ones go on.
func (w *Worker) SetFault(f Fault) {
	w.core.setFault(f)
	w.faults.set(f)
}

// SetEventFault replaces the faults of coming event batches.
func (w *Worker) SetEventFault(f EventFault) {
	if w.pub != nil {
		w.pub.setFault(f)
	}
}

// ResetPrefixCache empties the prefix cache as POST /reset_prefix_cache does,
// and says whether it could.
func (w *Worker) ResetPrefixCache() bool { return w.core.reset() }

// closeTime bounds how long Close waits for clients to read what is left.
const closeTime = time.Second

// enter counts a handler; it returns false once the worker is closing.
func (w *Worker) enter() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closing {
		w.handlers.Add(1)
	}
	return !w.closing
}

func (w *Worker) refuseHandlers() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closing = true
}

// Close stops accepting, ends open requests with an engine error and waits for
// every goroutine. Further calls, and calls after Kill, return the same.
func (w *Worker) Close() error {
	w.end.Do(func() {
		w.refuseHandlers()
		w.cancel()
		close(w.faults.closed)
		if w.pub != nil {
			w.pub.close(false)
		}
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		if err := w.srv.Shutdown(ctx); err != nil {
			w.endErr = w.srv.Close()
		}
		w.handlers.Wait()
		w.wg.Wait()
	})
	return w.endErr
}

// Kill ends the worker as a lost machine does: listeners and connections are
// reset, nothing is finished. It waits for every goroutine.
func (w *Worker) Kill() {
	w.end.Do(func() {
		w.refuseHandlers()
		w.ln.reset()
		_ = w.srv.Close()
		if w.pub != nil {
			w.pub.close(true)
		}
		w.cancel()
		close(w.faults.closed)
		w.handlers.Wait()
		w.wg.Wait()
	})
}

// trackedListener knows its open connections, so that they can be reset.
type trackedListener struct {
	net.Listener

	mu    sync.Mutex // protects conns and dead
	conns map[net.Conn]struct{}
	dead  bool
}

// Accept implements net.Listener.
func (l *trackedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		resetOnClose(conn)
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	l.conns[conn] = struct{}{}
	return &trackedConn{Conn: conn, ln: l}, nil
}

// reset closes the listener and resets every connection.
func (l *trackedListener) reset() {
	_ = l.Listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
	for conn := range l.conns {
		resetOnClose(conn)
		_ = conn.Close()
	}
}

// trackedConn leaves its listener's list when closed.
type trackedConn struct {
	net.Conn
	ln *trackedListener
}

// Close implements net.Conn.
func (c *trackedConn) Close() error {
	c.ln.mu.Lock()
	delete(c.ln.conns, c.Conn)
	c.ln.mu.Unlock()
	return c.Conn.Close()
}
