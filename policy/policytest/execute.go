package policytest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sluicegate/sluice/policy"
)

// execution is one test's request, judged.
type execution struct {
	d *policy.Decision
	// rehearsed is what the bindings that only audit say; zero without any.
	rehearsed policy.RehearsalOutcome
	charges   []int64 // parallel to d.Limits, nil without a usage
	input     *policy.Input
	observed  *observer
	// reserved limits by rule, of every mode.
	reserved map[string]bool
}

// execute judges the test's request as the gateway would: decide, reserve,
// run the shadow bindings, settle.
func execute(set *policy.Set, s *policy.TestSuite, c *policy.TestCase) *execution {
	ctx := context.Background()
	in := Input(c.Input, s.Config.Claims)
	run := &execution{input: in, observed: &observer{reads: map[string]bool{}, operands: map[coverageKey]bool{}}, reserved: map[string]bool{}}
	in.Observer = run.observed
	d := set.Decide(ctx, in)
	run.d = d
	run.reserve(c, d.Limits, d.RefuseLimits)
	if !d.Allow { // all or nothing
		clear(run.reserved)
	}
	if r := d.Rehearsal(); r != nil {
		r.Run(ctx, in.Lazy)
		run.reserve(c, r.Limits(), r.RefuseLimits)
		if u, ok := run.usage(s, c); ok {
			r.Charges(u)
		}
		run.rehearsed = r.Outcome()
	}
	if u, ok := run.usage(s, c); ok {
		run.charges = d.Charges(u)
	}
	return run
}

// usage is what the test's response used, with the price table's cost where the
// test gives none. A denied request has none.
func (run *execution) usage(s *policy.TestSuite, c *policy.TestCase) (u policy.Usage, ok bool) {
	if c.Usage == nil || !run.d.Allow {
		return u, false
	}
	u = *c.Usage
	if price, ok := s.Config.Prices[run.input.Request.Model]; ok && !c.CostGiven {
		u.Cost, _ = price.Cost(u)
	}
	return u, true
}

// reserve plays the counters of limits: full, unless the test says what they
// have left.
func (run *execution) reserve(c *policy.TestCase, limits []policy.Limit, refuse func([]policy.LimitFailure)) {
	var failed []policy.LimitFailure
	for i, l := range limits {
		left, given := c.Available[l.Rule]
		if !given {
			left = l.Limit
		}
		if l.Estimate > left {
			failed = append(failed, policy.LimitFailure{Index: i, Wait: time.Second})
		} else {
			run.reserved[l.Rule] = true
		}
	}
	if len(failed) > 0 {
		refuse(failed)
	}
}

// absent reports the variables that were read although the test gives none.
func (run *execution) absent() []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(run.observed.reads)) {
		if run.input.Absent[name] {
			out = append(out, fmt.Sprintf("%s was read, and the test gives no value for it", name))
		}
	}
	return out
}

// fingerprint is what was decided, without timings, for comparison.
func (run *execution) fingerprint() string {
	d, r := *run.d, run.rehearsed
	for _, c := range []*policy.CostReport{&d.Cost, &r.Cost} {
		c.Scan, c.Tokenize, c.Duration = 0, 0, 0
	}
	b, err := json.Marshal([]any{&d, &r})
	if err != nil {
		panic("BUG: policytest: cannot encode a decision: " + err.Error())
	}
	return string(b)
}

// observer records reads and outcomes.
type observer struct {
	reads     map[string]bool
	outcomes  []policy.Outcome
	evaluated []policy.Evaluated
	operands  map[coverageKey]bool
}

func (o *observer) Read(name string) { o.reads[name] = true }

func (o *observer) Outcome(x policy.Outcome) { o.outcomes = append(o.outcomes, x) }

func (o *observer) Evaluated(x policy.Evaluated) { o.evaluated = append(o.evaluated, x) }

func (o *observer) Operand(x policy.OperandInfo, isTrue bool) {
	o.operands[operandKey(x.At, map[bool]string{true: "true", false: "false"}[isTrue])] = true
}

// given is a test's input by variable name.
type given map[string]any

// Input makes a request of values by variable name, as in
// [policy.TestCase.Input]: what is not optional and has no value is absent.
// claims are the declared ones, in the types of [policy.Config]; a type that
// does not exist panics.
func Input(values map[string]any, claims map[string]string) *policy.Input {
	g := given(values)
	in := &policy.Input{Absent: absentVariables(claims, g), Lazy: g}
	in.Now, _ = g["now"].(time.Time)
	in.DeclaredLabels = g.list("content.declared_labels")
	in.Tenant = policy.TenantInput{
		ID: g.text("tenant.id"), Team: g.text("tenant.team"), Tier: g.text("tenant.tier"), Labels: g.table("tenant.labels"),
	}
	in.Principal = policy.PrincipalInput{
		Kind: g.text("principal.kind"), ID: g.text("principal.id"), Subject: g.text("principal.subject"), Issuer: g.text("principal.issuer"),
		Groups: g.list("principal.groups"), Scopes: g.list("principal.scopes"),
		KeyID: g.optText("principal.key_id"), SPIFFEID: g.optText("principal.spiffe_id"), Claims: map[string]any{},
	}
	for name := range claims {
		if v, ok := g["principal.claims."+name]; ok && v != nil {
			in.Principal.Claims[name] = v
		}
	}
	in.Request = g.request()
	return in
}

func (g given) request() policy.RequestInput {
	r := policy.RequestInput{
		Operation: g.text("request.operation"), Dialect: g.text("request.dialect"), Method: g.text("request.method"), Path: g.text("request.path"),
		Model: g.text("request.model"), RequestedModel: g.text("request.requested_model"), ModelFamily: g.text("request.model_family"),
		N: g.number("request.n"), InputTokensEstimate: g.number("request.input_tokens_estimate"), BodyBytes: g.number("request.body_bytes"),
		MessageCount: g.number("request.message_count"), ImageCount: g.number("request.image_count"),
		ToolNames: g.list("request.tool_names"), Modalities: g.list("request.modalities"),
		SessionID: g.optText("request.session_id"), User: g.optText("request.user"),
		Headers: g.table("request.headers"), SourceIP: g.text("request.source_ip"),
	}
	r.Stream, _ = g["request.stream"].(bool)
	if n, ok := g["request.max_tokens"].(int64); ok {
		r.MaxTokens = &n
	}
	if n, ok := g["request.learned_output"].(int64); ok {
		r.LearnedOutput = &n
	}
	return r
}

// absentVariables are those that are not optional and have no value.
func absentVariables(claims map[string]string, g given) map[string]bool {
	vars, err := policy.Variables(claims)
	if err != nil {
		panic("BUG: policytest: the claims were checked when the test was loaded: " + err.Error())
	}
	out := map[string]bool{}
	for _, v := range vars {
		if _, ok := g[v.Name]; !ok && !v.Optional && v.ReadableIn == "" {
			out[v.Name] = true
		}
	}
	return out
}

func (g given) text(name string) string { s, _ := g[name].(string); return s }

func (g given) number(name string) int64 { n, _ := g[name].(int64); return n }

func (g given) list(name string) []string { l, _ := g[name].([]string); return l }

func (g given) table(name string) map[string]string { m, _ := g[name].(map[string]string); return m }

func (g given) optText(name string) *string {
	if s, ok := g[name].(string); ok {
		return &s
	}
	return nil
}

// InputTokens implements policy.Lazy.
func (g given) InputTokens(context.Context) (int64, bool, error) {
	n, ok := g["request.input_tokens"].(int64)
	if !ok {
		return 0, false, errors.New("the test gives no request.input_tokens")
	}
	exact, _ := g["request.input_tokens_exact"].(bool)
	return n, exact, nil
}

// Content implements policy.Lazy. A status that the test does not give is
// complete here and still absent to a reader.
func (g given) Content(context.Context) (policy.Content, error) {
	c := policy.Content{Labels: g.list("content.labels"), Detectors: g.list("content.detectors"), ScanStatus: g.text("content.scan_status")}
	c.Findings, _ = g["content.findings"].(map[string]int64)
	if c.ScanStatus == "" {
		c.ScanStatus = "complete"
	}
	return c, nil
}
