package discovery

import (
	"fmt"
	"time"

	"github.com/sluicegate/sluice/scoring"
)

// health is the verdict on one worker. It is pure: time is an argument.
type health struct {
	cfg *Config
	// spread returns a pause with jitter; nil leaves it as it is.
	spread func(time.Duration) time.Duration

	// Active checks.
	checked       bool
	up, wasUp     bool
	passes, fails int // in a row
	failure       string

	// What the worker says it serves: not empty means that it must not be
	// used, whatever its health.
	wrong string

	// Outcomes of requests.
	failures     int      // in a row, but for those of provoked
	provoked     provoked // since the last that went well
	level        int      // ejections in a row
	lastFailure  string
	ejected      bool
	ejectedUntil time.Time

	// trial says that it has come back and that no request has gone well since.
	trial bool
}

// pass takes a passed check and reports whether the worker came up by it.
func (h *health) pass() (cameUp bool) {
	first := !h.checked
	h.checked = true
	h.passes++
	h.fails = 0
	if h.up || !first && h.passes < h.cfg.HealthyAfter {
		return false
	}
	h.trial = h.trial || h.wasUp
	h.up, h.wasUp = true, true
	return true
}

// fail takes a failed check and reports whether the worker went down by it.
// gone says that nobody listens at its address, which needs no second opinion.
func (h *health) fail(reason string, gone bool) (wentDown bool) {
	h.checked = true
	h.passes = 0
	h.fails++
	h.failure = reason
	if !h.up || !gone && h.fails < h.cfg.UnhealthyAfter {
		return false
	}
	h.up = false
	return true
}

// requestFailed takes a failed request of a principal and reports whether the worker
// is to be set aside for it; the caller then calls eject, or not.
func (h *health) requestFailed(now time.Time, f scoring.Fault, principal, reason string) (enough bool) {
	if f.Provoked() {
		h.provoked.add(now, principal, h.cfg.EjectAfter)
	} else {
		h.failures++
	}
	h.lastFailure = reason
	return !h.ejected && h.failures+h.provoked.count(now) >= h.cfg.EjectAfter
}

// provokedWindow is how long a failure that a request can provoke is remembered.
const provokedWindow = time.Minute

// provoked are failures that a request can bring about at a worker that is well.
// They count once two principals have had them, and those of one never suffice.
type provoked struct {
	by    [2]string
	n     [2]int
	until time.Time // when they are forgotten
}

func (p *provoked) add(now time.Time, principal string, enough int) {
	if !now.Before(p.until) {
		*p = provoked{}
	}
	p.until = now.Add(provokedWindow)
	i := 0
	if p.n[0] > 0 && p.by[0] != principal {
		i = 1 // all others together are one
	}
	p.by[i] = principal
	p.n[i] = min(p.n[i]+1, max(enough-1, 1))
}

// count is how many count.
func (p *provoked) count(now time.Time) int {
	if p.n[1] == 0 || !now.Before(p.until) {
		return 0
	}
	return p.n[0] + p.n[1]
}

// requestDone takes a request that went well.
func (h *health) requestDone(now time.Time) {
	if h.ejected {
		// It was sent before the ejection and says little about now.
		return
	}
	h.failures, h.provoked, h.trial = 0, provoked{}, false
	if now.Sub(h.ejectedUntil) >= h.cfg.EjectBase {
		h.level = 0
	}
}

func (h *health) eject(now time.Time) {
	pause := h.cfg.EjectMax
	if h.level < 20 {
		pause = min(h.cfg.EjectBase<<h.level, h.cfg.EjectMax)
	}
	if h.spread != nil {
		pause = h.spread(pause)
	}
	h.level++
	h.ejected, h.ejectedUntil = true, now.Add(pause)
}

// readmit ends an ejection that is over.
func (h *health) readmit(now time.Time) {
	if !now.Before(h.ejectedUntil) {
		h.pardon()
	}
}

// pardon ends an ejection. The worker is on trial then, and the next failed
// request ejects it at once, and for longer.
func (h *health) pardon() {
	if h.ejected {
		h.ejected, h.trial = false, true
		h.failures, h.provoked = h.cfg.EjectAfter-1, provoked{}
	}
}

// forget drops what is known of the process that was there before.
func (h *health) forget() {
	h.trial = h.trial || h.ejected
	h.wrong, h.failures, h.provoked, h.level, h.ejected = "", 0, provoked{}, 0, false
}

// clean reports whether a request that goes well changes nothing.
func (h *health) clean() bool {
	return h.failures == 0 && h.provoked.n[0] == 0 && h.level == 0 && !h.trial
}

// state sums the verdict up in a word; see Status.State.
func (h *health) state() State {
	switch ready, _ := h.ready(); {
	case !h.checked:
		return StateNew
	case !h.up:
		return StateDown
	case h.wrong != "":
		return StateUnusable
	case h.ejected:
		return StateEjected
	case ready && h.trial:
		return StateTrial
	}
	return StateReady
}

// ready reports whether the worker may be picked, and why not.
func (h *health) ready() (bool, string) {
	switch {
	case !h.checked:
		return false, "not checked yet"
	case !h.up && h.fails == 0:
		return false, fmt.Sprintf("passed %d of %d checks after being down", h.passes, h.cfg.HealthyAfter)
	case !h.up:
		return false, h.failure
	case h.wrong != "":
		return false, h.wrong
	case h.ejected:
		return false, fmt.Sprintf("set aside until %s after failed requests, the last one: %s",
			h.ejectedUntil.UTC().Format(time.TimeOnly), h.lastFailure)
	case h.fails > 0:
		return true, fmt.Sprintf("failed %d of %d checks: %s", h.fails, h.cfg.UnhealthyAfter, h.failure)
	}
	return true, ""
}
