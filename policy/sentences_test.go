package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestEveryVariableEverywhere: every base variable can be read in every kind of
// expression, but for the client's words in what leaves the gateway.
func TestEveryVariableEverywhere(t *testing.T) {
	vars, err := Variables(testConfig().Claims)
	if err != nil {
		t.Fatal(err)
	}
	const limit = "\n  limits: [{ name: l, unit: requests, window: 1m, limit: %s, key: [%s], when: %s, estimate: %s, charge: %s }]"
	one := func(at int, expr, otherwise string) (args []any) {
		for i, o := range []string{otherwise, "'k'", "true", otherwise, otherwise} {
			if i == at {
				o = expr
			}
			args = append(args, `"`+o+`"`)
		}
		return args
	}
	n := 0
	for _, v := range vars {
		if v.ReadableIn != "" {
			continue
		}
		reads := fmt.Sprintf("type(%[1]s) == type(%[1]s)", v.Name)
		text, number := reads+" ? 'a' : 'b'", reads+" ? 1 : 2"
		places := map[string]string{
			"a match condition":   "\n  matchConditions: [{ name: m, expression: \"" + reads + "\" }]\n  validations: [{ name: v, expression: request.stream }]",
			"a variable":          "\n  variables: [{ name: x, expression: \"" + reads + "\" }]\n  validations: [{ name: v, expression: variables.x }]",
			"a validation":        "\n  validations: [{ name: v, expression: \"" + reads + "\" }]",
			"a condition":         "\n  effects: [{ name: e, when: \"" + reads + "\", addLabels: [x] }]",
			"a cap on tokens":     "\n  effects: [{ name: e, mutate: { max_tokens: \"" + number + "\" } }]",
			"a cap on choices":    "\n  effects: [{ name: e, mutate: { n: \"" + number + "\" } }]",
			"a limit":             fmt.Sprintf(limit, one(0, number, "5")...),
			"a key":               fmt.Sprintf(limit, one(1, text, "5")...),
			"a limit's condition": fmt.Sprintf(limit, one(2, reads, "5")...),
			"an estimate":         fmt.Sprintf(limit, one(3, number, "5")...),
			"a charge":            fmt.Sprintf(limit, one(4, number, "5")...),
			"a message":           "\n  validations: [{ name: v, expression: request.stream, messageExpression: \"" + text + "\" }]",
			"an annotation":       "\n  auditAnnotations: [{ key: k, valueExpression: \"" + text + "\" }]",
		}
		for place, spec := range places {
			n++
			_, err := load(testConfig(), policyText("p", spec, "Deny"))
			refused := v.ClientText && (place == "a message" || place == "an annotation")
			if refused != (err != nil) {
				t.Errorf("%s in %s: %v", v.Name, place, err)
			}
		}
	}
	if n < 40*13 {
		t.Errorf("%d places were tried", n)
	}
}

// TestNowIsOneInstant: the match, the decision, the settlement and the rehearsal of
// a request see the same time, in UTC.
func TestNowIsOneInstant(t *testing.T) {
	const at = "now == timestamp('2026-03-10T11:00:00Z') && now.getHours() == 11 && string(now).endsWith('Z')"
	text := policyText("a", "\n  matchConditions: [{ name: m, expression: \""+at+"\" }]\n  validations: [{ name: v, expression: \""+at+"\" }]"+
		"\n  limits: [{ name: l, unit: requests, window: 1m, limit: 50, key: [], charge: \""+at+" ? 7 : 9\" }]", "Deny") +
		policyText("b", "\n  matchConditions: [{ name: m, expression: \""+at+"\" }]\n  validations: [{ name: v, expression: \"!("+at+")\" }]", "Audit")
	in := testInput()
	in.Now = time.Date(2026, 3, 10, 13, 0, 0, 0, time.FixedZone("", 2*60*60))
	d := mustLoad(t, testConfig(), text).Decide(t.Context(), in)
	if !d.Allow || len(d.Limits) != 1 {
		t.Fatalf("%+v", d)
	}
	if got := d.Charges(Usage{}); got[0] != 7 {
		t.Errorf("charged %d", got[0])
	}
	r := d.Rehearsal()
	r.Run(t.Context(), nil)
	if got := rules(r.Outcome().WouldDeny); got != "b/v" {
		t.Errorf("the rehearsal would deny %q", got)
	}
}

// TestReaderIgnoresUnknownFields: records of a later version are read.
func TestReaderIgnoresUnknownFields(t *testing.T) {
	line := string(recorded(t, nil))
	for _, at := range []string{`{"type":`, `"request":{`, `"principal":{`, `"tenant":{`, `"content":{`, `"effective":{`, `"cost":{`} {
		before, after, ok := strings.Cut(line, at)
		if !ok {
			t.Fatalf("the record has no %s: %s", at, line)
		}
		member := `"later_field":{"of":["a","version"]},`
		if strings.HasSuffix(at, ":") { // at the top, before the type
			line = "{" + member + at[1:] + after
		} else {
			line = before + at + member + after
		}
	}
	s := mustLoad(t, testConfig(), policyText("p", "\n  validations: [{ name: v, expression: \"request.model == 'm' && tenant.id == 't1'\" }]", "Deny"))
	r, err := ReadRecord([]byte(line))
	if err != nil {
		t.Fatal(err)
	}
	in := r.AsInput(s)
	if in.Request.Model != "m" || in.Tenant.ID != "t1" || !slices.Equal(in.Principal.Groups, testInput().Principal.Groups) {
		t.Errorf("%+v", in)
	}
}
