package discovery

import (
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/scoring"
)

func newHealth(t *testing.T) *health {
	t.Helper()
	cfg := DefaultConfig()
	return &health{cfg: &cfg}
}

func (h *health) expect(t *testing.T, ready bool, reason string) {
	t.Helper()
	got, why := h.ready()
	if got != ready || !strings.Contains(why, reason) || reason == "" && why != "" {
		t.Fatalf("ready %v (%s), want %v (%s)", got, why, ready, reason)
	}
}

func TestHealthChecks(t *testing.T) {
	h := newHealth(t)
	h.expect(t, false, "not checked yet")
	if !h.pass() {
		t.Fatal("the first pass is enough")
	}
	h.expect(t, true, "")

	// Two failures of three are forgiven, and remembered until the next pass.
	for range 2 {
		if h.fail("slow", false) {
			t.Fatal("went down too early")
		}
	}
	h.expect(t, true, "failed 2 of 3 checks: slow")
	if h.pass() {
		t.Fatal("it was up")
	}
	h.expect(t, true, "")
	h.fail("slow", false)
	h.fail("slow", false)
	if !h.fail("slow", false) {
		t.Fatal("three in a row are enough")
	}
	h.expect(t, false, "slow")

	// It takes two passes to come back.
	if h.pass() {
		t.Fatal("came up too early")
	}
	h.expect(t, false, "passed 1 of 2 checks")
	h.fail("again", false)
	h.pass()
	if !h.pass() {
		t.Fatal("two in a row are enough")
	}
	h.expect(t, true, "")

	if !h.fail("refused", true) {
		t.Fatal("a refused connection is enough")
	}
	h.expect(t, false, "refused")
	if h.fail("refused", true) {
		t.Fatal("it was down")
	}
}

func TestHealthStartsDown(t *testing.T) {
	h := newHealth(t)
	h.fail("refused", true)
	h.expect(t, false, "refused")
	h.pass()
	h.expect(t, false, "passed 1 of 2")
	h.pass()
	h.expect(t, true, "")
	if h.trial {
		t.Error("one that was never up has not come back")
	}
	h.wrong = "serves another model"
	h.expect(t, false, "another model")
}

func TestHealthEjection(t *testing.T) {
	now := time.Unix(1000, 0)
	h := newHealth(t)
	h.pass()
	h.requestFailed(time.Unix(1000, 0), scoring.FaultTransport, "", "reset")
	h.requestFailed(time.Unix(1000, 0), scoring.FaultTransport, "", "reset")
	h.requestDone(now)
	h.requestFailed(time.Unix(1000, 0), scoring.FaultTransport, "", "reset")
	h.requestFailed(time.Unix(1000, 0), scoring.FaultTransport, "", "reset")
	if !h.requestFailed(time.Unix(1000, 0), scoring.FaultTransport, "", "reset by peer") {
		t.Fatal("three in a row are enough")
	}
	h.eject(now)
	h.expect(t, false, "set aside until 00:16:45 after failed requests, the last one: reset by peer")
	if h.requestFailed(time.Unix(1000, 0), scoring.FaultTransport, "", "reset") {
		t.Fatal("it is set aside already")
	}
	h.requestDone(now) // sent before
	h.readmit(now.Add(4 * time.Second))
	h.expect(t, false, "set aside")

	// The pause doubles while it goes on failing, to a limit.
	for i, want := range []time.Duration{5, 10, 20, 40, 80, 120, 120} {
		if i > 0 {
			if !h.requestFailed(time.Unix(1000, 0), scoring.FaultTransport, "", "reset") {
				t.Fatal("one failure is enough after a pause")
			}
			h.eject(now)
		}
		if got := h.ejectedUntil.Sub(now); got != want*time.Second {
			t.Errorf("pause %d is %v, want %v s", i, got, int64(want))
		}
		now = h.ejectedUntil
		h.readmit(now)
		h.expect(t, true, "")
	}

	// A success shortly after doesn't wipe the past, a later one does.
	h.requestDone(now)
	if h.failures != 0 || h.level == 0 {
		t.Errorf("failures %d level %d", h.failures, h.level)
	}
	h.requestDone(now.Add(time.Minute))
	if h.level != 0 {
		t.Errorf("level %d after a good minute", h.level)
	}
}

// One that comes back is on trial until a request has gone well.
func TestHealthTrial(t *testing.T) {
	now := time.Unix(1000, 0)
	h := newHealth(t)
	is := func(want State) {
		t.Helper()
		if got := h.state(); got != want {
			t.Fatalf("state %s, want %s", got, want)
		}
	}
	is(StateNew)
	h.pass()
	is(StateReady) // the first time there is nothing to prove
	for range 3 {
		h.requestFailed(time.Unix(1000, 0), scoring.FaultTransport, "", "reset")
	}
	h.spread = func(d time.Duration) time.Duration { return d + time.Second }
	h.eject(now)
	is(StateEjected)
	if !h.ejectedUntil.Equal(now.Add(6 * time.Second)) {
		t.Errorf("set aside until %v", h.ejectedUntil)
	}
	h.pardon()
	is(StateTrial)
	if h.clean() {
		t.Error("a success would change nothing")
	}
	h.requestDone(now)
	is(StateReady)
	h.fail("refused", true)
	is(StateDown)
	h.pass()
	is(StateDown)
	h.pass()
	is(StateTrial)
	h.wrong = "another model"
	is(StateUnusable)
	h.wrong = ""
	// Another process is forgiven the failures, and still has to prove itself.
	h.requestDone(now.Add(time.Hour))
	if !h.clean() {
		t.Error("something is left of the past")
	}
	h.eject(now)
	h.forget()
	is(StateTrial)
}
