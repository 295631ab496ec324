package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicegate/sluice/tenancy"
)

// Usage sums the rows that belong to [from, to), as Rows has them, by tenant,
// model and currency, in that order.
func (s *Snapshot) Usage(ctx context.Context, from, to time.Time) ([]tenancy.Usage, error) {
	var list []tenancy.Usage
	err := notArchived(ctx, s.tx, s.dialect, from, to)
	if err == nil {
		var conditions []string
		var args []any
		for _, p := range s.dialect.booked(from, to) {
			conditions = append(conditions, "("+p.where+")")
			args = append(args, p.args...)
		}
		list, err = s.sumUsage(ctx, strings.Join(conditions, " OR "), args)
	}
	return list, s.failed("sum", err)
}

// UsageOf sums, likewise, the rows that a process has made and counted, up to a
// place in the ledger, and that ended in [from, to). It is ErrArchived if a month of
// these is.
func (s *Snapshot) UsageOf(ctx context.Context, process string, seq int64, from, to time.Time) ([]tenancy.Usage, error) {
	if s.dialect.schema < withPeriods {
		return nil, nil
	}
	d := s.dialect
	where := fmt.Sprintf("process = %s AND seq <= %s AND end_ns >= %s AND end_ns < %s AND %s",
		d.mark(1), d.mark(2), d.mark(3), d.mark(4), countable)
	err := notArchived(ctx, s.tx, d, from, to)
	var list []tenancy.Usage
	if err == nil {
		list, err = s.sumUsage(ctx, where, []any{process, seq, dbNanos(from), dbNanos(to)})
	}
	return list, s.failed("sum", err)
}

// countable are the rows that a process counts which makes them: no others have
// stored them for it later, and they are no corrections.
var countable = fmt.Sprintf("flags & %d = 0 AND correction_of = ''", tenancy.FlagRecovered)

func (s *Snapshot) sumUsage(ctx context.Context, where string, args []any) ([]tenancy.Usage, error) {
	found, err := s.tx.QueryContext(ctx, "SELECT tenant, model, currency, count(*), "+s.dialect.sums()+
		" FROM "+s.dialect.table+" WHERE "+where+" GROUP BY tenant, model, currency ORDER BY tenant, model, currency", args...)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	var list []tenancy.Usage
	for found.Next() {
		var u tenancy.Usage
		if err := scanUsage(found.Scan, &u); err != nil {
			return nil, err
		}
		list = append(list, u)
	}
	return list, found.Err()
}

// scanUsage reads tenant, model, currency, the number of rows and the sums, after
// other columns.
func scanUsage(scan func(...any) error, u *tenancy.Usage, first ...any) error {
	var gpu int64
	err := scan(append(first, &u.Tenant, &u.Model, &u.Currency, &u.Rows,
		&u.InputTokens, &u.CachedTokens, &u.OutputTokens, &u.ReasoningTokens,
		&u.Costs.Input, &u.Costs.CachedInput, &u.Costs.Output, &u.Costs.Reasoning, &u.Costs.GPU, &gpu, &u.ReasoningApart)...)
	u.GPUTime = time.Duration(gpu) * time.Microsecond
	return err
}

// Checkpoints returns what processes have counted of the rows that ended in a
// month, by process.
func (s *Snapshot) Checkpoints(ctx context.Context, month time.Time) ([]tenancy.Checkpoint, error) {
	if s.dialect.schema < withPeriods {
		return nil, nil
	}
	list, err := s.checkpoints(ctx, month)
	return list, s.failed("read", err)
}

func (s *Snapshot) checkpoints(ctx context.Context, month time.Time) ([]tenancy.Checkpoint, error) {
	found, err := s.tx.QueryContext(ctx, "SELECT process, gateway, seq, at_ns, counted FROM "+s.dialect.checkpoints+
		" WHERE month = "+s.dialect.mark(1)+" ORDER BY process", monthNumber(month))
	if err != nil {
		return nil, err
	}
	defer found.Close()
	var list []tenancy.Checkpoint
	for found.Next() {
		c := tenancy.Checkpoint{Month: tenancy.Month(month)}
		var at int64
		var counted string
		if err := found.Scan(&c.Process, &c.Gateway, &c.Seq, &at, &counted); err != nil {
			return nil, err
		}
		c.At = time.Unix(0, at).UTC()
		if err := json.Unmarshal([]byte(counted), &c.Usage); err != nil {
			return nil, fmt.Errorf("what process %s has counted can't be read: %w", c.Process, err)
		}
		list = append(list, c)
	}
	return list, found.Err()
}

// Counted sums the rows of a month of which processes have noted that they have
// counted them, by process: what Checkpoints should say.
func (s *Snapshot) Counted(ctx context.Context, month time.Time) (map[string][]tenancy.Usage, error) {
	if s.dialect.schema < withPeriods {
		return nil, nil
	}
	byProcess, err := s.counted(ctx, month)
	return byProcess, s.failed("sum", err)
}

func (s *Snapshot) counted(ctx context.Context, month time.Time) (map[string][]tenancy.Usage, error) {
	d, from := s.dialect, tenancy.Month(month)
	if err := notArchived(ctx, s.tx, d, from, from.AddDate(0, 1, 0)); err != nil {
		return nil, err
	}
	query := fmt.Sprintf(`SELECT r.process, r.tenant, r.model, r.currency, count(*), %s FROM %s AS r
		JOIN %s AS c ON c.process = r.process AND c.month = %s
		WHERE r.seq <= c.seq AND r.end_ns >= %s AND r.end_ns < %s AND %s
		GROUP BY r.process, r.tenant, r.model, r.currency`,
		d.sums(), d.table, d.checkpoints, d.mark(1), d.mark(2), d.mark(3), countable)
	found, err := s.tx.QueryContext(ctx, query, monthNumber(from), dbNanos(from), dbNanos(from.AddDate(0, 1, 0)))
	if err != nil {
		return nil, err
	}
	defer found.Close()
	byProcess := make(map[string][]tenancy.Usage)
	for found.Next() {
		var process string
		var u tenancy.Usage
		if err := scanUsage(found.Scan, &u, &process); err != nil {
			return nil, err
		}
		byProcess[process] = append(byProcess[process], u)
	}
	return byProcess, found.Err()
}

// Uncounted counts the rows that ended in a month and that no process has counted,
// or is known to have: corrections, those that were stored for a process that had
// died or put back by hand, and those that came after the last note of theirs.
func (s *Snapshot) Uncounted(ctx context.Context, month time.Time) (corrections, recovered, later int64, err error) {
	d, from := s.dialect, tenancy.Month(month)
	if d.schema < withPeriods {
		return 0, 0, 0, nil
	}
	one := func(condition string) string {
		return "coalesce(CAST(sum(CASE WHEN " + condition + " THEN 1 ELSE 0 END) AS BIGINT), 0)"
	}
	late := fmt.Sprintf("flags & %d <> 0", tenancy.FlagRecovered)
	query := fmt.Sprintf(`SELECT %s, %s, %s FROM %s AS r LEFT JOIN %s AS c ON c.process = r.process AND c.month = %s
		WHERE r.end_ns >= %s AND r.end_ns < %s`,
		one("correction_of <> ''"), one("correction_of = '' AND "+late), one(countable+" AND (c.seq IS NULL OR r.seq > c.seq)"),
		d.table, d.checkpoints, d.mark(1), d.mark(2), d.mark(3))
	err = s.tx.QueryRowContext(ctx, query, monthNumber(from), dbNanos(from), dbNanos(from.AddDate(0, 1, 0))).Scan(&corrections, &recovered, &later)
	return corrections, recovered, later, s.failed("count", err)
}

func (s *Snapshot) failed(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cannot %s the ledger %s: %w", doing, s.path, explain(err))
}

// encodeUsage is the inverse of what checkpoints reads.
func encodeUsage(list []tenancy.Usage) (string, error) {
	text, err := json.Marshal(list)
	return string(text), err
}

// checkpoint implements store.
func (w *writer) checkpoint(ctx context.Context, list []tenancy.Checkpoint) error {
	if _, err := w.conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	for i := range list {
		counted, err := encodeUsage(list[i].Usage)
		if err == nil {
			_, err = w.conn.ExecContext(ctx, noteCheckpoint(sqliteDialect), list[i].Process, monthNumber(list[i].Month), list[i].Gateway, time.Now().UnixNano(), counted)
		}
		if err != nil {
			w.rollback()
			return err
		}
	}
	if _, err := w.conn.ExecContext(ctx, "COMMIT"); err != nil {
		w.rollback()
		return err
	}
	return nil
}

// seq implements store.
func (w *writer) seq() int64 { return w.last.Load() }

// seq implements store.
func (p *postgres) seq() int64 { return p.last.Load() }

// checkpoint implements store.
func (p *postgres) checkpoint(ctx context.Context, list []tenancy.Checkpoint) error {
	ctx, cancel := context.WithTimeout(ctx, postgresTimeout)
	defer cancel()
	if err := p.ready(ctx); err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		for i := range list {
			counted, err := encodeUsage(list[i].Usage)
			if err == nil {
				_, err = tx.Exec(ctx, noteCheckpoint(postgresDialect), list[i].Process, monthNumber(list[i].Month), list[i].Gateway, time.Now().UnixNano(), counted)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// noteCheckpoint notes what a process has counted as all of its rows that are
// there: rows of others among them are not looked at.
func noteCheckpoint(d *dialect) string {
	return fmt.Sprintf(`INSERT INTO %s (process, month, gateway, seq, at_ns, counted)
		VALUES (%s, %s, %s, (SELECT coalesce(max(seq), 0) FROM %s), %s, %s)
		ON CONFLICT (process, month) DO UPDATE SET seq = excluded.seq, at_ns = excluded.at_ns, counted = excluded.counted`,
		d.checkpoints, d.mark(1), d.mark(2), d.mark(3), d.table, d.mark(4), d.mark(5))
}

// Month is one that has rows in the database.
type Month struct {
	// First is its first instant, in UTC.
	First time.Time
	// Closed says that nothing is added to it any more.
	Closed bool
}

// Months lists the months that begin before an instant and that rows of the
// database are booked in, oldest first.
func (l *Ledger) Months(ctx context.Context, before time.Time) ([]Month, error) {
	list, err := l.reader.months(ctx, before)
	if err != nil {
		return nil, fmt.Errorf("cannot read the ledger %s: %w", l.path, explain(err))
	}
	return list, nil
}

func (r *Reader) months(ctx context.Context, before time.Time) ([]Month, error) {
	d := r.dialect
	closed, err := sealedMonths(ctx, r.db, d)
	if err != nil {
		return nil, err
	}
	numbers, err := monthsOf(ctx, r.db, "SELECT DISTINCT period FROM "+d.table+" WHERE period <> 0")
	if err != nil {
		return nil, err
	}
	next := dbNanos(time.Time{})
	for {
		var end *int64
		query := fmt.Sprintf("SELECT min(end_ns) FROM %s WHERE period = 0 AND end_ns >= %s AND end_ns < %s", d.table, d.mark(1), d.mark(2))
		if err := r.db.QueryRowContext(ctx, query, next, dbNanos(before)).Scan(&end); err != nil {
			return nil, err
		}
		if end == nil {
			break
		}
		first := tenancy.Month(time.Unix(0, *end))
		numbers[monthNumber(first)] = true
		next = dbNanos(first.AddDate(0, 1, 0))
	}
	var list []Month
	for _, number := range slices.Sorted(maps.Keys(numbers)) {
		if first := monthOf(number); first.Before(before) {
			list = append(list, Month{First: first, Closed: closed[number]})
		}
	}
	return list, nil
}

// sealedMonths asks a database for the months whose closing is complete.
func sealedMonths(ctx context.Context, db rowQuerier, d *dialect) (closedMonths, error) {
	return monthsOf(ctx, db, "SELECT month FROM "+d.closed+" WHERE csv_sha256 <> ''")
}
