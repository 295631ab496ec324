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
	want := [3]Meter{{MeterInput, 300, 5, 7}, {MeterCachedInput, 600, 1, 8}, {MeterOutput, 250, 9, 9}}
	if got := r.Meters(); got != want {
		t.Errorf("meters %+v, want %+v", got, want)
	}
	if got := r.Costs.Total(); got != 24 {
		t.Errorf("total %d, want 24", got)
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
	f("negative cost", func(r *Row) { r.Costs.Output = -1 })
	f("a cost but no currency", func(r *Row) { r.Costs.Output = 1 })
}

func TestTotalsAdd(t *testing.T) {
	var got Totals
	r := Row{InputTokens: 10, CachedTokens: 4, OutputTokens: 3, ReasoningTokens: 1, Costs: Costs{1, 2, 3}}
	got.Add(&r)
	got.Add(&r)
	want := Totals{Rows: 2, InputTokens: 20, CachedTokens: 8, OutputTokens: 6, ReasoningTokens: 2, Costs: Costs{2, 4, 6}}
	if got != want {
		t.Errorf("totals %+v, want %+v", got, want)
	}
}
