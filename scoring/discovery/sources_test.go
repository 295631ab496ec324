package discovery

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestParseSources(t *testing.T) {
	// As recorded from vLLM 0.32.0.
	const recorded = `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5617","replay_endpoint":"tcp://*:5618","buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv@w1@tiny"}}`
	lookup := func(host string) []netip.Addr {
		if host == "w1.example" {
			return []netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("fd00::5")}
		}
		return nil
	}
	f := func(body, host string, want ...EventSource) {
		t.Helper()
		got, err := parseSources([]byte(body), host, lookup)
		for i := range got {
			got[i].Hint = ""
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s at %s: got %+v, %v, want %+v", body, host, got, err, want)
		}
	}
	f(recorded, "10.0.0.5", EventSource{Rank: 0, Endpoint: "tcp://10.0.0.5:5617", Replay: "tcp://10.0.0.5:5618"})
	f(recorded, "w1.example", EventSource{Rank: 0, Endpoint: "tcp://w1.example:5617", Replay: "tcp://w1.example:5618"})
	f(recorded, "fd00::5", EventSource{Rank: 0, Endpoint: "tcp://[fd00::5]:5617", Replay: "tcp://[fd00::5]:5618"})
	f(`{"1":{"endpoint":"tcp://*:6"},"0":{"endpoint":"tcp://*:5","replay_endpoint":null}}`, "h",
		EventSource{Rank: 0, Endpoint: "tcp://h:5"}, EventSource{Rank: 1, Endpoint: "tcp://h:6"})
	f(`{"0":{"endpoint":"tcp://0.0.0.0:5","replay_endpoint":""}}`, "h", EventSource{Endpoint: "tcp://h:5"})
	f(`{"0":{"endpoint":"tcp://[::]:5"}}`, "h", EventSource{Endpoint: "tcp://h:5"})
	f(`{"0":{"endpoint":"tcp://:::5"}}`, "h", EventSource{Endpoint: "tcp://h:5"})
	// A worker that took a free port reports its own address.
	f(`{"0":{"endpoint":"tcp://10.0.0.5:5"}}`, "10.0.0.5", EventSource{Endpoint: "tcp://10.0.0.5:5"})
	f(`{"0":{"endpoint":"tcp://10.0.0.5:5"}}`, "w1.example", EventSource{Endpoint: "tcp://10.0.0.5:5"})
	f(`{"0":{"endpoint":"tcp://w1.example:5"}}`, "10.0.0.5", EventSource{Endpoint: "tcp://w1.example:5"})
	f(`{"0":{"endpoint":"tcp://[fd00:0:0:0:0:0:0:5]:5"}}`, "w1.example", EventSource{Endpoint: "tcp://[fd00:0:0:0:0:0:0:5]:5"})
	// An IPv6 address with "::" in it is bound, whosever it is.
	f(`{"0":{"endpoint":"tcp://[fd00::9]:5"}}`, "h", EventSource{Endpoint: "tcp://[fd00::9]:5"})
	// Replay endpoints are bound, whatever their form.
	f(`{"0":{"endpoint":"tcp://*:5","replay_endpoint":"tcp://10.9.9.9:6"}}`, "h", EventSource{Endpoint: "tcp://h:5", Replay: "tcp://10.9.9.9:6"})
	// One rank is the only one of this worker, whatever its number.
	f(`{"300":{"endpoint":"tcp://*:5"}}`, "h", EventSource{Endpoint: "tcp://h:5"})
	f(`{"0":{"endpoint":"tcp://127.0.0.1:5"}}`, "localhost", EventSource{Endpoint: "tcp://127.0.0.1:5"})
	f(`{"0":{"endpoint":"ipc:///run/kv"}}`, "127.0.0.1", EventSource{Endpoint: "ipc:///run/kv"})

	// One that may be bound or connected is dialled, and its failure explained.
	hint := func(body, want string) {
		t.Helper()
		got, err := parseSources([]byte(body), "10.0.0.5", lookup)
		if err != nil || len(got) != 1 || want == "" && got[0].Hint != "" || !strings.Contains(got[0].Hint, want) {
			t.Errorf("%s: got %+v, %v, want the hint %q", body, got, err, want)
		}
	}
	hint(`{"0":{"endpoint":"tcp://*:5"}}`, "")
	hint(`{"0":{"endpoint":"tcp://0.0.0.0:5"}}`, "")
	hint(`{"0":{"endpoint":"tcp://10.0.0.5:5"}}`, `started with the event endpoint "tcp://10.0.0.5:5" connects to it; then set the worker's eventsBind`)

	bad := func(body, want string) {
		t.Helper()
		got, err := parseSources([]byte(body), "h", lookup)
		if err == nil || got != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %+v, %v, want %q", body, got, err, want)
		}
	}
	bad(`[]`, "/kv_event_sources")
	bad(`{`, "/kv_event_sources")
	bad(`{"x":{"endpoint":"tcp://*:5"}}`, `"x" is no rank`)
	bad(`{"-1":{"endpoint":"tcp://*:5"}}`, `"-1" is no rank`)
	bad(`{"00":{"endpoint":"tcp://*:5"}}`, `"00" is no rank`)
	bad(`{"0":{"endpoint":"tcp://*:5"},"256":{"endpoint":"tcp://*:6"}}`, "rank 256 is beyond 255")
	bad(`{"0":{"endpoint":"tcp://10.9.9.9:5","replay_endpoint":"tcp://*:6"}}`,
		`rank 0 connects its publisher to "tcp://10.9.9.9:5" instead of listening: set the worker's eventsBind to where it reaches this gateway, as in tcp://*:5 and its replay to "tcp://h:6"; or, if 10.9.9.9 is the worker itself, set its events to "tcp://10.9.9.9:5"`)
	bad(`{"0":{"endpoint":"tcp://gateway:5"}}`, "eventsBind")
	bad(`{"0":{"endpoint":"tcp://*:0"}}`, "no usable port")
	bad(`{"0":{"endpoint":"tcp://*"}}`, "no port")
	bad(`{"0":{"endpoint":"5557"}}`, "no endpoint")
	bad(`{"0":{"endpoint":"inproc://kv"}}`, "inproc")
	bad(`{"0":{"endpoint":"ipc:///run/kv"}}`, "own machine")
	bad(`{"0":{"endpoint":"tcp://127.0.0.1:5"}}`, "own machine")
	bad(`{"0":{"endpoint":"tcp://*:5","replay_endpoint":"tcp://localhost:6"}}`, "replays")
	bad(`{"0":{"publisher":"kafka","endpoint":"tcp://*:5"}}`, "kafka")
	for _, none := range []string{`{}`, `{"0":{"enable_kv_cache_events":false,"endpoint":"tcp://*:5"}}`, `{"0":{"publisher":"null","endpoint":"tcp://*:5"}}`, `{"0":{}}`} {
		if _, err := parseSources([]byte(none), "h", lookup); !errors.Is(err, errNoEvents) {
			t.Errorf("%s: %v, want errNoEvents", none, err)
		}
	}
}

func TestWorkerValidate(t *testing.T) {
	good := Worker{Name: "w1", Pool: "p", URL: "http://10.0.0.5:8000", Models: []string{"m"}}
	f := func(want string, change func(*Worker)) {
		t.Helper()
		w := good
		change(&w)
		err := w.Validate()
		if want == "" {
			if err != nil {
				t.Errorf("%+v: %v", w, err)
			}
			return
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", w, err, want)
		}
	}
	f("", func(*Worker) {})
	f("", func(w *Worker) { w.Events = EventsAuto })
	f("", func(w *Worker) { w.Events, w.Replay, w.Ranks = "tcp://h:5557", "tcp://h:5600", 4 })
	f("", func(w *Worker) { w.Events, w.Bind = "tcp://*:5557", true })
	f("no name", func(w *Worker) { w.Name = "" })
	f(`"w1": url`, func(w *Worker) { w.URL = "10.0.0.5:8000" })
	f("url", func(w *Worker) { w.URL = "ftp://h" })
	f("own setting", func(w *Worker) { w.URL = "http://u:secret@h" })
	f("models", func(w *Worker) { w.Models = nil })
	f("ranks", func(w *Worker) { w.Ranks = -1 })
	f("both or neither", func(w *Worker) { w.Replay = "tcp://h:1" })
	f("bind", func(w *Worker) { w.Events, w.Bind = EventsAuto, true })
	f("", func(w *Worker) { w.Events, w.Bind, w.From = "tcp://*:5557", true, "10.0.0.0/8" })
	f("from is set without bind", func(w *Worker) { w.Events, w.From = "tcp://h:5557", "10.0.0.0/8" })
	f("events", func(w *Worker) { w.Events = "h:5557" })
	f("outside 1 to 65535", func(w *Worker) { w.Events, w.Ranks = "tcp://h:65534", 3 })
	f("count the ranks", func(w *Worker) { w.Events, w.Ranks = "ipc:///run/kv", 2 })
	f("replay", func(w *Worker) { w.Events, w.Replay = "tcp://h:1", "x" })
	if err := (&Worker{Name: "w", URL: "http://u:secret@h", Models: []string{"m"}}).Validate(); strings.Contains(err.Error(), "secret") {
		t.Errorf("the error shows a password: %v", err)
	}
	w := good
	w.Events, w.Replay, w.Ranks = "tcp://h:5557", "tcp://h:5600", 2
	got, err := w.configuredSources()
	want := []EventSource{{Endpoint: "tcp://h:5557", Replay: "tcp://h:5600"}, {Rank: 1, Endpoint: "tcp://h:5558", Replay: "tcp://h:5601"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	w.Events, w.Bind = "tcp://*:6001", true
	got, err = w.configuredSources()
	want = []EventSource{
		{Endpoint: "tcp://*:6001", Replay: "tcp://h:5600", Bind: true, From: "10.0.0.5"},
		{Rank: 1, Endpoint: "tcp://*:6002", Replay: "tcp://h:5601", Bind: true, From: "10.0.0.5"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

// FuzzParseSources: whatever a worker answers, each source that comes out can be
// used as it stands, and nothing of the answer decides how much memory is taken.
func FuzzParseSources(f *testing.F) {
	f.Add([]byte(`{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5617","replay_endpoint":"tcp://*:5618"}}`), "10.0.0.5")
	f.Add([]byte(`{"1":{"endpoint":"tcp://:::5"},"0":{"endpoint":"ipc:///run/kv"},"7":{"endpoint":"tcp://[fd00::9]:1"}}`), "localhost")
	f.Add([]byte(`{"0":{"endpoint":"tcp://10.9.9.9:5","publisher":null}}`), "fd00::5")
	lookup := func(string) []netip.Addr { return nil }
	f.Fuzz(func(t *testing.T, body []byte, host string) {
		if len(body) > maxSmallBody {
			return
		}
		sources, err := parseSources(body, host, lookup)
		if err != nil && (sources != nil || len(err.Error()) > 4096) {
			t.Fatalf("%d sources with an error of %d bytes", len(sources), len(err.Error()))
		}
		if err == nil && len(sources) == 0 || len(sources) > maxRanks {
			t.Fatalf("%d sources without an error", len(sources))
		}
		for i, s := range sources {
			if s.Rank < 0 || s.Rank >= maxRanks || i > 0 && s.Rank <= sources[i-1].Rank || s.Bind {
				t.Fatalf("source %d is %+v", i, s)
			}
			for _, e := range []string{s.Endpoint, s.Replay} {
				if strings.Contains(e, "*") && !strings.Contains(host, "*") && strings.HasPrefix(e, "tcp://*") {
					t.Fatalf("%q has a wildcard", e)
				}
			}
		}
	})
}
