package policy

import (
	"math"
	"slices"
	"testing"
)

func TestThresholds(t *testing.T) {
	text := limitText("{ name: l, unit: requests, window: month, limit: 1000, key: [], estimate: 50, warnAt: [50, 80, 100] }, { name: m, unit: requests, window: 1m, limit: 9, key: [] }", "Deny")
	f := func(used int64, percent int64, crossed bool, headers ...string) {
		t.Helper()
		d := mustLoad(t, testConfig(), text).Decide(t.Context(), testInput())
		gotPercent, gotCrossed := d.NoteUsed(0, used, 1000)
		none, never := d.NoteUsed(1, 9, 9)
		if gotPercent != percent || gotCrossed != crossed || none != 0 || never {
			t.Errorf("%d of 1000 used: %d %t, want %d %t; %d %t without thresholds", used, gotPercent, gotCrossed, percent, crossed, none, never)
		}
		if got := d.WarningHeaders(); !slices.Equal(got, headers) {
			t.Errorf("%d of 1000 used: %q, want %q", used, got, headers)
		}
		if r := d.Record(testInput(), RecordOptions{}); r.Limits[0].Warned != percent || r.Limits[1].Warned != 0 {
			t.Errorf("%d of 1000 used: the record has %+v", used, r.Limits)
		}
	}
	f(499, 0, false)
	f(500, 50, true, `299 sluice "p/l: 50 % used"`)
	f(549, 50, true, `299 sluice "p/l: 50 % used"`)
	f(550, 50, false, `299 sluice "p/l: 50 % used"`)
	f(799, 50, false, `299 sluice "p/l: 50 % used"`)
	f(800, 80, true, `299 sluice "p/l: 80 % used"`)
	f(1000, 100, true, `299 sluice "p/l: 100 % used"`)
	f(1200, 100, false, `299 sluice "p/l: 100 % used"`)

	for _, c := range []struct {
		used, limit, percent int64
		want                 bool
	}{
		{math.MaxInt64, math.MaxInt64, 100, true}, {math.MaxInt64 - 1, math.MaxInt64, 100, false}, {-1, 10, 1, false}, {0, 10, 1, false}, {1, 3, 33, true}, {1, 3, 34, false},
	} {
		if got := reached(c.used, c.limit, c.percent); got != c.want {
			t.Errorf("%d of %d is %d %%: %t", c.used, c.limit, c.percent, got)
		}
	}
}

// TestLearnedOutput: what is known of answers stands in for a cap that the client
// has not given, in estimates alone, and never above the cap.
func TestLearnedOutput(t *testing.T) {
	f := func(limit string, edit func(*Input), want int64) {
		t.Helper()
		in := testInput()
		in.Request.MaxTokens = nil
		learned := int64(200)
		in.Request.LearnedOutput = &learned
		if edit != nil {
			edit(in)
		}
		text := limitText("{ name: l, window: 1m, limit: 1000000, key: [], "+limit+" }", "Deny") +
			policyText("caps", "\n  matchConditions: [{ name: m, expression: \"request.stream\" }]\n  effects: [{ name: e, mutate: { max_tokens: 3000 } }]", "Deny")
		d := mustLoad(t, testConfig(), text).Decide(t.Context(), in)
		if len(d.Limits) != 1 || d.Limits[0].Estimate != want || *d.MaxTokens < 300 {
			t.Errorf("%s: %+v, at most %d tokens, errors %+v; want an estimate of %d", limit, d.Limits, *d.MaxTokens, d.Errors, want)
		}
	}
	f("unit: output_tokens", nil, 200)
	f("unit: tokens", nil, 1100)
	f("unit: cost", nil, 300) // 900 × 0.2 + 200 × 0.6
	f("unit: output_tokens", func(in *Input) { in.Request.N, in.Request.Prompts = 3, 2 }, 1200)
	f("unit: output_tokens", func(in *Input) { n := int64(1000); in.Request.MaxTokens = &n }, 1000)
	f("unit: output_tokens", func(in *Input) { in.Request.LearnedOutput = nil }, 3000)
	f("unit: output_tokens", func(in *Input) { n := int64(5000); in.Request.LearnedOutput = &n }, 3000)
	f("unit: output_tokens", func(in *Input) { n := int64(0); in.Request.LearnedOutput = &n }, 1)
	f("unit: output_tokens, estimate: effective.max_tokens * effective.n", nil, 3000)
}

// TestLearnedOutputIsReplayed: a record judged anew reserves the same.
func TestLearnedOutputIsReplayed(t *testing.T) {
	s := mustLoad(t, testConfig(), limitText("{ name: l, unit: tokens, window: 1m, limit: 1000000, key: [] }", "Deny"))
	in := testInput()
	learned := int64(321)
	in.Request.MaxTokens, in.Request.LearnedOutput = nil, &learned
	d := s.Decide(t.Context(), in)
	again := s.Decide(t.Context(), d.Record(in, RecordOptions{}).AsInput(s))
	if len(again.Limits) != 1 || again.Limits[0].Estimate != 1221 || d.Limits[0].Estimate != 1221 {
		t.Errorf("decided %+v, replayed %+v", d.Limits, again.Limits)
	}
}

// TestHiddenLearnedOutputIsNoGuess: a record that hides what was learned says so,
// where it would have counted.
func TestHiddenLearnedOutputIsNoGuess(t *testing.T) {
	s := mustLoad(t, testConfig(), limitText("{ name: l, unit: tokens, window: 1m, limit: 1000000, key: [] }", "Deny"))
	for _, capped := range []bool{false, true} {
		in := testInput()
		learned := int64(321)
		in.Request.LearnedOutput = &learned
		if !capped {
			in.Request.MaxTokens = nil
		}
		r := s.Decide(t.Context(), in).Record(in, RecordOptions{})
		r.hidden = []string{"request.learned_output"}
		r.Input.Request.LearnedOutput = nil
		d := s.Decide(t.Context(), r.AsInput(s))
		if absent := len(d.Errors) == 1 && d.Errors[0].ErrorKind == ErrorAbsent; absent == capped {
			t.Errorf("capped %t: limits %+v, errors %+v", capped, d.Limits, d.Errors)
		}
	}
}

// TestChargesSoFar are those of the end, without a trace of what fails.
func TestChargesSoFar(t *testing.T) {
	d := mustLoad(t, testConfig(), limitText("{ name: a, unit: tokens, window: 1m, limit: 90000, key: [] }, { name: b, unit: cost, window: 1m, limit: 90000, key: [], charge: \"100 / (usage.output_tokens - 5)\" }", "Deny")).Decide(t.Context(), testInput())
	for _, c := range []struct{ out, tokens, cost int64 }{{5, 905, 780}, {25, 925, 5}, {105, 1005, 1}} {
		if got := d.ChargesSoFar(Usage{InputTokens: 900, OutputTokens: c.out}); !slices.Equal(got, []int64{c.tokens, c.cost}) {
			t.Errorf("%d tokens so far are charged %v", c.out, got)
		}
	}
	if len(d.Errors) != 0 {
		t.Errorf("errors %+v", d.Errors)
	}
	if got := d.Charges(Usage{InputTokens: 900, OutputTokens: 5}); !slices.Equal(got, []int64{905, 780}) || len(d.Errors) != 1 {
		t.Errorf("at the end %v, errors %+v", got, d.Errors)
	}
}

func TestOutputReserved(t *testing.T) {
	f := func(limits string, tokens int64, counted bool) {
		t.Helper()
		d := mustLoad(t, testConfig(), limitText(limits, "Deny")).Decide(t.Context(), testInput())
		if got, ok := d.OutputReserved(); got != tokens || ok != counted {
			t.Errorf("%s: %d %t, want %d %t", limits, got, ok, tokens, counted)
		}
	}
	const rest = ", window: 1m, limit: 90000, key: []"
	f("{ name: a, unit: requests"+rest+" }, { name: s, unit: concurrency, limit: 5, key: [] }, { name: i, unit: input_tokens"+rest+" }", 0, false)
	f("{ name: a, unit: requests"+rest+" }, { name: b, unit: tokens"+rest+" }", 1000, true)
	f("{ name: a, unit: cost"+rest+" }", 1000, true)
	f("{ name: a, unit: cost"+rest+" }, { name: b, unit: output_tokens, estimate: 5"+rest+" }", 0, true)
	f("{ name: a, unit: requests, estimate: 5"+rest+" }", 0, false)
	f("{ name: a, unit: requests, charge: usage.output_tokens"+rest+" }", 0, true)
}
