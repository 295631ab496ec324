package discovery

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicegate/sluice/scoring"
)

// TestProvokedFaults: what a request can bring about at a worker that is well counts
// from two principals on, however often one brings it about.
func TestProvokedFaults(t *testing.T) {
	now := time.Unix(1000, 0)
	fresh := func() *health {
		h := newHealth(t)
		h.pass()
		return h
	}
	fail := func(h *health, at time.Time, principal string) bool {
		return h.requestFailed(at, scoring.FaultAnswer, principal, "answer 500")
	}

	h := fresh()
	for range 100 {
		if fail(h, now, "a") {
			t.Fatal("one principal is enough")
		}
	}
	if h.clean() {
		t.Error("a success would change nothing")
	}
	if !fail(h, now, "b") {
		t.Error("a second principal is not enough")
	}

	// A success in between forgets them.
	h = fresh()
	fail(h, now, "a")
	fail(h, now, "a")
	h.requestDone(now)
	if one, two, three := fail(h, now, "b"), fail(h, now, "b"), fail(h, now, "b"); one || two || three {
		t.Error("failures before a success count")
	}
	if !h.requestFailed(now, scoring.FaultAnswer, "c", "answer 500") {
		t.Error("two principals after a success are not enough")
	}

	// So does time.
	h = fresh()
	fail(h, now, "a")
	fail(h, now, "a")
	if fail(h, now.Add(provokedWindow), "b") {
		t.Error("failures out of the window count")
	}

	// They don't hold back what counts alone, and add to it once two had them.
	h = fresh()
	fail(h, now, "a")
	h.requestFailed(now, scoring.FaultTransport, "a", "reset")
	h.requestFailed(now, scoring.FaultTimeout, "a", "silent")
	if !h.requestFailed(now, scoring.FaultTransport, "a", "reset") {
		t.Error("three lost connections of one principal are not enough")
	}

	// A worker on trial is not put back by one principal's.
	h = fresh()
	h.eject(now)
	h.pardon()
	if one, two, three := fail(h, now, "a"), fail(h, now, "a"), fail(h, now, "b"); one || two || !three {
		t.Error("on trial it takes other failures than two principals'")
	}
}

// TestPoisonousRequests: a hundred requests of one key that the worker answers with
// 500 set no worker aside; two keys' do.
func TestPoisonousRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		c := start(t, f, []Worker{worker("w1"), worker("w2")}, newEngine(), newEngine())
		w1, w2 := c.Snapshot()[0].ID, c.Snapshot()[1].ID
		for range 100 {
			c.ReportFailure(w1, scoring.FaultAnswer, "acme/key:1", errors.New("answer 500"))
			c.ReportFailure(w2, scoring.FaultAnswer, "acme/key:1", errors.New("answer 500"))
		}
		for _, s := range c.Snapshot() {
			if !s.Ready || s.Ejections != 0 || s.Failures != 100 {
				t.Errorf("status is %+v", s)
			}
		}
		c.ReportFailure(w1, scoring.FaultAnswer, "beta/key:2", errors.New("answer 500"))
		if s := c.Snapshot()[0]; s.Ready || s.Ejections != 1 {
			t.Errorf("status is %+v", s)
		}
		c.ReportFailure(w2, 0, "beta/key:2", errors.New("not its fault"))
		if s := c.Snapshot()[1]; s.Failures != 100 {
			t.Errorf("no fault counts: %+v", s)
		}
	})
}

// TestChecksThatCouldNotBeMade: a process without descriptors keeps its verdict of
// every worker, and says so once.
func TestChecksThatCouldNotBeMade(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.EADDRNOTAVAIL} {
		t.Run(fmt.Sprint(errno), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, e := newFleet(), newEngine()
				c := start(t, f, []Worker{worker("w1")}, e)
				f.take()
				e.set(func(e *engine) {
					e.err = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", errno)}
				})
				before := e.count("/health")
				pass(20 * time.Second)
				if n := e.count("/health") - before; n < 20 {
					t.Errorf("%d checks while none can be made", n)
				}
				wantLog(t, f)
				if s := c.Snapshot()[0]; !s.Ready || !s.Healthy {
					t.Errorf("status is %+v", s)
				}
				// A worker that then really is gone is seen at once.
				e.set(func(e *engine) {
					e.err = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
				})
				pass(time.Second)
				if s := c.Snapshot()[0]; s.Ready {
					t.Errorf("status is %+v", s)
				}
			})
		})
	}
}
