package tenancy

import (
	"strings"
	"testing"
	"time"
)

func TestAllowsModel(t *testing.T) {
	f := func(globs, model string, want bool) {
		t.Helper()
		tn := Tenant{}
		if globs != "" {
			tn.Models = strings.Split(globs, ",")
		}
		if got := tn.AllowsModel(model); got != want {
			t.Errorf("%q allows %q: %v", globs, model, got)
		}
	}
	f("", "anything/at-all", true)
	f("qwen", "qwen", true)
	f("qwen", "qwen-2", false)
	f("qwen-*", "qwen-2", true)
	f("qwen-*", "Qwen-2", false)
	f("llama,qwen-*", "qwen-2", true)
	f("*", "org/model", true)
	f("org/*", "org/model", true)
	f("org/*", "org/a/b", false)
	f("qwen-*", "qwen-2/x", false)
	f("[", "[", false)
}

func TestFlags(t *testing.T) {
	if got := (FlagEstimated | FlagAborted | 1<<30).String(); got != "estimated,aborted,0x40000000" {
		t.Errorf("flags read %q", got)
	}
	if got := Flags(0).String(); got != "" {
		t.Errorf("no flags read %q", got)
	}
	if !(FlagAborted | FlagStream).Has(FlagStream) || FlagAborted.Has(FlagAborted|FlagStream) {
		t.Error("Has misjudges")
	}
}

func TestMetersHoldEveryTokenOnce(t *testing.T) {
	r := Row{
		InputTokens: 900, CachedTokens: 600, OutputTokens: 250, ReasoningTokens: 50,
		Prices: Prices{Input: 5, CachedInput: 1, Output: 9}, Costs: Costs{Input: 7, CachedInput: 8, Output: 9},
	}
	want := [5]Meter{{MeterInput, 300, 5, 7}, {MeterCachedInput, 600, 1, 8}, {MeterOutput, 250, 9, 9}, {Name: MeterReasoning}, {Name: MeterGPU}}
	if got := r.Meters(); got != want {
		t.Errorf("meters %+v, want %+v", got, want)
	}
	r.Flags, r.GPUTime = FlagReasoningApart, 1500*time.Microsecond+999
	r.Prices.Reasoning, r.Prices.GPUSecond, r.Costs.Reasoning, r.Costs.GPU = 11, 12, 13, 14
	want[2].Quantity, want[3], want[4] = 200, Meter{MeterReasoning, 50, 11, 13}, Meter{MeterGPU, 1500, 12, 14}
	if got := r.Meters(); got != want {
		t.Errorf("with reasoning apart: meters %+v, want %+v", got, want)
	}
	if got := r.Costs.Total(); got != 51 {
		t.Errorf("total %d, want 51", got)
	}
}

func TestMonthOfARow(t *testing.T) {
	end := time.Date(2026, 3, 1, 0, 30, 0, 0, time.FixedZone("+1", 3600)) // still February in UTC
	r := Row{Start: end.Add(-time.Hour), Duration: time.Hour}
	february := time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)
	if got := Month(r.End()); !got.Equal(february) || got.Location() != time.UTC {
		t.Errorf("month %v", got)
	}
	for period, late := range map[time.Time]bool{{}: false, february: false, february.AddDate(0, 1, 0): true} {
		if r.Period = period; r.Late() != late {
			t.Errorf("booked in %v: late is %v", period, r.Late())
		}
	}
}

func TestRowCheck(t *testing.T) {
	good := Row{ID: "r", Outcome: OutcomeCompleted, Start: time.Unix(1, 0)}
	if err := good.Check(); err != nil {
		t.Errorf("a good row: %v", err)
	}
	f := func(want string, change func(*Row)) {
		t.Helper()
		r := good
		change(&r)
		if err := r.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	f("no id", func(r *Row) { r.ID = "" })
	f("no outcome", func(r *Row) { r.Outcome = "" })
	f("no start", func(r *Row) { r.Start = time.Time{} })
	f("negative duration", func(r *Row) { r.TTFT = -1 })
	f("negative token count", func(r *Row) { r.OutputTokens = -1 })
	f("more cached tokens (2) than input tokens (1)", func(r *Row) { r.InputTokens, r.CachedTokens = 1, 2 })
	f("more reasoning tokens (2) than output tokens (1)", func(r *Row) { r.OutputTokens, r.ReasoningTokens = 1, 2 })
	f("negative cost", func(r *Row) { r.Currency, r.Costs.Output = "EUR", -1 })
	f("negative cost", func(r *Row) { r.Currency, r.Costs.GPU = "EUR", -1 })
	f("negative GPU time", func(r *Row) { r.GPUTime = -1 })
	f("a discount of 1000001 millionths", func(r *Row) { r.Discount = 1_000_001 })
	f("a discount of -1 millionths", func(r *Row) { r.Discount = -1 })
	f("corrects itself", func(r *Row) { r.CorrectionOf = "r" })
	f("holds a space or a slash", func(r *Row) { r.Charges = []Charge{{Unit: "a b"}} })
	f("a cost but no currency", func(r *Row) { r.CorrectionOf, r.Costs.Output = "x", -1 })
	f("a cost but no currency", func(r *Row) { r.Costs.Output = 1 })
	less := Row{ID: "r~1", CorrectionOf: "r", Outcome: OutcomeCompleted, Start: time.Unix(1, 0), OutputTokens: -5, Currency: "EUR", Costs: Costs{Output: -3}}
	if err := less.Check(); err != nil {
		t.Errorf("a correction: %v", err)
	}
}

func TestTotalsAdd(t *testing.T) {
	var got Totals
	r := Row{InputTokens: 10, CachedTokens: 4, OutputTokens: 3, ReasoningTokens: 1, GPUTime: 1999, Costs: Costs{1, 2, 3, 4, 5}}
	got.Add(&r)
	r.Flags = FlagReasoningApart
	got.Add(&r)
	want := Totals{
		Rows: 2, InputTokens: 20, CachedTokens: 8, OutputTokens: 6, ReasoningTokens: 2, ReasoningApart: 1,
		GPUTime: 2 * time.Microsecond, Costs: Costs{2, 4, 6, 8, 10},
	}
	if got != want {
		t.Errorf("totals %+v, want %+v", got, want)
	}
}
