package tokenize

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/sony/gobreaker/v2"
)

var (
	// ErrBusy tells that a worker has as many calls to answer as it may have.
	ErrBusy = errors.New("enough calls of the worker's /tokenize are under way")
	// ErrBroken tells that a worker's /tokenize failed often enough to be left
	// alone for now.
	ErrBroken = errors.New("the worker's /tokenize failed before and is left alone for now")
)

// errLeft marks a call that ended because its caller did, which says nothing
// about the worker.
type errLeft struct{ error }

func (e errLeft) Unwrap() error { return e.error }

// remoteWorker is what a Remote knows of one worker.
//
// The breaker is sony/gobreaker: small, without dependencies, and its half-open
// state admits exactly one call at a time.
type remoteWorker struct {
	breaker                                 *gobreaker.CircuitBreaker[struct{}]
	places                                  chan struct{} // one for each call under way
	answered, refused, failed, busy, broken atomic.Int64
}

// RemoteWorker is the state of one worker's /tokenize.
type RemoteWorker struct {
	// URL is the worker's address.
	URL string
	// Breaker is closed while the worker is asked, open while it is left alone,
	// half-open while one call tries whether it answers again.
	Breaker string
	// UnderWay counts the present Appends. Answered, Refused (with 400) and Failed
	// count past ones; Busy and Broken those that were not sent.
	UnderWay                                int
	Answered, Refused, Failed, Busy, Broken int64
}

// BreakerStates are the values of RemoteWorker.Breaker.
var BreakerStates = [...]string{"closed", "half-open", "open"}

// worker returns what is known of the worker at an address.
func (r *Remote) worker(address string) *remoteWorker {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.workers[address]
	if w == nil {
		w = &remoteWorker{
			breaker: gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
				Timeout:      r.opts.OpenFor,
				ReadyToTrip:  func(c gobreaker.Counts) bool { return int(c.ConsecutiveFailures) >= r.opts.OpenAfter },
				IsSuccessful: func(err error) bool { return err == nil || isRefusal(err) },
				IsExcluded:   func(err error) bool { _, left := errors.AsType[errLeft](err); return left },
			}),
			places: make(chan struct{}, r.opts.Parallel),
		}
		r.workers[address] = w
	}
	return w
}

// isRefusal tells that the worker answered, and that the body is at fault.
func isRefusal(err error) bool {
	status, ok := errors.AsType[*StatusError](err)
	return ok && status.Code == 400
}

// Keep forgets all workers but those at the given addresses.
func (r *Remote) Keep(addresses []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for address := range r.workers {
		if !slices.Contains(addresses, address) {
			delete(r.workers, address)
		}
	}
}

// Workers returns the state of every worker that was asked, by address.
func (r *Remote) Workers() []RemoteWorker {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]RemoteWorker, 0, len(r.workers))
	for address, w := range r.workers {
		out = append(out, RemoteWorker{
			URL: address, Breaker: w.breaker.State().String(), UnderWay: len(w.places),
			Answered: w.answered.Load(), Refused: w.refused.Load(), Failed: w.failed.Load(), Busy: w.busy.Load(), Broken: w.broken.Load(),
		})
	}
	slices.SortFunc(out, func(a, b RemoteWorker) int { return strings.Compare(a.URL, b.URL) })
	return out
}

// shut reports, and counts, that the worker is not to be asked now.
func (w *remoteWorker) shut() bool {
	if w.breaker.State() != gobreaker.StateOpen {
		return false
	}
	w.broken.Add(1)
	return true
}

// do makes calls if the worker may be asked now.
func (w *remoteWorker) do(ctx context.Context, calls func() error) error {
	select {
	case w.places <- struct{}{}:
		defer func() { <-w.places }()
	default:
		w.busy.Add(1)
		return ErrBusy
	}
	_, err := w.breaker.Execute(func() (struct{}, error) {
		err := calls()
		if err != nil && ctx.Err() != nil {
			err = errLeft{err}
		}
		return struct{}{}, err
	})
	switch {
	case err == nil:
		w.answered.Add(1)
	case errors.Is(err, gobreaker.ErrOpenState), errors.Is(err, gobreaker.ErrTooManyRequests):
		w.broken.Add(1)
		return ErrBroken
	case isRefusal(err):
		w.refused.Add(1)
	case ctx.Err() == nil:
		w.failed.Add(1)
	}
	return err
}
