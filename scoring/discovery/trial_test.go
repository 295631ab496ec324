package discovery

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicegate/sluice/scoring"
)

// A worker that comes back gets one request at a time until one goes well.
func TestTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPark(t, nil)
		p.feed.list(at("w1", "10.0.0.1"), at("w2", "10.0.0.2"))
		id, _ := p.c.ID("w1")
		eject := func() {
			t.Helper()
			for range 3 {
				p.c.ReportFailure(id, scoring.FaultTransport, "", errors.New("answer 500"))
			}
		}
		eject()
		p.states("w1=ejected", "w2=ready")
		pass(5600 * time.Millisecond)
		p.states("w1=trial", "w2=ready")
		on := func() (n int) {
			var held []*scoring.Reservation
			for range 40 {
				r, err := p.f.Pick(time.Now(), &scoring.Request{Model: "tiny", Pools: []string{"p"}, Estimate: 1000})
				if err != nil {
					t.Fatal(err)
				}
				held = append(held, r)
				if r.Worker().ID == id {
					n++
				}
			}
			for _, r := range held {
				r.Done(time.Now(), scoring.ClientGone)
			}
			return n
		}
		if n := on(); n > 1 {
			t.Errorf("%d requests at once on trial", n)
		}
		// One failure is enough now, and lasts longer.
		p.c.ReportFailure(id, scoring.FaultTransport, "", errors.New("answer 500"))
		p.states("w1=ejected", "w2=ready")
		if pause := time.Until(p.c.Snapshot()[0].EjectedUntil); pause < 9*time.Second || pause > 11*time.Second {
			t.Errorf("set aside for %v", pause)
		}
		pass(12 * time.Second)
		p.states("w1=trial", "w2=ready")
		p.c.ReportSuccess(id)
		p.states("w1=ready", "w2=ready")
		pass(time.Minute) // its slow start
		if n := on(); n < 10 {
			t.Errorf("%d of 40 requests after the trial", n)
		}

		// One that was down is tried in the same way; a new one is not.
		e := p.engine("http://10.0.0.1:8000")
		e.set(func(e *engine) { e.status["/health"] = 503 })
		pass(20 * time.Second)
		p.states("w1=down", "w2=ready")
		e.set(func(e *engine) { e.status["/health"] = 0 })
		pass(20 * time.Second)
		p.states("w1=trial", "w2=ready")
		p.c.ReportSuccess(id)
		p.states("w1=ready", "w2=ready")
	})
}

// When the last ready worker of a pool is lost, one that was set aside is
// better than none.
func TestRelief(t *testing.T) {
	f := func(name string, lose func(p *park)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := startPark(t, nil)
				p.feed.list(at("w1", "10.0.0.1"), at("w2", "10.0.0.2"))
				p.other.list(at("x1", "10.0.0.3"), at("x2", "10.0.0.4"))
				for _, name := range []string{"w1", "x1"} {
					id, _ := p.c.ID(name)
					for range 3 {
						p.c.ReportFailure(id, scoring.FaultTransport, "", errors.New("answer 500"))
					}
				}
				p.states("w1=ejected", "w2=ready", "x1=ejected", "x2=ready")
				lose(p)
				synctest.Wait()
				for _, s := range p.c.Snapshot() {
					switch {
					case s.Name == "w1" && (s.State != StateTrial || !s.EjectedUntil.IsZero()):
						t.Errorf("w1 is %+v", s)
					case s.Name == "x1" && s.State != StateEjected:
						t.Errorf("x1, of another pool, is %s", s.State)
					}
				}
				// On trial as it is, it takes what comes: there is nobody else.
				p.pick("w1")
				p.pick("w1")
			})
		})
	}
	f("down", func(p *park) {
		p.engine("http://10.0.0.2:8000").set(func(e *engine) { e.status["/health"] = 503 })
		pass(3500 * time.Millisecond)
	})
	f("removed", func(p *park) { p.feed.list(at("w1", "10.0.0.1")) })
	f("another model", func(p *park) {
		p.engine("http://10.0.0.2:8000").set(func(e *engine) {
			e.bodies["/v1/models"] = `{"data":[{"id":"other"}]}`
			e.bodies["/metrics"] = metricsText(0, 0, 1, 5000) // restarted
		})
		pass(1500 * time.Millisecond)
	})
}

// The last worker of a pool that fails request after request stays, but requests that can
// wait do, or all that do would run through it at the speed at which it fails.
func TestLastWorkerIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		c := start(t, f, []Worker{worker("w1")}, newEngine())
		id := c.Snapshot()[0].ID
		req := &scoring.Request{Model: "tiny", Pools: []string{"p"}, Estimate: 100}
		take := func() *scoring.Reservation {
			p, err := f.Prepare(time.Now(), req)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Release()
			r, _, err := f.Offer(time.Now(), p, scoring.Terms{Bound: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		fail := func() {
			t.Helper()
			r := take()
			if r == nil {
				t.Fatal("the worker is closed")
			}
			r.Done(time.Now(), scoring.WorkerFailed)
			c.ReportFailure(id, scoring.FaultTransport, "", errors.New("reset"))
		}
		for range 3 {
			fail()
		}
		for _, pause := range []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second} {
			if take() != nil {
				t.Fatalf("it takes requests at once, although it should be left alone for %v", pause)
			}
			time.Sleep(pause - time.Millisecond)
			if take() != nil {
				t.Fatalf("it was left alone for less than %v", pause)
			}
			if !c.Snapshot()[0].Ready {
				t.Fatal("the last worker is not ready")
			}
			time.Sleep(time.Millisecond)
			fail()
		}
		r, err := f.Pick(time.Now(), req)
		if err != nil {
			t.Fatalf("who can't wait is refused: %v", err)
		}
		r.FirstToken(time.Now())
		r.Done(time.Now(), scoring.Completed)
		c.ReportSuccess(id)
		for range 3 {
			fail()
		}
		if take() != nil {
			t.Error("it takes requests after three more failures")
		}
		time.Sleep(250 * time.Millisecond)
		fail()
	})
}
