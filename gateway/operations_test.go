package gateway

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy"
)

// operationCase is an operation as a test sends and answers it.
type operationCase struct {
	op wire.Operation
	// members are those of the body beside the model; %s is text of the prompt.
	members string
	// answer is the worker's, input and output the tokens that it says it took.
	answer        string
	input, output int64
	// tool is a member that declares the tool named danger, if bodies can.
	tool string
}

// operationCases is one of each operation that has a route, and fails the test for a
// route without one.
func operationCases(t testing.TB) []operationCase {
	t.Helper()
	const usage = `"usage":{"prompt_tokens":10,"completion_tokens":4,"total_tokens":14}`
	const chatTool = `"tools":[{"type":"function","function":{"name":"danger"}}]`
	cases := []operationCase{
		{wire.Chat, `"messages":[{"role":"user","content":"%s"}]`, `{"choices":[],` + usage + `}`, 10, 4, chatTool},
		{wire.Completion, `"prompt":"%s"`, `{"choices":[],` + usage + `}`, 10, 4, ""},
		{wire.Embeddings, `"input":["%s"]`, `{"object":"list","data":[],"usage":{"prompt_tokens":10,"total_tokens":10}}`, 10, 0, ""},
		{wire.Responses, `"input":[{"role":"user","content":[{"type":"input_text","text":"%s"}]}]`,
			`{"id":"resp_1","object":"response","output":[],"usage":{"input_tokens":10,"output_tokens":4,"total_tokens":14}}`, 10, 4,
			`"tools":[{"type":"danger"}]`},
		{wire.Messages, `"max_tokens":50,"messages":[{"role":"user","content":"%s"}]`,
			`{"id":"msg_1","type":"message","role":"assistant","content":[],"stop_reason":"end_turn","usage":{"input_tokens":10,"output_tokens":4}}`, 10, 4,
			`"tools":[{"name":"danger","input_schema":{}}]`},
		{wire.CountTokens, `"messages":[{"role":"user","content":"%s"}]`, `{"input_tokens":10}`, 0, 0, `"tools":[{"name":"danger","input_schema":{}}]`},
		{wire.Tokenize, `"messages":[{"role":"user","content":"%s"}]`, `{"count":3,"max_model_len":4096,"tokens":[1,2,3]}`, 0, 0, chatTool},
		{wire.Detokenize, `"tokens":[1,2,3],"text":"%s"`, `{"prompt":"hello"}`, 0, 0, ""},
	}
	routed := func(op wire.Operation) bool { return operationRoute(op) != nil }
	for _, r := range allRoutes {
		if r.op != 0 && !slices.ContainsFunc(cases, func(c operationCase) bool { return c.op == r.op }) {
			t.Errorf("%s has no case", r.template)
		}
	}
	return slices.DeleteFunc(cases, func(c operationCase) bool { return !routed(c.op) })
}

// operationRoute is the route of an operation, nil if there is none.
func operationRoute(op wire.Operation) *route {
	for _, r := range allRoutes {
		if r.op == op && !strings.Contains(r.template, "{") {
			return r
		}
	}
	return nil
}

// body is the operation's for a model, with a text in its prompt and further members.
func (c *operationCase) body(model, text string, more ...string) string {
	members := c.members
	if strings.Contains(members, "%s") {
		members = fmt.Sprintf(members, text)
	}
	return `{"model":"` + model + `",` + strings.Join(append([]string{members}, more...), ",") + `}`
}

// allEndpoints has pools offer every operation.
func allEndpoints() rigOption {
	return withState(func(st *State) {
		set := wire.EndpointsOf(wire.Operations()...)
		pools := map[string]Pool{}
		for name, p := range st.Pools {
			p.Endpoints = &set
			pools[name] = p
		}
		pools["q"] = Pool{Endpoints: &set}
		st.Pools = pools
	})
}

// answering is a worker that answers each operation as its case says.
func answering(t testing.TB) *gatewaytest.Worker {
	t.Helper()
	cases := operationCases(t)
	return gatewaytest.NewWorker(t, func(x *gatewaytest.Exchange) {
		for i := range cases {
			if operationRoute(cases[i].op).upstream == x.Seen.Target {
				gatewaytest.JSON(200, cases[i].answer)(x)
				return
			}
		}
		gatewaytest.JSON(404, `{"detail":"Not Found"}`)(x)
	})
}

// post sends a body to a route on a connection of its own.
func (r *rig) post(target, body string, header ...string) *gatewaytest.Client {
	c := r.dial()
	c.Send("POST", target, body, append([]string{"Authorization: Bearer " + goodKey}, header...)...)
	return c
}

// TestOperations: every operation reaches its worker under the worker's own path, its
// answer comes back unchanged, and its row has its name, its dialect and its tokens.
func TestOperations(t *testing.T) {
	for _, c := range operationCases(t) {
		t.Run(c.op.String(), func(t *testing.T) {
			worker := answering(t)
			r := newRig(t, []string{worker.URL()}, allEndpoints())
			route := operationRoute(c.op)
			body := c.body("m", "hello", `"odd":[1.0,{"x":9007199254740993}]`)
			resp, text := r.post(route.template, body).Answer()
			if resp.StatusCode != 200 || text != c.answer {
				t.Fatalf("got %d %s, want %s", resp.StatusCode, text, c.answer)
			}
			seen := worker.Next(t)
			if seen.Target != route.upstream || seen.Method != "POST" {
				t.Errorf("the worker got %s %s", seen.Method, seen.Target)
			}
			if !strings.HasPrefix(string(seen.Body), strings.TrimSuffix(body, "}")) {
				t.Errorf("the worker got the body %s of %s", seen.Body, body)
			}
			row := r.row()
			if row.Operation != route.operation || row.Dialect != route.dialect.String() || row.Model != "m" || row.Outcome != tenancy.OutcomeCompleted {
				t.Errorf("row %+v", row)
			}
			if row.InputTokens != c.input || row.OutputTokens != c.output || row.Flags.Has(tenancy.FlagEstimated) || row.Flags.Has(tenancy.FlagOutputUnknown) {
				t.Errorf("the row has %d and %d tokens and the flags %v, want %d and %d", row.InputTokens, row.OutputTokens, row.Flags, c.input, c.output)
			}
			if n := len(r.ledger.intents); n != 1 || r.ledger.intents[0].Operation != route.operation {
				t.Errorf("%d intents", n)
			}
		})
	}
}

// TestOperationNames: each operation is called as the policy format calls it, which is
// what keys can be made for, and nothing else is.
func TestOperationNames(t *testing.T) {
	for _, r := range allRoutes {
		if r.op != 0 && r.operation != r.op.String() && r.operation != operationStored {
			t.Errorf("%s is %q to policies and %q to its codec", r.template, r.operation, r.op)
		}
		if r.op != 0 && (r.codec == nil || r.upstream == "" || r.generates && !r.billsTokens || r.streams && !r.generates) {
			t.Errorf("%s is not whole: %+v", r.template, r)
		}
	}
	if len(Endpoints()) != len(operationCases(t)) {
		t.Errorf("%d endpoints can be offered, %d operations have routes", len(Endpoints()), len(operationCases(t)))
	}
}

// TestOperationsThatFail: a worker's error is rebuilt in the form of the operation's
// dialect, and one without a route for it is not blamed.
func TestOperationsThatFail(t *testing.T) {
	for _, c := range operationCases(t) {
		t.Run(c.op.String(), func(t *testing.T) {
			worker := gatewaytest.NewWorker(t,
				gatewaytest.JSON(404, `{"detail":"Not Found"}`),
				gatewaytest.JSON(400, `{"error":{"message":"bad thing","type":"BadRequestError","param":null,"code":400}}`),
				gatewaytest.JSON(200, `[]`))
			r := newRig(t, []string{worker.URL()}, allEndpoints())
			for _, want := range []struct {
				status int
				code   string
			}{{404, "endpoint_not_supported"}, {400, "invalid_request"}, {502, "upstream_error"}} {
				resp, text := r.post(operationRoute(c.op).template, c.body("m", "hello")).Answer()
				if resp.StatusCode != want.status || !strings.Contains(text, `"`+want.code+`"`) {
					t.Errorf("got %d %s, want %d %s", resp.StatusCode, text, want.status, want.code)
				}
			}
			r.idle()
		})
	}
}

// TestEveryOperationReachesPolicies: each name that the policy format has for an operation
// is that of a route, and a request to the route is judged under it, with the dialect and
// the template of the route.
func TestEveryOperationReachesPolicies(t *testing.T) {
	worker := answering(t)
	r := newRig(t, []string{worker.URL()}, allEndpoints(), withStore())
	var last *policy.Input
	r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
		copied := *in
		last = &copied
		return allow(in)
	})
	seen := map[string]bool{}
	for _, route := range allRoutes {
		if route.operation == "" {
			continue
		}
		method, body := "GET", ""
		if route.post {
			method = "POST"
		}
		for _, c := range operationCases(t) {
			if c.op == route.op {
				body = c.body("m", "hello")
			}
		}
		last = nil
		conn := r.dial()
		conn.Send(method, strings.ReplaceAll(route.template, "{id}", "m"), body, "Authorization: Bearer "+goodKey)
		resp, text := conn.Answer()
		if last == nil {
			t.Errorf("%s: policies were not asked: %d %s", route.template, resp.StatusCode, text)
			continue
		}
		if q := last.Request; q.Operation != route.operation || q.Path != route.template || q.Method != method || q.Dialect != route.dialect.String() {
			t.Errorf("%s: policies see %s %s of %s as %q", route.template, q.Method, q.Path, q.Dialect, q.Operation)
		}
		if last.Principal.Kind != "api_key" {
			t.Errorf("%s: policies see a principal of the kind %q", route.template, last.Principal.Kind)
		}
		seen[route.operation] = true
	}
	for _, name := range policy.Operations() {
		if !seen[name] {
			t.Errorf("no route is the operation %s", name)
		}
	}
	if len(seen) != len(policy.Operations()) {
		t.Errorf("routes have the operations %v, the format has %v", seen, policy.Operations())
	}
	r.idle()
}
