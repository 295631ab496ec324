package discovery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicegate/sluice/scoring"
)

// engine is a worker's HTTP side as a RoundTripper: no network, so that time
// can be simulated.
type engine struct {
	mu     sync.Mutex // protects what follows
	bodies map[string]string
	status map[string]int
	err    error // every call fails with it
	hang   map[string]bool
	calls  map[string]int
	keys   map[string]bool // Authorization headers seen
}

func newEngine() *engine {
	return &engine{
		bodies: map[string]string{
			"/health":           "",
			"/v1/models":        `{"object":"list","data":[{"id":"tiny","object":"model"}]}`,
			"/version":          `{"version":"0.32.0"}`,
			"/kv_event_sources": `{"0":{"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"},"1":{"endpoint":"tcp://*:5559"}}`,
			"/metrics":          metricsText(1, 2, 100, 1000),
		},
		status: map[string]int{}, hang: map[string]bool{}, calls: map[string]int{}, keys: map[string]bool{},
	}
}

func metricsText(running, waiting, tokens int, start float64) string {
	return fmt.Sprintf("vllm:num_requests_running 0\nvllm:num_requests_running %d\nvllm:num_requests_waiting %d\n"+
		"vllm:kv_cache_usage_perc 0.5\nvllm:prompt_tokens_total %d\nprocess_start_time_seconds %v\n"+
		"vllm:cache_config_info{block_size=\"32\",num_gpu_blocks=\"512\"} 1\n", running, waiting, tokens, start)
}

func (e *engine) set(f func(*engine)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f(e)
}

// count returns the calls of a path so far.
func (e *engine) count(path string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.calls[path]
}

func (e *engine) RoundTrip(req *http.Request) (*http.Response, error) {
	e.mu.Lock()
	path := req.URL.Path
	e.calls[path]++
	e.keys[req.Header.Get("Authorization")] = true
	body, ok := e.bodies[path]
	status, err, hang := e.status[path], e.err, e.hang[path]
	e.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if hang {
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	if status == 0 {
		status = http.StatusOK
		if !ok {
			status = http.StatusNotFound
		}
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Request: req, Header: http.Header{}}, nil
}

// fleet is a real fleet that also writes down what it is told.
type fleet struct {
	*scoring.Fleet
	mu  sync.Mutex // protects log
	log []string
}

func newFleet() *fleet { return &fleet{Fleet: scoring.NewFleet(scoring.DefaultConfig())} }

func (f *fleet) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, fmt.Sprintf(format, args...))
}

// take returns the log since the last call.
func (f *fleet) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	log := f.log
	f.log = nil
	return log
}

func (f *fleet) SetReady(now time.Time, id scoring.WorkerID, ready bool, reason string) {
	f.note("ready %v %s", ready, reason)
	f.Fleet.SetReady(now, id, ready, reason)
}

func (f *fleet) SetCapacity(id scoring.WorkerID, blockSize, blocks int) {
	f.note("capacity %d %d", blockSize, blocks)
	f.Fleet.SetCapacity(id, blockSize, blocks)
}

func (f *fleet) ClearView(id scoring.WorkerID, rank int) {
	f.note("clear %d", rank)
	f.Fleet.ClearView(id, rank)
}

func (f *fleet) sources(_ scoring.WorkerInfo, sources []EventSource) {
	f.note("sources %v", sources)
}

// start runs a checker over engines, one per worker, in a synctest bubble.
func start(t *testing.T, f *fleet, workers []Worker, engines ...*engine) *Checker {
	t.Helper()
	cfg := DefaultConfig()
	cfg.OnSources = f.sources
	cfg.Transport = func(w Worker) http.RoundTripper {
		i := slices.IndexFunc(workers, func(o Worker) bool { return o.Name == w.Name })
		return engines[i]
	}
	c, err := New(workers, f, slog.New(slog.DiscardHandler), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
	synctest.Wait()
	return c
}

func worker(name string) Worker {
	return Worker{Name: name, Pool: "p", URL: "http://10.0.0.5:8000", Models: []string{"tiny"}, Events: EventsAuto}
}

func wantLog(t *testing.T, f *fleet, want ...string) {
	t.Helper()
	synctest.Wait()
	got := f.take()
	if !slices.Equal(got, want) {
		t.Fatalf("the fleet was told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

const (
	twoRanks = "sources [{0 tcp://10.0.0.5:5557 tcp://10.0.0.5:5558 false  } {1 tcp://10.0.0.5:5559  false  }]"
	noRanks  = "sources []"
)

func pass(d time.Duration) {
	time.Sleep(d) // the bubble's clock
	synctest.Wait()
}

func TestCheckerComesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, e := newFleet(), newEngine()
		w := worker("w1")
		w.APIKey = "sk-worker"
		c := start(t, f, []Worker{w}, e)
		wantLog(t, f, twoRanks, "ready true ", "capacity 32 512")
		s := c.Snapshot()[0]
		if !s.Ready || !s.Healthy || s.Version != "0.32.0" || !slices.Equal(s.Models, []string{"tiny"}) || len(s.Sources) != 2 ||
			s.Engine.Running != 1 || s.Engine.Waiting != 2 || s.EngineErr != "" || s.LastPass.IsZero() {
			t.Errorf("status is %+v", s)
		}
		snap := f.Snapshot(time.Now())[0]
		if !snap.Ready || snap.Load != (scoring.Load{Running: 1, Waiting: 2, KVUsage: 0.5, Ranks: 2}) {
			t.Errorf("the fleet has %+v", snap)
		}
		e.set(func(e *engine) {
			if len(e.keys) != 1 || !e.keys["Bearer sk-worker"] {
				t.Errorf("keys sent: %v", e.keys)
			}
		})
		id, ok := c.ID("w1")
		if !ok || id != s.ID || snap.Worker.ID != id {
			t.Errorf("id %d %v", id, ok)
		}
		if _, ok := c.ID("w2"); ok {
			t.Error("an unknown name has an id")
		}

		// A quiet minute changes nothing; metrics are read about every second,
		// the rest looked at again once.
		calls := e.count("/metrics")
		pass(61 * time.Second)
		wantLog(t, f)
		if n := e.count("/metrics") - calls; n < 50 || n > 70 {
			t.Errorf("%d readings in a minute", n)
		}
		if n := e.count("/health"); n < 27 || n > 36 {
			t.Errorf("%d checks in a minute", n)
		}
		pass(5 * time.Second)
		if n := e.count("/v1/models"); n != 2 {
			t.Errorf("%d looks at the models", n)
		}
	})
}

func TestCheckerStops(t *testing.T) {
	f, e := newFleet(), newEngine()
	synctest.Test(t, func(t *testing.T) {
		start(t, f, []Worker{worker("w1")}, e)
		f.take()
	})
	// Run has returned.
	if got := f.take(); !slices.Equal(got, []string{noRanks}) {
		t.Errorf("the fleet was told %q at the end", got)
	}
}

func TestCheckerWorkerDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, e := newFleet(), newEngine()
		c := start(t, f, []Worker{worker("w1")}, e)
		f.take()
		refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
		e.set(func(e *engine) { e.err = refused })
		// A failed request has it checked at once.
		c.ReportFailure(c.Snapshot()[0].ID, scoring.FaultTransport, "", errors.New("connection refused"))
		pass(minCheckGap)
		// Not ready first, then the subscriptions end, then the view goes.
		wantLog(t, f, "ready false cannot call /health: dial tcp: connect: connection refused", noRanks, "clear 0", "clear 1")
		pass(10 * time.Second)
		wantLog(t, f)
		if s := c.Snapshot()[0]; s.Ready || s.Healthy || s.Failures != 1 || len(s.Sources) != 0 {
			t.Errorf("status is %+v", s)
		}

		e.set(func(e *engine) { e.err = nil })
		pass(3 * time.Second)
		wantLog(t, f, "ready false passed 1 of 2 checks after being down", twoRanks, "ready true ")
	})
}

func TestCheckerWorkerHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, e := newFleet(), newEngine()
		start(t, f, []Worker{worker("w1")}, e)
		f.take()
		e.set(func(e *engine) { e.hang["/health"] = true })
		pass(12 * time.Second)
		const why = "/health did not answer within 2s"
		wantLog(t, f,
			"ready true failed 1 of 3 checks: "+why, "ready true failed 2 of 3 checks: "+why,
			"ready false "+why, noRanks, "clear 0", "clear 1")

		// One that is only slow for a moment keeps its view.
		e.set(func(e *engine) { e.hang["/health"] = false })
		pass(5 * time.Second)
		f.take()
		e.set(func(e *engine) { e.status["/health"] = 503 })
		for before := e.count("/health"); e.count("/health") == before; {
			pass(10 * time.Millisecond)
		}
		e.set(func(e *engine) { e.status["/health"] = 0 })
		pass(3 * time.Second)
		wantLog(t, f, "ready true failed 1 of 3 checks: /health answers 503", "ready true ")
	})
}

func TestCheckerWorkerRestarts(t *testing.T) {
	f := func(name, metrics string) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, e := newFleet(), newEngine()
				c := start(t, f, []Worker{worker("w1")}, e)
				f.take()
				e.set(func(e *engine) { e.bodies["/metrics"] = metrics })
				pass(2 * time.Second)
				wantLog(t, f, noRanks, "clear 0", "clear 1", twoRanks)
				if s := c.Snapshot()[0]; s.Restarts != 1 || !s.Ready {
					t.Errorf("status is %+v", s)
				}
				pass(10 * time.Second)
				wantLog(t, f)
			})
		})
	}
	f("another start time", metricsText(0, 0, 500, 2000))
	f("counters went back", metricsText(0, 0, 10, 1000))
}

func TestCheckerModels(t *testing.T) {
	f := func(name, want string, change func(*Worker, *engine)) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, e := newFleet(), newEngine()
				w := worker("w1")
				w.APIKey = "sk-secret"
				change(&w, e)
				c := start(t, f, []Worker{w}, e)
				s := c.Snapshot()[0]
				if s.Ready != (want == "") || !strings.Contains(s.Reason, want) || strings.Contains(s.Reason, "secret") {
					t.Fatalf("ready %v (%s), want %q", s.Ready, s.Reason, want)
				}
				if want == "" {
					return
				}
				if len(s.Sources) != 0 {
					t.Errorf("events of a worker that can't be used: %v", s.Sources)
				}
				// Put right, it is ready at the next check.
				fresh := newEngine()
				e.set(func(e *engine) { e.bodies, e.status, e.hang = fresh.bodies, fresh.status, fresh.hang })
				pass(3 * time.Second)
				if s := c.Snapshot()[0]; !s.Ready || len(s.Sources) != 2 {
					t.Errorf("status is %+v", s)
				}
			})
		})
	}
	set := func(path, body string) func(*Worker, *engine) {
		return func(_ *Worker, e *engine) { e.bodies[path] = body }
	}
	f("another model", `does not serve the configured model "tiny": it serves "big", "bigger"`,
		set("/v1/models", `{"data":[{"id":"big"},{"id":"bigger"}]}`))
	f("many models", `and 3 more`, set("/v1/models", `{"data":[{"id":"1"},{"id":"2"},{"id":"3"},{"id":"4"},{"id":"5"},{"id":"6"},{"id":"7"},{"id":"8"}]}`))
	f("no model", `it serves none`, set("/v1/models", `{"data":[]}`))
	f("no JSON", `answers no JSON list`, set("/v1/models", `<html>`))
	f("a giant", `more than 1048576 bytes`, set("/v1/models", strings.Repeat(" ", maxSmallBody+1)))
	f("key refused", "refuses our API key: /v1/models answers 401", func(_ *Worker, e *engine) { e.status["/v1/models"] = 401 })
	f("server error", "cannot list its models: /v1/models answers 500", func(_ *Worker, e *engine) { e.status["/v1/models"] = 500 })
	f("redirect", "/v1/models answers 302", func(_ *Worker, e *engine) { e.status["/v1/models"] = 302 })
	f("upstream name", "", func(w *Worker, e *engine) {
		w.Models, w.Serves = []string{"public"}, []string{"tiny"}
	})
	f("aliases need not be served", "", func(w *Worker, e *engine) { w.Models = []string{"tiny", "alias"} })
	f("an adapter need not be loaded", "", func(w *Worker, _ *engine) { w.Adapters = []Adapter{{Name: "tune"}} })
}

// What can't be read for a moment is kept.
func TestCheckerKeepsWhatItKnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, e := newFleet(), newEngine()
		c := start(t, f, []Worker{worker("w1")}, e)
		f.take()
		e.set(func(e *engine) {
			for _, path := range []string{"/v1/models", "/version", "/kv_event_sources", "/metrics"} {
				e.status[path] = 500
			}
		})
		pass(3 * time.Minute)
		wantLog(t, f)
		s := c.Snapshot()[0]
		if !s.Ready || s.Version != "0.32.0" || len(s.Sources) != 2 || s.EngineErr != "/metrics answers 500" || s.Engine.Running != 1 {
			t.Errorf("status is %+v", s)
		}
	})
}

func TestCheckerSources(t *testing.T) {
	f := func(name, wantReason string, want int, change func(*Worker, *engine)) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEngine()
				w := worker("w1")
				change(&w, e)
				s := start(t, newFleet(), []Worker{w}, e).Snapshot()[0]
				if !s.Ready || len(s.Sources) != want || !strings.Contains(s.SourcesReason, wantReason) || wantReason == "" && s.SourcesReason != "" {
					t.Errorf("ready %v, sources %v (%s), want %d (%s)", s.Ready, s.Sources, s.SourcesReason, want, wantReason)
				}
			})
		})
	}
	f("older engine", "configure its endpoints: /kv_event_sources answers 404", 0, func(_ *Worker, e *engine) { delete(e.bodies, "/kv_event_sources") })
	f("no publisher", "publishes no cache events", 0, func(_ *Worker, e *engine) { e.bodies["/kv_event_sources"] = "{}" })
	f("none wanted", "no cache events are configured", 0, func(w *Worker, _ *engine) { w.Events = EventsNone })
	f("unset", "no cache events are configured", 0, func(w *Worker, _ *engine) { w.Events = "" })
	f("configured", "", 3, func(w *Worker, e *engine) {
		w.Events, w.Replay, w.Ranks = "tcp://h:1000", "tcp://h:2000", 3
		delete(e.bodies, "/kv_event_sources")
	})
	f("out of reach", "own machine", 0, func(_ *Worker, e *engine) {
		e.bodies["/kv_event_sources"] = `{"0":{"endpoint":"tcp://127.0.0.1:5557"}}`
	})
	f("connects", `rank 0 connects its publisher to "tcp://10.9.9.9:6001" instead of listening: set the worker's eventsBind`, 0, func(_ *Worker, e *engine) {
		e.bodies["/kv_event_sources"] = `{"0":{"endpoint":"tcp://10.9.9.9:6001"}}`
	})
	f("trouble", "answers 500", 0, func(_ *Worker, e *engine) { e.status["/kv_event_sources"] = 500 })
}

// A change of the endpoints is announced, and so is their end.
func TestCheckerSourcesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, e := newFleet(), newEngine()
		start(t, f, []Worker{worker("w1")}, e)
		f.take()
		e.set(func(e *engine) { e.bodies["/kv_event_sources"] = `{"0":{"endpoint":"tcp://*:7000"}}` })
		pass(65 * time.Second)
		wantLog(t, f, "sources [{0 tcp://10.0.0.5:7000  false  }]")
		e.set(func(e *engine) { e.bodies["/kv_event_sources"] = `{}` })
		pass(65 * time.Second)
		wantLog(t, f, noRanks)
	})
}

func TestCheckerMetricsTrouble(t *testing.T) {
	f := func(want string, change func(*engine)) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			e := newEngine()
			change(e)
			s := start(t, newFleet(), []Worker{worker("w1")}, e).Snapshot()[0]
			if !s.Ready || !strings.Contains(s.EngineErr, want) {
				t.Errorf("ready %v, %q, want %q", s.Ready, s.EngineErr, want)
			}
		})
	}
	f("/metrics answers 404", func(e *engine) { delete(e.bodies, "/metrics") })
	f("none of vLLM's series", func(e *engine) { e.bodies["/metrics"] = "up 1\n" })
	f("more than", func(e *engine) { e.bodies["/metrics"] = strings.Repeat("#", maxMetricsBody+1) })
}

func TestCheckerEjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		c := start(t, f, []Worker{worker("w1"), worker("w2")}, newEngine(), newEngine())
		f.take()
		w1, w2 := c.Snapshot()[0].ID, c.Snapshot()[1].ID
		fail := func(id scoring.WorkerID, n int) {
			for range n {
				c.ReportFailure(id, scoring.FaultTransport, "", errors.New("answer 500"))
			}
		}
		fail(w1, 2)
		c.ReportSuccess(w1)
		fail(w1, 2)
		wantLog(t, f)
		fail(w1, 1)
		s := c.Snapshot()[0]
		if pause := time.Until(s.EjectedUntil); pause < 4500*time.Millisecond || pause > 5500*time.Millisecond {
			t.Errorf("set aside for %v", pause)
		}
		until := s.EjectedUntil.UTC().Format(time.TimeOnly)
		wantLog(t, f, "ready false set aside until "+until+" after failed requests, the last one: answer 500")
		if s.State != StateEjected {
			t.Errorf("state %s", s.State)
		}

		// The last one of a pool stays, whatever it does.
		fail(w2, 10)
		wantLog(t, f)
		if s := c.Snapshot()[1]; !s.Ready || s.Failures != 10 || s.Ejections != 0 {
			t.Errorf("status is %+v", s)
		}

		pass(time.Until(s.EjectedUntil) + time.Millisecond)
		wantLog(t, f, "ready true ")
		if s := c.Snapshot()[0]; !s.EjectedUntil.IsZero() || s.Ejections != 1 || s.State != StateTrial {
			t.Errorf("status is %+v", s)
		}
		// With another one to take over, it goes at the next failure.
		fail(w2, 1)
		if s := c.Snapshot()[1]; s.Ready || s.Ejections != 1 {
			t.Errorf("status is %+v", s)
		}
		c.ReportFailure(999, scoring.FaultTransport, "", errors.New("x"))
		c.ReportFailure(w1, scoring.FaultTransport, "", nil)
		c.ReportSuccess(999)
	})
}

func TestCheckSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, e := newFleet(), newEngine()
		c := start(t, f, []Worker{worker("w1")}, e)
		before := e.count("/health")
		c.CheckSoon(c.Snapshot()[0].ID)
		c.CheckSoon(999)
		pass(minCheckGap)
		if n := e.count("/health") - before; n != 1 {
			t.Errorf("%d checks, want 1", n)
		}
		if s := c.Snapshot()[0]; !s.Ready || s.Failures != 0 {
			t.Errorf("status is %+v", s)
		}
	})
}

// Requests that fail by the thousand don't become checks by the thousand.
func TestCheckerBoundsChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, e := newFleet(), newEngine()
		c := start(t, f, []Worker{worker("w1")}, e)
		before := e.count("/health")
		for range 1000 {
			c.ReportFailure(c.Snapshot()[0].ID, scoring.FaultTransport, "", errors.New("answer 500"))
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		if n := e.count("/health") - before; n < 4 || n > 6 {
			t.Errorf("%d checks in a second of failures", n)
		}
	})
}

func TestNewRefuses(t *testing.T) {
	f := func(want string, workers []Worker, change func(*Config)) {
		t.Helper()
		cfg := DefaultConfig()
		change(&cfg)
		if _, err := New(workers, newFleet(), slog.New(slog.DiscardHandler), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	keep := func(*Config) {}
	f(`"w1": the name is taken`, []Worker{worker("w1"), worker("w1")}, keep)
	f(`models is empty`, []Worker{{Name: "w1", URL: "http://h"}}, keep)
	f("interval is 0s", nil, func(c *Config) { c.Interval = 0 })
	f("thresholds", nil, func(c *Config) { c.EjectAfter = 0 })
	bad := []Worker{{Name: "a"}, {Name: "b"}}
	_, err := New(bad, newFleet(), slog.New(slog.DiscardHandler), DefaultConfig())
	if err == nil || !strings.Contains(err.Error(), `"a"`) || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("not all workers are named: %v", err)
	}
}
