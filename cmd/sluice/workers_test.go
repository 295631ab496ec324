package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/scoring/discovery"
	"github.com/sluicegate/sluice/scoring/simworker"
)

// writeList puts a list of the demo's workers in the place of a file.
func writeList(t *testing.T, path string, d *demo, names ...string) {
	t.Helper()
	var list []map[string]string
	for _, n := range names {
		list = append(list, map[string]string{"name": n, "url": d.workers[n].URL()})
	}
	text, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	swapFile(t, path, string(text))
}

func swapFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// workerStates lists the gateway's workers as name=state.
func workerStates(a *app) string {
	var all []string
	for _, s := range a.checker.Snapshot() {
		all = append(all, s.Name+"="+string(s.State))
	}
	return strings.Join(all, " ")
}

// TestWorkersFromFile takes a pool's workers from a file that changes under a
// running stream: the stream goes on to its end, nothing new comes to its
// worker, and that worker starts cold when it is listed again.
func TestWorkersFromFile(t *testing.T) {
	var path string
	d, a := startStack(t, func(cfg *Config) {
		path = filepath.Join(filepath.Dir(cfg.Tenants.File), "workers.json")
		p := &cfg.Pools[0]
		if p.Name != "general" || len(p.Workers) != 2 {
			t.Fatalf("the demo's first pool is %+v", p)
		}
		text, err := json.Marshal([]map[string]string{
			{"name": p.Workers[0].Name, "url": p.Workers[0].URL}, {"name": p.Workers[1].Name, "url": p.Workers[1].URL},
		})
		if err != nil {
			t.Fatal(err)
		}
		swapFile(t, path, string(text))
		p.Workers, p.WorkersFrom.File = nil, path
	})
	says := func(lines ...string) {
		t.Helper()
		for _, line := range lines {
			soon(t, "the metrics to say "+line, stackPatience, func() bool { return strings.Contains(metricsText(t, a), line+"\n") })
		}
	}
	says(`sluice_discovery_workers{pool="general"} 2`, `sluice_discovery_failing{pool="general"} 0`)

	client := gatewaytest.Dial(t, a.public.Addr().String())
	client.Send("POST", "/v1/chat/completions",
		`{"model":"demo-chat","stream":true,"ignore_eos":true,"max_tokens":150,"messages":[{"role":"user","content":"a long story, please"}]}`,
		"Authorization: Bearer "+d.keys["globex"])
	events := gatewaytest.NewEventReader(client.Head().Body)
	if _, err := events.Next(); err != nil {
		t.Fatal(err)
	}
	leaving, staying := "general-1", "general-2"
	if d.workers[staying].Stats().Open > 0 {
		leaving, staying = staying, leaving
	}
	old, _ := a.checker.ID(leaving)
	d.workers[leaving].SetFault(simworker.Fault{Stall: -1}) // else the stream may have ended before anybody looks
	writeList(t, path, d, staying)
	soon(t, leaving+" to drain", stackPatience, func() bool { return strings.Contains(workerStates(a), leaving+"=draining") })
	if text := metricsText(t, a); strings.Contains(text, `sluice_worker_ready{pool="general",worker="`+leaving) {
		t.Error("a draining worker has series")
	}
	page, err := json.Marshal(a.debugWorkers())
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		`"source":"file","state":"draining"`, `"draining_until":"`, `"source":"static","state":"ready"`,
		`"lists":[{"pool":"general","kind":"file","workers":1,"draining":1,"updates":2,"failures":0,`,
	} {
		if !strings.Contains(string(page), part) {
			t.Errorf("/debug/workers lacks %s: %s", part, page)
		}
	}
	tour := newTour(d, a, io.Discard)
	for i := range 4 {
		got, err := tour.ask(t.Context(), "acme", user(fmt.Sprint("while it drains ", i)))
		if err != nil || got.status != http.StatusOK || got.worker() == leaving {
			t.Fatalf("%v %+v", err, got)
		}
	}
	// It is listed again before its stream has ended.
	writeList(t, path, d, "general-1", "general-2")
	soon(t, leaving+" to be back", stackPatience, func() bool { return strings.Contains(workerStates(a), leaving+"=ready") })
	if again, _ := a.checker.ID(leaving); again == old {
		t.Error("it has the id it had before")
	}
	d.workers[leaving].SetFault(simworker.Fault{})
	n := 1
	for ; ; n++ {
		if _, err := events.Next(); err != nil {
			break
		}
	}
	if n < 150 {
		t.Errorf("the stream had %d events, want all of its 150 tokens", n)
	}
	soon(t, "the old one to be gone", stackPatience, func() bool { return !strings.Contains(workerStates(a), "draining") })
	got := rows(t, a)
	if len(got) != 5 || got[0].Worker == "" {
		t.Fatalf("%d rows: %+v", len(got), got)
	}

	// A broken list changes nothing and is named.
	swapFile(t, path, `[{"name":"general-1","url":"nonsense"}]`)
	says(`sluice_discovery_failing{pool="general"} 1`, `sluice_discovery_workers{pool="general"} 2`, `sluice_degraded{part="discovery",reason="failing"} 1`)
	if st := a.checker.Sources()[0]; !strings.Contains(st.Error, "workers.json:1:28: [0].url:") {
		t.Errorf("the source says %q", st.Error)
	}
	swapFile(t, path, "")
	soon(t, "the empty file to be refused", stackPatience, func() bool { return strings.Contains(a.checker.Sources()[0].Error, "write []") })
	says(`sluice_discovery_workers{pool="general"} 2`)

	// A worker that has gone for good takes its series along.
	writeList(t, path, d, staying)
	says(`sluice_discovery_failing{pool="general"} 0`, `sluice_discovery_workers{pool="general"} 1`)
	soon(t, "its series to go", stackPatience, func() bool { return !strings.Contains(metricsText(t, a), leaving) })
	swapFile(t, path, "[]")
	says(`sluice_discovery_workers{pool="general"} 0`)
	if all := workerStates(a); all != "restricted-1=ready" {
		t.Errorf("the workers are %s", all)
	}
}

// startDNS answers every question with SRV records of ports on localhost.
func startDNS(t *testing.T, ports func() []string) (address string) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	t.Cleanup(func() {
		conn.Close()
		done.Wait()
	})
	done.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var q dnsmessage.Message
			if q.Unpack(buf[:n]) != nil || len(q.Questions) != 1 {
				continue
			}
			m := dnsmessage.Message{Header: dnsmessage.Header{ID: q.ID, Response: true, RecursionAvailable: true}, Questions: q.Questions}
			for _, p := range ports() {
				port, err := strconv.ParseUint(p, 10, 16)
				if err != nil {
					panic(err)
				}
				m.Answers = append(m.Answers, dnsmessage.Resource{
					Header: dnsmessage.ResourceHeader{Name: q.Questions[0].Name, Type: dnsmessage.TypeSRV, Class: dnsmessage.ClassINET},
					Body:   &dnsmessage.SRVResource{Port: uint16(port), Target: dnsmessage.MustNewName("localhost.")},
				})
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	})
	return conn.LocalAddr().String()
}

// TestWorkersFromDNS takes a pool's workers from SRV records.
func TestWorkersFromDNS(t *testing.T) {
	var mu sync.Mutex // protects ports
	var ports []string
	server := startDNS(t, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(ports)
	})
	d, a := startStack(t, func(cfg *Config) {
		mu.Lock()
		defer mu.Unlock()
		p := &cfg.Pools[0]
		for _, w := range p.Workers {
			u, err := url.Parse(w.URL)
			if err != nil {
				t.Fatal(err)
			}
			ports = append(ports, u.Port())
		}
		p.Workers = nil
		dns := &p.WorkersFrom.DNS
		dns.Name, dns.Type, dns.Server, dns.Interval, dns.RemoveAfter = "workers.test.", "srv", server, 20*time.Millisecond, 2
	})
	names := func() (all []string) {
		for _, s := range a.checker.Snapshot() {
			if s.Pool == "general" && s.State == discovery.StateReady {
				all = append(all, s.Name)
			}
		}
		slices.Sort(all)
		return all
	}
	mu.Lock()
	want := []string{"localhost-" + ports[0], "localhost-" + ports[1]}
	slices.Sort(want)
	gone := "localhost-" + ports[1]
	mu.Unlock()
	if got := names(); !slices.Equal(got, want) {
		t.Fatalf("the workers are %q, want %q", got, want)
	}
	got, err := newTour(d, a, io.Discard).ask(t.Context(), "acme", user("hello"))
	if err != nil || got.status != http.StatusOK || !slices.Contains(want, got.worker()) {
		t.Fatalf("%v %+v", err, got)
	}
	// An answer without records is not believed, one without a worker is.
	mu.Lock()
	all := ports
	ports = nil
	mu.Unlock()
	soon(t, "the source to fail", stackPatience, func() bool { return a.checker.Sources()[0].Error != "" })
	if got := names(); !slices.Equal(got, want) {
		t.Fatalf("the workers are %q, want %q", got, want)
	}
	mu.Lock()
	ports = all[:1]
	mu.Unlock()
	soon(t, "a worker to go", stackPatience, func() bool { return len(names()) == 1 && !slices.Contains(names(), gone) })
	soon(t, "its series to go", stackPatience, func() bool { return !strings.Contains(metricsText(t, a), gone) })
}

// TestAdapterIsRouted: a LoRA adapter that one worker has loaded, under another
// name than clients use, is served by that worker, and its blocks are found.
func TestAdapterIsRouted(t *testing.T) {
	tok := simworker.NewByteTokenizer()
	cfg := simworker.DefaultConfig()
	cfg.Name, cfg.Model, cfg.TimeScale, cfg.LoRAs, cfg.MaxModelLen = "tuned", demoModel, 0.1, []string{"tune-v1"}, demoContext
	cfg.EventsAddr, cfg.ReplayAddr = "127.0.0.1:0", "127.0.0.1:0"
	w, err := simworker.Start(cfg, tok)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	d, a := startStack(t, func(cfg *Config) {
		cfg.Models[0].Tokenizer = ""
		cfg.Scoring.SpeculativeTTL = 2 * time.Second
		tune := cfg.Models[0]
		tune.Name, tune.Upstream, tune.Aliases = "tune", "tune-v1", nil
		cfg.Models = append(cfg.Models, tune)
		p := &cfg.Pools[0]
		p.Adapters = []string{"tune"}
		p.Workers = append(p.Workers, WorkerConfig{Name: "tuned", URL: w.URL(), Events: EventsAuto})
	})
	soon(t, "the adapter to be known", stackPatience, func() bool {
		return strings.Contains(metricsText(t, a), `sluice_worker_adapters{pool="general",worker="tuned"} 1`+"\n")
	})
	body := `{"model":"tune","max_tokens":4,"messages":[{"role":"user","content":"` + words(1, 300) + `"}]}`
	ask := func() (cached int64) {
		before := a.fleet.Stats().CachedTokens
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.baseURL()+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+d.keys["acme"])
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("x-sluice-worker") != "tuned" {
			t.Fatalf("%d by %q, %v: %s", resp.StatusCode, resp.Header.Get("x-sluice-worker"), err, answer)
		}
		return a.fleet.Stats().CachedTokens - before
	}
	if cached := ask(); cached != 0 {
		t.Errorf("the first request has %d cached tokens", cached)
	}
	// What the pick expected is forgotten, so that only the worker's events count.
	soon(t, "expectations to end", stackPatience, func() bool {
		if r, err := a.fleet.Pick(time.Now(), &scoring.Request{Model: demoModel, Pools: []string{"general"}, Estimate: 1}); err == nil {
			r.Done(time.Now(), scoring.NotSent)
		}
		return a.fleet.Stats().Speculative == 0
	})
	if cached := ask(); cached == 0 {
		t.Error("the second equal request has no cached tokens")
	}
}

// TestWorkerNames: a name that has left takes its series along, and late counts
// don't bring them back.
func TestWorkerNames(t *testing.T) {
	n := newWorkerNames()
	counts := map[string]int{}
	n.onGone(func(name string) { delete(counts, name) })
	count := func(name string) { n.with(name, func(label string) { counts[label]++ }) }
	n.set("w1", true)
	n.set("w2", true)
	count("w1")
	count("w2")
	n.set("w1", false)
	count("w1")
	count("w2")
	if len(counts) != 2 || counts["w2"] != 2 || counts[removedWorker] != 1 {
		t.Errorf("got %v", counts)
	}
	n.set("w1", true)
	count("w1")
	if counts["w1"] != 1 {
		t.Errorf("got %v", counts)
	}
}

// FuzzParseWorkers: no input makes the decoder panic, and every list that is
// accepted can be used as it is.
func FuzzParseWorkers(f *testing.F) {
	files, err := filepath.Glob("testdata/config/lists/*")
	if err != nil || len(files) == 0 {
		f.Fatalf("no lists: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("[]"))
	f.Add([]byte(`[{"name":"a","url":"http://h","eventsBind":"tcp://*:1","ranks":3}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := parseWorkers("workers.yaml", data, 10)
		if err != nil {
			if list != nil || !strings.HasPrefix(err.Error(), "workers.yaml:") {
				t.Errorf("got %v and the error %q", list, err)
			}
			return
		}
		if list == nil || len(list) > 10 {
			t.Errorf("accepted %d workers", len(list))
		}
		for _, w := range describeWorkers(discovery.Worker{Pool: "p", Models: []string{"m"}}, list) {
			if err := w.Validate(); err != nil {
				t.Errorf("accepted %+v: %v", w, err)
			}
		}
	})
}

// TestContextOverTheWholeStack: a prompt that no engine has room for is refused by what the
// engines tell of themselves, although the configuration claims more, and reaches none.
func TestContextOverTheWholeStack(t *testing.T) {
	const context = 256
	for _, queue := range []bool{true, false} {
		t.Run(fmt.Sprintf("queue=%v", queue), func(t *testing.T) {
			d, a := startStackOf(t, demoOptions{worker: func(w *simworker.Config) { w.MaxModelLen = context }}, func(c *Config) { c.QoS.Enabled = queue })
			ask := func(words int) (*http.Response, string) {
				client := gatewaytest.Dial(t, a.public.Addr().String())
				body := `{"model":"demo-chat","max_tokens":8,"messages":[{"role":"user","content":"` + strings.Repeat("river ", words) + `"}]}`
				client.Send("POST", "/v1/chat/completions", body, "Authorization: Bearer "+d.keys["globex"])
				return client.Answer()
			}
			if resp, text := ask(20); resp.StatusCode != 200 {
				t.Fatalf("a short prompt: %d %s", resp.StatusCode, text)
			}
			resp, text := ask(2 * context)
			if resp.StatusCode != 400 || !strings.Contains(text, `"code":"context_length_exceeded"`) || !strings.Contains(text, fmt.Sprintf("length is %d", context)) {
				t.Fatalf("a long prompt: %d %s", resp.StatusCode, text)
			}
			soon(t, "the rows", stackPatience, func() bool { return len(rows(t, a)) == 2 })
			for _, row := range rows(t, a) {
				if long := row.Status == 400; long != (row.Attempts == 0) || long != (row.InputTokens == 0) {
					t.Errorf("row %+v", row)
				}
			}
			if text := metricsText(t, a); !strings.Contains(text, "\nsluice_route_picks_total{result=\"too_long\"} 1\n") {
				t.Error("the pick is not counted")
			}
		})
	}
}
