package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/scoring/simworker"
	"github.com/sluicegate/sluice/tenancy"
)

// offering gives pools their endpoints; all keep caches apart for all they do.
func offering(pools map[string][]wire.Operation) rigOption {
	return withState(func(st *State) {
		st.Pools = map[string]Pool{}
		for name, ops := range pools {
			set := wire.EndpointsOf(ops...)
			st.Pools[name] = Pool{APIKey: workerKey, Endpoints: &set, Salted: set}
		}
	})
}

// chatOnly is pools without routes of the Messages API.
func chatOnly() rigOption {
	ops := []wire.Operation{wire.Chat, wire.Completion, wire.Tokenize}
	return offering(map[string][]wire.Operation{"p": ops, "q": ops})
}

// priced puts a price on every token, a different one on those of each kind.
func priced() rigOption {
	return withState(func(st *State) { st.Pricer = tokenPrices{} })
}

type tokenPrices struct{}

func (tokenPrices) Price(row *tenancy.Row) {
	row.Currency = "EUR"
	row.Costs = tenancy.Costs{
		Input: 1000003 * (row.InputTokens - row.CachedTokens), CachedInput: 101 * row.CachedTokens, Output: 7000001 * row.OutputTokens,
	}
}

func startSim(t *testing.T, change func(*simworker.Config)) *simworker.Worker {
	t.Helper()
	cfg := simworker.DefaultConfig()
	cfg.Name, cfg.Model, cfg.TimeScale = "w1", "m", 0
	cfg.OutputTokens, cfg.ToolCalls, cfg.EnablePromptTokensDetails = 20, true, true
	change(&cfg)
	w, err := simworker.Start(cfg, simworker.NewByteTokenizer())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

const weatherTools = `,"tools":[{"name":"weather","description":"d","input_schema":{"type":"object","properties":{"city":{"type":"string"}}}},{"name":"time","input_schema":{}}]`

// alikeBodies are requests of all kinds, without the model and stream.
func alikeBodies() []string {
	long := strings.Repeat("a rather long text about nothing at all. ", 40)
	user := `,"messages":[{"role":"user","content":"` + long + `"}]`
	return []string{
		`"max_tokens":12` + user,
		`"max_tokens":100` + user,
		`"max_tokens":100,"system":"be brief"` + user,
		`"max_tokens":100,"system":[{"type":"text","text":"x-anthropic-billing-header: 1"},{"type":"text","text":"be "},{"type":"text","text":"brief","cache_control":{"type":"ephemeral"}}]` + user,
		`"max_tokens":100,"stop_sequences":["a","e","i","o","u"," "],"temperature":0.5,"top_k":3,"metadata":{"user_id":"u"}` + user,
		`"max_tokens":100` + user + weatherTools,
		`"max_tokens":2` + user + weatherTools + `,"tool_choice":{"type":"none"}`,
		`"max_tokens":100` + user + weatherTools + `,"tool_choice":{"type":"any","disable_parallel_tool_use":true}`,
		`"max_tokens":100` + user + weatherTools + `,"tool_choice":{"type":"tool","name":"time"}`,
		`"max_tokens":30` + weatherTools + `,"messages":[{"role":"user","content":[{"type":"text","text":"` + long + `"},{"type":"text","text":"two"}]},` +
			`{"role":"assistant","content":[{"type":"text","text":"let me"},{"type":"tool_use","id":"t1","name":"weather","input":{"city":"Z\u00fcrich"}}]},` +
			`{"role":"user","content":[{"type":"text","text":"here"},{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"12"},{"type":"text","text":"degrees"}]}]}]`,
	}
}

// TestNativeAndTranslatedAreAlike: the same model on workers with and without the
// messages route gives the same message, whole and streamed, and a row of the same
// tokens, flags and cost, to the last millionth.
func TestNativeAndTranslatedAreAlike(t *testing.T) {
	reasons := map[string]bool{}
	for _, details := range []bool{true, false} {
		native := startSim(t, func(c *simworker.Config) { c.EnablePromptTokensDetails = details })
		plain := startSim(t, func(c *simworker.Config) { c.NoMessages, c.EnablePromptTokensDetails = true, details })
		a := newRig(t, []string{native.URL()}, allEndpoints(), priced())
		b := newRig(t, []string{plain.URL()}, chatOnly(), priced())
		for _, rest := range alikeBodies() {
			for _, stream := range []string{"", `,"stream":true`} {
				body := `{"model":"m",` + rest + stream + `}`
				var said [2]*saidMessage
				var rows [2]*tenancy.Row
				for i, r := range []*rig{a, b} {
					r.ledger.clear()
					resp, text := r.post("/v1/messages", body).Answer()
					if resp.StatusCode != 200 {
						t.Fatalf("route %d: %s gives %d %s", i, body, resp.StatusCode, text)
					}
					if stream != "" {
						said[i] = putTogether(t, text)
					} else {
						said[i] = readMessage(t, text)
					}
					if i == 1 && said[i].ID != "msg_"+resp.Header.Get("request-id") {
						t.Errorf("the message %s is of request %s", said[i].ID, resp.Header.Get("request-id"))
					}
					said[i].comparable()
					rows[i] = r.row()
				}
				reasons[*said[1].Reason] = true
				if !reflect.DeepEqual(said[0], said[1]) {
					t.Errorf("%s\n    native %+v\ntranslated %+v", body, said[0], said[1])
				}
				if x, y := billed(rows[0]), billed(rows[1]); x != y || rows[1].Costs.Total() == 0 {
					t.Errorf("%s\n    native %s\ntranslated %s", body, x, y)
				}
			}
		}
		if details && !strings.Contains(billed(a.ledger.all()[0]), "cached_known") {
			t.Error("no request was priced with known cached tokens")
		}
	}
	for _, reason := range []string{"end_turn", "max_tokens", "stop_sequence", "tool_use"} {
		if !reasons[reason] {
			t.Errorf("no answer stopped for %s", reason)
		}
	}
}

// billed is what a row says about what a request is and costs.
func billed(r *tenancy.Row) string {
	known := ""
	if !r.Flags.Has(tenancy.FlagCachedUnknown) {
		known = "cached_known"
	}
	return fmt.Sprintf("%s %s %s->%s %d %s in %d (%d %s) out %d flags %v cost %d",
		r.Operation, r.Dialect, r.RequestedModel, r.Model, r.Status, r.Outcome, r.InputTokens, r.CachedTokens, known, r.OutputTokens, r.Flags, r.Costs.Total())
}

// clear forgets all rows.
func (l *memoryLedger) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rows = nil
}

const helloMessages = `{"model":"m","max_tokens":50,"messages":[{"role":"user","content":"hello"}]}`
const helloMessagesStream = `{"model":"m","max_tokens":50,"stream":true,"messages":[{"role":"user","content":"hello"}]}`

// TestCountTokensByTokenize: a worker without count_tokens is asked for the tokens of
// the translation, which costs no tokens.
func TestCountTokensByTokenize(t *testing.T) {
	worker := startSim(t, func(c *simworker.Config) { c.NoMessages = true })
	native := startSim(t, func(*simworker.Config) {})
	a, b := newRig(t, []string{native.URL()}, allEndpoints()), newRig(t, []string{worker.URL()}, chatOnly())
	for _, body := range []string{
		`{"model":"m-alias","messages":[{"role":"user","content":"hello there"}]}`,
		`{"model":"m","system":"be brief","messages":[{"role":"user","content":[{"type":"text","text":"hello"},{"type":"text","text":"there"}]}]` + weatherTools + `}`,
	} {
		var counts [2]struct {
			Input int `json:"input_tokens"`
		}
		for i, r := range []*rig{a, b} {
			r.ledger.clear()
			resp, text := r.post("/v1/messages/count_tokens", body).Answer()
			if err := json.Unmarshal([]byte(text), &counts[i]); err != nil || resp.StatusCode != 200 {
				t.Fatalf("%d %s: %v", resp.StatusCode, text, err)
			}
			if row := r.row(); row.InputTokens != 0 || row.OutputTokens != 0 || row.Operation != "count_tokens" || row.Dialect != "anthropic" {
				t.Errorf("the row says %+v", row)
			}
		}
		if counts[0] != counts[1] || counts[0].Input == 0 {
			t.Errorf("%s: %d tokens by count_tokens, %d by /tokenize", body, counts[0].Input, counts[1].Input)
		}
	}
	if len(worker.Requests()) == 0 {
		t.Error("nobody was asked")
	}
}

// TestTranslatedRequest: what decisions change, isolation and the gateway's own headers
// are in the translation as they are in a body that goes through.
func TestTranslatedRequest(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("hi"))
	r := newRig(t, []string{worker.URL()}, chatOnly())
	limit := int64(7)
	r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
		d := allow(in)
		d.MaxTokens, d.MaxTokensChanged = &limit, true
		return d
	})
	resp, text := r.post("/v1/messages?beta=true", `{"model":"m-alias","max_tokens":50,"stream":true,"priority":5,"cache_salt":"mine","stop_sequences":["x"],
		"messages":[{"role":"user","content":"h\u00e9llo"}]}`, "anthropic-version: 2026-10-21", "anthropic-beta: x").Answer()
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream; charset=utf-8" {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	seen := worker.Next(t)
	var sent struct {
		Model     string
		MaxTokens int    `json:"max_tokens"`
		Salt      string `json:"cache_salt"`
		Priority  *int
		Stop      []string
		Stream    bool
		Options   map[string]bool `json:"stream_options"`
	}
	if err := json.Unmarshal(seen.Body, &sent); err != nil {
		t.Fatal(err)
	}
	if seen.Target != "/v1/chat/completions" || sent.Model != "m" || sent.MaxTokens != 7 || sent.Priority != nil || !slices.Equal(sent.Stop, []string{"x"}) ||
		!sent.Stream || !sent.Options["include_usage"] || !sent.Options["continuous_usage_stats"] {
		t.Errorf("%s got %s", seen.Target, seen.Body)
	}
	if want := cacheSalt([]byte(cacheKey), "tenant", "acme", "key:test", "mine"); sent.Salt != want {
		t.Errorf("the salt is %q, want %q", sent.Salt, want)
	}
	if !strings.Contains(string(seen.Body), `h\u00e9llo`) {
		t.Errorf("the text is spelt anew: %s", seen.Body)
	}
	for name := range seen.Header {
		if strings.HasPrefix(name, "Anthropic-") {
			t.Errorf("the worker got %s", name)
		}
	}
}

// TestTranslatedStreamCutAnywhere: a client's bytes do not depend on where the network
// cuts the worker's stream.
func TestTranslatedStreamCutAnywhere(t *testing.T) {
	stream := gatewaytest.RoleEvent + gatewaytest.ContentEvent("né", "") + gatewaytest.ContentEvent("!", "length") +
		gatewaytest.UsageEvent(gatewaytest.Usage(10, 2)) + gatewaytest.DoneEvent
	at := 0
	worker := gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
		x.StreamHead()
		for _, part := range []string{stream[:at], stream[at:]} {
			if part != "" {
				x.Chunk(part)
			}
		}
		x.End()
	})
	r := newRig(t, []string{worker.URL()}, chatOnly())
	conn, want := r.dial(), ""
	for ; at < len(stream); at++ {
		conn.Send("POST", "/v1/messages", helloMessagesStream, "Authorization: Bearer "+goodKey, "X-Request-Id: one")
		resp, text := conn.Answer()
		if at == 0 {
			if m := putTogether(t, text); *m.Reason != "max_tokens" || m.Content[0]["text"] != "né!" || m.ID != "msg_one" || m.Usage["output_tokens"] != 2.0 {
				t.Fatalf("%+v", m)
			}
			want = text
		}
		if resp.StatusCode != 200 || text != want {
			t.Fatalf("cut at %d: %d %q, want %q", at, resp.StatusCode, text, want)
		}
	}
	rows := r.ledger.all()
	for _, row := range rows {
		if row.Outcome != tenancy.OutcomeCompleted || row.InputTokens != 10 || row.OutputTokens != 2 {
			t.Fatalf("%+v", row)
		}
	}
}

// TestNothingBypassesARuleByTranslation: what stands in for an operation is judged as
// the operation that was asked for, in every spelling.
func TestNothingBypassesARuleByTranslation(t *testing.T) {
	for _, rule := range rules() {
		t.Run(rule.name, func(t *testing.T) {
			worker := gatewaytest.NewWorker(t, gatewaytest.Chat("hi"))
			r := newRig(t, []string{worker.URL()}, chatOnly(), withPolicies(t, rule.policies), withState(func(st *State) { st.Classifier = found{} }))
			for range rule.before {
				if resp, text := r.chat(chatBody).Answer(); resp.StatusCode != 200 {
					t.Fatalf("got %d %s", resp.StatusCode, text)
				}
			}
			for _, c := range operationCases(t) {
				more, ok := rule.more(&c)
				if _, stands := standIn(c.op); !stands || !ok {
					continue
				}
				if more == `"odd":1` {
					more = `"top_p":1` // a member that a translation has
				}
				for _, s := range spellings() {
					resp, text := s.send(r, operationRoute(c.op).template, &c, more).Answer()
					if s.refused {
						if !slices.Contains([]int{400, 404, 405, 415}, resp.StatusCode) {
							t.Errorf("%s, %s: got %d %s, want it refused as no request", c.op, s.name, resp.StatusCode, text)
						}
						continue
					}
					unknown := resp.StatusCode == 400 && strings.Contains(text, "no equivalent")
					if (resp.StatusCode != rule.status || !strings.Contains(text, `"`+rule.code+`"`)) && !unknown {
						t.Errorf("%s, %s: got %d %s, want %d %s", c.op, s.name, resp.StatusCode, text, rule.status, rule.code)
					}
				}
			}
			if n := len(worker.Seen()); n != rule.before {
				t.Errorf("the worker got %d requests, want %d", n, rule.before)
			}
			r.idle()
		})
	}
}

// TestTranslatedWithoutFinish: an answer of which the worker does not say why it ended is no
// message, whether it came whole or as a stream with its terminal mark: no reason is made up
// for it. What was used is charged, and the worker is told of.
func TestTranslatedWithoutFinish(t *testing.T) {
	whole := strings.Replace(gatewaytest.ChatBody("a", gatewaytest.Usage(10, 1)), `"finish_reason":"stop"`, `"finish_reason":null`, 1)
	for _, c := range []struct {
		body   string
		worker gatewaytest.Behaviour
		status int
	}{
		{helloMessages, gatewaytest.JSON(200, whole), 502},
		{helloMessagesStream, gatewaytest.Stream(gatewaytest.RoleEvent, gatewaytest.ContentEvent("a", ""), gatewaytest.UsageEvent(gatewaytest.Usage(10, 1)), gatewaytest.DoneEvent), 200},
	} {
		r := newRig(t, []string{gatewaytest.NewWorker(t, c.worker).URL()}, chatOnly())
		status, text, err := read(t, r.post("/v1/messages", c.body))
		if status != c.status || err != nil || !strings.Contains(text, `"error_code":"upstream_error"`) ||
			strings.Contains(text, "message_delta") || strings.Contains(text, "message_stop") || strings.Contains(text, "end_turn") {
			t.Errorf("got %d %v %s", status, err, text)
		}
		if row := r.row(); row.Outcome != tenancy.OutcomeUpstreamError || row.InputTokens == 0 {
			t.Errorf("row %+v", row)
		}
		if len(r.health.blamed) != 1 || !strings.HasPrefix(r.health.blamed[0], "answer ") {
			t.Errorf("blamed %v", r.health.blamed)
		}
	}
}

// TestTranslatedLimits: a translated request reserves and settles what one that goes
// through does.
func TestTranslatedLimits(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a", "b", "c"))
	r := newRig(t, []string{worker.URL()}, chatOnly(), withPolicies(t, bound("limit", "Deny", `
  limits:
    - { name: l, unit: tokens, window: 1h, limit: 1000, key: ["tenant.id"] }`)))
	left := func() string {
		resp, text := r.post("/v1/messages", helloMessages).Answer()
		if resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
		r.idle()
		return resp.Header.Get("anthropic-ratelimit-tokens-remaining")
	}
	// Ten prompt tokens and three of output were settled between the two.
	first, second := left(), left()
	if a, b := atoi(t, first), atoi(t, second); a-b != 13 {
		t.Errorf("%s tokens were left, then %s", first, second)
	}
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestOneModelNativeAndTranslated: each attempt speaks to its worker in the form that
// the worker has, also when one takes over from another.
func TestOneModelNativeAndTranslated(t *testing.T) {
	const answer = `{"id":"chatcmpl-1","type":"message","role":"assistant","content":[{"type":"text","text":"hi"}],"model":"m","stop_reason":"end_turn","usage":{"input_tokens":10,"output_tokens":1}}`
	f := func(first, second string) {
		t.Helper()
		pools := map[string][]wire.Operation{"n": {wire.Chat, wire.Messages}, "t": {wire.Chat}}
		behaviours := map[string]gatewaytest.Behaviour{"n": gatewaytest.JSON(200, answer), "t": gatewaytest.Chat("hi")}
		fails, works := gatewaytest.NewWorker(t, gatewaytest.Fail(503)), gatewaytest.NewWorker(t, behaviours[second])
		r := newRig(t, nil, offering(pools))
		r.addWorker(first, "fails", fails.URL(), true)
		r.addWorker(second, "works", works.URL(), true)
		r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
			d := allow(in)
			d.Pools = []string{"n", "t"}
			return d
		})
		resp, text := r.post("/v1/messages", helloMessages).Answer()
		m := readMessage(t, text)
		if resp.StatusCode != 200 || len(m.Content) != 1 || m.Content[0]["text"] != "hi" || *m.Reason != "end_turn" {
			t.Errorf("%s, then %s: %d %s", first, second, resp.StatusCode, text)
		}
		targets := map[string]string{"n": "/v1/messages", "t": "/v1/chat/completions"}
		if a, b := fails.Next(t).Target, works.Next(t).Target; a != targets[first] || b != targets[second] {
			t.Errorf("%s, then %s: the workers were asked at %s and %s", first, second, a, b)
		}
		if row := r.row(); row.Attempts != 2 || row.Pool != second || row.InputTokens != 10 || row.OutputTokens != 1 {
			t.Errorf("%s, then %s: %+v", first, second, row)
		}
	}
	f("n", "t")
	f("t", "n")
	f("t", "t")
}

// TestUntranslatable: what chat can't do is refused by its name, before anything is
// reserved or sent; where other workers can do it, it goes to those alone.
func TestUntranslatable(t *testing.T) {
	const body = `{"model":"m","max_tokens":50,"container":"c","messages":[{"role":"user","content":"hello"}]}`
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("hi"))
	r := newRig(t, []string{worker.URL()}, chatOnly())
	resp, text := r.post("/v1/messages", body).Answer()
	if resp.StatusCode != 400 || !strings.Contains(text, "`container`") || !strings.Contains(text, `"type":"invalid_request_error"`) ||
		!strings.Contains(text, `"error_code":"invalid_request"`) {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	if row := r.row(); row.Outcome != tenancy.OutcomeRejected || len(worker.Seen()) != 0 {
		t.Errorf("the row says %+v, and %d requests were sent", row, len(worker.Seen()))
	}

	native := gatewaytest.NewWorker(t, gatewaytest.JSON(200, `{"type":"message","content":[],"usage":{"input_tokens":1,"output_tokens":1}}`), gatewaytest.Fail(503))
	r = newRig(t, nil, offering(map[string][]wire.Operation{"p": {wire.Chat}, "n": {wire.Messages}}))
	r.addWorker("n", "native", native.URL(), true)
	r.addWorker("p", "worker", worker.URL(), true)
	r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
		d := allow(in)
		d.Pools = []string{"p", "n"}
		return d
	})
	if resp, text := r.post("/v1/messages", body).Answer(); resp.StatusCode != 200 || r.row().Pool != "n" {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	if got := string(native.Next(t).Body); !strings.Contains(got, `"container":"c"`) {
		t.Errorf("the native worker got %s", got)
	}
	if resp, text := r.post("/v1/messages", body).Answer(); resp.StatusCode != 529 || len(worker.Seen()) != 0 {
		t.Errorf("the only worker that can is full: %d %s, and another got %d requests", resp.StatusCode, text, len(worker.Seen()))
	}
}

// TestTranslationKeepsCachesApart: a pool whose engines keep caches apart on messages
// gets no isolated chat in their place unless they do so on chat too.
func TestTranslationKeepsCachesApart(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("hi"))
	r := newRig(t, []string{worker.URL()}, withState(func(st *State) {
		set := wire.EndpointsOf(wire.Chat, wire.Tokenize)
		st.Pools = map[string]Pool{"p": {Endpoints: &set, Salted: wire.EndpointsOf(wire.Messages)}}
	}))
	resp, text := r.post("/v1/messages", helloMessages).Answer()
	if resp.StatusCode != http.StatusNotFound || !strings.Contains(text, "endpoint_not_supported") || len(worker.Seen()) != 0 {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	worker.Script(gatewaytest.JSON(200, `{"count":3}`))
	if resp, text := r.post("/v1/messages/count_tokens", helloMessages).Answer(); resp.StatusCode != 200 || text != `{"input_tokens":3}` {
		t.Errorf("a count is no matter of caches: %d %s", resp.StatusCode, text)
	}
}

// TestTranslatedErrors: a worker's error comes in the client's shape and terms.
func TestTranslatedErrors(t *testing.T) {
	f := func(status int, body string, want int, contains ...string) {
		t.Helper()
		worker := gatewaytest.NewWorker(t, gatewaytest.JSON(status, body))
		r := newRig(t, []string{worker.URL()}, chatOnly())
		resp, text := r.post("/v1/messages", `{"model":"m","max_tokens":50,"system":"s","messages":[{"role":"user","content":"hello"}]}`).Answer()
		var e struct {
			Type  string
			Error struct {
				Type, Message string
				Details       map[string]string
			}
			RequestID string `json:"request_id"`
		}
		if err := json.Unmarshal([]byte(text), &e); err != nil || resp.StatusCode != want || e.Type != "error" || e.RequestID != resp.Header.Get("request-id") {
			t.Errorf("%s: %d %s: %v", body, resp.StatusCode, text, err)
		}
		for _, c := range contains {
			if !strings.Contains(text, c) {
				t.Errorf("%s gives %s, want %s in it", body, text, c)
			}
		}
	}
	f(400, `{"error":{"message":"stop has too many","type":"BadRequestError","param":"stop","code":400}}`, 400, "stop_sequences has too many", "invalid_request_error")
	f(400, `{"error":{"message":"it is wrong","type":"BadRequestError","param":"body.messages.1.content","code":400}}`, 400, "it is wrong (`messages[0]`)")
	f(400, `{"error":{"message":"This model's maximum context length is 8192 tokens.","param":"input_tokens","code":400}}`, 400, "context_length_exceeded")
	f(404, `{"detail":"Not Found"}`, 404, "endpoint_not_supported", "not_found_error")
	f(503, ``, 529, "overloaded_error")
	f(500, `{"error":{"message":"secret words"}}`, 502, "api_error", "upstream_error")
}

// TestTranslatedStreamEnds: a stream that ends in any other way than by its mark ends
// in an error event, with nothing brought to an end.
func TestTranslatedStreamEnds(t *testing.T) {
	role := gatewaytest.RoleEvent
	content, finish := gatewaytest.ContentEvent("hi", ""), gatewaytest.ContentEvent("!", "stop")
	f := func(b gatewaytest.Behaviour, code string) {
		t.Helper()
		worker := gatewaytest.NewWorker(t, b)
		r := newRig(t, []string{worker.URL()}, chatOnly())
		_, text := r.post("/v1/messages", helloMessagesStream).Answer()
		events, err := gatewaytest.NewEventReader(strings.NewReader(text)).All()
		if err != nil || len(events) < 3 {
			t.Fatalf("%v: %s", err, text)
		}
		end := events[len(events)-1]
		if end.Name != "error" || !strings.Contains(end.Data, `"error_code":"`+code+`"`) || !strings.HasPrefix(end.Data, `{"type":"error"`) {
			t.Errorf("it ends with %+v, want %s", end, code)
		}
		for _, ev := range events {
			if slices.Contains([]string{"content_block_stop", "message_delta", "message_stop"}, ev.Name) {
				t.Errorf("%s before the error: %s", ev.Name, text)
			}
		}
		if row := r.row(); row.Outcome == tenancy.OutcomeCompleted || row.ErrorCode != code {
			t.Errorf("the row says %+v", row)
		}
	}
	f(gatewaytest.Stream(role, content), "upstream_error")
	f(gatewaytest.Stream(role, content, finish), "upstream_error")
	f(gatewaytest.DropAfter(gatewaytest.RST, role, content), "upstream_error")
	f(gatewaytest.Stream(role, content, `data: {"error":{"message":"secret","code":500}}`+"\n\n", gatewaytest.DoneEvent), "upstream_error")
	f(gatewaytest.Stream(role, content, "data: {half\n\n", finish, gatewaytest.DoneEvent), "upstream_error")
	f(gatewaytest.Stream(role, content, gatewaytest.ContentEvent("", "abort"), gatewaytest.DoneEvent), "upstream_error")
}
