package policy

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
)

// recorded is the record of a request that resolved everything lazy, as a log
// keeps it and a reader finds it.
func recorded(t *testing.T, edit func(*Record)) []byte {
	t.Helper()
	s := mustLoad(t, testConfig(), policyText("p", "\n  validations: [{ name: v, expression: \"request.input_tokens > 0 && content.labels.size() > 0\" }]", "Deny"))
	in := testInput()
	delete(in.Principal.Claims, "dept")
	r := s.Decide(t.Context(), in).Record(in, RecordOptions{DecisionID: "x", Time: in.Now, Hash: func(string) string { return "hmac:1" }})
	if edit != nil {
		edit(r)
	}
	line, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return line
}

func readRecord(t *testing.T, line []byte) *Record {
	t.Helper()
	r, err := ReadRecord(line)
	if err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	return r
}

// TestRecordInput: every variable that a record holds is the one that the
// decision read, and every other is absent.
func TestRecordInput(t *testing.T) {
	s := mustLoad(t, testConfig(), policyText("p", validations, "Deny"))
	original := testInput()
	in := readRecord(t, recorded(t, nil)).AsInput(s)
	want := []string{"request.session_id", "request.source_ip", "request.user"}
	if got := slices.Sorted(maps.Keys(in.Absent)); !slices.Equal(got, want) {
		t.Errorf("absent %v, want %v", got, want)
	}
	a, b := newEvaluation(t.Context(), s, original).bind(s.live[0]), newEvaluation(t.Context(), s, in).bind(s.live[0])
	for _, v := range slices.Concat(requestVariables(), identityVariables()) {
		x, _ := a.ResolveName(v.name)
		y, _ := b.ResolveName(v.name)
		if in.Absent[v.name] {
			continue
		}
		if got, want := toJSON(t, y), toJSON(t, x); got != want {
			t.Errorf("%s is %s, was %s", v.name, got, want)
		}
	}
	for name, want := range map[string]any{"clearance": float64(3), "admin": true, "dept": nil} {
		if got := in.Principal.Claims[name]; got != want {
			t.Errorf("claim %s is %v, was %v", name, got, want)
		}
	}
}

// toJSON writes a value of the evaluator by what it holds.
func toJSON(t *testing.T, v any) string {
	t.Helper()
	val, ok := v.(interface{ Value() any })
	if !ok {
		t.Fatalf("%T is no value", v)
	}
	out, err := json.Marshal(val.Value())
	if err != nil {
		return strings.TrimSpace(err.Error())
	}
	return string(out)
}

// TestRecordLacks: what a log masked, erased, hashed, withheld or did not know
// is absent, and what the request did not have is not.
func TestRecordLacks(t *testing.T) {
	s := mustLoad(t, testConfig(), policyText("p", validations, "Deny"))
	hashed := []string{"request.session_id", "request.source_ip", "request.user"}
	f := func(name string, line []byte, want ...string) {
		t.Helper()
		want = slices.Sorted(slices.Values(slices.Concat(hashed, want)))
		got := slices.Sorted(maps.Keys(readRecord(t, line).AsInput(s).Absent))
		if !slices.Equal(got, want) {
			t.Errorf("%s: absent\n%v, want\n%v", name, got, want)
		}
	}
	edited := func(old, text string) []byte {
		t.Helper()
		line := string(recorded(t, nil))
		if !strings.Contains(line, old) {
			t.Fatalf("the record has no %s: %s", old, line)
		}
		return []byte(strings.Replace(line, old, text, 1))
	}
	f("no tokens", recorded(t, func(r *Record) { r.Input.Request.InputTokens = nil }), "request.input_tokens", "request.input_tokens_exact")
	f("no scan", recorded(t, func(r *Record) { r.Input.Content = RecordContent{DeclaredLabels: []string{}} }),
		"content.labels", "content.findings", "content.detectors", "content.scan_status")
	f("no max_tokens", recorded(t, func(r *Record) { r.Input.Request.MaxTokens = nil }))
	f("a claim that was not declared", recorded(t, func(r *Record) { delete(r.Input.Principal.Claims, "admin") }), "principal.claims.admin")
	f("an older schema", edited(`"body_bytes":400,`, ``), "request.body_bytes")
	f("listed as erased", edited(`"duration_us"`, `"erased":["/input/request/max_tokens"],"duration_us"`), "request.max_tokens")
	f("a part of a map", edited(`"duration_us"`, `"erased":["/input/tenant/labels/env"],"duration_us"`), "tenant.labels")
	f("a header with a slash in its name", edited(`"duration_us"`, `"erased":["/input/request/headers/x~1y"],"duration_us"`), "request.headers")
	masked := strings.Replace(string(edited(`"now":"2026-03-10T11:00:00Z"`, `"now":"***"`)), `"duration_us"`, `"masked":["/input/now"],"duration_us"`, 1)
	f("masked time", []byte(masked), "now")
	masked = strings.Replace(string(edited(`"n":1,`, `"n":null,`)), `"duration_us"`, `"masked":["/input/request/n","/input/principal/claims","/cost"],"cost":"***","duration_us"`, 1)
	f("masked numbers and maps", []byte(masked),
		"request.n", "principal.claims.admin", "principal.claims.clearance", "principal.claims.dept", "principal.claims.regions", "principal.claims.score")
	f("null without a word", edited(`"n":1,`, `"n":null,`), "request.n")
	f("masked list", edited(`"duration_us"`, `"masked":["/input/request/tool_names/0"],"duration_us"`), "request.tool_names")
	f("all of the tenant", edited(`"duration_us"`, `"erased":["/input/tenant"],"duration_us"`), "tenant.id", "tenant.labels", "tenant.team", "tenant.tier")
}

// TestAbsentIsNeverGuessed: an expression that needs what the record lacks has
// no value, and one that does not need it has.
func TestAbsentIsNeverGuessed(t *testing.T) {
	f := func(expr string, allow bool, kind ErrorKind) {
		t.Helper()
		s := mustLoad(t, testConfig(), policyText("p", "\n  validations: [{ name: v, expression: \""+expr+"\" }]", "Deny"))
		d := s.Decide(t.Context(), readRecord(t, recorded(t, nil)).AsInput(s))
		got := ErrorKind("")
		if len(d.Errors) > 0 {
			got = d.Errors[0].ErrorKind
		}
		if d.Allow != allow || got != kind {
			t.Errorf("%s: allow %t, error %q: %+v", expr, d.Allow, got, d.Errors)
		}
	}
	f("request.user.orValue('') == 'hmac:1'", false, ErrorAbsent)
	f("request.user.orValue('') == 'hmac:1' || request.n == 1", true, "")
	f("request.user.hasValue() && request.n == 2", false, "")
	f("request.n == 1 ? request.stream : request.source_ip == ''", true, "")
	f("request.input_tokens == 900 && 'pii' in content.labels", true, "")
}

func TestReadRecordErrors(t *testing.T) {
	f := func(line, want string) {
		t.Helper()
		_, err := ReadRecord([]byte(line))
		if err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", line, err, want)
		}
	}
	f(`{"type":"decision","verdict":"allow"`, "the line is no JSON: fault at byte 36")
	f(`[]`, "the line is no JSON object")
	f(`{"type":"settlement"}`, "the line is no decision record")
	f(`{"type":"decision"}`, "the record has no verdict, should be allow or deny")
	f(`{"type":"decision","verdict":"allow","input":{"request":{"n":"secret"}}}`, "field input.request.n is a string, should be int64")
	f(`{"type":"decision","verdict":"allow","timestamp":"secret"}`, "the line does not decode: a field has a form that the record does not know")
}

// FuzzReadRecord: no line makes the reader or an evaluation of what it read
// panic.
func FuzzReadRecord(f *testing.F) {
	s, err := load(testConfig(), policyText("p", validations, "Deny"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"type":"decision","verdict":"deny","input":{"request":{"n":1,"headers":{"a":"b"}},"tenant":{"id":"t"},"principal":{"claims":{"clearance":"x"}}},"masked":["/input/now","/a/0","//"]}`))
	f.Add([]byte(`{"type":"decision","verdict":"allow","erased":["/input"]}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := ReadRecord(line)
		if err != nil {
			return
		}
		s.Decide(t.Context(), r.AsInput(s))
	})
}
