package simworker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
)

// Worker is a running simulated worker. All methods are safe for concurrent
// use; after Close or Kill the observers still answer.
type Worker struct {
	cfg Config
	tok Tokenizer

	ln  net.Listener
	srv *http.Server
	wg  sync.WaitGroup
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
	w := &Worker{cfg: cfg, tok: tok}
	ln, err := net.Listen("tcp", cfg.HTTPAddr)
	if err != nil {
		return nil, fmt.Errorf("cannot listen for HTTP: %w", err)
	}
	w.ln = ln
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	w.srv = &http.Server{Handler: mux}
	w.wg.Go(func() { _ = w.srv.Serve(ln) })
	return w, nil
}

// URL returns the base URL, such as http://127.0.0.1:41234.
func (w *Worker) URL() string { return "http://" + w.ln.Addr().String() }

// EventsEndpoint returns the address to subscribe to, such as
// tcp://127.0.0.1:41235, or "" for a worker without events.
func (w *Worker) EventsEndpoint() string { return "" }

// ReplayEndpoint returns the address that answers replays, or "".
func (w *Worker) ReplayEndpoint() string { return "" }

// Stats returns a snapshot.
func (w *Worker) Stats() Stats { return Stats{} }

// Requests returns the last requests received on any route, oldest first. The
// caller must not change headers and bodies.
func (w *Worker) Requests() []ReceivedRequest { return nil }

// WaitIdle returns nil once no request is open, running or waiting, or the
// context's error.
func (w *Worker) WaitIdle(ctx context.Context) error { return ctx.Err() }

// SetFault replaces the fault in force. Requests already hung or stalled by
// the old one go on.
func (w *Worker) SetFault(f Fault) {}

// SetEventFault replaces the faults of coming event batches.
func (w *Worker) SetEventFault(f EventFault) {}

// Close stops accepting, ends open requests with an engine error and waits for
// every goroutine. Further calls do nothing.
func (w *Worker) Close() error {
	err := w.srv.Close()
	w.wg.Wait()
	return err
}

// Kill ends the worker as a lost machine does: listeners and connections are
// reset, nothing is finished. It waits for every goroutine.
func (w *Worker) Kill() { _ = w.Close() }
