package discovery

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicegate/sluice/scoring"
)

func TestAdapters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPark(t, nil)
		w1, w2 := at("w1", "10.0.0.1"), at("w2", "10.0.0.2")
		for _, w := range []*Worker{&w1, &w2} {
			w.Adapters = []Adapter{{Name: "tune", Served: "tune-v1"}, {Name: "style"}}
		}
		lists := func(url, entries string) {
			p.engine(url).set(func(e *engine) {
				e.bodies["/v1/models"] = `{"object":"list","data":[{"id":"tiny","root":"org/tiny","parent":null}` + entries + `]}`
			})
		}
		lists(w1.URL, `,{"id":"tune-v1","root":"/adapters/1","parent":"tiny"},{"id":"unknown","root":"/adapters/2","parent":"tiny"}`)
		lists(w2.URL, `,{"id":"style","root":"style","parent":null}`)
		p.feed.list(w1, w2)
		p.states("w1=ready", "w2=ready")
		has := func(name string, want ...string) {
			t.Helper()
			for _, s := range p.c.Snapshot() {
				if s.Name == name && !slices.Equal(s.Adapters, want) {
					t.Errorf("%s has the adapters %q, want %q", name, s.Adapters, want)
				}
			}
			for _, w := range p.f.Snapshot(time.Now()) {
				if w.Worker.Name == name && !slices.Equal(w.Adapters, want) {
					t.Errorf("the fleet knows %q of %s, want %q", w.Adapters, name, want)
				}
			}
		}
		// Only what is configured, and only what has a parent.
		has("w1", "tune")
		has("w2")
		for range 5 {
			r, err := p.f.Pick(time.Now(), &scoring.Request{Model: "tune", LoRA: "tune-v1", Pools: []string{"p"}, Estimate: 10})
			if err != nil || r.Worker().Name != "w1" {
				t.Fatalf("picked %v, %v", r, err)
			}
		}
		if _, err := p.f.Pick(time.Now(), &scoring.Request{Model: "style", Pools: []string{"p"}}); !errors.Is(err, scoring.ErrNoWorker) {
			t.Errorf("an adapter that nobody has: %v", err)
		}

		// They come and go while the worker stays as it is.
		lists(w1.URL, `,{"id":"style","root":"/adapters/3","parent":"tiny"}`)
		lists(w2.URL, `,{"id":"tune-v1","root":"/adapters/1","parent":"tiny"},{"id":"style","parent":"tiny"}`)
		pass(66 * time.Second)
		has("w1", "style")
		has("w2", "tune", "style")
		// A list that can't be had for a while changes nothing.
		p.engine(w1.URL).set(func(e *engine) { e.status["/v1/models"] = 500 })
		pass(3 * time.Minute)
		has("w1", "style")
		// A process that is gone has none.
		p.engine(w2.URL).set(func(e *engine) { e.status["/health"] = 500 })
		pass(10 * time.Second)
		has("w2")
		p.engine(w2.URL).set(func(e *engine) { e.status["/health"] = 0 })
		pass(10 * time.Second)
		has("w2", "tune", "style")
	})
}

// What a worker lists is bounded where it is kept.
func TestManyModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPark(t, nil)
		w := at("w1", "10.0.0.1")
		var b strings.Builder
		b.WriteString(`{"data":[{"id":"tiny"}`)
		for i := range 5000 {
			fmt.Fprintf(&b, `,{"id":"adapter-%d","parent":"tiny"}`, i)
		}
		b.WriteString(`]}`)
		p.engine(w.URL).set(func(e *engine) { e.bodies["/v1/models"] = b.String() })
		w.Adapters = []Adapter{{Name: "adapter-4999"}}
		p.feed.list(w)
		s := p.c.Snapshot()[0]
		if len(s.Models) != maxModels || !slices.Equal(s.Adapters, []string{"adapter-4999"}) || s.State != StateReady {
			t.Errorf("%d models kept, adapters %q, %s", len(s.Models), s.Adapters, s.State)
		}
	})
}

// TestContextOfWorkers: the fleet knows how long requests can be by what each worker lists
// for its model, as long as its process runs.
func TestContextOfWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := startPark(t, nil)
		w1, w2, w3 := at("w1", "10.0.0.1"), at("w2", "10.0.0.2"), at("w3", "10.0.0.3")
		w1.Adapters = []Adapter{{Name: "tune"}}
		lists := func(url, of string) {
			p.engine(url).set(func(e *engine) {
				e.bodies["/v1/models"] = `{"data":[{"id":"other","max_model_len":99},{"id":"tiny","max_model_len":` + of + `,"parent":null},{"id":"tune","max_model_len":null,"parent":"tiny"}]}`
			})
		}
		lists(w1.URL, "4096")
		lists(w2.URL, "8192")
		lists(w3.URL, "null")
		p.feed.list(w1, w2, w3)
		p.states("w1=ready", "w2=ready", "w3=ready")
		has := func(want ...int) {
			t.Helper()
			for i, s := range p.c.Snapshot() {
				if s.Context != want[i] {
					t.Errorf("%s has a context of %d, want %d", s.Name, s.Context, want[i])
				}
				worker := &scoring.Request{Model: "tiny", Pools: []string{"p"}, Only: s.ID}
				for length, fits := range map[int]bool{want[i]: true, want[i] + 1: want[i] == 0} {
					worker.Length = length
					if _, long := errors.AsType[*scoring.TooLong](p.f.Serves(worker)); long == fits {
						t.Errorf("the fleet says %v of %d tokens at %s", fits, length, s.Name)
					}
				}
			}
		}
		has(4096, 8192, 0)
		lists(w1.URL, "16384")
		pass(66 * time.Second)
		has(16384, 8192, 0)
		p.engine(w2.URL).set(func(e *engine) { e.status["/health"] = 500 })
		pass(10 * time.Second)
		has(16384, 0, 0)
	})
}
