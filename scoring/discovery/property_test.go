package discovery

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicegate/sluice/scoring"
)

// life is a park that is done all sorts of things to.
type life struct {
	*rapid.T
	p *park

	mu   sync.Mutex // protects subs
	subs map[scoring.WorkerID]string

	desired map[string]Worker
	ids     map[scoring.WorkerID]string // every id there ever was
	held    []*scoring.Reservation
	starts  float64
}

const lives = 5 // workers

func (l *life) url(i int) string { return fmt.Sprintf("http://10.0.0.%d:8000", i) }

// list has the source send any list, and now and then the same again.
func (l *life) list() {
	if rapid.IntRange(0, 3).Draw(l.T, "other list") > 0 {
		clear(l.desired)
		for i := range lives {
			if rapid.Bool().Draw(l.T, "listed") {
				w := at(fmt.Sprintf("w%d", i), fmt.Sprintf("10.0.0.%d", i))
				w.Pool = "p"
				if rapid.IntRange(0, 9).Draw(l.T, "described anew") == 0 {
					w.Events = EventsNone
				}
				l.desired[w.Name] = w
			}
		}
	}
	l.p.feed.list(slices.Collect(maps.Values(l.desired))...)
}

func (l *life) engine(what string) *engine {
	return l.p.engine(l.url(rapid.IntRange(0, lives-1).Draw(l.T, what)))
}

func (l *life) act() {
	switch rapid.SampledFrom([]string{
		"list", "list", "source fails", "down", "up", "up", "restart", "wrong model", "request", "request", "finish", "finish", "eject", "eject", "eject", "warm", "pass", "pass",
	}).Draw(l.T, "act") {
	case "list":
		l.list()
	case "source fails":
		l.p.feed.fail("no answer")
	case "down":
		gone := rapid.Bool().Draw(l.T, "refused")
		l.engine("down").set(func(e *engine) {
			e.status["/health"] = 503
			if gone {
				e.err = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
			}
		})
	case "up":
		l.engine("up").set(func(e *engine) {
			e.status["/health"], e.err = 0, nil
			e.bodies["/v1/models"] = newEngine().bodies["/v1/models"]
		})
	case "restart":
		l.starts += 100
		l.engine("restarted").set(func(e *engine) { e.bodies["/metrics"] = metricsText(0, 0, 0, l.starts) })
	case "wrong model":
		l.engine("wrong").set(func(e *engine) { e.bodies["/v1/models"] = `{"data":[{"id":"other"}]}` })
	case "request":
		r, err := l.p.f.Pick(time.Now(), &scoring.Request{Model: "tiny", Pools: []string{"p"}, Estimate: 100})
		if err == nil {
			l.held = append(l.held, r)
		}
	case "finish":
		l.finish()
	case "eject":
		if id, ok := l.p.c.ID(fmt.Sprintf("w%d", rapid.IntRange(0, lives-1).Draw(l.T, "ejected"))); ok {
			for range 3 {
				l.p.c.ReportFailure(id, scoring.FaultTransport, "", errors.New("answer 500"))
			}
		}
	case "warm":
		for _, w := range l.p.f.Snapshot(time.Now()) {
			if w.Ready {
				l.p.f.ApplyEvents(time.Now(), w.Worker.ID, 0, []scoring.Event{{
					Kind: scoring.BlockStored, Hashes: []scoring.EngineHash{"h"}, Tokens: make([]uint32, 32), BlockSize: 32, Usable: 1,
				}})
			}
		}
	case "pass":
		pass(rapid.SampledFrom([]time.Duration{10 * time.Millisecond, time.Second, 4 * time.Second, 30 * time.Second}).Draw(l.T, "time"))
	}
	synctest.Wait()
}

// finish ends a request, well or not.
func (l *life) finish() {
	if len(l.held) == 0 {
		return
	}
	i := rapid.IntRange(0, len(l.held)-1).Draw(l.T, "request")
	r := l.held[i]
	l.held = slices.Delete(l.held, i, i+1)
	if rapid.Bool().Draw(l.T, "well") {
		r.FirstToken(time.Now())
		l.p.c.ReportSuccess(r.Worker().ID)
		r.Done(time.Now(), scoring.Completed)
		return
	}
	r.Done(time.Now(), scoring.WorkerFailed)
	l.p.c.ReportFailure(r.Worker().ID, scoring.FaultTransport, "", errors.New("connection lost"))
}

// check holds the fleet to the list.
func (l *life) check() {
	names := make(map[string]scoring.WorkerID)
	for _, w := range l.p.f.Snapshot(time.Now()) {
		id, name := w.Worker.ID, w.Worker.Name
		known, seen := l.ids[id]
		if seen && known != name {
			l.Fatalf("id %d was %s and is %s", id, known, name)
		}
		if !seen && (w.Views[0].GPU != 0 || w.Trained != 0 || w.InFlight != 0 || w.Picks != 0) {
			l.Fatalf("%s does not start cold: %+v", name, w)
		}
		l.ids[id] = name
		if w.Retired {
			if w.Ready || w.InFlight == 0 && time.Since(w.Added) > time.Hour {
				l.Fatalf("%s, which is retired, is %+v", name, w)
			}
			continue
		}
		if names[name] != 0 {
			l.Fatalf("%s is there twice", name)
		}
		names[name] = id
	}
	if !slices.Equal(slices.Sorted(maps.Keys(names)), slices.Sorted(maps.Keys(l.desired))) {
		l.Fatalf("the fleet is %v, the list %v", names, slices.Sorted(maps.Keys(l.desired)))
	}
	l.checkStates(names)
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, name := range l.subs {
		if names[name] != id {
			l.Fatalf("worker %d, once %s, is still subscribed to", id, name)
		}
	}
}

func (l *life) checkStates(names map[string]scoring.WorkerID) {
	usable, ejected := 0, 0
	for _, s := range l.p.c.Snapshot() {
		switch s.State {
		case StateReady, StateTrial:
			usable++
		case StateEjected:
			ejected++
		case StateDown, StateUnusable:
			l.mu.Lock()
			if l.subs[s.ID] != "" {
				l.Errorf("%s is %s and subscribed to", s.Name, s.State)
			}
			l.mu.Unlock()
			for _, w := range l.p.f.Snapshot(time.Now()) {
				if w.Worker.ID == s.ID && w.Views[0].GPU != 0 {
					l.Errorf("%s is %s and has a cache view", s.Name, s.State)
				}
			}
		case StateDraining:
			continue
		}
		if names[s.Name] != s.ID || s.Ready != (s.State == StateReady || s.State == StateTrial) {
			l.Errorf("the status of %s is %+v", s.Name, s)
		}
	}
	if usable == 0 && ejected > 0 {
		l.Errorf("%d workers are set aside, and none is left", ejected)
	}
}

// Whatever happens to lists, workers and requests, the fleet is what the last
// good list says, every worker that comes starts cold, none of what has gone is
// still subscribed to, and in the end nothing is left over.
func TestAnyLife(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		// rapid ends a run by a panic, which has to get out of the bubble.
		var end any
		synctest.Test(t, func(t *testing.T) {
			defer func() { end = recover() }()
			live(t, rt)
		})
		if end != nil {
			panic(end)
		}
	})
}

func live(t *testing.T, rt *rapid.T) {
	l := &life{
		T: rt, subs: make(map[scoring.WorkerID]string), desired: make(map[string]Worker), ids: make(map[scoring.WorkerID]string), starts: 2000,
	}
	l.p = startPark(t, nil, func(c *Config) {
		c.DrainTimeout = time.Minute
		c.OnSources = func(w scoring.WorkerInfo, sources []EventSource) {
			l.mu.Lock()
			defer l.mu.Unlock()
			delete(l.subs, w.ID)
			if len(sources) > 0 {
				l.subs[w.ID] = w.Name
			}
		}
	})
	defer l.p.stop()
	for _, s := range l.p.c.sources {
		s.MaxWorkers = lives
	}
	for range rapid.IntRange(1, 60).Draw(rt, "acts") {
		l.act()
		l.check()
	}
	l.end()
}

// end lets everything come to rest.
func (l *life) end() {
	for _, r := range l.held {
		r.Done(time.Now(), scoring.Completed)
	}
	pass(2 * drainPoll)
	l.check()
	if st := l.p.f.Stats(); st.InFlight != 0 || st.Workers != len(l.desired) || len(l.p.f.Snapshot(time.Now())) != len(l.desired) {
		l.Fatalf("in the end: %+v", st)
	}
	there := make(map[string]bool)
	for _, line := range l.p.takeNames() {
		name, is, _ := strings.Cut(line, " ")
		if there[name] == (is == "true") {
			l.Fatalf("%s was told twice", line)
		}
		there[name] = is == "true"
	}
	for name, is := range there {
		if _, listed := l.desired[name]; is != listed {
			l.Fatalf("%s is there: %v, listed: %v", name, is, listed)
		}
	}
	l.p.stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.subs) > 0 {
		l.Fatalf("still subscribed to %v", l.subs)
	}
}
