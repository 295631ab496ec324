package policy

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

const recordPolicy = `
  validations:
    - { name: v, expression: "!('pii' in content.labels)", messageExpression: "'model %s is not allowed for %s'.format([request.model, content.labels.join(', ')])" }
  effects: [{ name: e, mutate: { max_tokens: 100 }, addLabels: [handled] }]
  auditAnnotations: [{ key: k, valueExpression: tenant.team }]`

func TestDecisionRecord(t *testing.T) {
	s := mustLoad(t, testConfig(), policyText("p", recordPolicy, "Deny")+policyText("q", "\n  validations: [{ name: v, expression: \"tenant.labels['x'] == ''\" }]\n  auditAnnotations: [{ key: k, valueExpression: tenant.id }]", "Audit"))
	in := testInput()
	in.Principal.Claims["undeclared"] = "secret-claim"
	d := s.Decide(t.Context(), in)
	o := RecordOptions{DecisionID: "id-1", RequestID: "r-1", Gateway: "gw-1", Time: in.Now, Hash: func(v string) string { return "hmac:" + v[:1] }}
	d.Cost.Duration, d.Cost.Scan = 912*time.Microsecond, 640*time.Microsecond
	d.Cost.Units = 1
	got := encode(t, d.Record(in, o))
	want := `{"type":"decision","decision_id":"id-1","request_id":"r-1","timestamp":"2026-03-10T11:00:00Z","revision":"` + s.Revision() + `","gateway":"gw-1",` +
		`"input":{"now":"2026-03-10T11:00:00Z","request":{"operation":"chat","dialect":"openai","method":"POST","path":"/v1/chat/completions","model":"m","requested_model":"alias","model_family":"fam",` +
		`"stream":true,"n":1,"max_tokens":1000,"input_tokens_estimate":90,"body_bytes":400,"message_count":2,"image_count":1,"tool_names":["search","shell"],"modalities":["text","image"],` +
		`"session_id":"hmac:s","user":"hmac:u","headers":{"x-app":"demo"},"source_ip":"hmac:1"},` +
		`"principal":{"kind":"jwt","id":"jwt:iss:sub","subject":"sub","issuer":"iss","groups":["devs","ops"],"scopes":["infer"],"key_id":"k1","spiffe_id":"spiffe://x/y",` +
		`"claims":{"admin":true,"clearance":3,"dept":"red","regions":["eu","us"],"score":1.5}},` +
		`"tenant":{"id":"t1","team":"search","tier":"gold","labels":{"env":"prod"}},` +
		`"content":{"declared_labels":["internal"],"labels":["internal","pii"],"findings":{"pii":2},"detectors":["email"],"scan_status":"complete"}},` +
		`"verdict":"deny","status":403,"reason":"Forbidden","rule":"p/v","message":"model m is not allowed for internal, pii",` +
		`"denials":[{"rule":"p/v","binding":"p-b"}],"warnings":[],"wouldDeny":[],"errors":[],"effects":[{"rule":"p/e","binding":"p-b","enforced":true}],` +
		`"effective":{"pools":["a","b","c"],"qos_class":"standard","max_tokens":100,"n":1,"cache_isolation":"tenant","labels":["handled"]},` +
		`"limits":[],"annotations":{"p/k":"search"},"cost":{"units":1,"shadow_units":0,"expressions":4},"lazy":{"scan_us":640,"tokenize_us":0},"duration_us":912}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestRecordLeavesOutWhatWasNotResolved: lazy variables appear only after a
// read, client identifiers only hashed.
func TestRecordLeavesOutWhatWasNotResolved(t *testing.T) {
	s := mustLoad(t, testConfig(), policyText("p", validations, "Deny"))
	in := testInput()
	got := encode(t, s.Decide(t.Context(), in).Record(in, RecordOptions{DecisionID: "x"}))
	for _, no := range []string{"scan_status", "input_tokens\"", "findings", "u-1", "s-1", "10.20.1.7"} {
		if strings.Contains(got, no) {
			t.Errorf("the record holds %s: %s", no, got)
		}
	}
	failed := s.failed("boom")
	got = encode(t, failed.Record(in, RecordOptions{}))
	if !strings.Contains(got, `"verdict":"deny"`) || strings.Contains(got, "boom") {
		t.Errorf("a failed decision: %s", got)
	}
}

func TestSettlementRecord(t *testing.T) {
	s := mustLoad(t, testConfig(), limitText("{ name: l, unit: tokens, window: 1m, limit: 5000, key: [request.user.orValue('')] }", "Deny"))
	d := s.Decide(t.Context(), testInput())
	u := Usage{InputTokens: 900, CachedInputTokens: 600, OutputTokens: 250, Complete: true}
	got := encode(t, d.Settlement(RecordOptions{DecisionID: "id", Time: time.Unix(0, 0)}, "completed", "a", u, d.Charges(u), []int64{3100}))
	want := `{"type":"settlement","decision_id":"id","timestamp":"1970-01-01T00:00:00Z","outcome":"completed","pool":"a","usage":{"input_tokens":900,"cached_input_tokens":600,"output_tokens":250,"reasoning_tokens":0,"complete":true},` +
		`"limits":[{"rule":"p/l","binding":"p-b","enforced":true,"limit":5000,"reserved":1900,"charged":1150,"available":3100}]}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func encode(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
