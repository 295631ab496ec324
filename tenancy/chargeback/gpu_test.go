package chargeback

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicegate/sluice/tenancy"
)

// memorySource is a ledger that has nothing but the rows of a month.
type memorySource []*tenancy.Row

func (m memorySource) Rows(context.Context, time.Time, time.Time) iter.Seq2[*tenancy.Row, error] {
	return func(yield func(*tenancy.Row, error) bool) {
		for _, row := range m {
			if !yield(row, nil) {
				return
			}
		}
	}
}

func (m memorySource) Totals(context.Context, time.Time, time.Time) ([]tenancy.Totals, error) {
	byCurrency := make(map[string]*tenancy.Totals)
	for _, row := range m {
		if byCurrency[row.Currency] == nil {
			byCurrency[row.Currency] = &tenancy.Totals{Currency: row.Currency}
		}
		byCurrency[row.Currency].Add(row)
	}
	var list []tenancy.Totals
	for _, currency := range slices.Sorted(maps.Keys(byCurrency)) {
		list = append(list, *byCurrency[currency])
	}
	return list, nil
}

// fakeTotals is one whose totals say something else.
type fakeTotals struct {
	memorySource
	totals []tenancy.Totals
}

func (f fakeTotals) Totals(context.Context, time.Time, time.Time) ([]tenancy.Totals, error) {
	return f.totals, nil
}

// worked is a row that ended at an instant of March and had so much GPU time.
func worked(tenant, pool string, day int, gpu time.Duration) *tenancy.Row {
	return &tenancy.Row{
		ID: fmt.Sprint(tenant, pool, day, gpu), Tenant: tenant, Team: "team-" + tenant, Model: "qwen", Pool: pool, Attempts: 1,
		Outcome: tenancy.OutcomeCompleted, Start: march.AddDate(0, 0, day-1), GPUTime: gpu,
	}
}

const gpuHour = GPUMicros(time.Hour / time.Microsecond)

func shareMarch(t testing.TB, rows []*tenancy.Row, pools []GPUPool, idle IdleMode) *GPUReport {
	t.Helper()
	r, err := ShareGPUs(t.Context(), memorySource(rows), "2026-03", pools, idle, march.AddDate(1, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestShareGPUs(t *testing.T) {
	// Two GPUs for 12.00 an hour: 744 hours of March are 8,928.00, 1,488 GPU hours.
	pools := []GPUPool{{Name: "h100", Rates: []GPURate{{PerHour: 12_000_000, Currency: "USD", GPUs: 2}}}}
	rows := []*tenancy.Row{
		worked("acme", "h100", 1, 372*time.Hour), worked("acme", "h100", 31, 0), worked("globex", "h100", 2, 186*time.Hour),
		worked("acme", "lab", 3, time.Hour),
	}
	f := func(idle IdleMode, want string) {
		t.Helper()
		var buf bytes.Buffer
		if err := shareMarch(t, rows, pools, idle).WriteCSV(&buf); err != nil {
			t.Fatal(err)
		}
		if got := buf.String(); got != strings.ReplaceAll(want, "\t", "") {
			t.Errorf("got\n%s", got)
		}
	}
	const header = "Period,Pool,Kind,Tenant,Team,Model,Requests,GpuSeconds,WorkCost,IdleCost,Cost,Currency\n"
	f(IdleSeparate, header+`2026-03,h100,work,acme,team-acme,qwen,1,1339200.000000,2232.000000,0.000000,2232.000000,USD
		2026-03,h100,work,globex,team-globex,qwen,1,669600.000000,1116.000000,0.000000,1116.000000,USD
		2026-03,h100,idle,,,,0,3348000.000000,0.000000,5580.000000,5580.000000,USD
		2026-03,lab,work,acme,team-acme,qwen,1,3600.000000,0.000000,0.000000,0.000000,
`)
	f(IdleSpread, header+`2026-03,h100,work,acme,team-acme,qwen,1,1339200.000000,2232.000000,3720.000000,5952.000000,USD
		2026-03,h100,work,globex,team-globex,qwen,1,669600.000000,1116.000000,1860.000000,2976.000000,USD
		2026-03,lab,work,acme,team-acme,qwen,1,3600.000000,0.000000,0.000000,0.000000,
`)
	r := shareMarch(t, rows, pools, IdleSeparate)
	if r.Unmeasured != 1 || r.LeftOut != 0 {
		t.Errorf("%d rows without GPU time, %d left out", r.Unmeasured, r.LeftOut)
	}
	var buf bytes.Buffer
	if err := r.WriteJSON(&buf); err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(buf.String(), "\n")
	if want := `{"Period":"2026-03","Pool":"h100","Kind":"work","Tenant":"acme","Team":"team-acme","Model":"qwen","Requests":1,` +
		`"GpuSeconds":1339200.000000,"WorkCost":2232.000000,"IdleCost":0.000000,"Cost":2232.000000,"Currency":"USD"}`; first != want {
		t.Errorf("got %s", first)
	}
	var line struct{ Cost json.Number }
	if err := json.Unmarshal([]byte(first), &line); err != nil || line.Cost != "2232.000000" {
		t.Errorf("read back: %+v, %v", line, err)
	}
}

// TestGPUCostChanges: each request falls under the cost of its end; a pool that
// nobody used is idle, whoever pays for idle time; a month that is not over costs
// the hours up to now.
func TestGPUCostChanges(t *testing.T) {
	half := march.AddDate(0, 0, 10)
	pools := []GPUPool{
		{Name: "p", Rates: []GPURate{
			{To: half, PerHour: 1_000_000, Currency: "USD", GPUs: 1}, {From: half, PerHour: 3_000_000, Currency: "EUR", GPUs: 1},
		}},
		{Name: "unused", Rates: []GPURate{{PerHour: 1, Currency: "USD", GPUs: 8}}},
		{Name: "gone", Rates: []GPURate{{To: march, PerHour: 5_000_000, Currency: "USD", GPUs: 1}}},
	}
	rows := []*tenancy.Row{worked("acme", "p", 10, 24*time.Hour), worked("acme", "p", 11, 48*time.Hour), worked("acme", "gone", 5, time.Hour)}
	r := shareMarch(t, rows, pools, IdleSpread)
	var got []string
	for _, l := range r.Lines {
		got = append(got, fmt.Sprintf("%s %s %d %d %s", l.Pool, l.Kind, l.WorkCost, l.IdleCost, l.Currency))
	}
	want := []string{"gone work 0 0 ", "p work 144000000 1368000000 EUR", "p work 24000000 216000000 USD", "unused idle 0 744 USD"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got %q, want %q", got, want)
	}
	now := march.AddDate(0, 0, 11)
	r, err := ShareGPUs(t.Context(), memorySource(append(rows, worked("acme", "p", 12, time.Hour))), "2026-03", pools, IdleSeparate, now)
	if err != nil {
		t.Fatal(err)
	}
	if r.Until != now || r.Sums[2] != (GPUSum{"p", "USD", 240_000_000, 240 * gpuHour, 24 * gpuHour}) ||
		r.Sums[1] != (GPUSum{"p", "EUR", 72_000_000, 24 * gpuHour, 49 * gpuHour}) {
		t.Errorf("on the twelfth: until %s, %+v", r.Until, r.Sums)
	}
	if _, err := ShareGPUs(t.Context(), memorySource(nil), "2026-03", pools, IdleSeparate, march); err == nil || !strings.Contains(err.Error(), "has not begun") {
		t.Errorf("a month to come: %v", err)
	}
	if _, err := ShareGPUs(t.Context(), memorySource(nil), "March", pools, IdleSeparate, march); err == nil {
		t.Error("March is no month")
	}
}

// TestGPULeftOut: what belongs to another month's work is not shared here.
func TestGPULeftOut(t *testing.T) {
	late, correction := worked("acme", "p", 1, time.Hour), worked("acme", "p", 2, -time.Minute)
	late.Start, late.Period = march.AddDate(0, 0, -3), march
	correction.CorrectionOf = "x"
	r := shareMarch(t, []*tenancy.Row{worked("acme", "p", 3, time.Second), late, correction}, nil, IdleSeparate)
	if r.LeftOut != 2 || len(r.Lines) != 1 || r.Lines[0].GPUTime != 1_000_000 {
		t.Errorf("%d left out, %+v", r.LeftOut, r.Lines)
	}
}

func TestGPUTimeIsCompared(t *testing.T) {
	rows := []*tenancy.Row{worked("acme", "p", 3, time.Second)}
	src := fakeTotals{memorySource(rows), []tenancy.Totals{{Rows: 1}}}
	if _, err := ShareGPUs(t.Context(), src, "2026-03", nil, IdleSeparate, march.AddDate(1, 0, 0)); !errors.Is(err, ErrUnequal) {
		t.Errorf("got %v", err)
	}
}

// TestPropertyGPUSharesAreExact: whatever was worked at whatever cost, the lines
// sum to the cost of the hours, computed in fractions apart from one rounding of
// each cost, and to the rows' time; and nobody's share is off by a whole unit.
func TestPropertyGPUSharesAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cut := march.Add(time.Duration(rapid.Int64Range(1, int64(30*24*time.Hour)).Draw(t, "cut")))
		perHour := rapid.Int64Range(0, 1_000_000_000_000)
		gpus := rapid.Int64Range(1, 64)
		pools := []GPUPool{{Name: "p", Rates: []GPURate{
			{To: cut, PerHour: perHour.Draw(t, "cost"), Currency: "USD", GPUs: gpus.Draw(t, "gpus")},
			{From: cut, PerHour: perHour.Draw(t, "cost"), Currency: "USD", GPUs: gpus.Draw(t, "gpus")},
		}}}
		var rows []*tenancy.Row
		var time1 time.Duration
		for i := range rapid.IntRange(0, 30).Draw(t, "rows") {
			r := worked(fmt.Sprint("t", rapid.IntRange(0, 4).Draw(t, "tenant")), "p", 1, time.Duration(rapid.Int64Range(1, 1e12).Draw(t, "us"))*time.Microsecond)
			r.ID, r.Start = fmt.Sprint(i), march.Add(time.Duration(rapid.Int64Range(0, int64(31*24*time.Hour)-1).Draw(t, "end")))
			rows, time1 = append(rows, r), time1+r.GPUTime
		}
		mode := IdleMode(rapid.IntRange(0, 1).Draw(t, "idle"))
		report, err := ShareGPUs(t.Context(), memorySource(rows), "2026-03", pools, mode, march.AddDate(1, 0, 0))
		if err != nil {
			t.Fatal(err)
		}
		var cost int64
		var worked GPUMicros
		for _, l := range report.Lines {
			cost += l.Cost()
			if l.Kind == GPUWork {
				worked += l.GPUTime
			}
			if l.WorkCost < 0 || l.IdleCost < 0 {
				t.Fatalf("a negative share: %+v", l)
			}
		}
		want := new(big.Int)
		for _, rate := range pools[0].Rates {
			long := cut.Sub(march)
			if !rate.From.IsZero() {
				long = march.AddDate(0, 1, 0).Sub(cut)
			}
			c := new(big.Rat).Mul(big.NewRat(rate.PerHour, 1), big.NewRat(int64(long), int64(time.Hour)))
			c.Add(c, big.NewRat(1, 2))
			want.Add(want, new(big.Int).Quo(c.Num(), c.Denom()))
		}
		if want.Cmp(big.NewInt(cost)) != 0 || int64(worked) != time1.Microseconds() {
			t.Fatalf("the lines sum to %d micro-units and %d us, want %s and %s", cost, worked, want, time1)
		}
	})
}

func TestPropertyApportion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sum := rapid.Int64Range(0, 1<<60).Draw(t, "sum")
		weights := rapid.SliceOfN(rapid.Int64Range(0, 1<<50), 1, 20).Draw(t, "weights")
		var all, got int64
		for _, w := range weights {
			all += w
		}
		for i, part := range apportion(sum, weights) {
			got += part
			if all == 0 {
				continue
			}
			due := new(big.Rat).Mul(big.NewRat(sum, 1), big.NewRat(weights[i], all))
			off := new(big.Rat).Sub(big.NewRat(part, 1), due)
			if off.Abs(off).Cmp(big.NewRat(1, 1)) >= 0 {
				t.Fatalf("%d of %d by %v is due %s", part, sum, weights, due.FloatString(3))
			}
		}
		if got != sum {
			t.Fatalf("the parts sum to %d, want %d", got, sum)
		}
	})
	if got := apportion(2, []int64{1, 1, 1}); fmt.Sprint(got) != "[1 1 0]" {
		t.Errorf("equal claims: %v", got)
	}
	if got := apportion(2, nil); len(got) != 0 {
		t.Errorf("nobody: %v", got)
	}
}

// failing writes nothing.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestGPUReportWriteFails(t *testing.T) {
	r := shareMarch(t, []*tenancy.Row{worked("a,\"b", "p", 1, time.Second)}, nil, IdleSeparate)
	for _, write := range []func(io.Writer) error{r.WriteCSV, r.WriteJSON} {
		if err := write(failing{}); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("got %v", err)
		}
	}
	var buf bytes.Buffer
	if err := r.WriteCSV(&buf); err != nil {
		t.Fatal(err)
	}
	if records, err := csv.NewReader(&buf).ReadAll(); err != nil || records[1][3] != "a,\"b" {
		t.Errorf("read back %v, %v", records, err)
	}
}

// Fleets are larger than 64 bits of nanoseconds.
func TestShareLargePools(t *testing.T) {
	pools := []GPUPool{{Name: "h100", Rates: []GPURate{{PerHour: 1_000_000, Currency: "USD", GPUs: 1 << 20}}}}
	r := shareMarch(t, []*tenancy.Row{worked("acme", "h100", 1, 744*time.Hour)}, pools, IdleSeparate)
	var work int64
	for _, l := range r.Lines {
		work += l.WorkCost
	}
	if work > 744_000_000/1_000_000 { // one GPU of a million, for the whole month
		t.Errorf("one GPU of 1,048,576 costs %d of 744,000,000 micro-units", work)
	}
}
