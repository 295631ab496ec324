package chargeback

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// GPUPool is a pool of workers with what its GPUs cost.
type GPUPool struct {
	Name string
	// Rates are what it costs at which time. No two hold at the same instant.
	Rates []GPURate
}

// GPURate is what a whole pool costs for a time, used or not.
type GPURate struct {
	// From is the first instant that it holds, zero for always so far; To the
	// first at which it no longer does, zero for open.
	From, To time.Time
	// PerHour is micro-units of Currency for an hour.
	PerHour  int64
	Currency string
	// GPUs is how many are paid for.
	GPUs int64
}

// Overlaps reports whether two rates hold at the same instant.
func (r *GPURate) Overlaps(o *GPURate) bool {
	return (o.To.IsZero() || r.From.Before(o.To)) && (r.To.IsZero() || o.From.Before(r.To))
}

// IdleMode says who pays for the time in which a pool's GPUs had nothing to do.
type IdleMode uint8

const (
	// IdleSeparate leaves it to a line of its own.
	IdleSeparate IdleMode = iota
	// IdleSpread shares it among those who used the pool, in proportion to their
	// work. Where nobody did, it has a line of its own all the same.
	IdleSpread
)

// Kinds of lines of a GPUReport.
const (
	GPUWork = "work"
	GPUIdle = "idle"
)

// GPULine is what one tenant's use of one model cost in a pool, or what its idle
// time did.
type GPULine struct {
	Pool, Kind, Tenant, Team, Model string
	Requests                        int64
	GPUTime                         GPUMicros
	// Currency is empty where the pool had no cost at the time.
	Currency string
	// WorkCost is the share for the time that was worked, IdleCost for that in
	// which nobody did; micro-units.
	WorkCost, IdleCost int64
}

// Cost is what the line costs altogether.
func (l *GPULine) Cost() int64 { return l.WorkCost + l.IdleCost }

// GPUSum is what a pool cost in a month in one currency.
type GPUSum struct {
	Pool, Currency string
	// Cost is the sum of the lines, in micro-units; Capacity the GPU time that it
	// pays for, Work what of it the requests had. More work than capacity means
	// that the pool had more GPUs than its cost says, or that several gateways
	// have each measured the same workers.
	Cost           int64
	Capacity, Work GPUMicros
}

// GPUMicros is GPU time in microseconds of one GPU: what a large pool has in a month
// is more than a time.Duration holds.
type GPUMicros int64

// Hours returns it as hours of one GPU.
func (t GPUMicros) Hours() float64 { return float64(t) / float64(time.Hour/time.Microsecond) }

// GPUReport shares the cost of pools among those who used them.
type GPUReport struct {
	Period string
	Lines  []*GPULine
	Sums   []GPUSum
	// Hours is up to when the pools' cost counts: the end of the month, or now if
	// that is earlier.
	Until time.Time
	// LeftOut are rows of the month that are none of its work: corrections, and
	// those that ended in an earlier one.
	LeftOut int64
	// Unmeasured are requests that a worker answered and that have no GPU time:
	// they are from before it was measured.
	Unmeasured int64
}

// ShareGPUs shares what pools cost in a month (YYYY-MM, UTC) among the requests
// that ended in it, as far as it is over by now.
//
// The method: for each rate of a pool, its cost is PerHour times the hours that it
// held in the month, rounded half up to a micro-unit. Its capacity is GPUs times
// that time. A tenant, team and model has of the cost what its requests' GPU time
// is of the capacity; the rest is idle. If there was more work than capacity, the
// cost is shared in proportion to the work and nothing is idle. Whole micro-units
// are given by largest remainder, so that the lines sum to the cost exactly.
//
// GPU time is what the gateway measured, by tenancy.Row.GPUTime: the equal parts
// of the time for which a worker had requests in hand, not what the GPU's own
// counters say.
func ShareGPUs(ctx context.Context, rows Source, period string, pools []GPUPool, idle IdleMode, now time.Time) (*GPUReport, error) {
	from, to, err := parsePeriod(period)
	if err != nil {
		return nil, err
	}
	if !now.After(from) {
		return nil, fmt.Errorf("cannot share the GPUs of %s: it has not begun", period)
	}
	r := &GPUReport{Period: period, Until: to}
	if now.Before(to) {
		r.Until = now
	}
	s := newGPUShares(pools, from, r.Until)
	if err := s.gather(ctx, rows, from, to, r); err != nil {
		return nil, fmt.Errorf("cannot share the GPUs of %s: %w", period, err)
	}
	s.share(r, idle)
	if err := r.check(s); err != nil {
		return nil, fmt.Errorf("cannot share the GPUs of %s: %w", period, err)
	}
	return r, nil
}

// gpuShares is the work on one report.
type gpuShares struct {
	slots map[string][]*gpuSlot // by pool, in order of time
	cost  int64                 // of all slots
	time  GPUMicros             // of all rows that count
}

// gpuSlot is the time for which one rate of a pool holds, with what was done in it.
type gpuSlot struct {
	pool     string
	from, to time.Time
	currency string // empty: there is no rate
	cost     int64
	capacity GPUMicros
	work     map[gpuKey]*gpuWork
}

type gpuKey struct{ tenant, team, model string }

func (a gpuKey) compare(b gpuKey) int {
	return cmp.Or(strings.Compare(a.tenant, b.tenant), strings.Compare(a.team, b.team), strings.Compare(a.model, b.model))
}

type gpuWork struct {
	requests int64
	time     GPUMicros
}

func newGPUShares(pools []GPUPool, from, until time.Time) *gpuShares {
	s := &gpuShares{slots: make(map[string][]*gpuSlot)}
	for _, p := range pools {
		for _, rate := range p.Rates {
			slot := &gpuSlot{pool: p.Name, from: from, to: until, currency: rate.Currency, work: make(map[gpuKey]*gpuWork)}
			if rate.From.After(from) {
				slot.from = rate.From
			}
			if !rate.To.IsZero() && rate.To.Before(until) {
				slot.to = rate.To
			}
			if !slot.from.Before(slot.to) {
				continue
			}
			long := slot.to.Sub(slot.from)
			slot.cost = share(rate.PerHour, int64(long), int64(time.Hour))
			slot.capacity = GPUMicros(long.Microseconds() * rate.GPUs)
			s.cost += slot.cost
			s.slots[p.Name] = append(s.slots[p.Name], slot)
		}
	}
	return s
}

// at returns the slot of a pool in which an instant lies; one without a cost where
// no rate holds.
func (s *gpuShares) at(pool string, when time.Time) *gpuSlot {
	for _, slot := range s.slots[pool] {
		if slot.currency != "" && !when.Before(slot.from) && when.Before(slot.to) {
			return slot
		}
	}
	for _, slot := range s.slots[pool] {
		if slot.currency == "" {
			return slot
		}
	}
	slot := &gpuSlot{pool: pool, work: make(map[gpuKey]*gpuWork)}
	s.slots[pool] = append(s.slots[pool], slot)
	return slot
}

// gather adds up the work of the month's rows.
func (s *gpuShares) gather(ctx context.Context, rows Source, from, to time.Time, r *GPUReport) error {
	var all time.Duration
	for row, err := range rows.Rows(ctx, from, to) {
		if err != nil {
			return err
		}
		all += row.GPUTime
		if row.CorrectionOf != "" || row.Late() {
			r.LeftOut++
			continue
		}
		if row.GPUTime == 0 {
			if row.Attempts > 0 && row.Outcome == tenancy.OutcomeCompleted {
				r.Unmeasured++
			}
			continue
		}
		ended := row.End()
		if !ended.Before(r.Until) {
			ended = r.Until.Add(-1) // by a clock that is ahead of ours
		}
		slot, key := s.at(row.Pool, ended), gpuKey{row.Tenant, row.Team, row.Model}
		w := slot.work[key]
		if w == nil {
			w = &gpuWork{}
			slot.work[key] = w
		}
		w.requests++
		w.time += GPUMicros(row.GPUTime.Microseconds())
		s.time += GPUMicros(row.GPUTime.Microseconds())
	}
	totals, err := rows.Totals(ctx, from, to)
	if err != nil {
		return err
	}
	for _, t := range totals {
		all -= t.GPUTime
	}
	if all != 0 {
		return fmt.Errorf("%w: the rows have %s more GPU time than the totals; was a row added meanwhile? Use a snapshot", ErrUnequal, all)
	}
	return nil
}

// share gives every slot's cost to those who worked in it, and to idle time.
func (s *gpuShares) share(r *GPUReport, idle IdleMode) {
	lines := make(map[gpuLineKey]*GPULine)
	sums := make(map[[2]string]*GPUSum)
	line := func(slot *gpuSlot, kind string, key gpuKey) *GPULine {
		k := gpuLineKey{slot.pool, slot.currency, kind, key}
		if lines[k] == nil {
			lines[k] = &GPULine{Pool: slot.pool, Kind: kind, Tenant: key.tenant, Team: key.team, Model: key.model, Currency: slot.currency}
		}
		return lines[k]
	}
	for _, slots := range s.slots {
		for _, slot := range slots {
			keys := make([]gpuKey, 0, len(slot.work))
			for key := range slot.work {
				keys = append(keys, key)
			}
			slices.SortFunc(keys, gpuKey.compare)
			weights := make([]int64, len(keys), len(keys)+1)
			var work GPUMicros
			for i, key := range keys {
				w := slot.work[key]
				weights[i], work = int64(w.time), work+w.time
				l := line(slot, GPUWork, key)
				l.Requests += w.requests
				l.GPUTime += w.time
			}
			free := max(0, slot.capacity-work)
			parts := apportion(slot.cost, append(weights, int64(free)))
			for i, key := range keys {
				line(slot, GPUWork, key).WorkCost += parts[i]
			}
			idleCost := parts[len(keys)]
			switch {
			case idle == IdleSpread && work > 0:
				for i, part := range apportion(idleCost, weights) {
					line(slot, GPUWork, keys[i]).IdleCost += part
				}
			case slot.currency != "" && (idleCost != 0 || free > 0):
				l := line(slot, GPUIdle, gpuKey{})
				l.GPUTime += free
				l.IdleCost += idleCost
			}
			sum := sums[[2]string{slot.pool, slot.currency}]
			if sum == nil {
				sum = &GPUSum{Pool: slot.pool, Currency: slot.currency}
				sums[[2]string{slot.pool, slot.currency}] = sum
			}
			sum.Cost += slot.cost
			sum.Capacity += slot.capacity
			sum.Work += work
		}
	}
	for _, l := range lines {
		r.Lines = append(r.Lines, l)
	}
	slices.SortFunc(r.Lines, compareGPULines)
	for _, sum := range sums {
		r.Sums = append(r.Sums, *sum)
	}
	slices.SortFunc(r.Sums, func(a, b GPUSum) int {
		return cmp.Or(strings.Compare(a.Pool, b.Pool), strings.Compare(a.Currency, b.Currency))
	})
}

type gpuLineKey struct {
	pool, currency, kind string
	gpuKey
}

func compareGPULines(a, b *GPULine) int {
	return cmp.Or(
		strings.Compare(a.Pool, b.Pool), strings.Compare(a.Currency, b.Currency), strings.Compare(b.Kind, a.Kind),
		gpuKey{a.Tenant, a.Team, a.Model}.compare(gpuKey{b.Tenant, b.Team, b.Model}),
	)
}

// check compares the lines with what was to be shared.
func (r *GPUReport) check(s *gpuShares) error {
	cost, worked := s.cost, s.time
	for _, l := range r.Lines {
		cost -= l.Cost()
		if l.Kind == GPUWork {
			worked -= l.GPUTime
		}
	}
	if cost != 0 || worked != 0 {
		return fmt.Errorf("%w: the lines lack %d micro-units and %d microseconds of GPU time", ErrUnequal, cost, worked)
	}
	return nil
}

// apportion divides a sum in whole units in proportion to weights: each gets what
// it is due, rounded down, and the units that are left go one each to those who
// lost most by that, the first of equals first. Without any weight the last one
// gets it all.
func apportion(sum int64, weights []int64) []int64 {
	parts := make([]int64, len(weights))
	var all uint64
	for _, w := range weights {
		all += uint64(w)
	}
	if all == 0 {
		if len(parts) > 0 {
			parts[len(parts)-1] = sum
		}
		return parts
	}
	left := sum
	rest := make([]uint64, len(weights))
	order := make([]int, len(weights))
	for i, w := range weights {
		hi, lo := bits.Mul64(uint64(sum), uint64(w))
		part, r := bits.Div64(hi, lo, all)
		parts[i], rest[i], order[i] = int64(part), r, i
		left -= int64(part)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rest[b], rest[a]) })
	for _, i := range order[:left] {
		parts[i]++
	}
	return parts
}

// share is amount × of / whole, rounded half up. None of them is negative.
func share(amount, of, whole int64) int64 {
	hi, lo := bits.Mul64(uint64(amount), uint64(of))
	lo, carry := bits.Add64(lo, uint64(whole)/2, 0)
	q, _ := bits.Div64(hi+carry, lo, uint64(whole))
	return int64(q)
}

// gpuHeader names the columns.
var gpuHeader = []string{
	"Period", "Pool", "Kind", "Tenant", "Team", "Model", "Requests", "GpuSeconds", "WorkCost", "IdleCost", "Cost", "Currency",
}

// WriteCSV writes the lines with a header. Times and amounts are decimals with six
// places.
func (r *GPUReport) WriteCSV(w io.Writer) error {
	var buf bytes.Buffer
	out := csv.NewWriter(&buf)
	if err := out.Write(gpuHeader); err != nil {
		return err
	}
	for _, l := range r.Lines {
		if err := out.Write([]string{
			r.Period, l.Pool, l.Kind, l.Tenant, l.Team, l.Model, strconv.FormatInt(l.Requests, 10),
			decimal(int64(l.GPUTime)), decimal(l.WorkCost), decimal(l.IdleCost), decimal(l.Cost()), l.Currency,
		}); err != nil {
			return err
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return err
	}
	_, err := w.Write(buf.Bytes())
	return err
}

// WriteJSON writes one object a line, with the names of the columns. Times and
// amounts are numbers with six places.
func (r *GPUReport) WriteJSON(w io.Writer) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	number := func(micro int64) json.Number { return json.Number(decimal(micro)) }
	for _, l := range r.Lines {
		if err := enc.Encode(struct {
			Period, Pool, Kind, Tenant, Team, Model string
			Requests                                int64
			GPUSeconds                              json.Number `json:"GpuSeconds"`
			WorkCost, IdleCost, Cost                json.Number
			Currency                                string
		}{
			r.Period, l.Pool, l.Kind, l.Tenant, l.Team, l.Model, l.Requests,
			number(int64(l.GPUTime)), number(l.WorkCost), number(l.IdleCost), number(l.Cost()), l.Currency,
		}); err != nil {
			return err
		}
	}
	_, err := w.Write(buf.Bytes())
	return err
}
