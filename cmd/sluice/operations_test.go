package main

import (
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/scoring/simworker"
)

// TestOperationsEndToEnd: a gateway before workers that generate and one that makes
// embeddings learns from each what it offers, and sends every operation where it is
// offered, by the tokens of its prompt.
func TestOperationsEndToEnd(t *testing.T) {
	cfg := simworker.DefaultConfig()
	cfg.Name, cfg.Model, cfg.TimeScale, cfg.Embeddings = "vectors", "embed", 0.1, 16
	w, err := simworker.Start(cfg, simworker.NewByteTokenizer())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	d, a := startStack(t, func(cfg *Config) {
		embed := cfg.Models[0]
		embed.Name, embed.Upstream, embed.Aliases, embed.Tokenizer = "embed", "embed", nil, ""
		cfg.Models = append(cfg.Models, embed)
		cfg.Pools = append(cfg.Pools, PoolConfig{
			Name: "vectors", Models: []string{"embed"}, CacheSalt: []string{"embeddings"}, GPUs: 1,
			Workers: []WorkerConfig{{Name: "vectors", URL: w.URL(), Events: EventsNone}},
		})
	})
	for _, pool := range []string{"general", "vectors"} {
		soon(t, "pool "+pool+" to say what it offers", stackPatience, func() bool {
			_, known, _ := a.checker.Offered(pool)
			return known
		})
	}
	ask := func(path, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.baseURL()+path, strings.NewReader(body))
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
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	long := words(7, 300)
	input := `"input":[{"role":"user","content":[{"type":"input_text","text":"` + long + `"}]}],"instructions":"be brief","max_output_tokens":3`
	for _, c := range []struct {
		path, body string
		status     int
		holds      string
	}{
		{"/v1/embeddings", `{"model":"embed","input":["a","b"]}`, 200, `"object":"embedding"`},
		{"/tokenize", `{"model":"embed","prompt":"abc"}`, 200, `"count":3`},
		{"/v1/chat/completions", `{"model":"embed","messages":[{"role":"user","content":"x"}]}`, 404, `"endpoint_not_supported"`},
		{"/v1/responses", `{"model":"embed","input":"x"}`, 404, `"endpoint_not_supported"`},
		{"/v1/embeddings", `{"model":"` + demoModel + `","input":"a"}`, 404, `"endpoint_not_supported"`},
		{"/v1/responses", `{"model":"` + demoModel + `","input":"x","max_output_tokens":3}`, 200, `"object":"response"`},
		{"/v1/responses", `{"model":"` + demoModel + `","input":"x","max_output_tokens":3,"stream":true}`, 200, "event: response.completed\n"},
		{"/v1/responses", `{"model":"` + demoModel + `","input":"x","previous_response_id":"resp_1"}`, 400, `"response_store_unavailable"`},
		{"/detokenize", `{"model":"` + demoModel + `","tokens":[40,41]}`, 200, `"prompt":"`},
	} {
		if status, text := ask(c.path, c.body); status != c.status || !strings.Contains(text, c.holds) {
			t.Errorf("%s %.60s: got %d %s, want %d with %s", c.path, c.body, status, text, c.status, c.holds)
		}
	}

	// The prompt of a response is found here as its engine has it, so that the second one
	// is known to be in a cache.
	before := a.fleet.Stats().CachedTokens
	var engine struct {
		Usage struct {
			Input int `json:"input_tokens"`
		}
	}
	for i := range 2 {
		status, text := ask("/v1/responses", `{"model":"`+demoModel+`",`+input+`}`)
		if err := json.Unmarshal([]byte(text), &engine); err != nil || status != 200 {
			t.Fatalf("got %d %s", status, text)
		}
		if i == 0 {
			soon(t, "the prompt to be known in a cache", stackPatience, func() bool { return a.fleet.Stats().Blocks > 0 })
		}
	}
	if got := a.fleet.Stats().CachedTokens - before; got < 256 {
		t.Errorf("%d tokens of the second response were known to be cached, of %d", got, engine.Usage.Input)
	}
	text := metricsText(t, a)
	if !strings.Contains(text, `sluice_http_requests_total{dialect="openai",method="POST",route="/v1/responses",status="200"} 4`) {
		t.Error("the responses are not counted under their route")
	}
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, "sluice_route_token_disagreements_total{") && !strings.HasSuffix(line, " 0") {
			t.Errorf("prompts were found to be of another length than the engine's: %s", line)
		}
	}
}

// TestExplainedOperations: the other operations are explained as the gateway sees them.
func TestExplainedOperations(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"tenants.yaml": "tenants: [ { id: acme } ]\n"})
	l := &policyLoader{now: scriptNow(), cfg: &Config{
		Tenants: TenantsConfig{File: filepath.Join(dir, "tenants.yaml")}, Models: []ModelConfig{{Name: "m", ContextLength: 100}},
	}}
	for _, c := range []struct {
		path, body, operation, template string
		tools                           string
		fault                           string
	}{
		{"/v1/responses", `{ model: m, input: hi, tools: [ { type: web_search } ], max_output_tokens: 5 }`, "responses", "/v1/responses", "web_search", ""},
		{"/v1/responses", `{ model: m, input: hi, conversation: c }`, "", "", "", "conversation"},
		{"/v1/embeddings", `{ model: m, input: [ a, b ] }`, "embeddings", "/v1/embeddings", "", ""},
		{"/tokenize", `{ model: m, prompt: a }`, "tokenize", "/tokenize", "", ""},
		{"/detokenize", `{ model: m, tokens: [ 1, 2 ] }`, "detokenize", "/detokenize", "", ""},
		{"/v1/responses/resp_1", `{}`, "stored_responses", "/v1/responses/{id}", "", ""},
		{"/v1/responses/resp_1/cancel", `{}`, "stored_responses", "/v1/responses/{id}/cancel", "", ""},
		{"/v1/responses/resp.1", `{}`, "", "", "", "no path"},
	} {
		write(t, dir, map[string]string{"request.yaml": "http: { method: POST, path: " + c.path + ", headers: {}, body: " + c.body + " }\n"})
		in, err := l.request(t.Context(), filepath.Join(dir, "request.yaml"), "", nil)
		if c.fault != "" {
			if err == nil || !strings.Contains(err.Error(), c.fault) {
				t.Errorf("%s: %v, want a word about %s", c.path, err, c.fault)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", c.path, err)
		}
		if r := in.Request; r.Operation != c.operation || r.Path != c.template || r.Dialect != "openai" || strings.Join(r.ToolNames, " ") != c.tools {
			t.Errorf("%s is explained as %+v", c.path, r)
		}
	}
}

// TestPoolsOffer: what a pool offers is that of the configuration in force; one that says
// nothing leaves it to the workers.
func TestPoolsOffer(t *testing.T) {
	base := map[string]gateway.Pool{"a": {APIKey: "k"}, "b": {}}
	first := withEndpoints(base, &Config{Pools: []PoolConfig{{Name: "a", Endpoints: []string{"chat", "responses"}}, {Name: "b"}}})
	if set := first["a"].Endpoints; set == nil || *set != wire.EndpointsOf(wire.Chat, wire.Responses) || first["a"].APIKey != "k" || first["b"].Endpoints != nil {
		t.Errorf("the pools are %+v", first)
	}
	next := withEndpoints(base, &Config{Pools: []PoolConfig{{Name: "a"}, {Name: "b", Endpoints: []string{"embeddings"}}}})
	if set := next["b"].Endpoints; next["a"].Endpoints != nil || set == nil || *set != wire.EndpointsOf(wire.Embeddings) {
		t.Errorf("after a reload the pools are %+v", next)
	}
	if base["a"].Endpoints != nil || base["b"].Endpoints != nil {
		t.Error("a generation changes what others are built from")
	}
	running := &Config{Pools: []PoolConfig{{Name: "a"}}}
	if keys := needsRestart(running, &Config{Pools: []PoolConfig{{Name: "a", Endpoints: []string{"chat"}}}}); len(keys) != 0 {
		t.Errorf("a restart is needed for %q", keys)
	}
	if keys := needsRestart(running, &Config{Pools: running.Pools, Responses: ResponsesConfig{Store: true}}); len(keys) != 1 || keys[0] != "responses.store" {
		t.Errorf("a restart is needed for %q, want responses.store", keys)
	}
}
