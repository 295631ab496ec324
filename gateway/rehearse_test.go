package gateway

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
)

// scanning is a policy that needs the body's labels to judge.
const scanning = `
  validations:
    - { name: no-pii, expression: "!('pii' in content.labels)" }
`

// wouldDeny are the rules of a rehearsal's denials.
func wouldDeny(o policy.RehearsalOutcome) (rules []string) {
	for _, ref := range o.WouldDeny {
		rules = append(rules, ref.Rule)
	}
	return rules
}

// TestRehearsalsTouchNothing: while the detectors that only an auditing binding needs
// stand still, answers of every kind come whole, the request is settled and its row
// written; when they go on, the outcome is told. They are given the body as the client
// sent it, not the one that the worker gets.
func TestRehearsalsTouchNothing(t *testing.T) {
	denied := bound("deny", "Deny", "  validations:\n    - { name: v, expression: 'false' }\n")
	for _, c := range []struct {
		name, policies, body string
		status               int
	}{
		{"unary", "", chatBody, 200},
		{"TLS", "", chatBody, 200},
		{"stream", "", streamBody, 200},
		{"denied", denied, chatBody, 403},
		{"denied stream", denied, streamBody, 403},
	} {
		t.Run(c.name, func(t *testing.T) {
			worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a", "b", "c"))
			scan := &scanner{wait: make(chan struct{}), finds: policy.Content{ScanStatus: "complete", Labels: []string{"pii"}, Detectors: []string{"email"}}}
			opts := []rigOption{withPolicies(t, bound("shadow", "Audit", scanning)+c.policies), withState(func(st *State) { st.Classifier = scan })}
			if c.name == "TLS" {
				opts = append(opts, withTLS())
			}
			r := newRig(t, []string{worker.URL()}, opts...)
			body := strings.Replace(c.body, `"model":"m"`, `"model":"m-alias","cache_salt":"mine"`, 1)
			resp, text := r.chat(body).Answer()
			if resp.StatusCode != c.status || c.status == 200 && !strings.Contains(text, "c") {
				t.Fatalf("got %d %s, want %d", resp.StatusCode, text, c.status)
			}
			if resp.Header.Get("Warning") != "" {
				t.Errorf("headers %v", resp.Header)
			}
			eventually(t, "a ledger row", func() bool { return len(r.ledger.all()) == 1 && r.g.InFlight() == 0 })
			if n := len(r.meter.rehearsals()); n != 0 {
				t.Errorf("%d rehearsals are over although nothing was scanned", n)
			}
			close(scan.wait)
			r.idle()
			told := r.meter.rehearsals()
			if len(told) != 1 || !slices.Equal(wouldDeny(told[0]), []string{"shadow/no-pii"}) || len(told[0].Errors) != 0 {
				t.Errorf("told %+v", told)
			}
			if got := scan.seen(); !slices.Equal(got, []string{body}) {
				t.Errorf("the detectors were given %q, want %q once", got, body)
			}
			if d := r.meter.last().Decision; len(d.WouldDeny) != 0 || d.Cost.ShadowUnits != 0 {
				t.Errorf("the decision was changed by its rehearsal: %+v", d)
			}
		})
	}
}

// TestRehearsalSharesTheScan: what an enforced binding has had scanned is not scanned
// again for one that audits.
func TestRehearsalSharesTheScan(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	scan := &scanner{finds: policy.Content{ScanStatus: "complete", Labels: []string{"pii"}}}
	enforced := bound("enforced", "Deny", "  validations:\n    - { name: v, expression: \"content.scan_status == 'complete'\" }\n")
	r := newRig(t, []string{worker.URL()}, withPolicies(t, bound("shadow", "Audit", scanning)+enforced),
		withState(func(st *State) { st.Classifier = scan }))
	if resp, text := r.chat(chatBody).Answer(); resp.StatusCode != 200 {
		t.Fatalf("got %d %s", resp.StatusCode, text)
	}
	r.row()
	if told := r.meter.rehearsals(); len(told) != 1 || len(told[0].WouldDeny) != 1 || len(scan.seen()) != 1 {
		t.Errorf("told %+v after %d scans", told, len(scan.seen()))
	}
}

// TestRehearsalOfMetadata: a request without a body is complete, and has no tokens.
func TestRehearsalOfMetadata(t *testing.T) {
	const spec = `
  validations:
    - { name: v, expression: "content.scan_status != 'complete' || request.input_tokens != 0 || !request.input_tokens_exact" }
`
	scan := &scanner{}
	for _, actions := range []string{"Audit", "Warn"} {
		r := newRig(t, nil, withPolicies(t, bound("p", actions, spec)), withState(func(st *State) { st.Classifier = scan }))
		c := r.dial()
		c.Send("GET", "/v1/models", "", "Authorization: Bearer "+goodKey)
		if resp, text := c.Answer(); resp.StatusCode != 200 || (resp.Header.Get("Warning") != "") != (actions == "Warn") {
			t.Fatalf("got %d %v %s", resp.StatusCode, resp.Header, text)
		}
		r.idle()
		told := r.meter.rehearsals()
		if actions == "Audit" && (len(told) != 1 || !slices.Equal(wouldDeny(told[0]), []string{"p/v"})) {
			t.Errorf("told %+v", told)
		}
	}
	if len(scan.seen()) != 0 {
		t.Error("a body that isn't there was scanned")
	}
}

// TestRehearsedLimits: a limit that only audits is reserved while the response runs,
// and charged what was used when it has ended, before or after it was judged.
func TestRehearsedLimits(t *testing.T) {
	// Two of an estimate of 80 fit into 100 only if the first was settled at the 13
	// tokens that it took; the third does not.
	const spec = `
  limits:
    - { name: tokens, unit: tokens, window: 24h, limit: 100, key: [], estimate: 80 }
    - { name: slots, unit: concurrency, limit: 1, key: [] }
`
	for name, body := range map[string]string{"unary": chatBody, "stream": streamBody} {
		t.Run(name, func(t *testing.T) {
			open := make(chan struct{})
			worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a", "b", "c"))
			r := newRig(t, []string{worker.URL()}, withPolicies(t, bound("shadow", "Audit", spec)))
			for i, want := range [][]string{nil, nil, {"shadow/tokens"}} {
				if resp, text := r.chat(body).Answer(); resp.StatusCode != 200 {
					t.Fatalf("got %d %s", resp.StatusCode, text)
				}
				r.idle()
				if told := r.meter.rehearsals(); len(told) != i+1 || !slices.Equal(wouldDeny(told[i]), want) {
					t.Errorf("request %d: told %+v, want %v", i, told, want)
				}
			}
			if name != "stream" {
				return
			}
			worker.Script(gatewaytest.Gate(open, []string{gatewaytest.RoleEvent}, []string{gatewaytest.ContentEvent("a", "stop"), gatewaytest.DoneEvent}), gatewaytest.Chat("a"))
			running := r.chat(body)
			events := gatewaytest.NewEventReader(running.Head().Body)
			if _, err := events.Next(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the running stream to be judged", func() bool { return len(r.meter.rehearsals()) == 4 && r.limiter.Stats().OpenLeases == 1 })
			if resp, text := r.chat(body).Answer(); resp.StatusCode != 200 {
				t.Fatalf("got %d %s", resp.StatusCode, text)
			}
			eventually(t, "the second stream to be judged", func() bool { return len(r.meter.rehearsals()) == 5 })
			if got := wouldDeny(r.meter.rehearsals()[4]); !slices.Equal(got, []string{"shadow/slots", "shadow/tokens"}) {
				t.Errorf("beside a running stream: would deny %v", got)
			}
			close(open)
			if _, err := events.All(); err != nil {
				t.Fatal(err)
			}
			r.idle()
		})
	}
}

// TestRehearsalsAreLeftOut: under pressure rehearsals are skipped and counted; no
// answer waits for them, and nothing of them is left.
func TestRehearsalsAreLeftOut(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	scan := &scanner{wait: make(chan struct{}), finds: policy.Content{ScanStatus: "complete"}}
	r := newRig(t, []string{worker.URL()}, withPolicies(t, bound("shadow", "Audit", scanning)), withState(func(st *State) { st.Classifier = scan }))
	c := r.dial()
	const beyond = 5
	for i := range r.g.rehearsals.few + maxRehearsals + beyond {
		c.Send("POST", "/v1/chat/completions", chatBody, "Authorization: Bearer "+goodKey)
		if resp, text := c.Answer(); resp.StatusCode != 200 {
			t.Fatalf("request %d: got %d %s", i, resp.StatusCode, text)
		}
		if i < r.g.rehearsals.few {
			eventually(t, "a rehearser to take it", func() bool { return len(r.g.rehearsals.queue) == 0 })
		}
	}
	eventually(t, "the rest to be left out", func() bool { return r.meter.skipped.Load() == beyond })
	close(scan.wait)
	r.idle()
	if n := len(r.meter.rehearsals()); n != r.g.rehearsals.few+maxRehearsals {
		t.Errorf("%d rehearsals, want %d", n, r.g.rehearsals.few+maxRehearsals)
	}
}

// TestLeftOutIsSettled: of a decision whose rehearsal was left out, before or after its
// answer was whole, the log says so, and it is settled all the same.
func TestLeftOutIsSettled(t *testing.T) {
	for name, body := range map[string]string{"unary": chatBody, "stream": streamBody} {
		open := make(chan struct{})
		worker := gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
			if !x.WantsStream() {
				gatewaytest.Chat("a")(x)
				return
			}
			gatewaytest.Gate(open, []string{gatewaytest.RoleEvent}, []string{gatewaytest.ContentEvent("a", "stop"), gatewaytest.DoneEvent})(x)
		})
		log := &notedDecisions{}
		r := newRig(t, []string{worker.URL()}, withPolicies(t, bound("shadow", "Audit", scanning)), withParts(func(p *Parts) { p.Decisions = log }))
		r.g.rehearsals.bytes.Store(maxRehearsalBytes)
		c := r.chat(body)
		if name == "stream" {
			c.Head()
			eventually(t, "the rehearsal to be left out while the stream runs", func() bool { return r.meter.skipped.Load() == 1 })
		}
		close(open)
		eventually(t, "the end", func() bool { return r.g.InFlight() == 0 && r.g.rehearsals.open.Load() == 0 && r.meter.count() == 1 })
		r.g.rehearsals.bytes.Add(-maxRehearsalBytes)
		r.idle()
		if len(log.lines) != 3 || log.lines[1] != "left out" || log.lines[2] != `completed in "p"` || r.meter.skipped.Load() != 1 || len(r.meter.rehearsals()) != 0 {
			t.Errorf("%s: noted %q, %d left out", name, log.lines, r.meter.skipped.Load())
		}
	}
}

// TestLargeBodiesAreNotPiledUp: bodies that wait to be read for a rehearsal are
// bounded by their size as well.
func TestLargeBodiesAreNotPiledUp(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	scan := &scanner{wait: make(chan struct{}), finds: policy.Content{ScanStatus: "complete"}}
	r := newRig(t, []string{worker.URL()}, withPolicies(t, bound("shadow", "Audit", scanning)), withState(func(st *State) { st.Classifier = scan }))
	few := r.g.rehearsals.few
	for range few {
		r.chat(chatBody).Answer()
	}
	eventually(t, "the rehearsers to be busy", func() bool {
		return r.g.rehearsals.bytes.Load() == 0 && r.g.rehearsals.open.Load() == int64(few) && r.g.InFlight() == 0
	})
	large := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 24<<20) + `"}]}`
	for range 3 { // the third is beyond 64 MiB
		if resp, text := r.chat(large).Answer(); resp.StatusCode != 200 {
			t.Fatalf("got %d %s", resp.StatusCode, text)
		}
	}
	eventually(t, "the third to be left out", func() bool { return r.meter.skipped.Load() == 1 })
	close(scan.wait)
	r.idle()
	if n := len(r.meter.rehearsals()); n != few+2 {
		t.Errorf("%d rehearsals, want %d", n, few+2)
	}
}

// faultyMeter panics at a rehearsal.
type faultyMeter struct{ *memoryMeter }

func (faultyMeter) Rehearsed(string, policy.RehearsalOutcome) { panic("a bug") }

// TestPanicInARehearsal is one rehearsal's trouble: its limits are given back and the
// rehearsers go on.
func TestPanicInARehearsal(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	spec := "  limits:\n    - { name: slots, unit: concurrency, limit: 5, key: [] }\n"
	r := newRig(t, []string{worker.URL()}, withPolicies(t, bound("shadow", "Audit", spec)),
		withParts(func(p *Parts) { p.Meter = faultyMeter{p.Meter.(*memoryMeter)} }))
	for range 2 * r.g.rehearsals.few {
		if resp, text := r.chat(chatBody).Answer(); resp.StatusCode != 200 {
			t.Fatalf("got %d %s", resp.StatusCode, text)
		}
	}
	r.idle()
}

// TestShutdownEndsRehearsals: a shutdown waits for rehearsals as long as it may, and
// gives up those that are left; either way nothing is left of them afterwards.
func TestShutdownEndsRehearsals(t *testing.T) {
	t.Run("in time", func(t *testing.T) { testShutdownOfRehearsals(t, true) })
	t.Run("too late", func(t *testing.T) { testShutdownOfRehearsals(t, false) })
}

func testShutdownOfRehearsals(t *testing.T, inTime bool) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	scan := &scanner{wait: make(chan struct{}), finds: policy.Content{ScanStatus: "complete"}}
	r := newRig(t, []string{worker.URL()}, withPolicies(t, bound("shadow", "Audit", scanning)), withState(func(st *State) { st.Classifier = scan }))
	for range 2 * r.g.rehearsals.few {
		if resp, text := r.chat(chatBody).Answer(); resp.StatusCode != 200 {
			t.Fatalf("got %d %s", resp.StatusCode, text)
		}
	}
	eventually(t, "the rehearsers to be busy and the rest to wait", func() bool { return r.g.InFlight() == 0 && len(r.g.rehearsals.queue) == r.g.rehearsals.few })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	down := make(chan error, 1)
	go func() { down <- r.g.Shutdown(ctx) }()
	eventually(t, "the queue to be closed", func() bool {
		r.g.rehearsals.mu.RLock()
		defer r.g.rehearsals.mu.RUnlock()
		return r.g.rehearsals.stopped
	})
	if inTime {
		close(scan.wait)
	} else {
		cancel()
	}
	if err := <-down; err != nil {
		t.Fatal(err)
	}
	if n := r.g.rehearsals.open.Load(); n != 0 {
		t.Errorf("%d rehearsals are left", n)
	}
	r.idle()
	judged, skipped := len(r.meter.rehearsals()), int(r.meter.skipped.Load())
	if judged+skipped != 2*r.g.rehearsals.few || inTime && skipped != 0 || !inTime && skipped != r.g.rehearsals.few {
		t.Errorf("%d were judged and %d left out of %d", judged, skipped, 2*r.g.rehearsals.few)
	}
}

// TestRehearsedCharges: a charge that fails is told as an error of its rule, once.
func TestRehearsedCharges(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a", "b"))
	spec := "  limits:\n    - { name: l, unit: requests, window: 1h, limit: 10, key: [], charge: \"1 / (usage.output_tokens - 2)\" }\n"
	r := newRig(t, []string{worker.URL()}, withPolicies(t, bound("shadow", "Audit", spec)))
	if resp, text := r.chat(streamBody).Answer(); resp.StatusCode != 200 {
		t.Fatalf("got %d %s", resp.StatusCode, text)
	}
	r.idle()
	var errors []string
	for _, o := range r.meter.rehearsals() {
		for _, e := range o.Errors {
			errors = append(errors, fmt.Sprint(e.Rule, " ", e.ErrorKind))
		}
	}
	if !slices.Equal(errors, []string{"shadow/l value"}) {
		t.Errorf("told the errors %q", errors)
	}
}
