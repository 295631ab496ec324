package gateway

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy"
)

// saidOffers is what pools say that they offer; those that are missing say nothing.
type saidOffers map[string]wire.Endpoints

// PoolEndpoints implements Offers.
func (o saidOffers) PoolEndpoints(pool string) (set wire.Endpoints, known, awaited bool) {
	set, known = o[pool]
	return set, known, false
}

// awaitedOffers is what pools say of which those that are missing may yet say something.
type awaitedOffers map[string]wire.Endpoints

// PoolEndpoints implements Offers.
func (o awaitedOffers) PoolEndpoints(pool string) (set wire.Endpoints, known, awaited bool) {
	set, known = o[pool]
	return set, known, !known
}

// TestEndpointsNotToldYet: what the workers may turn out to offer is no 404 before they
// have said so, but a 503 that clients try again, once policies and limits have had their
// say; nothing is charged and no worker is asked. What all engines have, or a pool that has
// said so, is served meanwhile, messages by translation.
func TestEndpointsNotToldYet(t *testing.T) {
	worker := answering(t)
	r := newRig(t, []string{worker.URL()}, withState(func(st *State) { st.Pools = map[string]Pool{"p": {Salted: wire.EndpointsOf(wire.Chat)}} }), withParts(func(p *Parts) {
		p.Offers = awaitedOffers{}
	}))
	r.decider.set(func(ctx context.Context, in *policy.Input) *policy.Decision {
		d := limited(ctx, in)
		d.Limits = d.Limits[:1] // slots
		return d
	})
	served, refused := 0, 0
	for range 2 { // what the first had reserved is given back
		for _, op := range operationCases(t) {
			if op.op == wire.Messages {
				continue // it is served by translation
			}
			resp, text := r.post(operationRoute(op.op).template, op.body("m", "hello")).Answer()
			if op.op == wire.Chat || op.op == wire.Completion {
				if resp.StatusCode != 200 {
					t.Errorf("%s: got %d %s", op.op, resp.StatusCode, text)
				}
				worker.Next(t)
				served++
				continue
			}
			if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "5" || !strings.Contains(text, `unavailable"`) {
				t.Errorf("%s: got %d %s, Retry-After %q", op.op, resp.StatusCode, text, resp.Header.Get("Retry-After"))
			}
			refused++
		}
	}
	// A body that has no translation may be one that the workers take as it is.
	resp, text := r.post("/v1/messages", `{"model":"m","max_tokens":5,"thinking":{"type":"enabled","budget_tokens":1024},"messages":[{"role":"user","content":"x"}]}`).Answer()
	if resp.StatusCode != 503 || !strings.Contains(text, `"unavailable"`) {
		t.Errorf("got %d %s", resp.StatusCode, text)
	}
	refused++
	r.idle()
	rows := r.ledger.all()
	if len(rows) != served+refused {
		t.Errorf("the ledger has %d rows, want %d", len(rows), served+refused)
	}
	for _, row := range rows {
		if row.Outcome == tenancy.OutcomeRejected {
			if refused--; row.InputTokens != 0 || row.Worker != "" {
				t.Errorf("row %+v", row)
			}
		}
	}
	if refused != 0 {
		t.Errorf("%d refusals are not in the books", refused)
	}

	r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
		return &policy.Decision{Status: 403, Message: "no", Reason: policy.Forbidden}
	})
	resp, text = r.post("/v1/embeddings", `{"model":"m","input":"x"}`).Answer()
	wantError(t, resp, text, 403, "policy_denied")
	r.idle()
	if n := len(worker.Seen()); n != served {
		t.Errorf("the worker got %d requests, want %d", n, served)
	}
}

// TestEndpoints: an operation goes to a pool that offers it, by the configuration's word
// before that of its workers, and is a 404 without a question to policies or workers where
// no pool of the model does.
func TestEndpoints(t *testing.T) {
	all := wire.Operations()
	only := func(ops ...wire.Operation) *wire.Endpoints {
		set := wire.EndpointsOf(ops...)
		return &set
	}
	for _, c := range []struct {
		name  string
		pools map[string]Pool
		said  saidOffers
		want  map[wire.Operation]string // the pool that gets it; others are 404
	}{
		{"nobody says", map[string]Pool{"p": {}, "q": {}}, nil, map[wire.Operation]string{wire.Chat: "p", wire.Completion: "p"}},
		{"the workers say", map[string]Pool{"p": {}, "q": {}}, saidOffers{"p": wire.EndpointsOf(wire.Embeddings), "q": wire.EndpointsOf(wire.Chat, wire.Responses)},
			map[wire.Operation]string{wire.Embeddings: "p", wire.Chat: "q", wire.Responses: "q"}},
		{"the configuration says", map[string]Pool{"p": {Endpoints: only(wire.Tokenize)}, "q": {Endpoints: only(wire.Chat)}},
			saidOffers{"p": wire.EndpointsOf(all...), "q": wire.EndpointsOf(all...)}, map[wire.Operation]string{wire.Tokenize: "p", wire.Chat: "q"}},
		{"a pool of another model", map[string]Pool{"p": {Endpoints: only(wire.Chat), Models: []string{"m"}}, "q": {Endpoints: only(all...), Models: []string{"other"}}},
			nil, map[wire.Operation]string{wire.Chat: "p"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			workers := map[string]*gatewaytest.Worker{"p": answering(t), "q": answering(t)}
			var asked atomic.Int32
			r := newRig(t, []string{workers["p"].URL()}, withState(func(st *State) { st.Pools = c.pools }), withParts(func(p *Parts) {
				if c.said != nil {
					p.Offers = c.said
				}
				p.Router = p.Router.(inOrder).Fleet
			}))
			r.addWorker("q", "q1", workers["q"].URL(), true)
			r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
				asked.Add(1)
				d := allow(in)
				d.Pools = []string{"p", "q"}
				if c.want[wire.Chat] == "p" && in.Request.Operation != "tokenize" {
					d.Pools = []string{"p"}
				}
				return d
			})
			served := 0
			for _, op := range operationCases(t) {
				if other, ok := standIn(op.op); ok && c.want[other] != "" {
					continue // it is served by translation
				}
				resp, text := r.post(operationRoute(op.op).template, op.body("m", "hello")).Answer()
				pool := c.want[op.op]
				if pool == "" {
					if resp.StatusCode != 404 || !strings.Contains(text, `"endpoint_not_supported"`) {
						t.Errorf("%s: got %d %s, want 404", op.op, resp.StatusCode, text)
					}
					continue
				}
				served++
				if resp.StatusCode != 200 {
					t.Errorf("%s: got %d %s", op.op, resp.StatusCode, text)
					continue
				}
				if seen := workers[pool].Next(t); seen.Target != operationRoute(op.op).upstream {
					t.Errorf("%s: pool %s got %s", op.op, pool, seen.Target)
				}
			}
			if n := int(asked.Load()); n != served {
				t.Errorf("policies were asked %d times, want %d", n, served)
			}
			if n := len(workers["p"].Seen()) + len(workers["q"].Seen()); n != served {
				t.Errorf("workers got %d requests, want %d", n, served)
			}
			r.idle()
		})
	}
}

// TestNoPermittedPoolOffers: a pool that offers the operation and that the policies have
// taken away is no pool.
func TestNoPermittedPoolOffers(t *testing.T) {
	worker := answering(t)
	chat, embeddings := wire.EndpointsOf(wire.Chat), wire.EndpointsOf(wire.Embeddings)
	r := newRig(t, nil, withState(func(st *State) { st.Pools = map[string]Pool{"p": {Endpoints: &chat}, "q": {Endpoints: &embeddings}} }))
	r.addWorker("q", "q1", worker.URL(), true)
	resp, text := r.post("/v1/embeddings", `{"model":"m","input":"x"}`).Answer() // the decision leaves p alone
	wantError(t, resp, text, 404, "endpoint_not_supported")
	r.idle()
	if n := len(worker.Seen()); n != 0 {
		t.Errorf("the worker got %d requests", n)
	}
}

// TestWorkersOwnRoutes: what a worker offers beside inference is no route, whatever the
// method and whoever asks.
func TestWorkersOwnRoutes(t *testing.T) {
	worker := answering(t)
	r := newRig(t, []string{worker.URL()}, allEndpoints())
	for _, path := range []string{
		"/metrics", "/version", "/load", "/health", "/ping", "/openapi.json", "/docs", "/redoc", "/kv_event_sources", "/reset_prefix_cache",
		"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/sleep", "/wake_up", "/is_sleeping", "/start_profile", "/stop_profile", "/collective_rpc",
		"/v1/chat/completions/render", "/v1/completions/render", "/v1/audio/transcriptions", "/v1/score", "/score", "/rerank", "/pooling", "/classify",
		"/invocations", "/server_info", "/v1", "/v1/", "/", "/v1/messages/batches", "/v1/embedding", "/v2/embed", "/v1/tokenize", "/tokenizer_info",
	} {
		for _, method := range []string{"GET", "POST"} {
			conn := r.dial()
			body := ""
			if method == "POST" {
				body = chatBody
			}
			conn.Send(method, path, body, "Authorization: Bearer "+goodKey)
			if resp, text := conn.Answer(); resp.StatusCode != 404 {
				t.Errorf("%s %s: got %d %s, want 404", method, path, resp.StatusCode, text)
			}
		}
	}
	r.idle()
	if n := len(worker.Seen()); n != 0 {
		t.Errorf("the worker got %d requests", n)
	}
}
