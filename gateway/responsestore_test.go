package gateway

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/tenancy"
)

func TestResponseStore(t *testing.T) {
	now := time.Now()
	s := newResponseStore(4, time.Minute)
	add := func(at time.Duration, tenant, id string) {
		s.bind(now.Add(at), storedResponse{id: id, tenant: tenant, worker: scoring.WorkerID(len(id))})
	}
	has := func(at time.Duration, tenant, id string, want bool) {
		t.Helper()
		if r, ok := s.find(now.Add(at), tenant, id); ok != want || ok && (r.id != id || r.tenant != tenant) {
			t.Errorf("%s has %s after %v: %t (%+v), want %t", tenant, id, at, ok, r, want)
		}
	}
	add(0, "a", "r1")
	has(0, "a", "r1", true)
	has(0, "b", "r1", false)
	has(0, "a", "r2", false)
	add(0, "b", "r1") // stays whose it is
	has(0, "a", "r1", true)
	has(0, "b", "r1", false)
	s.forget("b", "r1")
	has(0, "a", "r1", true)
	add(0, "a", "../r1")
	add(0, "a", "")
	if n := s.len(); n != 1 {
		t.Errorf("%d responses, want 1", n)
	}
	has(time.Minute-1, "a", "r1", true)
	has(time.Minute, "a", "r1", false)
	if n := s.len(); n != 0 || len(s.byTenant) != 0 {
		t.Errorf("%d responses of %d tenants are left", n, len(s.byTenant))
	}

	// The oldest of whoever has the most make room, once nothing has expired.
	add(0, "b", "b1")
	for i := range 5 {
		add(time.Duration(i)*time.Second, "a", fmt.Sprintf("a%d", i))
	}
	has(5*time.Second, "b", "b1", true)
	has(5*time.Second, "a", "a1", false)
	has(5*time.Second, "a", "a2", true)
	has(5*time.Second, "a", "a4", true)
	add(time.Minute+time.Second, "c", "c1") // b1 has expired by now
	has(time.Minute+time.Second, "a", "a2", true)
	has(time.Minute+time.Second, "b", "b1", false)
	if n := s.len(); n != 4 {
		t.Errorf("%d responses, want 4", n)
	}
	s.forget("c", "c1")
	has(time.Minute+time.Second, "c", "c1", false)
	// r1, b1 and a1 have expired; a0, later a1 made room.
	if got, want := s.stats(), (StoredStats{Entries: 3, Most: 4, Bytes: 3 * (storedBytes + 2), Expired: 2, Pushed: 2}); got != want {
		t.Errorf("the store has %+v, want %+v", got, want)
	}

	off := newResponseStore(0, time.Minute)
	off.bind(now, storedResponse{id: "r1", tenant: "a"})
	if off.on() || off.len() != 0 {
		t.Error("a store that is off keeps a response")
	}
}

// keeper is a worker that stores responses, and says which it is.
func keeper(t testing.TB, name string) *gatewaytest.Worker {
	t.Helper()
	made := 0
	return gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
		switch target := x.Seen.Target; {
		case target == "/v1/responses" && strings.Contains(string(x.Seen.Body), "resp_lost"):
			gatewaytest.JSON(404, `{"error":{"message":"Response with id 'resp_lost' not found.","type":"invalid_request_error","param":"response_id","code":404}}`)(x)
		case target == "/v1/responses":
			made++
			body := fmt.Sprintf(`{"id":"resp_%s%d","usage":{"input_tokens":10,"output_tokens":4}}`, name, made)
			if x.WantsStream() {
				gatewaytest.Stream(
					`data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_`+name+fmt.Sprint(made)+`"}}`+"\n\n",
					`data: {"type":"response.completed","sequence_number":1,"response":`+body+"}\n\n")(x)
				return
			}
			gatewaytest.JSON(200, body)(x)
		case x.Seen.Method == "DELETE":
			gatewaytest.JSON(405, `{"detail":"Method Not Allowed"}`)(x)
		case strings.HasSuffix(target, "/input_items"):
			gatewaytest.JSON(404, `{"detail":"Not Found"}`)(x)
		default:
			gatewaytest.JSON(200, `{"from":"`+name+`","target":"`+target+`","usage":{"input_tokens":10,"output_tokens":4}}`)(x)
		}
	})
}

func withStore() rigOption {
	return withConfig(func(c *Config) { c.StoredResponses, c.StoredFor = 100, time.Hour })
}

// get asks a route of stored responses as the rig's caller.
func (r *rig) get(method, target string) (*http.Response, string) {
	conn := r.dial()
	conn.Send(method, target, "", "Authorization: Bearer "+goodKey)
	return conn.Answer()
}

// TestStoredResponses: a response is asked for, and gone on from, at the worker that made
// it, under a path and a method of the route's own, and costs one request.
func TestStoredResponses(t *testing.T) {
	first, second := keeper(t, "a"), keeper(t, "b")
	r := newRig(t, []string{first.URL(), second.URL()}, allEndpoints(), withStore())
	for _, body := range []string{responseBody, responseStreamBody} {
		if status, text, err := read(t, r.post("/v1/responses", body)); status != 200 || err != nil {
			t.Fatalf("got %d %s %v", status, text, err)
		}
	}
	r.idle()
	r.setReady("w1", false)                             // the other one is what the router would choose
	resp, text := r.get("GET", "/v1/responses/resp_a1") // its worker isn't ready, and no other has it
	wantError(t, resp, text, 404, "response_not_found")
	r.setReady("w1", true)
	for _, id := range []string{"resp_a1", "resp_a2"} {
		resp, text := r.get("GET", "/v1/responses/"+id+"?stream=true&include=x")
		if resp.StatusCode != 200 || !strings.Contains(text, `"from":"a","target":"/v1/responses/`+id+`"`) {
			t.Errorf("got %d %s", resp.StatusCode, text)
		}
	}
	if resp, text := r.get("POST", "/v1/responses/resp_a1/cancel"); resp.StatusCode != 200 || !strings.Contains(text, `"target":"/v1/responses/resp_a1/cancel"`) {
		t.Errorf("got %d %s", resp.StatusCode, text)
	}
	for _, c := range []struct {
		method, target string
		status         int
		code           string
	}{
		{"GET", "/v1/responses/resp_a1/input_items", 404, "endpoint_not_supported"},
		{"DELETE", "/v1/responses/resp_a1", 404, "endpoint_not_supported"},
		{"GET", "/v1/responses/resp_a9", 404, "response_not_found"},
		{"PUT", "/v1/responses/resp_a1", 405, "method_not_allowed"},
		{"GET", "/v1/responses/resp_a1/cancel", 405, "method_not_allowed"},
	} {
		resp, text := r.get(c.method, c.target)
		wantError(t, resp, text, c.status, c.code)
	}
	r.idle()
	rows := r.ledger.all()
	for _, row := range rows[3:] {
		if row.Operation != "stored_responses" && row.Operation != "" || row.InputTokens != 0 || row.OutputTokens != 0 || row.Flags&tenancy.FlagEstimated != 0 {
			t.Errorf("row %+v", row)
		}
	}
	if n := len(second.Seen()); n != 0 {
		t.Errorf("the other worker got %d requests", n)
	}
	for _, seen := range first.Seen()[2:] {
		if len(seen.Body) != 0 || strings.Contains(seen.Target, "?") || seen.Header.Get("Authorization") != "Bearer "+workerKey {
			t.Errorf("the worker got %s %s %s with %v", seen.Method, seen.Target, seen.Body, seen.Header)
		}
	}

	// Going on from it leads to its worker, whatever the router would choose.
	goOn := func(id string) (*http.Response, string) {
		return r.post("/v1/responses", `{"model":"m","input":"and then","previous_response_id":"`+id+`"}`).Answer()
	}
	if resp, text := goOn("resp_a1"); resp.StatusCode != 200 || !strings.Contains(text, `"id":"resp_a3"`) {
		t.Errorf("got %d %s", resp.StatusCode, text)
	}
	resp, text = goOn("resp_b1")
	wantError(t, resp, text, 404, "response_not_found")
	resp, text = r.post("/v1/responses", `{"model":"m","input":"x","background":true}`).Answer()
	wantError(t, resp, text, 400, "response_store_unavailable")

	// What its worker has lost, or a worker that is gone had, nobody has.
	r.g.responses.bind(time.Now(), storedResponse{id: "resp_lost", tenant: "acme", model: "m", pool: "p", worker: 1})
	resp, text = goOn("resp_lost")
	wantError(t, resp, text, 404, "response_not_found")
	first.Close()
	for _, f := range []func() (*http.Response, string){
		func() (*http.Response, string) { return r.get("GET", "/v1/responses/resp_a1") }, func() (*http.Response, string) { return goOn("resp_a1") },
	} {
		resp, text = f()
		wantError(t, resp, text, 404, "response_not_found")
	}
	r.idle()
	if n := len(second.Seen()); n != 0 {
		t.Errorf("the other worker got %d requests", n)
	}
}

// TestStoredResponsesOfOthers: another tenant's response, one whose model the tenant has no
// longer, and one that never was give the same answer. Policies judge each of them.
func TestStoredResponsesOfOthers(t *testing.T) {
	worker := keeper(t, "a")
	r := newRig(t, []string{worker.URL()}, allEndpoints(), withStore())
	now := time.Now()
	r.g.responses.bind(now, storedResponse{id: "resp_theirs", tenant: "other", model: "m", pool: "p", worker: 1})
	r.g.responses.bind(now, storedResponse{id: "resp_model", tenant: "acme", model: "secret", pool: "p", worker: 1})
	r.g.responses.bind(now, storedResponse{id: "resp_pool", tenant: "acme", model: "m", pool: "q", worker: 1})
	r.g.responses.bind(now, storedResponse{id: "resp_mine", tenant: "acme", model: "m", pool: "p", worker: 1})
	unknown := ""
	for _, id := range []string{"resp_never", "resp_theirs", "resp_model"} {
		resp, text := r.get("GET", "/v1/responses/"+id)
		wantError(t, resp, text, 404, "response_not_found")
		if unknown == "" {
			unknown = text
		}
		if text != unknown {
			t.Errorf("%s gives %s, an unknown one %s", id, text, unknown)
		}
	}
	resp, text := r.get("GET", "/v1/responses/resp_pool")
	wantError(t, resp, text, 403, "policy_denied")
	for id, want := range map[string]struct {
		status int
		code   string
	}{"resp_pool": {403, "policy_denied"}, "resp_theirs": {404, "response_not_found"}, "resp_model": {404, "response_not_found"}} {
		resp, text := r.post("/v1/responses", `{"model":"m","input":"x","previous_response_id":"`+id+`"}`).Answer()
		wantError(t, resp, text, want.status, want.code)
	}
	seen := 0
	r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
		if q := in.Request; q.Operation != "stored_responses" || q.Model != "" || !strings.HasPrefix(q.Path, "/v1/responses/{id}") {
			t.Errorf("policies see %+v", q)
		}
		seen++
		return &policy.Decision{Status: 403, Reason: policy.Forbidden, Message: "no"}
	})
	for _, c := range []struct{ method, target string }{
		{"GET", "/v1/responses/resp_mine"}, {"DELETE", "/v1/responses/resp_mine"}, {"GET", "/v1/responses/resp_mine/input_items"},
		{"POST", "/v1/responses/resp_mine/cancel"}, {"GET", "/v1/responses/resp_never"},
	} {
		resp, text := r.get(c.method, c.target)
		wantError(t, resp, text, 403, "policy_denied")
	}
	r.idle()
	if seen != 5 || len(worker.Seen()) != 0 {
		t.Errorf("policies were asked %d times, the worker %d", seen, len(worker.Seen()))
	}
}

// TestStoredResponseIsDeleted: HEAD is GET without its body, and what was deleted is
// unknown from then on, without a question to its worker.
func TestStoredResponseIsDeleted(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.JSON(200, `{"id":"resp_1","object":"response"}`))
	r := newRig(t, []string{worker.URL()}, allEndpoints(), withStore())
	r.g.responses.bind(time.Now(), storedResponse{id: "resp_1", tenant: "acme", model: "m", pool: "p", worker: 1})
	conn := r.dial()
	if err := conn.Write(gatewaytest.RequestText("HEAD", "/v1/responses/resp_1", "", "Authorization: Bearer "+goodKey, "Connection: close")); err != nil {
		t.Fatal(err)
	}
	if text := conn.Closed(); !strings.HasPrefix(text, "HTTP/1.1 200 OK\r\n") || !strings.HasSuffix(text, "\r\n\r\n") || !strings.Contains(text, "Content-Length: 35\r\n") {
		t.Errorf("got %q", text)
	}
	if seen := worker.Next(t); seen.Method != "GET" {
		t.Errorf("the worker got %s", seen.Method)
	}
	if resp, text := r.get("DELETE", "/v1/responses/resp_1"); resp.StatusCode != 200 {
		t.Errorf("got %d %s", resp.StatusCode, text)
	}
	if seen := worker.Next(t); seen.Method != "DELETE" || seen.Target != "/v1/responses/resp_1" {
		t.Errorf("the worker got %s %s", seen.Method, seen.Target)
	}
	for _, method := range []string{"GET", "DELETE"} {
		resp, text := r.get(method, "/v1/responses/resp_1")
		wantError(t, resp, text, 404, "response_not_found")
	}
	r.idle()
	if n := len(worker.Seen()); n != 2 {
		t.Errorf("the worker got %d requests, want 2", n)
	}
}

// TestStoredResponsesObeyLimits: the routes of stored responses share what a tenant has
// with every other route.
func TestStoredResponsesObeyLimits(t *testing.T) {
	for _, rule := range rules() {
		if rule.before == 0 {
			continue
		}
		t.Run(rule.name, func(t *testing.T) {
			worker := answering(t)
			r := newRig(t, []string{worker.URL()}, allEndpoints(), withStore(), withPolicies(t, rule.policies))
			r.g.responses.bind(time.Now(), storedResponse{id: "resp_1", tenant: "acme", model: "m", pool: "p", worker: 1})
			if resp, text := r.chat(chatBody).Answer(); resp.StatusCode != 200 {
				t.Fatalf("got %d %s", resp.StatusCode, text)
			}
			for _, c := range []struct{ method, target string }{
				{"GET", "/v1/responses/resp_1"}, {"DELETE", "/v1/responses/resp_1"}, {"GET", "/v1/responses/resp_1/input_items"},
				{"POST", "/v1/responses/resp_1/cancel"}, {"GET", "http://elsewhere.test/v1/responses/resp_1?x=1"}, {"GET", "/v1/responses/resp_never"},
			} {
				resp, text := r.get(c.method, c.target)
				if resp.StatusCode != rule.status || !strings.Contains(text, `"`+rule.code+`"`) {
					t.Errorf("%s %s: got %d %s, want %d %s", c.method, c.target, resp.StatusCode, text, rule.status, rule.code)
				}
			}
			r.idle()
			if n := len(worker.Seen()); n != 1 {
				t.Errorf("the worker got %d requests, want 1", n)
			}
		})
	}
}
