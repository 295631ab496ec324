package ledger

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sluicegate/sluice/tenancy"
)

// column binds one column of the requests table to its field of a row.
type column struct {
	name string
	put  func(r *tenancy.Row) any
	// get is where a scan puts the column: a field of the row or of the scratch.
	get func(r *tenancy.Row, s *scratch) any
	// text is the field of a column that is plain text, nil for the others.
	text func(r *tenancy.Row) *string
	// since is the version of the schema that brought the column, zero for the
	// first; what it reads as in an older one is absent.
	since  int
	absent string
	// stamp marks what the ledger itself puts in, which makes no two rows differ.
	stamp bool
}

// scratch takes the columns whose fields have another type than the database.
type scratch struct {
	outcome, phase, labels, charges   string
	flags, gpu, period                int64
	start, end, queue, ttft, duration int64
}

func (s *scratch) finish(r *tenancy.Row) (err error) {
	r.Outcome, r.Phase, r.Flags = tenancy.Outcome(s.outcome), tenancy.Phase(s.phase), tenancy.Flags(s.flags)
	if s.labels != "" {
		r.Labels = strings.Split(s.labels, ",")
	}
	r.Start = time.Unix(0, s.start).UTC()
	r.Queue, r.TTFT, r.Duration = time.Duration(s.queue), time.Duration(s.ttft), time.Duration(s.duration)
	r.GPUTime = time.Duration(s.gpu) * time.Microsecond
	r.Period = tenancy.Month(time.Unix(0, s.end))
	if s.period != 0 {
		r.Period = monthOf(s.period)
	}
	if r.Charges, err = parseCharges(s.charges); err != nil {
		return fmt.Errorf("row %s: %w", r.ID, err)
	}
	return nil
}

func text(name string, field func(*tenancy.Row) *string) column {
	return column{
		name: name, text: field,
		put: func(r *tenancy.Row) any { return *field(r) },
		get: func(r *tenancy.Row, _ *scratch) any { return field(r) },
	}
}

func number(name string, field func(*tenancy.Row) *int64) column {
	return column{
		name: name,
		put:  func(r *tenancy.Row) any { return *field(r) },
		get:  func(r *tenancy.Row, _ *scratch) any { return field(r) },
	}
}

func small(name string, field func(*tenancy.Row) *int) column {
	return column{
		name: name,
		put:  func(r *tenancy.Row) any { return int64(*field(r)) },
		get:  func(r *tenancy.Row, _ *scratch) any { return field(r) },
	}
}

// held is a column whose field has another type than the database.
func held(name string, put func(*tenancy.Row) any, get func(*scratch) any) column {
	return column{name: name, put: put, get: func(_ *tenancy.Row, s *scratch) any { return get(s) }}
}

// from makes a column one that the schema has since a version.
func (c column) from(version int) column {
	c.since, c.absent = version, "0"
	if _, ok := c.put(&tenancy.Row{}).(string); ok {
		c.absent = "''"
	}
	return c
}

// stamped makes a column a stamp.
func (c column) stamped() column {
	c.stamp = true
	return c
}

// columns are those of the requests table but for seq and period. id is the first,
// which writer.stored relies on.
var columns = []column{
	text("id", func(r *tenancy.Row) *string { return &r.ID }),
	text("request_id", func(r *tenancy.Row) *string { return &r.RequestID }),
	text("decision_id", func(r *tenancy.Row) *string { return &r.DecisionID }),
	text("policy_revision", func(r *tenancy.Row) *string { return &r.PolicyRevision }),
	text("policy_rule", func(r *tenancy.Row) *string { return &r.PolicyRule }),
	text("tenant", func(r *tenancy.Row) *string { return &r.Tenant }),
	text("team", func(r *tenancy.Row) *string { return &r.Team }),
	text("principal", func(r *tenancy.Row) *string { return &r.Principal }),
	text("key_id", func(r *tenancy.Row) *string { return &r.KeyID }),
	text("operation", func(r *tenancy.Row) *string { return &r.Operation }),
	text("dialect", func(r *tenancy.Row) *string { return &r.Dialect }),
	text("model", func(r *tenancy.Row) *string { return &r.Model }),
	text("requested_model", func(r *tenancy.Row) *string { return &r.RequestedModel }),
	text("pool", func(r *tenancy.Row) *string { return &r.Pool }),
	text("worker", func(r *tenancy.Row) *string { return &r.Worker }),
	text("class", func(r *tenancy.Row) *string { return &r.Class }),
	held("labels", func(r *tenancy.Row) any { return strings.Join(r.Labels, ",") }, func(s *scratch) any { return &s.labels }),
	small("status", func(r *tenancy.Row) *int { return &r.Status }),
	text("error_code", func(r *tenancy.Row) *string { return &r.ErrorCode }),
	held("outcome", func(r *tenancy.Row) any { return string(r.Outcome) }, func(s *scratch) any { return &s.outcome }),
	held("phase", func(r *tenancy.Row) any { return string(r.Phase) }, func(s *scratch) any { return &s.phase }),
	held("flags", func(r *tenancy.Row) any { return int64(r.Flags) }, func(s *scratch) any { return &s.flags }),
	small("attempts", func(r *tenancy.Row) *int { return &r.Attempts }),
	number("input_tokens", func(r *tenancy.Row) *int64 { return &r.InputTokens }),
	number("cached_tokens", func(r *tenancy.Row) *int64 { return &r.CachedTokens }),
	number("output_tokens", func(r *tenancy.Row) *int64 { return &r.OutputTokens }),
	number("reasoning_tokens", func(r *tenancy.Row) *int64 { return &r.ReasoningTokens }),
	text("currency", func(r *tenancy.Row) *string { return &r.Currency }),
	number("input_price", func(r *tenancy.Row) *int64 { return &r.Prices.Input }),
	number("cached_price", func(r *tenancy.Row) *int64 { return &r.Prices.CachedInput }),
	number("output_price", func(r *tenancy.Row) *int64 { return &r.Prices.Output }),
	number("input_cost", func(r *tenancy.Row) *int64 { return &r.Costs.Input }),
	number("cached_cost", func(r *tenancy.Row) *int64 { return &r.Costs.CachedInput }),
	number("output_cost", func(r *tenancy.Row) *int64 { return &r.Costs.Output }),
	held("start_ns", func(r *tenancy.Row) any { return dbNanos(r.Start) }, func(s *scratch) any { return &s.start }),
	held("end_ns", func(r *tenancy.Row) any { return dbNanos(r.End()) }, func(s *scratch) any { return &s.end }),
	held("queue_ns", func(r *tenancy.Row) any { return int64(r.Queue) }, func(s *scratch) any { return &s.queue }),
	held("ttft_ns", func(r *tenancy.Row) any { return int64(r.TTFT) }, func(s *scratch) any { return &s.ttft }),
	held("duration_ns", func(r *tenancy.Row) any { return int64(r.Duration) }, func(s *scratch) any { return &s.duration }),

	text("gateway", func(r *tenancy.Row) *string { return &r.Gateway }).from(withPeriods).stamped(),
	text("process", func(r *tenancy.Row) *string { return &r.Process }).from(withPeriods).stamped(),
	text("principal_kind", func(r *tenancy.Row) *string { return &r.PrincipalKind }).from(withPeriods),
	number("reasoning_price", func(r *tenancy.Row) *int64 { return &r.Prices.Reasoning }).from(withPeriods),
	number("gpu_price", func(r *tenancy.Row) *int64 { return &r.Prices.GPUSecond }).from(withPeriods),
	number("discount_ppm", func(r *tenancy.Row) *int64 { return &r.Discount }).from(withPeriods),
	number("reasoning_cost", func(r *tenancy.Row) *int64 { return &r.Costs.Reasoning }).from(withPeriods),
	number("gpu_cost", func(r *tenancy.Row) *int64 { return &r.Costs.GPU }).from(withPeriods),
	held("gpu_us", func(r *tenancy.Row) any { return r.GPUTime.Microseconds() }, func(s *scratch) any { return &s.gpu }).from(withPeriods),
	held("charges", func(r *tenancy.Row) any { return formatCharges(r.Charges) }, func(s *scratch) any { return &s.charges }).from(withPeriods),
	text("correction_of", func(r *tenancy.Row) *string { return &r.CorrectionOf }).from(withPeriods),
	text("reason", func(r *tenancy.Row) *string { return &r.Reason }).from(withPeriods),
	text("author", func(r *tenancy.Row) *string { return &r.Author }).from(withPeriods),
}

// periodColumn is the last one. It is 0 in a row that belongs to the month of its
// end, as almost all do, and the number of another month in one that came when
// that was closed. The database decides it, not the row.
const periodColumn = "period"

func columnNames() string {
	names := make([]string, len(columns), len(columns)+1)
	for i, c := range columns {
		names[i] = c.name
	}
	return strings.Join(append(names, periodColumn), ", ")
}

// selected is what to select for scanRow from a schema of a version.
func selected(version int) string {
	list := make([]string, len(columns), len(columns)+1)
	for i, c := range columns {
		if list[i] = c.name; c.since > version {
			list[i] = c.absent + " AS " + c.name
		}
	}
	last := periodColumn
	if version < withPeriods {
		last = "0 AS " + periodColumn
	}
	return strings.Join(append(list, last), ", ")
}

// cleanTexts replaces what not every database keeps in a text: bytes that are no
// UTF-8, and NUL.
func cleanTexts(r *tenancy.Row) {
	clean := func(s *string) {
		if !utf8.ValidString(*s) || strings.IndexByte(*s, 0) >= 0 {
			*s = strings.ReplaceAll(strings.ToValidUTF8(*s, "\ufffd"), "\x00", "\ufffd")
		}
	}
	for i := range columns {
		if columns[i].text != nil {
			clean(columns[i].text(r))
		}
	}
	for i := range r.Labels {
		clean(&r.Labels[i])
	}
	for i := range r.Charges {
		clean(&r.Charges[i].Unit)
		clean(&r.Charges[i].Window)
	}
}

// equalRows compares rows as they are stored: instants and empty lists have one
// form there. By whom and in which month they were stored is nothing of theirs.
func equalRows(a, b *tenancy.Row) bool {
	for i := range columns {
		if !columns[i].stamp && columns[i].put(a) != columns[i].put(b) {
			return false
		}
	}
	return true
}

// appendValues appends the row's columns, booked in a month.
func appendValues(dst []any, r *tenancy.Row, booked int64) []any {
	for i := range columns {
		dst = append(dst, columns[i].put(r))
	}
	return append(dst, booked)
}

// scanRow reads all columns into a new row.
func scanRow(scan func(...any) error) (*tenancy.Row, error) {
	var s scratch
	r := &tenancy.Row{}
	dests := make([]any, len(columns), len(columns)+1)
	for i := range columns {
		dests[i] = columns[i].get(r, &s)
	}
	if err := scan(append(dests, &s.period)...); err != nil {
		return nil, err
	}
	if err := s.finish(r); err != nil {
		return nil, err
	}
	return r, nil
}

// formatCharges writes charges as the database keeps them: each as
// counter/unit/window/period in seconds/amount, with spaces between.
func formatCharges(charges []tenancy.Charge) string {
	if len(charges) == 0 {
		return ""
	}
	b := make([]byte, 0, 80*len(charges))
	for i := range charges {
		c := &charges[i]
		if i > 0 {
			b = append(b, ' ')
		}
		b = append(hex.AppendEncode(b, c.Counter[:]), '/')
		b = append(append(b, c.Unit...), '/')
		b = append(append(b, c.Window...), '/')
		b = append(strconv.AppendInt(b, c.Period.Unix(), 10), '/')
		b = strconv.AppendInt(b, c.Amount, 10)
	}
	return string(b)
}

// parseCharges is the inverse of formatCharges.
func parseCharges(text string) ([]tenancy.Charge, error) {
	if text == "" {
		return nil, nil
	}
	parts := strings.Split(text, " ")
	charges := make([]tenancy.Charge, len(parts))
	for i, part := range parts {
		fields := strings.Split(part, "/")
		if len(fields) != 5 || len(fields[0]) != 2*len(charges[i].Counter) {
			return nil, errors.New("its charges can't be read: the column has another form")
		}
		c := &charges[i]
		_, err := hex.Decode(c.Counter[:], []byte(fields[0]))
		seconds, err2 := strconv.ParseInt(fields[3], 10, 64)
		amount, err3 := strconv.ParseInt(fields[4], 10, 64)
		if err := errors.Join(err, err2, err3); err != nil {
			return nil, fmt.Errorf("its charges can't be read: %w", err)
		}
		c.Unit, c.Window, c.Period, c.Amount = fields[1], fields[2], time.Unix(seconds, 0).UTC(), amount
	}
	return charges, nil
}
