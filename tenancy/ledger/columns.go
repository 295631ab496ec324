package ledger

import (
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
}

// scratch takes the columns whose fields have another type than the database.
type scratch struct {
	outcome, phase, labels            string
	flags                             int64
	start, end, queue, ttft, duration int64
}

func (s *scratch) finish(r *tenancy.Row) {
	r.Outcome, r.Phase, r.Flags = tenancy.Outcome(s.outcome), tenancy.Phase(s.phase), tenancy.Flags(s.flags)
	if s.labels != "" {
		r.Labels = strings.Split(s.labels, ",")
	}
	r.Start = time.Unix(0, s.start).UTC()
	r.Queue, r.TTFT, r.Duration = time.Duration(s.queue), time.Duration(s.ttft), time.Duration(s.duration)
}

func text(name string, field func(*tenancy.Row) *string) column {
	return column{name,
		func(r *tenancy.Row) any { return *field(r) },
		func(r *tenancy.Row, _ *scratch) any { return field(r) },
		field,
	}
}

func number(name string, field func(*tenancy.Row) *int64) column {
	return column{name,
		func(r *tenancy.Row) any { return *field(r) },
		func(r *tenancy.Row, _ *scratch) any { return field(r) },
		nil,
	}
}

func small(name string, field func(*tenancy.Row) *int) column {
	return column{name,
		func(r *tenancy.Row) any { return int64(*field(r)) },
		func(r *tenancy.Row, _ *scratch) any { return field(r) },
		nil,
	}
}

// columns are those of the requests table but for seq, in its order. id is the
// first, which writer.stored relies on.
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
	{"labels", func(r *tenancy.Row) any { return strings.Join(r.Labels, ",") },
		func(_ *tenancy.Row, s *scratch) any { return &s.labels }, nil},
	small("status", func(r *tenancy.Row) *int { return &r.Status }),
	text("error_code", func(r *tenancy.Row) *string { return &r.ErrorCode }),
	{"outcome", func(r *tenancy.Row) any { return string(r.Outcome) },
		func(_ *tenancy.Row, s *scratch) any { return &s.outcome }, nil},
	{"phase", func(r *tenancy.Row) any { return string(r.Phase) },
		func(_ *tenancy.Row, s *scratch) any { return &s.phase }, nil},
	{"flags", func(r *tenancy.Row) any { return int64(r.Flags) },
		func(_ *tenancy.Row, s *scratch) any { return &s.flags }, nil},
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
	{"start_ns", func(r *tenancy.Row) any { return dbNanos(r.Start) },
		func(_ *tenancy.Row, s *scratch) any { return &s.start }, nil},
	{"end_ns", func(r *tenancy.Row) any { return dbNanos(r.End()) },
		func(_ *tenancy.Row, s *scratch) any { return &s.end }, nil},
	{"queue_ns", func(r *tenancy.Row) any { return int64(r.Queue) },
		func(_ *tenancy.Row, s *scratch) any { return &s.queue }, nil},
	{"ttft_ns", func(r *tenancy.Row) any { return int64(r.TTFT) },
		func(_ *tenancy.Row, s *scratch) any { return &s.ttft }, nil},
	{"duration_ns", func(r *tenancy.Row) any { return int64(r.Duration) },
		func(_ *tenancy.Row, s *scratch) any { return &s.duration }, nil},
}

func columnNames() string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.name
	}
	return strings.Join(names, ", ")
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
}

// equalRows compares rows as they are stored: instants and empty lists have one
// form there.
func equalRows(a, b *tenancy.Row) bool {
	for i := range columns {
		if columns[i].put(a) != columns[i].put(b) {
			return false
		}
	}
	return true
}

// appendValues appends the row's columns.
func appendValues(dst []any, r *tenancy.Row) []any {
	for i := range columns {
		dst = append(dst, columns[i].put(r))
	}
	return dst
}

// scanRow reads all columns into a new row.
func scanRow(scan func(...any) error) (*tenancy.Row, error) {
	var s scratch
	r := &tenancy.Row{}
	dests := make([]any, len(columns))
	for i := range columns {
		dests[i] = columns[i].get(r, &s)
	}
	if err := scan(dests...); err != nil {
		return nil, err
	}
	s.finish(r)
	return r, nil
}
