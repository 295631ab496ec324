package main

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy"
)

// conversations are members of messages bodies, in all the forms that an engine makes
// a prompt of in a way of its own.
var conversations = []string{
	`"messages":[{"role":"user","content":"Tell me about rivers."}]`,
	`"system":"Be brief.","messages":[{"role":"user","content":[{"type":"text","text":"Tell me"},{"type":"text","text":"about rivers."}]}]`,
	`"system":[{"type":"text","text":"x-anthropic-billing-header: 42"},{"type":"text","text":"Be brief."}],"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"hello"},{"role":"user","content":"go on"}]`,
	`"tools":[{"name":"weather","description":"of a city","input_schema":{"type":"object","properties":{"city":{"type":"string"}}}}],"tool_choice":{"type":"any"},
		"messages":[{"role":"user","content":"weather in Paris?"},{"role":"assistant","content":[{"type":"text","text":"Let me see."},{"type":"tool_use","id":"t1","name":"weather","input":{"city":"Paris"}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"mild"}]},{"type":"text","text":"and tomorrow?"}]}]`,
}

// TestMessagesOverTheWholeStack sends messages before simulated engines that have them:
// answers come as they are, what the engine counts is what the gateway has counted, for
// count_tokens and for the ledger too, and the second turn finds its cache.
func TestMessagesOverTheWholeStack(t *testing.T) {
	d, a := startStack(t)
	ask := func(path, body string) (*http.Response, string) {
		client := gatewaytest.Dial(t, a.public.Addr().String())
		client.Send("POST", path, body, "X-Api-Key: "+d.keys["globex"], "Anthropic-Version: 2023-06-01")
		return client.Answer()
	}
	for i, members := range conversations {
		body := `{"model":"demo-chat","max_tokens":8,` + members + `}`
		resp, text := ask("/v1/messages/count_tokens", `{"model":"demo-chat",`+members+`}`)
		var count struct {
			Input int64 `json:"input_tokens"`
		}
		if err := json.Unmarshal([]byte(text), &count); err != nil || resp.StatusCode != 200 || count.Input == 0 {
			t.Fatalf("%d %s: %v", resp.StatusCode, text, err)
		}
		before := len(rows(t, a))
		resp, text = ask("/v1/messages", body)
		if resp.StatusCode != 200 || !strings.Contains(text, `"type":"message"`) {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
		resp, text = ask("/v1/messages", strings.TrimSuffix(body, "}")+`,"stream":true}`)
		if resp.StatusCode != 200 || !strings.HasSuffix(text, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n") {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
		soon(t, "the rows", stackPatience, func() bool { return len(rows(t, a)) == before+2 })
		for _, row := range rows(t, a)[before:] {
			if row.InputTokens != count.Input || row.OutputTokens != 8 || row.Operation != "messages" || row.Dialect != "anthropic" ||
				row.Flags.Has(tenancy.FlagEstimated) || row.Flags.Has(tenancy.FlagCachedUnknown) {
				t.Errorf("conversation %d of %d tokens: row %+v", i, count.Input, row)
			}
		}
	}
	for _, row := range rows(t, a) {
		if row.Operation == "count_tokens" && (row.InputTokens != 0 || row.OutputTokens != 0 || row.Costs != (tenancy.Costs{}) || row.GPUTime != 0 || row.Flags.Has(tenancy.FlagEstimated)) {
			t.Errorf("a count of tokens has the row %+v", row)
		}
	}
	page := a.tokens.pages()[demoModel]
	if n := page.Requests["local"] + page.Requests["worker"]; n != int64(2*len(conversations)) || page.Requests["estimate"] != 0 {
		t.Errorf("token ids came from %v, want them for every message", page.Requests)
	}
	if d.native {
		soon(t, "the workers to agree", stackPatience, func() bool { return a.tokens.pages()[demoModel].State == "verified" })
		if n := a.tokens.pages()[demoModel].Disagreed; n != 0 {
			t.Errorf("%d answers have another length than was found here", n)
		}
	}
}

// TestExplainedMessages: messages are explained as the gateway sees them.
func TestExplainedMessages(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"tenants.yaml": "tenants: [ { id: acme } ]\n"})
	l := &policyLoader{now: scriptNow(), cfg: &Config{
		Tenants: TenantsConfig{File: filepath.Join(dir, "tenants.yaml")}, Models: []ModelConfig{{Name: "m", ContextLength: 100}},
	}}
	f := func(path, headers, body string) (*policy.Input, error) {
		write(t, dir, map[string]string{"request.yaml": "http: { method: POST, path: " + path + ", headers: " + headers + ", body: " + body + " }\n"})
		return l.request(t.Context(), filepath.Join(dir, "request.yaml"), "", nil)
	}
	in, err := f("/v1/messages", "{}", `{ model: m, max_tokens: 7, messages: [ { role: user, content: [ { type: image, source: {} } ] } ], tools: [ { name: look, input_schema: {} } ] }`)
	if err != nil {
		t.Fatal(err)
	}
	if r := in.Request; r.Operation != "messages" || r.Dialect != "anthropic" || r.Path != "/v1/messages" || r.ImageCount != 1 || len(r.ToolNames) != 1 || r.MaxTokens == nil || *r.MaxTokens != 7 {
		t.Errorf("explained as %+v", r)
	}
	if in, err = f("/v1/messages/count_tokens", "{}", `{ model: m, messages: [] }`); err != nil || in.Request.Operation != "count_tokens" || in.Request.Dialect != "anthropic" {
		t.Errorf("explained as %+v, %v", in, err)
	}
	if in, err = f("/v1/models", "{ anthropic-version: x }", "{}"); err != nil || in.Request.Operation != "models" || in.Request.Dialect != "anthropic" {
		t.Errorf("explained as %+v, %v", in, err)
	}
	if _, err = f("/v1/messages", "{}", `{ model: m, messages: [] }`); err == nil || !strings.Contains(err.Error(), "max_tokens") {
		t.Errorf("a body without max_tokens: %v", err)
	}
}
