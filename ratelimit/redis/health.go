package redis

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicegate/sluice/ratelimit"
)

// State is how the store is, as far as requests are concerned.
type State string

const (
	// StateUp: requests ask it.
	StateUp State = "up"
	// StateSlow: it answers, but later than a request waits; requests do not ask it.
	StateSlow State = "slow"
	// StateDown: it does not answer, or has not yet.
	StateDown State = "down"
)

// failuresToSlow is how many requests in a row may wait in vain before none does any
// more until a report is answered in time.
const failuresToSlow = 5

const (
	modeDown int32 = iota
	modeSlow
	modeUp
)

// health follows whether the store answers. It begins down.
type health struct {
	mode     atomic.Int32
	failures atomic.Int32 // of requests, in a row

	mu    sync.Mutex
	since time.Time // of not being up
	err   string    // the last one, without secrets
	told  int32     // the mode that was logged; -1: none
	at    time.Time // when
}

// answered notes that a request had its answer.
func (h *health) answered() {
	if h.failures.Load() != 0 {
		h.failures.Store(0)
	}
}

// failed notes that a request has waited in vain.
func (h *health) failed(err error) {
	if h.failures.Add(1) >= failuresToSlow && h.mode.CompareAndSwap(modeUp, modeSlow) {
		h.note(err)
	}
}

// reported follows a report that was answered, within that time.
func (h *health) reported(took, patience time.Duration) {
	if took > patience {
		h.mode.Store(modeSlow)
		h.note(errLate)
		return
	}
	h.failures.Store(0)
	h.mode.Store(modeUp)
	h.note(nil)
}

// lost follows a report that was not answered.
func (h *health) lost(err error) {
	h.mode.Store(modeDown)
	h.note(err)
}

func (h *health) note(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		h.err, h.since = "", time.Time{}
		return
	}
	if h.since.IsZero() {
		h.since = time.Now()
	}
	h.err = err.Error()
}

// toTell reports whether the mode is worth a line in the log: a change, and changes
// between up and slow only now and then.
func (h *health) toTell() (mode int32, tell bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	mode = h.mode.Load()
	if mode == h.told || mode == modeSlow && h.told == modeUp && time.Since(h.at) < 10*time.Second {
		return mode, false
	}
	h.told, h.at = mode, time.Now()
	return mode, true
}

func (h *health) state() State {
	switch h.mode.Load() {
	case modeUp:
		return StateUp
	case modeSlow:
		return StateSlow
	}
	return StateDown
}

// unreachable is what to say of a claim that the store is not asked for; empty if it
// can be asked.
func (h *health) unreachable() ratelimit.StoreState {
	switch h.mode.Load() {
	case modeUp:
		return ""
	case modeSlow:
		return ratelimit.StoreSlow
	}
	return ratelimit.StoreDown
}
