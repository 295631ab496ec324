package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// effects loads one policy for each list of effects and judges the test input.
func effects(t *testing.T, edit func(*Input, *Config), policies ...string) *Decision {
	t.Helper()
	var text strings.Builder
	for i, list := range policies {
		text.WriteString(policyText(fmt.Sprintf("p%d", i), "\n  effects: ["+list+"]", "Deny"))
	}
	in, cfg := testInput(), testConfig()
	if edit != nil {
		edit(in, &cfg)
	}
	return mustLoad(t, cfg, text.String()).Decide(t.Context(), in)
}

func TestCombinePools(t *testing.T) {
	f := func(want string, edit func(*Input, *Config), policies ...string) {
		t.Helper()
		d := effects(t, edit, policies...)
		if got := strings.Join(d.Pools, " "); got != want || d.Allow != (want != "") {
			t.Errorf("%v: pools %q, allow %t, want %q", policies, got, d.Allow, want)
		}
	}
	f("a b c", nil, "{ name: e, addLabels: [x] }")
	f("a b", nil, "{ name: e, route: { allowPools: [a, b] } }")
	f("b", nil, "{ name: e, route: { allowPools: [a, b] } }", "{ name: e, route: { allowPools: [b, c] } }")
	f("c", nil, "{ name: e, route: { denyPools: [a] } }, { name: f, route: { denyPools: [b] } }")
	f("a c", nil, "{ name: e, route: { requirePoolLabels: { zone: eu } } }")
	f("c", nil, "{ name: e, route: { requirePoolLabels: { zone: eu, gpu: h100 } } }")
	f("c", nil, "{ name: e, route: { requirePoolLabels: { zone: eu } } }", "{ name: e, route: { requirePoolLabels: { gpu: h100 } } }")
	f("", nil, "{ name: e, route: { requirePoolLabels: { zone: eu } } }", "{ name: e, route: { requirePoolLabels: { zone: us } } }")
	f("a", nil, "{ name: e, route: { allowPools: [a, b], denyPools: [b] } }")
	f("a b c", nil, "{ name: e, when: \"!request.stream\", route: { allowPools: [a] } }")
	f("a", func(in *Input, _ *Config) { in.Request.Model = "big" }, "{ name: e, addLabels: [x] }")
	f("", func(in *Input, _ *Config) { in.Request.Model = "other" }, "{ name: e, addLabels: [x] }")
	f("a b c", func(in *Input, _ *Config) { in.Request.Model, in.Request.Operation = "", "stored_responses" }, "{ name: e, addLabels: [x] }")
	f("a b", func(in *Input, _ *Config) { in.Request.Operation = "completion" }, "{ name: e, addLabels: [x] }")
	f("a b c", func(in *Input, c *Config) { in.Request.Operation = "completion"; c.DefaultIsolation = "none" }, "{ name: e, addLabels: [x] }")
	f("a b", func(in *Input, c *Config) { in.Request.Operation = "completion"; c.DefaultIsolation = "none" }, "{ name: e, cacheIsolation: tenant }")
	f("a b", func(_ *Input, c *Config) { c.Pools[2].Salted = nil }, "{ name: e, addLabels: [x] }")
}

// TestIsolationFailsClosed: a pool of which nothing is known gets no isolated request that puts a prompt
// through an engine, of operations that come later, too.
func TestIsolationFailsClosed(t *testing.T) {
	f := func(operation, isolation, want string, salted ...string) {
		t.Helper()
		d := effects(t, func(in *Input, c *Config) {
			in.Request.Operation, c.DefaultIsolation = operation, isolation
			c.Pools = []Pool{{Name: "a", Models: []string{"m"}}, {Name: "b", Models: []string{"m"}, Salted: salted}}
		}, "{ name: e, addLabels: [x] }")
		if got := strings.Join(d.Pools, " "); got != want || d.Allow != (want != "") || !d.Allow && d.Reason != NoPermittedPool {
			t.Errorf("%s, %s, %v: pools %q, allow %t, reason %s, want %q", operation, isolation, salted, got, d.Allow, d.Reason, want)
		}
	}
	for _, op := range []string{"chat", "completion", "responses", "messages", "embeddings", "something_new"} {
		for _, isolation := range []string{"tenant", "principal"} {
			f(op, isolation, "")
			f(op, isolation, "", "tokenize")
			f(op, isolation, "b", op)
			f(op, isolation, "b", "*")
		}
		f(op, "none", "a b")
	}
	for _, op := range []string{"count_tokens", "tokenize", "detokenize", "stored_responses"} {
		f(op, "tenant", "a b")
	}
}

func TestNoPermittedPoolNamesTheEffects(t *testing.T) {
	f := func(denials, rule, message string, edit func(*Input, *Config), policies ...string) {
		t.Helper()
		d := effects(t, edit, policies...)
		if rules(d.Denials) != denials || d.Rule != rule || d.Message != message || d.Reason != NoPermittedPool || d.Status != 403 || d.Pools == nil {
			t.Errorf("%v: denials %q, rule %q, message %q", policies, rules(d.Denials), d.Rule, d.Message)
		}
	}
	// p2 removes nothing that serves the model, so it is not named.
	f("p0/e p1/e", "p0/e", "request denied by p0/e", nil,
		"{ name: e, route: { allowPools: [a] } }", "{ name: e, route: { denyPools: [a] } }", "{ name: e, addLabels: [x] }")
	f("p0/e", "p0/e", "request denied by p0/e", func(in *Input, _ *Config) { in.Request.Model = "big" },
		"{ name: e, route: { denyPools: [a] } }", "{ name: e, route: { denyPools: [b] } }")
	f("", "", "no permitted pool serves the model", func(in *Input, _ *Config) { in.Request.Model = "other" }, "{ name: e, route: { denyPools: [a] } }")
	f("p0/e", "p0/e", "request denied by p0/e", func(in *Input, c *Config) {
		c.DefaultIsolation = "none"
		for i := range c.Pools {
			c.Pools[i].Salted = nil
		}
	}, "{ name: e, cacheIsolation: tenant }", "{ name: f, cacheIsolation: none }")
	f("", "", "no permitted pool serves the model", func(_ *Input, c *Config) {
		for i := range c.Pools {
			c.Pools[i].Salted = nil
		}
	}, "{ name: e, addLabels: [x] }")
}

func TestCombineClass(t *testing.T) {
	f := func(class string, preemptible bool, ttft time.Duration, policies ...string) {
		t.Helper()
		d := effects(t, nil, policies...)
		if d.Class != class || d.Preemptible != preemptible || d.TTFTTarget != ttft {
			t.Errorf("%v: %s, %t, %s", policies, d.Class, d.Preemptible, d.TTFTTarget)
		}
	}
	f("standard", false, 0, "{ name: e, addLabels: [x] }")
	f("interactive", false, 0, "{ name: e, qos: { class: interactive } }")
	f("batch", true, 0, "{ name: e, qos: { class: interactive } }", "{ name: e, qos: { class: batch, preemptible: true } }")
	f("interactive", false, time.Second, "{ name: e, qos: { class: interactive, ttftTarget: 800ms } }", "{ name: e, qos: { class: interactive, ttftTarget: 1s } }", "{ name: e, qos: { class: critical, preemptible: true, ttftTarget: 9s } }")
	f("critical", false, 0, "{ name: e, qos: { class: batch } }", "{ name: e, qos: { class: critical, override: true } }")
	f("interactive", false, 0, "{ name: e, qos: { class: batch } }", "{ name: e, qos: { class: critical, override: true } }", "{ name: e, qos: { class: interactive, override: true } }")
	f("critical", true, 0, "{ name: e, qos: { class: critical, override: true } }", "{ name: e, qos: { class: critical, preemptible: true } }", "{ name: e, qos: { class: batch } }")
}

func TestCombineCaps(t *testing.T) {
	f := func(name, policy string, edit func(*Input, *Config), tokens int64, tokensChanged bool, n int64, nChanged bool) {
		t.Run(name, func(t *testing.T) {
			d := effects(t, edit, policy)
			if !d.Allow || *d.MaxTokens != tokens || d.MaxTokensChanged != tokensChanged || d.N != n || d.NChanged != nChanged {
				t.Errorf("max_tokens %d (%t), n %d (%t), errors %+v", *d.MaxTokens, d.MaxTokensChanged, d.N, d.NChanged, d.Errors)
			}
		})
	}
	missing := func(in *Input, c *Config) { in.Request.MaxTokens = nil }
	f("no cap", "{ name: e, addLabels: [x] }", nil, 1000, false, 1, false)
	f("cap above", "{ name: e, mutate: { max_tokens: 2000 } }", nil, 1000, false, 1, false)
	f("cap below", "{ name: e, mutate: { max_tokens: 10 } }", nil, 10, true, 1, false)
	f("least cap", "{ name: e, mutate: { max_tokens: 20 } }, { name: f, mutate: { max_tokens: 10 } }", nil, 10, true, 1, false)
	f("missing, no cap", "{ name: e, addLabels: [x] }", missing, 4096, false, 1, false)
	f("missing, cap above the default", "{ name: e, mutate: { max_tokens: 9000 } }", missing, 4096, true, 1, false)
	f("missing, cap below", "{ name: e, mutate: { max_tokens: 100 } }", missing, 100, true, 1, false)
	f("missing, the model's default", "{ name: e, addLabels: [x] }", func(in *Input, c *Config) {
		in.Request.MaxTokens = nil
		c.Models = map[string]Model{"m": {DefaultMaxTokens: 77}}
	}, 77, false, 1, false)
	f("n", "{ name: e, mutate: { n: 2 } }", func(in *Input, _ *Config) { in.Request.N = 5 }, 1000, false, 2, true)
	f("n below", "{ name: e, mutate: { n: 9 } }", func(in *Input, _ *Config) { in.Request.N = 5 }, 1000, false, 5, false)
	f("by expression", "{ name: e, mutate: { max_tokens: \"tenant.tier == 'gold' ? 500 : 5\" } }", nil, 500, true, 1, false)

	for op, want := range map[string]bool{"chat": true, "completion": true, "responses": true, "messages": true, "embeddings": false, "count_tokens": false, "tokenize": false, "models": false, "something_new": true} {
		d := effects(t, func(in *Input, _ *Config) { in.Request.Operation = op }, "{ name: e, mutate: { max_tokens: 10 } }")
		if (d.MaxTokens != nil) != want {
			t.Errorf("%s: a cap on output is %t", op, d.MaxTokens != nil)
		}
	}
	for _, cap := range []string{"max_tokens: 0", "n: 0", "max_tokens: \"request.n - 5\""} {
		d := effects(t, nil, "{ name: e, mutate: { "+cap+" }, addLabels: [x] }")
		if d.Allow || d.Reason != PolicyError || len(d.Labels) != 0 || len(d.Fired) != 0 {
			t.Errorf("cap %s: %+v", cap, d)
		}
	}
}

func TestCombineIsolation(t *testing.T) {
	f := func(def, want string, policies ...string) {
		t.Helper()
		d := effects(t, func(_ *Input, c *Config) { c.DefaultIsolation = def }, policies...)
		if d.CacheIsolation != want {
			t.Errorf("%v: %s, want %s", policies, d.CacheIsolation, want)
		}
	}
	f("", "tenant", "{ name: e, addLabels: [x] }")
	f("principal", "principal", "{ name: e, addLabels: [x] }")
	f("principal", "none", "{ name: e, cacheIsolation: none }")
	f("none", "tenant", "{ name: e, cacheIsolation: none }", "{ name: e, cacheIsolation: tenant }")
	f("none", "principal", "{ name: e, cacheIsolation: principal }", "{ name: e, cacheIsolation: tenant }")
}

func TestLabelsUnion(t *testing.T) {
	d := effects(t, nil, "{ name: e, addLabels: [b, a] }", "{ name: e, addLabels: [c, a] }", "{ name: e, when: \"!request.stream\", addLabels: [d] }")
	if strings.Join(d.Labels, " ") != "a b c" {
		t.Errorf("labels %v", d.Labels)
	}
}

// TestModelsCallsNoEngine: pools, class, caps and cache do nothing there.
func TestModelsCallsNoEngine(t *testing.T) {
	d := effects(t, func(in *Input, _ *Config) { in.Request.Operation, in.Request.Model, in.Request.N = "models", "", 9 },
		"{ name: e, qos: { class: batch }, route: { denyPools: [a, b, c] }, mutate: { max_tokens: 1, n: 1 }, cacheIsolation: principal, addLabels: [x] }")
	if !d.Allow || d.Pools != nil || d.Class != "standard" || d.N != 9 || d.CacheIsolation != "tenant" || strings.Join(d.Labels, "") != "x" || rules(d.Fired) != "p0/e" {
		t.Errorf("%+v", d)
	}
}

// TestEffectsReadTheRequestAsReceived: no effect changes what another reads.
func TestEffectsReadTheRequestAsReceived(t *testing.T) {
	d := effects(t, nil, "{ name: e, mutate: { max_tokens: 10 }, addLabels: [x] }",
		"{ name: e, when: \"request.max_tokens.value() == 1000 && !('x' in content.labels)\", addLabels: [y] }")
	if strings.Join(d.Labels, " ") != "x y" {
		t.Errorf("labels %v", d.Labels)
	}
}

func TestIgnoredEffectIsAbsent(t *testing.T) {
	text := policyText("p", "\n  failurePolicy: Ignore\n  effects: [{ name: e, when: \"tenant.labels['x'] == ''\", route: { denyPools: [a] } }, { name: f, mutate: { max_tokens: \"1 / (request.n - 1)\" }, addLabels: [x] }, { name: g, addLabels: [y] }]", "Deny")
	d := mustLoad(t, testConfig(), text).Decide(t.Context(), testInput())
	if !d.Allow || len(d.Pools) != 3 || strings.Join(d.Labels, "") != "y" || rules(d.Fired) != "p/g" || rules(d.Errors) != "p/e p/f" {
		t.Errorf("%+v", d)
	}
}

// randomPolicy draws a policy of every kind of rule over few names, so that
// rules meet.
func randomPolicy(rt *rapid.T, name string) string {
	pick := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(rt, label) }
	cond := func(label string) string {
		return pick(label, "true", "false", "request.stream", "!request.stream", "request.n > 2", "'devs' in principal.groups", "'pii' in content.labels",
			"tenant.labels['x'] == ''", "request.input_tokens > 100", "tenant.tier == 'gold'")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n  failurePolicy: %s\n  matchConditions: [{ name: m, expression: \"%s\" }]\n  validations: [{ name: v, expression: \"%s\", reason: %s, message: %s }]\n  effects:",
		pick("fp", "Fail", "Ignore"), cond("m"), pick("v", "true", "true", "true", "request.n < 9", cond("vc")), pick("reason", "Forbidden", "Invalid"), pick("msg", "one", "two"))
	for i := range rapid.IntRange(1, 3).Draw(rt, "effects") {
		fmt.Fprintf(&b, "\n    - { name: e%d, when: \"%s\", qos: { class: %s, override: %s, preemptible: %s, ttftTarget: %s }, cacheIsolation: %s, addLabels: [%s], mutate: { max_tokens: %s, n: %s }, route: { %s } }",
			i, cond("when"), pick("class", "critical", "interactive", "standard", "batch"), pick("ov", "false", "false", "true"), pick("pre", "true", "false"), pick("ttft", "1s", "2s"),
			pick("iso", "none", "tenant", "principal"), pick("label", "x", "y", "z"), pick("cap", "5", "2000", "\"request.n - 1\""), pick("n", "1", "3"),
			pick("route", "allowPools: [a, b]", "denyPools: [b]", "requirePoolLabels: { zone: eu }", "denyPools: [a], allowPools: [a, c]"))
	}
	fmt.Fprintf(&b, "\n  limits: [{ name: l, unit: %s, window: 1m, limit: \"%s\", key: [tenant.id], estimate: \"%s\" }]\n  auditAnnotations: [{ key: k, valueExpression: \"'%s'\" }]",
		pick("unit", "requests", "tokens", "cost"), pick("limit", "0", "10", "100000", "effective.max_tokens", "-1"), pick("est", "1", "50", "effective.n", "request.n"), name)
	return policyText(name, b.String(), pick("action", "Deny", "Deny", "Warn", "Audit"))
}

// TestOrderIndependence: for random sets and requests, every order of
// evaluation gives the same decision, and so does another order of documents.
func TestOrderIndependence(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var docs []string
		for i := range rapid.IntRange(2, 4).Draw(rt, "policies") {
			docs = append(docs, strings.Split(strings.TrimSuffix(randomPolicy(rt, fmt.Sprintf("p%d", i)), "---\n"), "---\n")...)
		}
		set, err := load(testConfig(), strings.Join(docs, "---\n"))
		if err != nil {
			rt.Fatalf("%v\n%s", err, strings.Join(docs, "---\n"))
		}
		in := testInput()
		in.Request.N = rapid.Int64Range(1, 10).Draw(rt, "n")
		in.Request.Stream = rapid.Bool().Draw(rt, "stream")
		in.Lazy = &fakeLazy{tokens: 500, content: Content{Labels: []string{"pii"}[:rapid.IntRange(0, 1).Draw(rt, "pii")], ScanStatus: "complete"}}
		want := outcomeOf(set, in)
		for seed := range uint64(5) {
			if got := outcomeOf(set.Shuffled(seed), in); got != want {
				rt.Fatalf("order %d:\n%s\n%s\n%s", seed, got, want, strings.Join(docs, "---\n"))
			}
		}
		slices.Reverse(docs)
		other, err := load(testConfig(), strings.Join(docs, "---\n"))
		if err != nil {
			rt.Fatal(err)
		}
		if got := outcomeOf(other, in); got != want {
			rt.Fatalf("documents reversed:\n%s\n%s", got, want)
		}
	})
}

// outcomeOf judges a request to its end and returns all that is exported.
func outcomeOf(s *Set, in *Input) string {
	d := s.Decide(context.Background(), in)
	shadow(context.Background(), in, d)
	charges := d.Charges(Usage{InputTokens: 3, OutputTokens: 4, Cost: 5})
	d.Cost.Scan, d.Cost.Tokenize, d.Cost.Duration = 0, 0, 0
	b, err := json.Marshal([]any{d, charges})
	if err != nil {
		panic(err)
	}
	return string(b)
}
