package chargeback

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicegate/sluice/tenancy"
)

func pricedRow(t testing.TB, model string) *tenancy.Row {
	t.Helper()
	row := &tenancy.Row{
		ID: "r", Tenant: "acme", Team: "search", Model: model, Outcome: tenancy.OutcomeCompleted, Start: march, Duration: time.Second,
		Queue: 1, TTFT: 2, Gateway: "g", Process: "p", Period: march, InputTokens: 900, CachedTokens: 600, OutputTokens: 250, ReasoningTokens: 50,
		Charges: []tenancy.Charge{{Unit: "cost"}},
	}
	_ = table(t, sampleTable).Cost(row)
	return row
}

func TestCorrect(t *testing.T) {
	row := pricedRow(t, "qwen")
	less, none := int64(100), int64(0)
	fix, err := Correct(row, nil, Change{OutputTokens: &less, Reason: "why", Author: "who"})
	if err != nil {
		t.Fatal(err)
	}
	want := *row
	want.ID, want.CorrectionOf, want.Reason, want.Author = "r~1", "r", "why", "who"
	want.Gateway, want.Process, want.Charges, want.Period, want.Queue, want.TTFT = "", "", nil, time.Time{}, 0, 0
	want.InputTokens, want.CachedTokens, want.OutputTokens, want.ReasoningTokens = 0, 0, -150, 0
	want.Costs = tenancy.Costs{Output: 26 - row.Costs.Output} // 50 × 0.6 less 12.5 % is 26.25
	if !reflect.DeepEqual(*fix, want) {
		t.Errorf("got %+v\nwant %+v", *fix, want)
	}
	back := int64(250)
	again, err := Correct(row, []*tenancy.Row{fix}, Change{OutputTokens: &back, Reason: "why", Author: "who"})
	if err != nil || again.ID != "r~2" || again.OutputTokens != 150 || again.Costs.Total() != -fix.Costs.Total() {
		t.Errorf("corrected back: %+v, %v", again, err)
	}
	if _, err := Correct(row, []*tenancy.Row{fix, again}, Change{OutputTokens: &back, Reason: "why", Author: "who"}); err == nil || !strings.Contains(err.Error(), "nothing to correct") {
		t.Errorf("no change: %v", err)
	}
	void, err := Correct(row, []*tenancy.Row{fix}, Change{Void: true, Reason: "why", Author: "who"})
	if err != nil || void.InputTokens != -900 || void.OutputTokens != -100 || void.Costs.Total() != -row.Costs.Total()-fix.Costs.Total() {
		t.Errorf("void: %+v, %v", void, err)
	}
	for name, c := range map[string]struct {
		row    *tenancy.Row
		change Change
		want   string
	}{
		"of a correction":     {fix, Change{Void: true, Reason: "r", Author: "a"}, "correct row r"},
		"without reason":      {row, Change{Void: true, Author: "a"}, "has a reason"},
		"without author":      {row, Change{Void: true, Reason: "r"}, "has a reason"},
		"more cached":         {row, Change{InputTokens: &less, Reason: "r", Author: "a"}, "more cached tokens (600) than input tokens (100)"},
		"reasoning of no use": {row, Change{OutputTokens: &none, Reason: "r", Author: "a"}, "more reasoning tokens"},
	} {
		if got, err := Correct(c.row, nil, c.change); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// The row of a lost request has no price; the one that came after the close has.
func TestCorrectAfterALostRow(t *testing.T) {
	lost := &tenancy.Row{ID: "r", Tenant: "acme", Outcome: tenancy.OutcomeLost, Start: march}
	late := pricedRow(t, "qwen")
	late.ID, late.CorrectionOf = "r~late", "r"
	fix, err := Correct(lost, []*tenancy.Row{late}, Change{Void: true, Reason: "why", Author: "who"})
	if err != nil || fix.Currency != "USD" || fix.Costs.Total() != -late.Costs.Total() || fix.InputTokens != -900 || fix.ID != "r~2" || fix.CorrectionOf != "r" {
		t.Errorf("got %+v, %v", fix, err)
	}
}

// However often a row is corrected, it comes to what the last correction says, at
// its own prices.
func TestPropertyCorrectionsAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		row := &tenancy.Row{ID: "r", Tenant: rapid.SampledFrom([]string{"acme", "x"}).Draw(t, "tenant"), Model: rapid.SampledFrom([]string{"qwen", "thinker-1", "dear"}).Draw(t, "model"), Outcome: tenancy.OutcomeCompleted, Start: march, InputTokens: 10}
		p, err := ParsePrices("p.yaml", []byte(sampleTable))
		if err != nil {
			t.Fatal(err)
		}
		_ = p.Cost(row)
		should := *row
		var earlier []*tenancy.Row
		for range rapid.IntRange(1, 5).Draw(t, "times") {
			in, out := rapid.Int64Range(0, 5000).Draw(t, "input"), rapid.Int64Range(0, 5000).Draw(t, "output")
			cached, reasoning := rapid.Int64Range(0, in).Draw(t, "cached"), rapid.Int64Range(0, out).Draw(t, "reasoning")
			gpu := time.Duration(rapid.Int64Range(0, 1<<30).Draw(t, "gpu")) * time.Microsecond
			fix, err := Correct(row, earlier, Change{InputTokens: &in, CachedTokens: &cached, OutputTokens: &out, ReasoningTokens: &reasoning, GPUTime: &gpu, Reason: "r", Author: "a"})
			if err != nil {
				if strings.Contains(err.Error(), "nothing to correct") {
					continue
				}
				t.Fatal(err)
			}
			if err := fix.Check(); err != nil {
				t.Fatal(err)
			}
			earlier = append(earlier, fix)
			should.InputTokens, should.CachedTokens, should.OutputTokens, should.ReasoningTokens, should.GPUTime = in, cached, out, reasoning, gpu
		}
		_ = p.Cost(&should)
		var want, got tenancy.Totals
		want.Add(&should)
		got.Add(row)
		for _, fix := range earlier {
			got.Add(fix)
		}
		got.Rows = 1
		if got != want {
			t.Fatalf("rows add up to %+v, want %+v", got, want)
		}
	})
}
