package simworker

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

const chatPath = "/v1/chat/completions"

// endless is a stream that ends only when told to.
func endless() string {
	return chatBody("hello", `,"stream":true,"max_tokens":8000,"ignore_eos":true`)
}

func TestClientThatLeavesFreesTheWorker(t *testing.T) {
	for name, body := range map[string]string{
		"stream":     endless(),
		"whole":      chatBody("hello", `,"max_tokens":8000,"ignore_eos":true`),
		"several":    chatBody("hello", `,"max_tokens":8000,"ignore_eos":true,"n":3`),
		"completion": `{"model":"tiny","prompt":["a","b"],"max_tokens":8000,"ignore_eos":true}`,
	} {
		t.Run(name, func(t *testing.T) {
			w := startWorker(t, slowly(10*time.Millisecond))
			conn, err := net.Dial("tcp", strings.TrimPrefix(w.URL(), "http://"))
			if err != nil {
				t.Fatal(err)
			}
			path := chatPath
			if name == "completion" {
				path = "/v1/completions"
			}
			r, err := http.NewRequest(http.MethodPost, w.URL()+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Write(conn); err != nil {
				t.Fatal(err)
			}
			waitUntil(t, w, "running", func(s Stats) bool { return s.Running > 0 && s.GenerationTokens > 2 })
			running := w.Stats().Running
			_ = conn.Close()
			waitUntil(t, w, "abort", func(s Stats) bool { return s.Running == 0 })
			waitIdle(t, w)
			if s := w.Stats(); s.Aborted != uint64(running) || s.BlocksHeld != 0 || s.Waiting != 0 || s.Open != 0 {
				t.Errorf("%+v: want %d aborted and nothing left", s, running)
			}
			_, metrics := get(t, w, "/metrics")
			if !strings.Contains(metrics, `finished_reason="abort",model_name="tiny"} `+pyFloat(float64(running))) {
				t.Error("metrics do not show the abort")
			}
		})
	}
}

func TestClientThatLeavesTheQueue(t *testing.T) {
	w := startWorker(t, func(c *Config) { slowly(10 * time.Millisecond)(c); c.MaxSeqs = 1 })
	first := openStream(t, w, chatPath, endless())
	second := openStream(t, w, chatPath, endless())
	waitUntil(t, w, "one in the queue", func(s Stats) bool { return s.Running == 1 && s.Waiting == 1 })
	second.leave()
	waitUntil(t, w, "empty queue", func(s Stats) bool { return s.Waiting == 0 })
	if s := w.Stats(); s.Running != 1 || s.Aborted != 1 {
		t.Errorf("%+v: want the first request untouched", s)
	}
	first.leave()
	waitIdle(t, w)
}

func TestHeadersComeBeforeTheFirstToken(t *testing.T) {
	w := startWorker(t, nil)
	w.SetFault(Fault{Stall: -1})
	s := openStream(t, w, chatPath, endless()) // returns with the headers
	if st := w.Stats(); st.GenerationTokens != 0 || st.Waiting != 1 {
		t.Errorf("%+v: want a waiting request without tokens", st)
	}
	w.SetFault(Fault{})
	role, err := s.event()
	if err != nil || !strings.Contains(role, `"role":"assistant"`) {
		t.Errorf("first event %s, %v", role, err)
	}
}

func TestStallEndsByItself(t *testing.T) {
	w := startWorker(t, nil)
	w.SetFault(Fault{Stall: 50 * time.Millisecond})
	start := time.Now()
	resp, body := post(t, w, chatPath, chatBody("hello", `,"max_tokens":2`))
	if d := time.Since(start); resp.StatusCode != 200 || d < 50*time.Millisecond {
		t.Errorf("%d after %v: %s", resp.StatusCode, d, body)
	}
}

func TestStallHoldsAStepUnderWayAndStillSeesClientsLeave(t *testing.T) {
	w := startWorker(t, slowly(time.Millisecond))
	s := openStream(t, w, chatPath, endless())
	waitUntil(t, w, "tokens", func(s Stats) bool { return s.GenerationTokens > 3 })
	w.SetFault(Fault{Stall: -1})
	// At most the step that is being completed just now still counts.
	before := w.Stats().GenerationTokens
	s.leave()
	waitIdle(t, w)
	if st := w.Stats(); st.GenerationTokens > before+1 || st.Aborted != 1 || st.Running != 0 {
		t.Errorf("%+v: want no more tokens than %d and one abort", st, before)
	}
}

func TestSlowFactorSlowsSteps(t *testing.T) {
	w := startWorker(t, slowly(time.Millisecond))
	run := func() time.Duration {
		start := time.Now()
		post(t, w, chatPath, chatBody("hello", `,"max_tokens":20`))
		return time.Since(start)
	}
	w.SetFault(Fault{SlowFactor: 10})
	if d := run(); d < 200*time.Millisecond {
		t.Errorf("20 steps of 10 ms took %v", d)
	}
}

func TestFaultStatus(t *testing.T) {
	w := startWorker(t, nil)
	w.SetFault(Fault{Status: 503, Requests: 2})
	for i, want := range []int{503, 503, 200} {
		resp, body := post(t, w, chatPath, chatBody("hello", `,"max_tokens":1`))
		if resp.StatusCode != want {
			t.Errorf("request %d: %d, want %d", i, resp.StatusCode, want)
		}
		if e := parse(t, body).Error; want == 503 && (e == nil || e.Code != 503 || e.Type != "ServiceUnavailableError") {
			t.Errorf("request %d: %s", i, body)
		}
	}
	if s := w.Stats(); s.Seen != 3 || s.Finished["length"] != 1 {
		t.Errorf("%+v: want three seen, one served", s)
	}
}

func TestFaultHangsBeforeHeaders(t *testing.T) {
	w := startWorker(t, nil)
	w.SetFault(Fault{HangHeaders: true, Requests: 1})
	got := make(chan int, 1)
	go func() {
		resp, err := client.Post(w.URL()+chatPath, "application/json", strings.NewReader(chatBody("hello", `,"max_tokens":1`)))
		if err != nil {
			got <- 0
			return
		}
		_ = resp.Body.Close()
		got <- resp.StatusCode
	}()
	waitUntil(t, w, "hung request", func(s Stats) bool { return s.Open == 1 })
	if resp, _ := post(t, w, chatPath, chatBody("hello", `,"max_tokens":1`)); resp.StatusCode != 200 {
		t.Errorf("the request after the hung one: %d", resp.StatusCode)
	}
	if s := w.Stats(); s.Open != 1 {
		t.Errorf("%d open, want the hung request alone", s.Open)
	}
	w.SetFault(Fault{})
	if status := <-got; status != 200 {
		t.Errorf("the hung request ends with %d once the fault is gone", status)
	}
}

func TestFaultFirstByteDelay(t *testing.T) {
	w := startWorker(t, nil)
	w.SetFault(Fault{FirstByteDelay: 50 * time.Millisecond})
	for _, extra := range []string{`,"max_tokens":1`, `,"max_tokens":1,"stream":true`} {
		start := time.Now()
		resp, _ := post(t, w, chatPath, chatBody("hello", extra))
		if d := time.Since(start); resp.StatusCode != 200 || d < 50*time.Millisecond {
			t.Errorf("%s: %d after %v", extra, resp.StatusCode, d)
		}
	}
}

func TestFaultDropsTheConnection(t *testing.T) {
	w := startWorker(t, nil)
	f := func(after int, extra string, events int) {
		t.Helper()
		w.SetFault(Fault{DropAfterEvents: after})
		resp, err := client.Do(newRequest(t, http.MethodPost, w.URL()+chatPath, chatBody("hello", `,"max_tokens":10`+extra)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("after %d events: the body ends with %v, want an unexpected end", after, err)
		}
		if n := strings.Count(string(body), "\n\n"); n != events {
			t.Errorf("%d events came, want %d", n, events)
		}
		waitIdle(t, w)
	}
	f(4, `,"stream":true`, 4)
	f(1, `,"stream":true`, 1)
	f(-1, `,"stream":true`, 0)
	f(1, ``, 0)
	f(-1, ``, 0)
}

func TestFaultMalformedEvent(t *testing.T) {
	w := startWorker(t, nil)
	w.SetFault(Fault{MalformedEvent: true})
	_, body := post(t, w, chatPath, chatBody("hello", `,"max_tokens":3,"stream":true`))
	list := events(body)
	var broken []int
	for i, e := range list[:len(list)-1] {
		if !json.Valid([]byte(e)) {
			broken = append(broken, i)
		}
	}
	if len(list) != 5 || len(broken) != 1 || broken[0] != 1 || list[4] != "[DONE]" {
		t.Errorf("broken %v of %d events; want the second of five: %s", broken, len(list), body)
	}
}

func TestFaultNoDone(t *testing.T) {
	w := startWorker(t, nil)
	w.SetFault(Fault{NoDone: true})
	_, body := post(t, w, chatPath, chatBody("hello", `,"max_tokens":3,"stream":true`))
	if strings.Contains(body, "[DONE]") || !strings.Contains(body, `"finish_reason":"length"`) {
		t.Errorf("stream %s", body)
	}
}

func TestFaultAPI(t *testing.T) {
	w := startWorker(t, func(c *Config) { c.FaultAPI = true })
	f := func(body string, status int, part string) {
		t.Helper()
		resp, got := post(t, w, "/sim/fault", body)
		if resp.StatusCode != status || !strings.Contains(got, part) {
			t.Errorf("%s: %d %s; want %d and %q", body, resp.StatusCode, got, status, part)
		}
	}
	f(`{"status":503,"requests":1,"stall":"1ms","first_byte_delay":"1ms","slow_factor":2}`, 200, `"success":true`)
	if resp, _ := post(t, w, chatPath, chatBody("x", `,"max_tokens":1`)); resp.StatusCode != 503 {
		t.Errorf("status %d, want 503", resp.StatusCode)
	}
	f(`{"stall":"forever"}`, 200, "true")
	stream := openStream(t, w, chatPath, endless())
	if s := w.Stats(); s.Waiting != 1 {
		t.Errorf("%+v: want a stalled worker", s)
	}
	stream.leave()
	f(`{}`, 200, "true")
	f(`{"statuss":1}`, 400, `unknown field \"statuss\"`)
	f(`{"status":20}`, 400, "between 200 and 599")
	f(`{"stall":"soon"}`, 400, `stall is \"soon\"`)
	f(`{"first_byte_delay":"-1s"}`, 400, "first_byte_delay")
	f(`{} {}`, 400, "more follows")
	f(`nothing`, 400, "cannot read the fault")
}

// ownGoroutines lists goroutines that run this package's code outside tests.
func ownGoroutines() []string {
	buf := make([]byte, 1<<20)
	var list []string
	for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		for _, part := range []string{"simworker.(*core)", "simworker.(*publisher)", "simworker.(*socket)", "simworker.(*peer)", "simworker.(*Worker)", "simworker.(*generation)"} {
			if strings.Contains(g, part) && !strings.Contains(g, "_test.go") {
				list = append(list, g)
				break
			}
		}
	}
	return list
}

func TestCloseAndKillLeaveNothingBehind(t *testing.T) {
	ends := map[string]func(*Worker){"close": func(w *Worker) { _ = w.Close() }, "kill": (*Worker).Kill}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			w := startWorker(t, slowly(5*time.Millisecond))
			subscribe(t, w, "")
			stream := openStream(t, w, chatPath, endless())
			waitUntil(t, w, "running", func(s Stats) bool { return s.GenerationTokens > 1 })
			w.SetFault(Fault{HangHeaders: true})
			go func() {
				if resp, err := client.Post(w.URL()+chatPath, "application/json", strings.NewReader(endless())); err == nil {
					_ = resp.Body.Close()
				}
			}()
			waitUntil(t, w, "hung request", func(s Stats) bool { return s.Open == 2 })
			end(w)
			if left := ownGoroutines(); len(left) > 0 {
				t.Errorf("goroutines left:\n%s", strings.Join(left, "\n\n"))
			}
			if s := w.Stats(); s.Open != 0 || s.Running != 0 || s.BlocksHeld != 0 {
				t.Errorf("%+v: want nothing left", s)
			}
			checkEnd(t, stream, name == "kill")
			if _, err := net.Dial("tcp", strings.TrimPrefix(w.URL(), "http://")); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("dialling the ended worker: %v", err)
			}
			_ = w.Close()
			w.Kill()
		})
	}
}

// checkEnd reads a stream to its end: an error event and [DONE] after Close, a
// lost connection after Kill.
func checkEnd(t *testing.T, s *liveStream, killed bool) {
	t.Helper()
	var list []string
	for {
		e, err := s.event()
		if err == nil {
			list = append(list, e)
			continue
		}
		if killed != !errors.Is(err, io.EOF) {
			t.Errorf("stream ends with %v, killed: %v", err, killed)
		}
		break
	}
	n := len(list)
	if !killed && (n < 2 || list[n-1] != "[DONE]" || !strings.Contains(list[n-2], `"code":500`)) {
		t.Errorf("last events %v, want an engine error and [DONE]", list[max(0, n-2):])
	}
}

func TestANewWorkerTakesTheOldOnesPlace(t *testing.T) {
	w := startWorker(t, nil)
	post(t, w, chatPath, chatBody(longText("a", 100), `,"max_tokens":1`))
	w.Kill()
	again := startWorker(t, func(c *Config) {
		c.HTTPAddr = strings.TrimPrefix(w.URL(), "http://")
		c.EventsAddr = strings.TrimPrefix(w.EventsEndpoint(), "tcp://")
		c.ReplayAddr = strings.TrimPrefix(w.ReplayEndpoint(), "tcp://")
	})
	post(t, again, chatPath, chatBody(longText("a", 100), `,"max_tokens":1`))
	if s := again.Stats(); s.PromptCached != 0 || s.Seen != 1 {
		t.Errorf("%+v: want a cold start", s)
	}
	replies := replay(t, again, 0)
	if len(replies) != 2 || replies[0][1][7] != 0 {
		t.Errorf("%d replies, want sequence 0 and the end", len(replies))
	}
}

func TestStartRefuses(t *testing.T) {
	f := func(part string, change func(*Config)) {
		t.Helper()
		cfg := recordedConfig()
		change(&cfg)
		w, err := Start(cfg, NewByteTokenizer())
		if err == nil {
			_ = w.Close()
			t.Errorf("started; want an error with %q", part)
		} else if !strings.Contains(err.Error(), part) {
			t.Errorf("%v; want %q", err, part)
		}
	}
	f("BlockSize is 0", func(c *Config) { c.BlockSize = 0 })
	f("Model is empty", func(c *Config) { c.Model = "" })
	f("Blocks is 1", func(c *Config) { c.Blocks = 1 })
	f("cannot hold one request of MaxModelLen 99999", func(c *Config) { c.MaxModelLen = 99999 })
	f("TimeScale is -1", func(c *Config) { c.TimeScale = -1 })
	f("without EventsAddr", func(c *Config) { c.EventsAddr = "" })
	f("HTTPAddr is not host:port", func(c *Config) { c.HTTPAddr = "here" })
	f("Step is -1ns", func(c *Config) { c.Timing.Step = -1 })
	f("must not be negative", func(c *Config) { c.KeepRequests = -1 })

	taken := startWorker(t, nil)
	f("cannot listen for HTTP", func(c *Config) { c.HTTPAddr = strings.TrimPrefix(taken.URL(), "http://") })
	f("cannot listen for event subscribers", func(c *Config) { c.EventsAddr = strings.TrimPrefix(taken.EventsEndpoint(), "tcp://") })
	f("cannot listen for replay requests", func(c *Config) { c.ReplayAddr = strings.TrimPrefix(taken.ReplayEndpoint(), "tcp://") })
	if _, err := Start(recordedConfig(), nil); err == nil {
		t.Error("started without a tokenizer")
	}
}

// A seed has 64 bits, as the engine's has.
func TestSeedsOf64Bits(t *testing.T) {
	w := startWorker(t, nil)
	for seed, want := range map[string]int{
		"4611686018427387905": 200, "-4611686018427387905": 200, "7.0": 200, "7.5": 400, `"x"`: 400,
	} {
		if resp, body := post(t, w, "/v1/chat/completions", chatBody("hi", `,"max_tokens":2,"seed":`+seed)); resp.StatusCode != want {
			t.Errorf("seed %s: status %d, want %d: %s", seed, resp.StatusCode, want, body)
		}
	}
}
