package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/sluicegate/sluice/policy"
)

var testTime = time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)

func testConfig() policy.Config {
	return policy.Config{
		AllowEmpty: true,
		Pools:      []policy.Pool{{Name: "a", Models: []string{"m"}, Salted: []string{"*"}}, {Name: "b", Models: []string{"m"}, Salted: []string{"*"}}},
		Claims:     map[string]string{"dept": "string"},
	}
}

func set(t testing.TB, cfg policy.Config, specs ...string) *policy.Set {
	t.Helper()
	files := fstest.MapFS{}
	for i, spec := range specs {
		name := fmt.Sprintf("p%d", i)
		text := "apiVersion: sluice/v1alpha1\nkind: AdmissionPolicy\nmetadata: { name: " + name + " }\nspec:\n" + spec +
			"\n---\napiVersion: sluice/v1alpha1\nkind: AdmissionPolicyBinding\nmetadata: { name: " + name + "-b }\nspec: { policyName: " + name + ", actions: [Deny] }\n"
		files[name+".yaml"] = &fstest.MapFile{Data: []byte(text)}
	}
	s, err := policy.Load(cfg, files)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// request is one request of a log.
type request struct {
	tenant, user string
	n            int64
	spent        bool // its counters refuse
}

type lazy bool

func (lazy) InputTokens(context.Context) (int64, bool, error) { return 100, true, nil }

func (lazy) Content(context.Context) (policy.Content, error) {
	return policy.Content{Labels: []string{"pii"}, ScanStatus: "complete"}, nil
}

// logOf decides the requests by a set and writes the log that a gateway would.
func logOf(t testing.TB, s *policy.Set, requests ...request) string {
	t.Helper()
	var out strings.Builder
	for i, q := range requests {
		in := &policy.Input{
			Now: testTime, Lazy: lazy(true),
			Tenant:    policy.TenantInput{ID: q.tenant, Tier: "gold"},
			Principal: policy.PrincipalInput{Kind: "api_key", ID: "key:k", Claims: map[string]any{"dept": "red"}},
			Request:   policy.RequestInput{Operation: "chat", Model: "m", N: max(q.n, 1), User: &q.user, SourceIP: "10.0.0.1"},
		}
		d := s.Decide(context.Background(), in)
		if q.spent {
			d.RefuseLimits([]policy.LimitFailure{{Index: 0, Wait: time.Second}})
		}
		id := fmt.Sprintf("id-%d", i+1)
		r := d.Record(in, policy.RecordOptions{DecisionID: id, Time: testTime, Hash: func(string) string { return "hmac:x" }})
		lines := []any{r, d.Settlement(policy.RecordOptions{DecisionID: id, Time: testTime}, "completed", "a", policy.Usage{}, nil, nil)}
		for _, line := range lines {
			text, err := json.Marshal(line)
			if err != nil {
				t.Fatal(err)
			}
			out.Write(append(text, '\n'))
		}
	}
	return out.String()
}

func text(name, content string) Log {
	return Log{name, func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(content)), nil }}
}

func replay(t *testing.T, log string, baseline, candidate *policy.Set, o Options) *Report {
	t.Helper()
	r, err := Run(t.Context(), []Log{text("log", log)}, baseline, candidate, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func summary(r *Report) string {
	var out []string
	for _, c := range r.Changes {
		out = append(out, fmt.Sprintf("%s %s %s: %s -> %s x%d (%s)", c.Tenant, c.What, c.Rule, c.From, c.To, c.Count, c.Example))
	}
	return strings.Join(out, "\n")
}

const (
	fewChoices = "\n  validations: [{ name: few, expression: \"request.n < 3\" }]"
	route      = "\n  effects: [{ name: to-a, when: \"tenant.id == 't1'\", route: { allowPools: [a] } }]"
	limited    = "\n  limits: [{ name: l, unit: requests, window: 1m, limit: 5, key: [tenant.id] }]"
)

// TestChanges: every kind of change is found, by tenant and rule, against what
// the log says and against a baseline alike.
func TestChanges(t *testing.T) {
	requests := []request{{tenant: "t1"}, {tenant: "t2", n: 2}, {tenant: "t2", n: 5}, {tenant: "t1", n: 2}}
	f := func(name string, before, after []string, want ...string) {
		t.Run(name, func(t *testing.T) {
			baseline, candidate := set(t, testConfig(), before...), set(t, testConfig(), after...)
			log := logOf(t, baseline, requests...)
			for _, b := range []*policy.Set{nil, baseline} {
				r := replay(t, log, b, candidate, Options{})
				if got := summary(r); got != strings.Join(want, "\n") {
					t.Errorf("baseline %t: got\n%s\nwant\n%s", b != nil, got, strings.Join(want, "\n"))
				}
				if r.Lines != 8 || r.Decisions != 4 || r.Others != 4 || r.Broken != 0 || r.Revisions[baseline.Revision()] != 4 {
					t.Errorf("%+v", r)
				}
			}
		})
	}
	same := []string{fewChoices, route, limited}
	f("nothing", same, same)
	f("stricter", same, []string{strings.Replace(fewChoices, "< 3", "< 2", 1), route, limited},
		"t1 allow to deny p0/few: allow -> Forbidden by p0/few x1 (id-4)",
		"t2 allow to deny p0/few: allow -> Forbidden by p0/few x1 (id-2)")
	f("looser", same, []string{strings.Replace(fewChoices, "< 3", "< 9", 1), route, limited},
		"t2 deny to allow p0/few: Forbidden by p0/few -> allow x1 (id-3)")
	f("another reason", []string{fewChoices}, []string{fewChoices, "\n  validations: [{ name: x, expression: \"request.n < 4\", reason: Invalid }]"})
	f("another rule", []string{fewChoices}, []string{strings.Replace(fewChoices, "few", "less", 1)},
		"t2 reason p0/less: Forbidden by p0/few -> Forbidden by p0/less x1 (id-3)")
	f("other pools", same, []string{fewChoices, strings.Replace(route, "t1", "t2", 1), limited},
		"t1 pools p1/to-a: [a] -> [a b] x2 (id-1)",
		"t2 pools p1/to-a: [a b] -> [a] x1 (id-2)")
	f("the same effect with another pool", same, []string{fewChoices, strings.Replace(route, "[a]", "[b]", 1), limited},
		"t1 pools p1/to-a: [a] -> [b] x2 (id-1)")
	f("class, caps, isolation and labels", []string{"\n  effects: [{ name: e, mutate: { max_tokens: 100 + request.n } }]"},
		[]string{"\n  effects: [{ name: e, mutate: { max_tokens: 50 + request.n, n: \"1\" }, qos: { class: batch }, cacheIsolation: principal, addLabels: [x] }]"},
		"t1 cache isolation p0/e: tenant -> principal x2 (id-1)",
		"t2 cache isolation p0/e: tenant -> principal x2 (id-2)",
		"t1 class p0/e: standard -> batch x2 (id-1)",
		"t2 class p0/e: standard -> batch x2 (id-2)",
		"t1 max_tokens p0/e: 101 -> 51 x2 (id-1)",
		"t2 max_tokens p0/e: 102 -> 52 x2 (id-2)",
		"t1 n p0/e: 2 -> 1 x1 (id-4)",
		"t2 n p0/e: 2 -> 1 x2 (id-2)",
		"t1 labels p0/e: [] -> [x] x2 (id-1)",
		"t2 labels p0/e: [] -> [x] x2 (id-2)")
	f("limits", same, []string{fewChoices, route, strings.Replace(limited, "limit: 5", "limit: \"tenant.id == 't1' ? 9 : 3\"", 1), limited},
		"t1 limit p2/l (p2-b): 5 -> 9 x2 (id-1)",
		"t1 limit p3/l (p3-b): none -> 5 x2 (id-1)",
		"t2 limit p2/l (p2-b): 5 -> 3 x1 (id-2)",
		"t2 limit p3/l (p3-b): none -> 5 x1 (id-2)")
	f("no quota", same, []string{fewChoices, route, strings.Replace(limited, "limit: 5", "limit: \"tenant.id == 't1' ? 0 : 5\"", 1)},
		"t1 allow to deny p2/l: allow -> NoQuota by p2/l x2 (id-1)")
}

// TestIndeterminate: what hangs on an input that the record lacks is neither
// the same nor a change, unless something else settles it.
func TestIndeterminate(t *testing.T) {
	requests := []request{{tenant: "t1", user: "u", n: 1}, {tenant: "t1", user: "u", n: 5}}
	log := logOf(t, set(t, testConfig()), requests...)
	f := func(expr string, changed, undecided int, want ...string) {
		t.Helper()
		candidate := set(t, testConfig(), "\n  validations: [{ name: v, expression: \""+expr+"\" }]", fewChoices)
		r := replay(t, log, nil, candidate, Options{})
		if got := summary(r); got != strings.Join(want, "\n") || r.Changed != changed || r.Undecided != undecided {
			t.Errorf("%s: %d changed, %d undecided, got\n%s\nwant\n%s", expr, r.Changed, r.Undecided, got, strings.Join(want, "\n"))
		}
	}
	few := "t1 allow to deny p1/few: allow -> Forbidden by p1/few x1 (id-2)"
	f("request.user.orValue('') == 'u'", 1, 1, few, "t1 indeterminate p0/v: allow -> the input does not give request.user x1 (id-1)")
	f("request.user.orValue('') == 'u' || request.n < 3", 1, 0, few)
	f("'pii' in content.labels", 1, 1, few, "t1 indeterminate p0/v: allow -> the input does not give content.labels x1 (id-1)")
	f("request.input_tokens < 5 || request.stream", 1, 1, few, "t1 indeterminate p0/v: allow -> the input does not give request.input_tokens x1 (id-1)")
	f("principal.claims.dept.orValue('') == 'red'", 1, 0, few)

	wider := testConfig()
	wider.Claims = map[string]string{"dept": "string", "level": "int"}
	r := replay(t, log, nil, set(t, wider, "\n  validations: [{ name: v, expression: \"principal.claims.level.orValue(0) == 0\" }]"), Options{})
	if r.Undecided != 2 || r.Changes[0].To != "the input does not give principal.claims.level" {
		t.Errorf("a claim that was not declared: %s", summary(r))
	}

	// A rule that is dropped when it fails, an effect, and a baseline that cannot
	// tell either.
	ignore := "\n  failurePolicy: Ignore\n  effects: [{ name: e, when: \"request.user.orValue('') == 'u'\", qos: { class: batch } }]"
	r = replay(t, log, nil, set(t, testConfig(), ignore), Options{})
	if got, want := summary(r), "t1 indeterminate p0/e: allow -> the input does not give request.user x2 (id-1)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	r = replay(t, log, set(t, testConfig(), ignore), set(t, testConfig()), Options{})
	if got, want := summary(r), "t1 indeterminate p0/e: the baseline -> the input does not give request.user x2 (id-1)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestSelectorsOfMaskedTenants: a binding for one tenant is neither applied nor
// left out where the record hides the tenant.
func TestSelectorsOfMaskedTenants(t *testing.T) {
	log := logOf(t, set(t, testConfig()), request{tenant: "t1"})
	log = strings.Replace(log, `"tenant":{"id":"t1"`, `"tenant":{"id":"***"`, 1)
	log = strings.Replace(log, `"duration_us"`, `"masked":["/input/tenant/id"],"duration_us"`, 1)
	candidate, err := policy.Load(testConfig(), fstest.MapFS{"p.yaml": {Data: []byte(`
apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: p }
spec: { validations: [{ name: v, expression: "false" }] }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: b }
spec: { policyName: p, actions: [Deny], selector: { tenants: [t1] } }
`)}})
	if err != nil {
		t.Fatal(err)
	}
	r := replay(t, log, nil, candidate, Options{})
	if r.Undecided != 1 || r.Changed != 0 || r.Changes[0].What != Indeterminate || r.Changes[0].Tenant != "" {
		t.Errorf("%s", summary(r))
	}
}

// TestCountersAreNotReplayed: a refusal of a spent limit stays one, unless the
// limit is gone or a rule now refuses before it.
func TestCountersAreNotReplayed(t *testing.T) {
	before := set(t, testConfig(), fewChoices, limited)
	log := logOf(t, before, request{tenant: "t1", spent: true})
	f := func(baseline, candidate *policy.Set, want string) {
		t.Helper()
		if got := summary(replay(t, log, baseline, candidate, Options{})); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	for _, baseline := range []*policy.Set{nil, before} {
		f(baseline, before, "")
		f(baseline, set(t, testConfig(), "\n  validations: [{ name: v, expression: \"true\" }]", limited), "")
	}
	gone := set(t, testConfig(), fewChoices)
	f(nil, gone, "t1 deny to allow p1/l: RateLimited by p1/l -> allow x1 (id-1)")
	f(before, gone, "t1 deny to allow p1/l: denied by a spent limit -> no such limit x1 (id-1)")
	f(nil, set(t, testConfig(), "\n  validations: [{ name: v, expression: \"request.stream\" }]", limited), "")
	f(before, set(t, testConfig(), "\n  validations: [{ name: v, expression: \"request.stream\" }]", limited), "t1 allow to deny p0/v: allow -> Forbidden by p0/v x1 (id-1)")
	f(before, set(t, testConfig(), fewChoices, strings.Replace(limited, "limit: 5", "limit: 6", 1)), "t1 limit p1/l (p1-b): 5 -> 6 x1 (id-1)")
}

// TestApart: without the gateway's configuration only what does not hang on it
// is compared.
func TestApart(t *testing.T) {
	log := logOf(t, set(t, testConfig(), fewChoices), request{tenant: "t1"}, request{tenant: "t1", n: 5})
	apart := policy.Config{AnyNames: true, AllowEmpty: true}
	after := []string{"\n  effects: [{ name: e, qos: { class: own }, route: { denyPools: [x] } }]"}
	deny := "t1 deny to allow p0/few: Forbidden by p0/few -> allow x1 (id-2)"
	if got := summary(replay(t, log, nil, set(t, apart, after...), Options{Apart: true})); got != deny {
		t.Errorf("got %s", got)
	}
	if got, want := summary(replay(t, log, set(t, apart, fewChoices), set(t, apart, after...), Options{Apart: true})), deny+"\nt1 class p0/e: standard -> own x1 (id-1)"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestApartNeverGuesses: what pools, prices and defaults decide is not known
// without the configuration.
func TestApartNeverGuesses(t *testing.T) {
	apart := policy.Config{AnyNames: true, AllowEmpty: true}
	f := func(before, after, want string) {
		t.Helper()
		log := logOf(t, set(t, testConfig(), before), request{tenant: "t1"})
		r := replay(t, log, nil, set(t, apart, after), Options{Apart: true})
		if got := summary(r); got != want || r.Undecided != len(r.Changes) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	none := "\n  effects: [{ name: e, route: { denyPools: [a, b] } }]"
	f(none, none, "t1 indeterminate p0/e: NoPermittedPool by p0/e -> allow, which hangs on the configuration x1 (id-1)")
	f("\n  validations: [{ name: v, expression: \"true\" }]", "\n  limits: [{ name: l, unit: cost, window: 1m, limit: 5, key: [] }]",
		"t1 indeterminate p0/l: allow -> PolicyError by p0/l, which hangs on the configuration x1 (id-1)")
	f("\n  limits: [{ name: l, unit: output_tokens, window: 1m, limit: 5, key: [] }]", "\n  validations: [{ name: v, expression: \"true\" }]",
		"t1 indeterminate p0/l: ExceedsLimit by p0/l -> allow, which hangs on the configuration x1 (id-1)")
}

// TestBrokenLogs: lines that are no records are counted and named, without what
// they hold; a line that was cut off is told from them.
func TestBrokenLogs(t *testing.T) {
	s := set(t, testConfig(), fewChoices)
	good := logOf(t, s, request{tenant: "t1"})
	log := good + "\r\n" + `{"type":"decision","verdict":"allow","input":{"request":{"n":"MARK"}}}` + "\nMARK\n" + strings.Repeat("x", MaxLine+1) + "\n" + good + good[:200]
	r := replay(t, log, nil, s, Options{})
	if r.Lines != 9 || r.Decisions != 2 || r.Broken != 3 || r.Truncated != 1 || len(r.Changes) != 0 {
		t.Errorf("%+v", r)
	}
	var got []string
	for _, f := range r.Faults {
		got = append(got, fmt.Sprintf("%s:%d: %s", f.Log, f.Line, f.Text))
	}
	want := "log:4: field input.request.n is a string, should be int64\nlog:5: the line is no JSON: fault at byte 1\nlog:6: the line is longer than 4194304 bytes"
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
	if _, err := Run(t.Context(), []Log{{"gone", func() (io.ReadCloser, error) { return nil, io.ErrUnexpectedEOF }}}, nil, s, Options{}); err == nil || err.Error() != "cannot open the decision log: unexpected EOF" {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, []Log{text("log", good)}, nil, s, Options{}); err == nil || !strings.Contains(err.Error(), "cannot read the decision log log: context canceled") {
		t.Errorf("got %v", err)
	}
}

// TestManyChangesAreBounded: a log with a tenant of its own for every request
// does not make the report grow without end, and no change is lost from it.
func TestManyChangesAreBounded(t *testing.T) {
	tally := newTally()
	for i := range maxChanges + 50 {
		tally.add(Change{Tenant: fmt.Sprint(i), What: AllowToDeny, Rule: "p/r", Count: 1})
	}
	total := 0
	for _, c := range tally.sorted() {
		total += c.Count
	}
	if len(tally.byKey) != maxChanges+1 || total != maxChanges+50 {
		t.Errorf("%d kinds, %d changes", len(tally.byKey), total)
	}
}

// BenchmarkRun judges a log of 1,000 decisions by two sets.
func BenchmarkRun(b *testing.B) {
	s := set(b, testConfig(), fewChoices, route, limited)
	requests := make([]request, 1000)
	for i := range requests {
		requests[i] = request{tenant: fmt.Sprint("t", i%10), n: int64(i % 5)}
	}
	log := logOf(b, s, requests...)
	candidate := set(b, testConfig(), strings.Replace(fewChoices, "< 3", "< 4", 1), route, limited)
	b.SetBytes(int64(len(log)))
	for b.Loop() {
		if _, err := Run(b.Context(), []Log{text("log", log)}, s, candidate, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzRun: no log makes a replay panic or count a line twice.
func FuzzRun(f *testing.F) {
	s, err := policy.Load(testConfig(), fstest.MapFS{"p.yaml": {Data: []byte("apiVersion: sluice/v1alpha1\nkind: AdmissionPolicy\nmetadata: { name: p }\nspec: { validations: [{ name: v, expression: \"request.n < 3 || request.user.orValue('') == ''\" }] }\n---\napiVersion: sluice/v1alpha1\nkind: AdmissionPolicyBinding\nmetadata: { name: b }\nspec: { policyName: p, actions: [Deny] }\n")}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("{\"type\":\"decision\",\"verdict\":\"allow\",\"input\":{\"request\":{\"n\":5}}}\n{\"type\":\"shadow\"}\nx"))
	f.Fuzz(func(t *testing.T, log []byte) {
		logs := []Log{{"log", func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(log)), nil }}}
		r, err := Run(t.Context(), logs, nil, s, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if r.Decisions+r.Others+r.Broken+r.Truncated > r.Lines || r.Changed+r.Undecided > r.Decisions {
			t.Errorf("%+v", r)
		}
	})
}
