package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicegate/sluice/scoring"
)

// feed is a Discoverer that says what it is told to.
type feed chan Update

func (f feed) Run(ctx context.Context, up chan<- Update) {
	for {
		select {
		case <-ctx.Done():
			return
		case u := <-f:
			send(ctx, up, u)
		}
	}
}

func (f feed) list(workers ...Worker) {
	f <- Update{Workers: workers}
	synctest.Wait()
}

func (f feed) fail(text string) {
	f <- Update{Err: errors.New(text)}
	synctest.Wait()
}

// park is a checker over dynamic lists in a synctest bubble, with one engine
// for each address.
type park struct {
	t     *testing.T
	f     *fleet
	c     *Checker
	feed  feed
	other feed // of pool q

	mu      sync.Mutex // protects what follows
	engines map[string]*engine
	names   []string // what OnName was told

	stop func() // ends Run, once
}

func (p *park) engine(url string) *engine {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.engines[url] == nil {
		p.engines[url] = newEngine()
	}
	return p.engines[url]
}

func (p *park) takeNames() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := p.names
	p.names = nil
	return names
}

func startPark(t *testing.T, static []Worker, change ...func(*Config)) *park {
	t.Helper()
	p := &park{t: t, f: newFleet(), feed: make(feed), other: make(feed), engines: make(map[string]*engine)}
	cfg := DefaultConfig()
	cfg.OnSources = p.f.sources
	cfg.OnName = func(name string, there bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.names = append(p.names, fmt.Sprintf("%s %v", name, there))
	}
	cfg.Transport = func(w Worker) http.RoundTripper { return p.engine(w.URL) }
	for _, f := range change {
		f(&cfg)
	}
	var err error
	p.c, err = New(static, p.f, slog.New(slog.DiscardHandler), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for pool, feed := range map[string]feed{"p": p.feed, "q": p.other} {
		if err := p.c.Follow(Source{Pool: pool, Kind: "file", MaxWorkers: 3, Discoverer: feed}); err != nil {
			t.Fatal(err)
		}
	}
	slices.SortFunc(p.c.sources, func(a, b *source) int { return strings.Compare(a.Pool, b.Pool) })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.c.Run(ctx) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
	t.Cleanup(p.stop)
	synctest.Wait()
	return p
}

// at describes a worker by its address alone.
func at(name, host string) Worker {
	return Worker{Name: name, Pool: "of the source", URL: "http://" + host + ":8000", Models: []string{"tiny"}, Events: EventsAuto}
}

// states lists the workers as name=state.
func (p *park) states(want ...string) {
	p.t.Helper()
	synctest.Wait()
	var got []string
	for _, s := range p.c.Snapshot() {
		got = append(got, s.Name+"="+string(s.State))
	}
	if !slices.Equal(got, want) {
		p.t.Fatalf("the workers are %q, want %q", got, want)
	}
}

func (p *park) pick(want string) *scoring.Reservation {
	p.t.Helper()
	r, err := p.f.Pick(time.Now(), &scoring.Request{Model: "tiny", Pools: []string{"p"}, Estimate: 100})
	if err != nil || r.Worker().Name != want {
		p.t.Fatalf("picked %v, %v, want %s", r, err, want)
	}
	return r
}

func TestFollowedList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPark(t, []Worker{worker("w0")})
		p.states("w0=ready")
		w1, w2 := at("w1", "10.0.0.1"), at("w2", "10.0.0.2")
		p.feed.list(w1, w2)
		p.states("w0=ready", "w1=ready", "w2=ready")
		s := p.c.Snapshot()[1]
		if s.Pool != "p" || s.Source != "file" || p.c.Snapshot()[0].Source != StaticSource {
			t.Errorf("%s is of pool %q from %q", s.Name, s.Pool, s.Source)
		}
		id1, _ := p.c.ID("w1")
		id2, _ := p.c.ID("w2")

		// The same list, in another order, changes nothing.
		before := p.c.Sources()[0]
		p.f.take()
		pass(time.Second)
		p.feed.list(w2, w1)
		wantLog(t, p.f)
		if src := p.c.Sources()[0]; src.Updates != 2 || !src.LastChange.Equal(before.LastChange) || src.LastUpdate.Equal(before.LastUpdate) ||
			src.Workers != 2 || src.Failures != 0 || src.Error != "" {
			t.Errorf("the source is %+v", src)
		}

		// A worker that is left out goes, subscriptions and all; the others stay.
		p.feed.list(w2)
		wantLog(t, p.f, noRanks)
		p.states("w0=ready", "w2=ready")
		if now, ok := p.c.ID("w2"); !ok || now != id2 {
			t.Errorf("w2 is now %d, was %d", now, id2)
		}

		// Added again, it is another worker.
		p.feed.list(w1, w2)
		if now, ok := p.c.ID("w1"); !ok || now == id1 {
			t.Errorf("w1 is now %d, was %d", now, id1)
		}
		// So is one whose description changes.
		moved := at("w2", "10.0.0.2")
		moved.Events = EventsNone
		p.feed.list(w1, moved)
		if now, ok := p.c.ID("w2"); !ok || now == id2 {
			t.Errorf("w2 is now %d, was %d", now, id2)
		}

		// An empty list is a decision.
		p.feed.list()
		p.states("w0=ready")
		if st := p.f.Stats(); st.Workers != 1 {
			t.Errorf("%d workers in the fleet", st.Workers)
		}
		there := make(map[string]bool)
		for _, line := range p.takeNames() {
			name, is, _ := strings.Cut(line, " ")
			if there[name] == (is == "true") {
				t.Errorf("%s was told twice", line)
			}
			there[name] = is == "true"
		}
		if want := map[string]bool{"w0": true, "w1": false, "w2": false}; !maps.Equal(there, want) {
			t.Errorf("names that are there: %v", there)
		}
	})
}

// A source that fails leaves the last list as it is, and says so.
func TestFailingSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPark(t, nil)
		p.feed.fail("no such name")
		p.states()
		p.feed.list(at("w1", "10.0.0.1"))
		p.f.take()
		for range 3 {
			p.feed.fail("no such name")
		}
		wantLog(t, p.f)
		p.states("w1=ready")
		src := p.c.Sources()[0]
		if src.Error != "no such name" || src.Failures != 4 || src.Updates != 1 || src.Workers != 1 {
			t.Errorf("the source is %+v", src)
		}
		p.feed.list(at("w1", "10.0.0.1"))
		if src := p.c.Sources()[0]; src.Error != "" || src.Updates != 2 {
			t.Errorf("the source is %+v", src)
		}
		wantLog(t, p.f)
	})
}

// A removed worker finishes its requests under its old id, while its successor
// at the same address starts cold.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPark(t, nil)
		w1 := at("w1", "10.0.0.1")
		p.feed.list(w1)
		old, _ := p.c.ID("w1")
		warm(t, p.f, old)
		r := p.pick("w1")
		p.feed.list()
		p.states("w1=draining")
		s := p.c.Snapshot()[0]
		if s.Ready || !strings.Contains(s.Reason, "removed") || time.Until(s.DrainingUntil) != 5*time.Minute || len(s.Sources) != 0 {
			t.Errorf("it is %+v", s)
		}
		if src := p.c.Sources()[0]; src.Workers != 0 || src.Draining != 1 {
			t.Errorf("the source is %+v", src)
		}
		if _, err := p.f.Pick(time.Now(), &scoring.Request{Model: "tiny", Pools: []string{"p"}}); !errors.Is(err, scoring.ErrNoWorker) {
			t.Errorf("pick: %v", err)
		}

		p.feed.list(w1)
		p.states("w1=ready", "w1=draining")
		again, _ := p.c.ID("w1")
		for _, w := range p.f.Snapshot(time.Now()) {
			if w.Worker.ID == again && (w.Views[0].GPU != 0 || w.Trained != 0) {
				t.Errorf("the successor starts with %+v", w.Views)
			}
		}
		if got := p.takeNames(); !slices.Equal(got, []string{"w1 true"}) {
			t.Errorf("names: %q", got)
		}
		// What becomes of the old one's requests is none of its successor's.
		for range 10 {
			p.c.ReportFailure(old, scoring.FaultTransport, "", errors.New("connection lost"))
		}
		p.c.ReportSuccess(old)
		p.c.CheckSoon(old)
		p.states("w1=ready", "w1=draining")

		pass(10 * time.Second)
		p.states("w1=ready", "w1=draining")
		r.FirstToken(time.Now())
		r.Done(time.Now(), scoring.Completed)
		pass(drainPoll)
		p.states("w1=ready")
		if all := p.f.Snapshot(time.Now()); len(all) != 1 || all[0].Worker.ID != again {
			t.Errorf("the fleet is %+v", all)
		}

		// A request that outlasts the drain goes on; only the worker is forgotten.
		r = p.pick("w1")
		p.feed.list()
		pass(5*time.Minute - time.Second)
		p.states("w1=draining")
		pass(2 * time.Second)
		p.states()
		if st := p.f.Stats(); st.InFlight != 1 {
			t.Errorf("%d in flight", st.InFlight)
		}
		r.Done(time.Now(), scoring.Completed)
		if st := p.f.Stats(); st.InFlight != 0 || st.Completed != 2 {
			t.Errorf("stats are %+v", st)
		}
		if got := p.takeNames(); !slices.Equal(got, []string{"w1 false"}) {
			t.Errorf("names: %q", got)
		}
	})
}

// warm puts a block into a worker's view.
func warm(t *testing.T, f *fleet, id scoring.WorkerID) {
	t.Helper()
	tokens := make([]uint32, 32)
	st := f.ApplyEvents(time.Now(), id, 0, []scoring.Event{{
		Kind: scoring.BlockStored, Hashes: []scoring.EngineHash{"h"}, Tokens: tokens, BlockSize: 32, Usable: 1,
	}})
	if st.Stored != 1 {
		t.Fatalf("%+v", st)
	}
}

func TestListInPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPark(t, []Worker{at("fixed", "10.0.9.9")})
		wantError := func(want string) {
			t.Helper()
			if got := p.c.Sources()[0].Error; !strings.Contains(got, want) {
				t.Errorf("the source says %q, want %q", got, want)
			}
		}
		// Names and addresses of others are theirs.
		p.feed.list(at("fixed", "10.0.0.1"), at("w1", "10.0.9.9"), at("w2", "10.0.0.2"), at("w2", "10.0.0.3"), at("w3", "10.0.0.2"))
		p.states("fixed=ready", "w2=ready")
		wantError(`"fixed": the name is taken by worker "fixed"`)
		wantError(`"w1": its address is that of worker "fixed"`)
		wantError(`"w2": the name is taken by another entry`)
		wantError(`"w3": its address is that of another entry`)
		p.other.list(at("w2", "10.0.0.7"))
		p.states("fixed=ready", "w2=ready")
		if src := p.c.Sources()[1]; !strings.Contains(src.Error, `worker "w2" of pool "p"`) || src.Failures != 1 || src.Updates != 1 {
			t.Errorf("the source is %+v", src)
		}
		p.other.list()
		p.feed.list(at("w2", "10.0.0.2"), Worker{Name: "w4", URL: "nonsense"})
		wantError("url")
		p.states("fixed=ready", "w2=ready")

		// With too many, those in use stay and the first others come.
		p.feed.list(at("a", "10.0.1.1"), at("b", "10.0.1.2"), at("c", "10.0.1.3"), at("w2", "10.0.0.2"))
		p.states("fixed=ready", "w2=ready", "a=ready", "b=ready")
		wantError("4 workers are more than the limit of 3: 1 are left out")
		p.feed.list(at("a", "10.0.1.1"), at("b", "10.0.1.2"), at("c", "10.0.1.3"))
		p.states("fixed=ready", "a=ready", "b=ready", "c=ready")
		wantError("")
	})
}

// A worker that moves to another list comes over when the first one lets go of
// it, in whichever order the two are written.
func TestWorkerMovesBetweenLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPark(t, nil)
		w := at("w1", "10.0.0.1")
		p.feed.list(w, at("w2", "10.0.0.2"))
		p.other.list(w)
		if src := p.c.Sources()[1]; !strings.Contains(src.Error, `"w1": the name is taken`) {
			t.Errorf("the source is %+v", src)
		}
		p.other.fail("no answer")
		p.feed.list(at("w2", "10.0.0.2"))
		p.states("w2=ready", "w1=ready")
		if s := p.c.Snapshot()[1]; s.Pool != "q" {
			t.Errorf("w1 is in pool %s", s.Pool)
		}
		if src := p.c.Sources()[1]; src.Error != "no answer" || src.Workers != 1 || src.Updates != 1 || src.Failures != 2 || src.LastChange.IsZero() {
			t.Errorf("the source is %+v", src)
		}
		p.other.list(w)
		if src := p.c.Sources()[1]; src.Error != "" || src.Updates != 2 {
			t.Errorf("the source is %+v", src)
		}
		// The other way round it is gone in between.
		p.other.list()
		p.states("w2=ready")
		p.feed.list(w, at("w2", "10.0.0.2"))
		p.states("w2=ready", "w1=ready")
	})
}

func TestFollowRefuses(t *testing.T) {
	c, err := New(nil, newFleet(), slog.New(slog.DiscardHandler), DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	good := Source{Pool: "p", Kind: "file", MaxWorkers: 1, Discoverer: make(feed)}
	for want, change := range map[string]func(*Source){
		"needs a pool": func(s *Source) { s.Pool = "" },
		"a kind":       func(s *Source) { s.Kind = "" },
		"a discoverer": func(s *Source) { s.Discoverer = nil },
		"at most 0":    func(s *Source) { s.MaxWorkers = 0 },
	} {
		s := good
		change(&s)
		if err := c.Follow(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if len(c.Sources()) != 0 {
		t.Error("a refused source is followed")
	}
}
