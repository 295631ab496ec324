package chargeback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/sluicegate/sluice/tenancy"
)

// Scrape is what the /metrics of a running gateway say of tenants.
type Scrape struct {
	// Process names the run of the gateway, as rows do. Started is when it began,
	// zero if it does not say.
	Process string
	Started time.Time
	// Counted says up to where its rows are counted.
	Counted tenancy.Counted
	// Changes of names make single series begin in the middle; only sums can be
	// compared then.
	Changes int64

	series  map[seriesKey]int64
	retired map[seriesKey]int64 // without tenant and model
}

// seriesKey is one figure of one pair.
type seriesKey struct {
	pair
	family string // without sluice_tenant_ and sluice_tenant_retired_
	value  string // of kind or currency
}

const (
	familyRequests = "requests_total"
	familyTokens   = "tokens_total"
	familyCost     = "cost_microunits_total"
)

// maxScrape bounds what is read of an answer.
const maxScrape = 256 << 20

// ErrNoGateway means that what was read are not the metrics of a gateway that can
// be compared.
var ErrNoGateway = errors.New("these are not the metrics of a gateway of this version")

// ReadScrape reads metrics in the text format.
func ReadScrape(from io.Reader) (*Scrape, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(from, maxScrape))
	if err != nil {
		return nil, fmt.Errorf("cannot read the metrics: %w", err)
	}
	s := &Scrape{series: make(map[seriesKey]int64), retired: make(map[seriesKey]int64)}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			if err := s.read(name, m); err != nil {
				return nil, fmt.Errorf("cannot read the metrics: %s: %w", name, err)
			}
		}
	}
	if s.Process == "" || families["sluice_ledger_counted_seq"] == nil {
		return nil, fmt.Errorf("cannot read the metrics: %w", ErrNoGateway)
	}
	return s, nil
}

func (s *Scrape) read(name string, m *dto.Metric) (err error) {
	var labels = make(map[string]string, len(m.GetLabel()))
	for _, l := range m.GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	switch name {
	case "sluice_ledger_process_info":
		s.Process = labels["process"]
	case "process_start_time_seconds":
		s.Started = time.Unix(int64(m.GetGauge().GetValue()), 0)
	case "sluice_ledger_counted_seq":
		s.Counted.Seq, err = whole(m)
	case "sluice_ledger_counted_waiting":
		s.Counted.Waiting, err = whole(m)
	case "sluice_tenant_name_changes_total":
		s.Changes, err = whole(m)
	default:
		family, ofRetired := strings.CutPrefix(name, "sluice_tenant_retired_")
		if !ofRetired {
			family, _ = strings.CutPrefix(name, "sluice_tenant_")
		}
		if !slices.Contains([]string{familyRequests, familyTokens, familyCost}, family) {
			return nil
		}
		var n int64
		if n, err = whole(m); err != nil {
			return err
		}
		key := seriesKey{family: family, value: labels["kind"] + labels["currency"]}
		if ofRetired {
			s.retired[key] += n
			return nil
		}
		key.pair = pair{labels["tenant"], labels["model"]}
		s.series[key] += n // requests are summed over the classes of status
	}
	return err
}

// whole is the value of a counter or gauge, which must be exact.
func whole(m *dto.Metric) (int64, error) {
	v := m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
	const exact = 1 << 53
	if v != math.Trunc(v) || math.Abs(v) >= exact {
		return 0, fmt.Errorf("%g is no whole number below 2^53, so that it can't be compared exactly", v)
	}
	return int64(v), nil
}

// LiveBooks is a ledger that a running gateway is compared with.
type LiveBooks interface {
	// UsageOf sums the rows that a process has made and counted, up to a place in
	// the ledger, and that ended in [from, to). It is an error if a month of these is
	// archived.
	UsageOf(ctx context.Context, process string, seq int64, from, to time.Time) ([]tenancy.Usage, error)
}

// LiveDifference is one figure of a running gateway's metrics that the ledger has
// otherwise.
type LiveDifference struct {
	// Series is the name of the series, with labels; the sum of several has none for
	// tenant and model.
	Series      string
	Got, Ledger int64
}

// String names the difference in one line.
func (d LiveDifference) String() string {
	return fmt.Sprintf("metrics: %s is %d, the ledger has %d (%+d)", d.Series, d.Got, d.Ledger, d.Got-d.Ledger)
}

// ErrWaiting means that what is counted can't be compared now.
var ErrWaiting = errors.New("rows are counted that the ledger's database does not have yet")

// CompareLive compares what a running gateway counts with the rows that it has
// made since its start. The books must have been read after the metrics.
//
// A series of a tenant and model by name is compared with that tenant's and model's
// rows, the others as one sum. Where names have come or gone since the start, all
// series with those that were retired are one sum.
func CompareLive(ctx context.Context, books LiveBooks, s *Scrape) ([]LiveDifference, error) {
	if s.Counted.Waiting > 0 {
		return nil, fmt.Errorf("cannot compare the metrics of process %s: %w (%d in its spool); do it again when sluice_ledger_counted_waiting is 0",
			s.Process, ErrWaiting, s.Counted.Waiting)
	}
	from := time.Unix(0, 0)
	if !s.Started.IsZero() {
		// No request ends before its gateway begins, whatever the clocks say. An earlier
		// month is left alone: it may be archived.
		if from = s.Started.AddDate(0, 0, -1); from.Before(tenancy.Month(s.Started)) {
			from = tenancy.Month(s.Started)
		}
	}
	usage, err := books.UsageOf(ctx, s.Process, s.Counted.Seq, from, time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC))
	if err != nil {
		return nil, fmt.Errorf("cannot compare the metrics of process %s with all rows since its start: %w", s.Process, err)
	}
	got, want := make(map[seriesKey]int64), make(map[seriesKey]int64)
	for key, n := range s.series {
		got[s.comparable(key)] += n
	}
	for key, n := range s.retired {
		got[s.comparable(key)] += n
	}
	for i := range usage {
		s.expect(want, &usage[i])
	}
	return liveDifferences(got, want), nil
}

// comparable is the figure as which one is compared.
func (s *Scrape) comparable(key seriesKey) seriesKey {
	if s.Changes > 0 || key.tenant == otherLabel || key.model == otherLabel {
		key.pair = pair{}
	}
	if s.Changes > 0 && key.family == familyCost {
		key.value = ""
	}
	return key
}

// expect adds what the series should have of some rows.
func (s *Scrape) expect(want map[seriesKey]int64, u *tenancy.Usage) {
	at := pair{u.Tenant, u.Model}
	if _, named := s.series[seriesKey{at, familyTokens, "input"}]; !named {
		at = others
	}
	currency := u.Currency
	if !s.hasCurrency(at, currency) {
		currency = otherLabel
	}
	for _, f := range []struct {
		family, value string
		n             int64
	}{
		{familyRequests, "", u.Rows},
		{familyTokens, "input", u.InputTokens}, {familyTokens, "cached_input", u.CachedTokens},
		{familyTokens, "output", u.OutputTokens}, {familyTokens, "reasoning", u.ReasoningTokens},
		{familyCost, currency, u.Costs.Total()},
	} {
		want[s.comparable(seriesKey{at, f.family, f.value})] += f.n
	}
}

// hasCurrency reports whether costs in a currency are exported by its name. Of
// others it is enough that any pair has it.
func (s *Scrape) hasCurrency(at pair, currency string) bool {
	if at != others {
		_, ok := s.series[seriesKey{at, familyCost, currency}]
		return ok
	}
	for key := range s.series {
		if key.family == familyCost && key.value == currency {
			return true
		}
	}
	return false
}

func liveDifferences(got, want map[seriesKey]int64) []LiveDifference {
	var list []LiveDifference
	note := func(key seriesKey) {
		if got[key] != want[key] {
			list = append(list, LiveDifference{Series: key.name(), Got: got[key], Ledger: want[key]})
		}
	}
	for key := range got {
		note(key)
	}
	for key := range want {
		if _, both := got[key]; !both {
			note(key)
		}
	}
	slices.SortFunc(list, func(a, b LiveDifference) int { return cmp.Compare(a.Series, b.Series) })
	return list
}

// name is the series as Prometheus writes it, or the sum of several.
func (k seriesKey) name() string {
	var labels []string
	if k.pair != (pair{}) {
		labels = append(labels, fmt.Sprintf("tenant=%q", k.tenant), fmt.Sprintf("model=%q", k.model))
	}
	switch {
	case k.value == "":
	case k.family == familyTokens:
		labels = append(labels, fmt.Sprintf("kind=%q", k.value))
	default:
		labels = append(labels, fmt.Sprintf("currency=%q", k.value))
	}
	name := "sluice_tenant_" + k.family
	if len(labels) > 0 {
		name += "{" + strings.Join(labels, ",") + "}"
	}
	if k.pair == (pair{}) {
		name = "the sum of the other " + name
	}
	return name
}
