package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func limitText(limits, actions string) string {
	return policyText("p", "\n  limits: ["+limits+"]", actions)
}

func TestLimitEstimatesAndCharges(t *testing.T) {
	usage := Usage{InputTokens: 900, CachedInputTokens: 600, OutputTokens: 250, ReasoningTokens: 50, Cost: 222, Complete: true}
	f := func(limit string, edit func(*Input), estimate, charge int64) {
		t.Helper()
		in := testInput()
		if edit != nil {
			edit(in)
		}
		d := mustLoad(t, testConfig(), limitText("{ name: l, "+limit+" }", "Deny")).Decide(t.Context(), in)
		if len(d.Limits) != 1 {
			t.Errorf("%s: no limit, denied by %s %s, errors %+v", limit, d.Rule, d.Reason, d.Errors)
			return
		}
		got := d.Charges(usage)
		if d.Limits[0].Estimate != estimate || !slices.Equal(got, []int64{charge}) {
			t.Errorf("%s: estimate %d, charge %v, want %d, %d; errors %+v", limit, d.Limits[0].Estimate, got, estimate, charge, d.Errors)
		}
	}
	const rest = ", window: 1m, limit: 1000000, key: []"
	f("unit: requests"+rest, nil, 1, 1)
	f("unit: input_tokens"+rest, nil, 900, 900)
	f("unit: output_tokens"+rest, nil, 1000, 250)
	f("unit: tokens"+rest, nil, 1900, 1150)
	f("unit: cost"+rest, nil, 780, 222)
	f("unit: concurrency, limit: 5, key: []", nil, 1, 0)
	f("unit: tokens"+rest, func(in *Input) { in.Request.N = 3 }, 3900, 1150)
	f("unit: cost"+rest, func(in *Input) { in.Request.N = 3 }, 1980, 222)
	f("unit: output_tokens"+rest, func(in *Input) { in.Request.Operation, in.Request.Prompts = "completion", 5 }, 5000, 250)
	f("unit: tokens"+rest, func(in *Input) { in.Request.N, in.Request.Prompts = 3, 5 }, 15900, 1150)
	f("unit: cost"+rest, func(in *Input) { in.Request.Prompts = 3 }, 1980, 222)
	f("unit: tokens"+rest, func(in *Input) { in.Request.Operation = "embeddings" }, 900, 1150)
	// What puts no prompt through an engine reserves no tokens, only what its policy says.
	for _, op := range []string{"tokenize", "detokenize", "count_tokens", "stored_responses"} {
		without := func(in *Input) { in.Request.Operation = op }
		f("unit: requests"+rest, without, 1, 1)
		f("unit: input_tokens"+rest, without, 0, 900)
		f("unit: tokens"+rest, without, 0, 1150)
		f("unit: cost"+rest, without, 0, 222)
		f("unit: tokens, estimate: request.input_tokens"+rest, without, 900, 1150)
	}
	f("unit: tokens"+rest, func(in *Input) { in.Request.MaxTokens = nil }, 4996, 1150)
	f("unit: requests, estimate: request.n * 2"+rest, func(in *Input) { in.Request.N = 3 }, 6, 6)
	f("unit: tokens, estimate: 0"+rest, nil, 0, 1150)
	f("unit: tokens, charge: usage.input_tokens - usage.cached_input_tokens + usage.cached_input_tokens / 10 + usage.output_tokens"+rest, nil, 1900, 610)
	f("unit: tokens, charge: \"usage.complete ? usage.reasoning_tokens : usage.cost\""+rest, nil, 1900, 50)
	f("unit: tokens, charge: \"request.n + effective.max_tokens + usage.cost\""+rest, nil, 1900, 1223)
	// A failing or negative charge charges the estimate.
	f("unit: tokens, charge: \"usage.input_tokens / (usage.cost - 222)\""+rest, nil, 1900, 1900)
	f("unit: tokens, charge: usage.output_tokens - 300"+rest, nil, 1900, 1900)
	f("unit: tokens, charge: \"'pii' in content.labels ? 7 : 8\""+rest, nil, 1900, 7)
	f("unit: tokens, charge: \"'pii' in content.labels ? 7 : 8\""+rest, func(in *Input) { in.Lazy = &fakeLazy{tokens: 5, content: Content{ScanStatus: "?"}} }, 1005, 1005)
}

func TestChargeErrorsAreRecorded(t *testing.T) {
	d := mustLoad(t, testConfig(), limitText("{ name: a, unit: requests, window: 1m, limit: 9, key: [], charge: \"1 / usage.cost\" }, { name: b, unit: requests, window: 1m, limit: 9, key: [], charge: \"-1\" }", "Deny")).Decide(t.Context(), testInput())
	if got := d.Charges(Usage{}); !slices.Equal(got, []int64{1, 1}) || rules(d.Errors) != "p/a p/b" || d.Errors[0].Kind != LimitRule {
		t.Errorf("charges %v, errors %+v", got, d.Errors)
	}
}

// TestLimitsThatNeverAdmit are decided without a counter.
func TestLimitsThatNeverAdmit(t *testing.T) {
	f := func(limit string, edit func(*Input), status int, reason Reason, rule string) {
		t.Helper()
		in := testInput()
		if edit != nil {
			edit(in)
		}
		d := mustLoad(t, testConfig(), limitText(limit, "Deny")).Decide(t.Context(), in)
		if d.Allow || d.Status != status || d.Reason != reason || d.Rule != rule || len(d.Limits) != 0 {
			t.Errorf("%s: %t %d %s %s, errors %+v", limit, d.Allow, d.Status, d.Reason, d.Rule, d.Errors)
		}
		if reason != PolicyError && d.Message != "limit "+rule {
			t.Errorf("message %q", d.Message)
		}
	}
	f("{ name: l, unit: requests, window: 1m, limit: 0, key: [] }", nil, 403, NoQuota, "p/l")
	f("{ name: l, unit: concurrency, limit: 0, key: [] }", nil, 403, NoQuota, "p/l")
	f("{ name: l, unit: requests, window: 1m, limit: -1, key: [] }", nil, 403, PolicyError, "p/l")
	f("{ name: l, unit: tokens, window: 1m, limit: 1899, key: [] }", nil, 400, ExceedsLimit, "p/l")
	f("{ name: l, unit: tokens, window: day, limit: 1899, key: [] }", nil, 400, ExceedsLimit, "p/l")
	f("{ name: l, unit: tokens, window: 1m, limit: 9, key: [], estimate: -1 }", nil, 403, PolicyError, "p/l")
	f("{ name: l, unit: requests, window: 1m, limit: 9, key: [\"tenant.labels['x']\"] }", nil, 403, PolicyError, "p/l")
	f("{ name: l, unit: requests, window: 1m, limit: 9, key: [principal.id, tenant.id] }", func(in *Input) { in.Principal.ID = strings.Repeat("x", 511) }, 403, PolicyError, "p/l")
	f("{ name: l, unit: cost, window: 1m, limit: 9, key: [] }", func(in *Input) { in.Request.Model = "big" }, 403, PolicyError, "p/l")
	f("{ name: l, unit: tokens, window: 1m, limit: 9, key: [] }", func(in *Input) { in.Lazy = nil }, 403, PolicyError, "p/l")
	f("{ name: l, unit: tokens, window: 1m, limit: 9, key: [] }", func(in *Input) { in.Lazy = &fakeLazy{tokens: 1 << 62, content: Content{}}; in.Request.N = 1 << 62 }, 403, PolicyError, "p/l")
	// Of several, the first reason in the format's order, then the smaller rule.
	f("{ name: z, unit: requests, window: 1m, limit: 0, key: [] }, { name: a, unit: tokens, window: 1m, limit: 1, key: [] }, { name: y, unit: requests, window: 1m, limit: 0, key: [] }", nil, 403, NoQuota, "p/y")
}

func TestLimitConditions(t *testing.T) {
	d := mustLoad(t, testConfig(), limitText(`{ name: a, when: "!request.stream", unit: requests, window: 1m, limit: 0, key: [] },
    { name: b, when: "effective.qos_class == 'standard' && effective.cache_isolation == 'tenant' && effective.labels == [] && effective.n == 1", unit: requests, window: 1m, limit: 5, key: [] }`, "Deny")).Decide(t.Context(), testInput())
	if !d.Allow || len(d.Limits) != 1 || d.Limits[0].Rule != "p/b" {
		t.Errorf("%+v", d)
	}
}

// TestEffectiveIsTheCombinedOutcome: limits see what all policies together did.
func TestEffectiveIsTheCombinedOutcome(t *testing.T) {
	text := policyText("a", "\n  effects: [{ name: e, qos: { class: batch }, mutate: { max_tokens: 10, n: 2 }, cacheIsolation: principal, addLabels: [x] }]", "Deny") +
		policyText("b", "\n  effects: [{ name: e, qos: { class: critical }, mutate: { max_tokens: 1 } }]", "Warn") +
		limitText("{ name: l, unit: requests, window: 1m, limit: effective.max_tokens * 100 + effective.n, key: [effective.qos_class, effective.cache_isolation, \"effective.labels.join('')\"] }", "Deny")
	in := testInput()
	in.Request.N = 4
	d := mustLoad(t, testConfig(), text).Decide(t.Context(), in)
	if d.Limits[0].Limit != 1002 || strings.Join(d.Limits[0].Key, " ") != "batch principal x" {
		t.Errorf("%+v", d.Limits[0])
	}
}

func TestCounterIdentity(t *testing.T) {
	counterOf := func(text string, edit func(*Input)) string {
		t.Helper()
		in := testInput()
		if edit != nil {
			edit(in)
		}
		s := mustLoad(t, testConfig(), text)
		d := s.Decide(t.Context(), in)
		shadow(t.Context(), in, d)
		return d.Limits[0].Counter
	}
	base := "{ name: l, unit: requests, window: 1m, limit: 5, key: [tenant.id, request.model_family] }"
	want := "1:p1:l3:p-b8:Enforced8:requests2:602:t13:fam"
	if got := counterOf(limitText(base, "Deny"), nil); got != want {
		t.Errorf("counter %q, want %q", got, want)
	}
	same := []string{"limit: 6", "onStoreError: Local, limit: 5", "estimate: 2, limit: 5", "charge: 7, limit: 5"}
	for _, s := range same {
		if got := counterOf(limitText(strings.Replace(base, "limit: 5", s, 1), "Deny"), nil); got != want {
			t.Errorf("%s starts a new counter", s)
		}
	}
	seen := map[string]string{want: "base"}
	differ := func(name, text string, edit func(*Input)) {
		got := counterOf(text, edit)
		if other, ok := seen[got]; ok {
			t.Errorf("%s shares the counter of %s", name, other)
		}
		seen[got] = name
	}
	differ("another unit", limitText(strings.Replace(base, "requests", "tokens, estimate: 1", 1), "Deny"), nil)
	differ("another window", limitText(strings.Replace(base, "1m", "2m", 1), "Deny"), nil)
	differ("a calendar window", limitText(strings.Replace(base, "1m", "day", 1), "Deny"), nil)
	differ("another name", limitText(strings.Replace(base, "name: l", "name: k", 1), "Deny"), nil)
	differ("another binding", strings.Replace(limitText(base, "Deny"), "p-b", "p-c", 1), nil)
	differ("warning", limitText(base, "Warn"), nil)
	differ("shadow", limitText(base, "Audit"), nil)
	differ("another key", limitText(base, "Deny"), func(in *Input) { in.Tenant.ID = "t2" })
	differ("a key cut elsewhere", limitText(base, "Deny"), func(in *Input) { in.Tenant.ID, in.Request.ModelFamily = "t", "1fam" })
	differ("a key with the separator", limitText(base, "Deny"), func(in *Input) { in.Tenant.ID = "t13:fam"; in.Request.ModelFamily = "" })
	differ("one counter for all", limitText(strings.Replace(base, "[tenant.id, request.model_family]", "[]", 1), "Deny"), nil)
}

func TestRefuseLimits(t *testing.T) {
	all := "{ name: a, unit: requests, window: 1m, limit: 5, key: [] }, { name: b, unit: tokens, window: month, limit: 9000, key: [] }, { name: c, unit: concurrency, limit: 5, key: [] }, { name: d, unit: requests, window: 1s, limit: 5, key: [], onStoreError: Allow }"
	f := func(failed []LimitFailure, status int, reason Reason, rule string, wait time.Duration) {
		t.Helper()
		d := mustLoad(t, testConfig(), limitText(all, "Deny")).Decide(t.Context(), testInput())
		if len(d.Limits) != 4 {
			t.Fatalf("%+v", d)
		}
		d.RefuseLimits(failed)
		if d.Allow || d.Status != status || d.Reason != reason || d.Rule != rule || d.RetryAfter != wait || d.Message != "limit "+rule || len(d.Denials) != len(failed) {
			t.Errorf("%+v: %d %s %s %s", failed, d.Status, d.Reason, d.Rule, d.RetryAfter)
		}
		if len(d.Limits) != 0 || len(d.Charges(Usage{InputTokens: 1})) != 0 {
			t.Error("a refused request still has limits")
		}
	}
	f([]LimitFailure{{Index: 0, Wait: 3 * time.Second}}, 429, RateLimited, "p/a", 3*time.Second)
	f([]LimitFailure{{Index: 2}}, 429, RateLimited, "p/c", time.Second)
	f([]LimitFailure{{Index: 1, Wait: time.Hour}}, 429, BudgetExhausted, "p/b", time.Hour)
	f([]LimitFailure{{Index: 0, Wait: time.Second}, {Index: 1, Wait: time.Hour}}, 429, BudgetExhausted, "p/b", time.Hour)
	f([]LimitFailure{{Index: 3, Wait: 9 * time.Second}, {Index: 0, Wait: time.Second}}, 429, RateLimited, "p/a", 9*time.Second)
	f([]LimitFailure{{Index: 3, StoreFailed: true}}, 503, LimitStoreUnavailable, "p/d", 0)
	f([]LimitFailure{{Index: 3, StoreFailed: true}, {Index: 0, Wait: time.Second}}, 429, RateLimited, "p/a", time.Second)

	d := mustLoad(t, testConfig(), limitText(all, "Deny")).Decide(t.Context(), testInput())
	d.RefuseLimits(nil)
	if !d.Allow || len(d.Limits) != 4 {
		t.Error("no failure refuses")
	}
	defer func() {
		if r := recover(); r == nil || !strings.HasPrefix(fmt.Sprint(r), "BUG:") {
			t.Errorf("an index out of range: %v", r)
		}
	}()
	d.RefuseLimits([]LimitFailure{{Index: 4}})
}

// TestLimitModes: rehearsals have counters of their own and refuse nothing.
func TestLimitModes(t *testing.T) {
	one := func(name, action, limit string) string {
		return policyText(name, "\n  limits: [{ name: l, unit: tokens, window: 1m, limit: "+limit+", key: [] }]", action)
	}
	s := mustLoad(t, testConfig(), one("a", "Deny", "5000")+one("b", "Warn", "5000")+one("c", "Warn", "0")+one("d", "Audit", "5000")+one("e", "Audit", "100"))
	in := testInput()
	d := s.Decide(t.Context(), in)
	modes := func() (out string) {
		for _, l := range d.Limits {
			out += l.Rule + ":" + string(l.Mode) + " "
		}
		return out
	}
	if modes() != "a/l:Enforced b/l:Warn " || rules(d.Warnings) != "c/l" || d.Warnings[0].Reason != NoQuota {
		t.Errorf("%s, warnings %+v", modes(), d.Warnings)
	}
	d.RefuseLimits([]LimitFailure{{Index: 1, Wait: time.Second}})
	if !d.Allow || rules(d.Warnings) != "c/l b/l" || d.RetryAfter != 0 {
		t.Errorf("allow %t, warnings %s, wait %s", d.Allow, rules(d.Warnings), d.RetryAfter)
	}
	shadow(t.Context(), in, d)
	if modes() != "a/l:Enforced b/l:Warn d/l:Shadow " || rules(d.WouldDeny) != "e/l" || rules(d.Warnings) != "c/l b/l" {
		t.Errorf("%s, wouldDeny %s", modes(), rules(d.WouldDeny))
	}
	d.RefuseLimits([]LimitFailure{{Index: 2}})
	if !d.Allow || rules(d.WouldDeny) != "e/l d/l" {
		t.Errorf("allow %t, wouldDeny %s", d.Allow, rules(d.WouldDeny))
	}
	if got := d.Charges(Usage{InputTokens: 3, OutputTokens: 4}); !slices.Equal(got, []int64{7, 7, 7}) {
		t.Errorf("charges %v", got)
	}
}

func TestIgnoredLimitIsAbsent(t *testing.T) {
	text := policyText("p", "\n  failurePolicy: Ignore\n  limits: [{ name: l, unit: requests, window: 1m, limit: -1, key: [] }, { name: k, unit: requests, window: 1m, limit: 1, key: [] }]", "Deny")
	d := mustLoad(t, testConfig(), text).Decide(t.Context(), testInput())
	if !d.Allow || len(d.Limits) != 1 || rules(d.Errors) != "p/l" {
		t.Errorf("%+v", d)
	}
}

func TestPriceCost(t *testing.T) {
	f := func(p Price, u Usage, want int64, ok bool) {
		t.Helper()
		if got, gotOK := p.Cost(u); got != want || gotOK != ok {
			t.Errorf("%+v %+v: %d, %t; want %d, %t", p, u, got, gotOK, want, ok)
		}
	}
	p := Price{Input: 200_000, CachedInput: 20_000, Output: 600_000}
	f(p, Usage{InputTokens: 900, CachedInputTokens: 600, OutputTokens: 250}, 222, true)
	f(p, Usage{}, 0, true)
	f(p, Usage{InputTokens: 2}, 0, true)                  // 0.4
	f(p, Usage{InputTokens: 3}, 1, true)                  // 0.6
	f(p, Usage{InputTokens: 3, OutputTokens: 1}, 2, true) // 0.6 and 0.6, each rounded
	f(p, Usage{OutputTokens: 1, ReasoningTokens: 2}, 0, false)
	f(p, Usage{CachedInputTokens: 1}, 0, false)
	f(p, Usage{InputTokens: -1}, 0, false)
	f(Price{Input: 1 << 62}, Usage{InputTokens: 1 << 62}, 0, false)
	f(Price{Input: 1 << 62}, Usage{InputTokens: 1_000_000}, 1<<62, true)
}

// TestLimitOfZeroComesFirst: a limit of 0 refuses whatever its key and its
// estimate are, and does no lazy work for them.
func TestLimitOfZeroComesFirst(t *testing.T) {
	for _, rest := range []string{
		"unit: cost, window: day, key: []", // the model has no price
		"unit: tokens, window: 1m, key: []",
		"unit: requests, window: 1m, key: [\"tenant.labels['x']\"]",
		"unit: requests, window: 1m, key: [], estimate: \"1 / (request.n - 1)\"",
		"unit: requests, window: 1m, key: [], estimate: \"-1\"",
	} {
		in := testInput()
		in.Request.Model = "big"
		lazy := &fakeLazy{err: errFake}
		in.Lazy = lazy
		d := mustLoad(t, testConfig(), limitText("{ name: l, limit: 0, "+rest+" }", "Deny")).Decide(t.Context(), in)
		if d.Allow || d.Reason != NoQuota || d.Status != 403 || len(d.Errors) != 0 || lazy.tokenCalls != 0 {
			t.Errorf("%s: %s, errors %+v, %d counts", rest, d.Reason, d.Errors, lazy.tokenCalls)
		}
	}
}

// TestEffectiveLabelsHaveAMaximum: what policies add together can exceed what
// the estimates of effective.labels rest on.
func TestEffectiveLabelsHaveAMaximum(t *testing.T) {
	add := func(name, prefix string, n int) string {
		labels := make([]string, n)
		for i := range labels {
			labels[i] = fmt.Sprint(prefix, i)
		}
		return policyText(name, "\n  effects: [{ name: e, addLabels: ["+strings.Join(labels, ", ")+"] }]", "Deny")
	}
	limited := limitText("{ name: l, unit: requests, window: 1m, limit: \"'x' in effective.labels ? 1 : 2\", key: [] }", "Deny")
	if d := mustLoad(t, testConfig(), add("a", "a", 64)+limited).Decide(t.Context(), testInput()); !d.Allow || len(d.Limits) != 1 {
		t.Errorf("64 labels: %+v", d.Errors)
	}
	d := mustLoad(t, testConfig(), add("a", "a", 64)+add("b", "b", 1)+limited).Decide(t.Context(), testInput())
	if d.Allow || len(d.Errors) != 1 || d.Errors[0].ErrorKind != ErrorSize || d.Errors[0].Rule != "p/l" {
		t.Errorf("65 labels: %+v", d)
	}
}
