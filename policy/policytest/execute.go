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
	d        *policy.Decision
	charges  []int64 // parallel to d.Limits, nil without a usage
	input    *policy.Input
	observed *observer
	// reserved limits by rule, of every mode.
	reserved map[string]bool
}

// execute judges the test's request as the gateway would: decide, reserve,
// run the shadow bindings, settle.
func execute(set *policy.Set, s *policy.TestSuite, c *policy.TestCase) *execution {
	ctx := context.Background()
	in := buildInput(s, c)
	run := &execution{input: in, observed: in.Observer.(*observer), reserved: map[string]bool{}}
	d := set.Decide(ctx, in)
	run.d = d
	run.reserve(c, 0)
	live := len(d.Limits)
	set.Shadow(ctx, in, d)
	run.reserve(c, live)
	if c.Usage != nil && d.Allow {
		u := *c.Usage
		if price, ok := s.Config.Prices[in.Request.Model]; ok && !c.CostGiven {
			u.Cost, _ = price.Cost(u)
		}
		run.charges = d.Charges(u)
	}
	return run
}

// reserve plays the counters for the limits from an index on: full, unless the
// test says what they have left.
func (run *execution) reserve(c *policy.TestCase, from int) {
	var failed []policy.LimitFailure
	limits := run.d.Limits
	for i := from; i < len(limits); i++ {
		l := limits[i]
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
	if len(failed) == 0 {
		return
	}
	run.d.RefuseLimits(failed)
	if !run.d.Allow { // all or nothing
		for _, l := range limits {
			if l.Mode == policy.Enforced {
				delete(run.reserved, l.Rule)
			}
		}
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

// fingerprint is a decision without its timings, for comparison.
func fingerprint(d *policy.Decision) string {
	view := *d
	view.Cost = policy.CostReport{Units: d.Cost.Units, ShadowUnits: d.Cost.ShadowUnits, Expressions: d.Cost.Expressions}
	b, err := json.Marshal(&view)
	if err != nil {
		panic("BUG: policytest: cannot encode a decision: " + err.Error())
	}
	return string(b)
}

// observer records reads and outcomes.
type observer struct {
	reads    map[string]bool
	outcomes []policy.Outcome
}

func (o *observer) Read(name string) { o.reads[name] = true }

func (o *observer) Outcome(x policy.Outcome) { o.outcomes = append(o.outcomes, x) }

// given is a test's input by variable name.
type given map[string]any

func buildInput(s *policy.TestSuite, c *policy.TestCase) *policy.Input {
	g := given(c.Input)
	in := &policy.Input{
		Absent:   absentVariables(s, g),
		Observer: &observer{reads: map[string]bool{}},
		Lazy:     g,
	}
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
	for name := range s.Config.Claims {
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
	return r
}

// absentVariables are those that are not optional and have no value.
func absentVariables(s *policy.TestSuite, g given) map[string]bool {
	vars, err := policy.Variables(s.Config.Claims)
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
