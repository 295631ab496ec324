package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy"
)

// TestMemoryBudget holds a budget to a plain model of it.
func TestMemoryBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newMemoryBudget(100)
		has := make(map[string]int64)
		var used int64
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			who, n := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant"), rapid.Int64Range(0, 60).Draw(t, "bytes")
			if rapid.Bool().Draw(t, "give") {
				n = min(n, has[who])
				b.give(who, n)
				has[who], used = has[who]-n, used-n
			} else {
				var want error
				if has[who]+n > 50 {
					want = errTenantMemory
				}
				if used+n > 100 {
					want = errMemory
				}
				if err := b.take(who, n); !errors.Is(err, want) {
					t.Fatalf("%s takes %d of %v: %v, want %v", who, n, has, err, want)
				}
				if want == nil {
					has[who], used = has[who]+n, used+n
				}
			}
			if got, _ := b.stats(); got != used {
				t.Fatalf("%d bytes are used, want %d", got, used)
			}
		}
		for who, n := range has {
			b.give(who, n)
		}
		if used, _ := b.stats(); used != 0 || len(b.tenants) != 0 {
			t.Fatalf("%d bytes of %v are left", used, b.tenants)
		}
	})
}

// withTenants has the key "key of X, long enough" belong to tenant X.
func withTenants() rigOption {
	return withState(func(st *State) {
		st.Identifier = identifierFunc(func(cred []byte, _ time.Time) (*tenancy.Principal, error) {
			name := strings.TrimSuffix(strings.TrimPrefix(string(cred), "key-of-"), "-long-enough")
			return &tenancy.Principal{Kind: "api_key", ID: "key:" + name, KeyID: name, Tenant: &tenancy.Tenant{ID: name, Models: []string{"m*"}}}, nil
		})
	})
}

// longRequest is a chat request of a tenant with a body of n bytes.
func longRequest(tenant string, n int) string {
	body := strings.Replace(chatBody, "hello", strings.Repeat("x", n-len(chatBody)+len("hello")), 1)
	return fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: gateway.test\r\nAuthorization: Bearer key-of-%s-long-enough\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", tenant, len(body), body)
}

// TestMemoryOfAll: bodies that have come in part hold memory, one tenant can hold
// half of it, and those that find none are told to come again. What ended is free.
func TestMemoryOfAll(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := newRig(t, []string{worker.URL()}, withTenants(), withConfig(func(cfg *Config) { cfg.MemoryBytes = 12 << 20 }))
	holding, before := int64(0), int64(0)
	hold := func(tenant string) *gatewaytest.Client {
		// One that has ended may have its memory for a moment longer than it is in flight.
		eventually(t, "the ends of those that aren't held", func() bool { return r.g.InFlight() == holding && r.g.Memory().Used <= before })
		holding++
		c := r.dial()
		text := longRequest(tenant, 1<<20+100)
		if err := c.Write(text[:len(text)-1]); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the body's bytes", func() bool { return r.g.Memory().Used >= before+2<<20 })
		before = r.g.Memory().Used
		return c
	}
	ask := func(tenant string, n int) (status int, body string) {
		c := r.dial()
		_ = c.Write(longRequest(tenant, n)) // it may be refused while it is sent
		resp, text := c.Answer()
		if (resp.StatusCode == 503) != (resp.Header.Get("Retry-After") == "1") {
			t.Errorf("%d with Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
		}
		return resp.StatusCode, text
	}
	var held []*gatewaytest.Client
	held = append(held, hold("acme"), hold("acme")) // each buffer has 2 MiB by now
	if status, body := ask("acme", 3<<20); status != 503 || !strings.Contains(body, `"code":"unavailable"`) || !strings.Contains(body, "one tenant") {
		t.Errorf("over the tenant's half: %d %s", status, body)
	}
	if status, body := ask("globex", 1000); status != 200 {
		t.Errorf("another tenant: %d %s", status, body)
	}
	held = append(held, hold("globex"), hold("globex"))
	if status, body := ask("initech", 3<<20); status != 503 || strings.Contains(body, "one tenant") {
		t.Errorf("over all: %d %s", status, body)
	}
	if m := r.g.Memory(); m.RefusedTenant != 1 || m.RefusedTotal != 1 || m.Limit != 12<<20 || m.Used > m.Limit {
		t.Errorf("counted %+v", m)
	}
	for _, c := range held {
		if err := c.Write("}"); err != nil {
			t.Fatal(err)
		}
		if resp, body := c.Answer(); resp.StatusCode != 200 {
			t.Errorf("a body that was held: %d %s", resp.StatusCode, body)
		}
	}
	r.idle()
	if status, body := ask("acme", 1<<20); status != 200 {
		t.Errorf("after all have ended: %d %s", status, body)
	}
	if r.health.failures != 0 {
		t.Error("a worker was blamed")
	}
	r.idle()
}

// TestMemoryOfAnswers: an answer counts until its client has it, or has left.
func TestMemoryOfAnswers(t *testing.T) {
	const size = 20 << 20 // more than the sockets hold
	answer := `{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2},"x":"` + strings.Repeat("x", size) + `"}`
	for _, chunks := range []bool{false, true} {
		behaviour := gatewaytest.JSON(200, answer)
		if chunks {
			behaviour = func(x *gatewaytest.Exchange) {
				x.Head(200, "application/json")
				x.Chunk(answer)
				x.End()
			}
		}
		worker := gatewaytest.NewWorker(t, behaviour)
		r := newRig(t, []string{worker.URL()}, withConfig(func(cfg *Config) { cfg.MemoryBytes = 256 << 20 }))
		reads, leaves := r.dial(), r.dial()
		for _, c := range []*gatewaytest.Client{reads, leaves} {
			c.KeepLittle()
			c.Send("POST", "/v1/chat/completions", chatBody, "Authorization: Bearer "+goodKey)
		}
		eventually(t, "two answers", func() bool { return len(r.ledger.all()) == 2 && r.g.InFlight() == 0 })
		used := r.g.Memory().Used
		if used < 2*size || used > 6*size {
			t.Errorf("chunks %v: %d bytes are held for two answers of %d", chunks, used, size)
		}
		if resp, body := reads.Answer(); resp.StatusCode != 200 || len(body) != len(answer) {
			t.Errorf("chunks %v: %d with %d bytes of %d", chunks, resp.StatusCode, len(body), len(answer))
		}
		eventually(t, "one answer's memory", func() bool { return r.g.Memory().Used <= used/2 })
		leaves.Leave(gatewaytest.RST)
		r.idle()

		small := newRig(t, []string{worker.URL()}, withConfig(func(cfg *Config) { cfg.MemoryBytes = 16 << 20 }))
		resp, body := small.chat(chatBody).Answer()
		wantError(t, resp, body, 503, "unavailable")
		if small.health.failures != 0 {
			t.Error("the worker was blamed for the gateway's want of memory")
		}
		small.idle()
	}
}

// TestSlowReaderOfALongAnswer: a client that reads slowly gets all of an answer, long
// after the time of one write. One that does not read is gone.
func TestSlowReaderOfALongAnswer(t *testing.T) {
	t.Parallel()
	answer := `{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2},"x":"` + strings.Repeat("x", 24<<20) + `"}`
	worker := gatewaytest.NewWorker(t, gatewaytest.JSON(200, answer))
	for _, opts := range [][]rigOption{{}, {withTLS()}} {
		r := newRig(t, []string{worker.URL()}, append(opts, withConfig(func(cfg *Config) { cfg.ClientWrite = 3 * time.Second }))...)
		c, stuck := r.dial(), r.dial()
		for _, c := range []*gatewaytest.Client{c, stuck} {
			c.KeepLittle()
			c.Send("POST", "/v1/chat/completions", chatBody, "Authorization: Bearer "+goodKey)
		}
		resp := c.Head()
		began, buf, n := time.Now(), make([]byte, 256<<10), 0
		for {
			m, err := io.ReadFull(resp.Body, buf)
			n += m
			if err != nil {
				break
			}
			time.Sleep(40 * time.Millisecond) // slow is what it is about
		}
		if n != len(answer) || time.Since(began) < 3*time.Second {
			t.Errorf("got %d bytes of %d in %v", n, len(answer), time.Since(began))
		}
		eventually(t, "the end of the one that does not read", func() bool { return r.g.Connections() == 1 })
		r.idle()
	}
}

// TestMemoryOfWindows: what decoding a body takes counts as well.
func TestMemoryOfWindows(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := newRig(t, []string{worker.URL()}, withConfig(func(cfg *Config) { cfg.MemoryBytes = 10 << 20 }))
	c := r.dial()
	if err := c.Write(codedRequest("zstd", zstdFramed(chatBody), false)); err != nil { // with a window of 8 MiB
		t.Fatal(err)
	}
	resp, body := c.Answer()
	wantError(t, resp, body, 503, "unavailable")
	c = r.dial()
	if err := c.Write(codedRequest("gzip", gzipped(chatBody), false)); err != nil {
		t.Fatal(err)
	}
	if resp, body := c.Answer(); resp.StatusCode != 200 {
		t.Errorf("got %d %s", resp.StatusCode, body)
	}
	r.idle()
}

// TestMemoryOfAStreamsRequest: once its answer has begun a stream takes no memory for what was
// asked, which it doesn't hold any more, however long it runs. A rehearsal reads what was sent
// all the same.
func TestMemoryOfAStreamsRequest(t *testing.T) {
	t.Parallel()
	t.Run("alone", func(t *testing.T) { streamWithoutPrompt(t, nil) })
	t.Run("rehearsed", func(t *testing.T) {
		scan := &scanner{wait: make(chan struct{}), finds: policy.Content{ScanStatus: "complete"}}
		body := streamWithoutPrompt(t, scan, withPolicies(t, bound("shadow", "Audit", scanning)), withState(func(st *State) { st.Classifier = scan }))
		if seen := scan.seen(); len(seen) != 1 || seen[0] != body {
			t.Errorf("%d bodies were rehearsed, want that of the request", len(seen))
		}
	})
}

// streamWithoutPrompt plays a stream that has begun, and returns the body that was sent. scan
// looks at it only when nobody else needs it.
func streamWithoutPrompt(t *testing.T, scan *scanner, opts ...rigOption) (body string) {
	t.Helper()
	began, goOn := make(chan struct{}), make(chan struct{})
	worker := gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
		x.StreamHead()
		if !x.Wait(began) {
			return
		}
		x.Chunk(gatewaytest.RoleEvent)
		if !x.Wait(goOn) {
			return
		}
		x.Chunk(gatewaytest.ContentEvent("a", "stop"))
		x.Chunk(gatewaytest.DoneEvent)
		x.End()
	})
	r := newRig(t, []string{worker.URL()}, opts...)
	body = strings.Replace(streamBody, `"messages":`, `"x":"`+strings.Repeat("x", 1<<20)+`","messages":`, 1)
	c := r.chat(body)
	worker.Next(t)
	if used := r.g.Memory().Used; used < int64(2*len(body)) {
		t.Errorf("%d bytes are taken for a request that could be sent to another worker", used)
	}
	close(began)
	answer := c.Head().Body
	eventually(t, "the memory's return", func() bool { return r.g.Memory().Used == 0 })
	if scan != nil {
		close(scan.wait)
		eventually(t, "the rehearsal", func() bool { return len(scan.seen()) > 0 })
	}
	close(goOn)
	if text, err := io.ReadAll(answer); err != nil || !strings.HasSuffix(string(text), gatewaytest.DoneEvent) {
		t.Errorf("got %q, %v", text, err)
	}
	r.row()
	return body
}

// TestMemoryOfTokenForms: the copy of a body that its tokens are found in takes memory like the
// body. Where there is none for it the tokens are estimated, and the request is served.
func TestMemoryOfTokenForms(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("x", 1<<20)
	for _, c := range []struct{ path, body string }{
		{"/v1/messages", `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"` + text + `"}]}`},
		{"/v1/responses", `{"model":"m","input":[{"role":"user","content":"` + text + `"}]}`},
		{"/v1/embeddings", `{"model":"m","input":"` + text + `"}`},
	} {
		worker := answering(t)
		r := newRig(t, []string{worker.URL()}, allEndpoints(), withConfig(func(cfg *Config) { cfg.MemoryBytes = 64 << 20 }), withState(func(st *State) {
			m, err := NewModels([]Model{{Name: "m", Upstream: "m", BytesPerToken: 3, ContextLength: 1 << 20, DefaultMaxTokens: 100}})
			if err != nil {
				t.Fatal(err)
			}
			st.Models = m
		}))
		var form, used int64
		r.tokens.set(func(_ context.Context, dst []uint32, body []byte) ([]uint32, error) {
			form, used = int64(len(body)), r.g.Memory().Used
			return append(dst, 1, 2, 3), nil
		})
		ask := func() {
			t.Helper()
			if resp, text := r.post(c.path, c.body).Answer(); resp.StatusCode != 200 {
				t.Errorf("%s: got %d %.300s", c.path, resp.StatusCode, text)
			}
			worker.Next(t)
			eventually(t, "its end", func() bool { return r.g.InFlight() == 0 })
		}
		ask()
		if form < 1<<20 || used < int64(len(c.body))+form || used > 6<<20 {
			t.Errorf("%s: %d bytes are taken for a body of %d and its form of %d", c.path, used, len(c.body), form)
		}
		// Room for the body, of which the buffer has 2 MiB, and the worker's copy.
		form = 0
		others := int64(32<<20 - 3<<20 - 1<<19)
		if err := r.g.memory.take("acme", others); err != nil {
			t.Fatal(err)
		}
		ask()
		if form != 0 {
			t.Errorf("%s: a form was made without memory for it", c.path)
		}
		r.g.memory.give("acme", others)
		// The answer's is given back when the client has it, a moment after the end.
		eventually(t, "the memory's return", func() bool { return r.g.Memory().Used == 0 })
	}
}
