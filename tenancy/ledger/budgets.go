package ledger

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sluicegate/sluice/tenancy"
)

// Budgets are sums of what rows were charged on limits whose period is a day or a
// month. They are kept beside the rows, changed in the transaction that stores a
// row and for no row twice, so that a gateway that starts, or runs beside others,
// reads in a moment what of each budget is used.
//
// Each process that stores rows has sums of its own: nobody waits for anybody, and
// a gateway that knows its own use can ask for that of all others.
const (
	sqliteBudgets = `
	CREATE TABLE budgets (
		counter  TEXT NOT NULL,
		period_s INTEGER NOT NULL,
		process  TEXT NOT NULL,
		unit     TEXT NOT NULL,
		span     TEXT NOT NULL,
		amount   INTEGER NOT NULL,
		PRIMARY KEY (counter, period_s, process)
	) STRICT, WITHOUT ROWID;
	CREATE INDEX budgets_by_period ON budgets (period_s);`

	postgresBudgets = `
	CREATE TABLE sluice_budgets (
		counter  TEXT COLLATE "C" NOT NULL,
		period_s BIGINT NOT NULL,
		process  TEXT COLLATE "C" NOT NULL,
		unit     TEXT NOT NULL,
		span     TEXT NOT NULL,
		amount   BIGINT NOT NULL,
		PRIMARY KEY (counter, period_s, process)
	);
	CREATE INDEX sluice_budgets_by_period ON sluice_budgets (period_s);`
)

const (
	// mostBudget is where sums stop: far above any use, and so low that a few of them
	// can be added up.
	mostBudget = 1 << 60
	// budgetsFor is how long sums are kept: longer than any period can matter, with
	// rows of the last one that come late.
	budgetsFor = 100 * 24 * time.Hour
)

// Budget is what was used of one counter in one period.
type Budget struct {
	// Counter, Unit, Window and Period are those of tenancy.Charge.
	Counter      [16]byte
	Unit, Window string
	Period       time.Time
	Amount       int64
}

// budgetKey is one sum.
type budgetKey struct {
	counter [16]byte
	period  int64
	process string
}

// budgetSum is what rows add to it.
type budgetSum struct {
	budgetKey
	unit, window string
	amount       int64
}

// sumCharges adds up the charges of rows, in an order that is the same for all.
func sumCharges(rows []*tenancy.Row) []budgetSum {
	at := make(map[budgetKey]int)
	var sums []budgetSum
	for _, row := range rows {
		for i := range row.Charges {
			c := &row.Charges[i]
			if c.Amount <= 0 {
				continue
			}
			k := budgetKey{c.Counter, c.Period.Unix(), row.Process}
			j, ok := at[k]
			if !ok {
				j = len(sums)
				at[k], sums = j, append(sums, budgetSum{budgetKey: k, unit: c.Unit, window: c.Window})
			}
			sums[j].amount = min(sums[j].amount+min(c.Amount, mostBudget), mostBudget)
		}
	}
	slices.SortFunc(sums, func(a, b budgetSum) int {
		return cmp.Or(slices.Compare(a.counter[:], b.counter[:]), cmp.Compare(a.period, b.period), cmp.Compare(a.process, b.process))
	})
	return sums
}

// addBudget adds to a sum, which stays below its end.
const addBudget = "ON CONFLICT (counter, period_s, process) DO UPDATE SET amount = %s(%s.amount + excluded.amount, %d)"

var sqliteAddBudget = "INSERT INTO budgets (counter, period_s, process, unit, span, amount) VALUES (?, ?, ?, ?, ?, ?) " + fmt.Sprintf(addBudget, "min", "budgets", mostBudget)

// The sums that are forgotten when a ledger is opened: those of periods before the
// argument.
const (
	sqliteForget   = "DELETE FROM budgets WHERE period_s < ?"
	postgresForget = "DELETE FROM sluice_budgets WHERE period_s < $1"
)

func forgotten() int64 { return time.Now().Add(-budgetsFor).Unix() }

// noteCharges adds the charges of rows that are new to the sums, within the
// transaction that stores them.
func (w *writer) noteCharges(ctx context.Context, rows []*tenancy.Row, results []result) error {
	if w.booked {
		return nil // they come from a ledger that has counted them
	}
	var fresh []*tenancy.Row
	for i, row := range rows {
		if results[i] == stored && len(row.Charges) > 0 {
			fresh = append(fresh, row)
		}
	}
	for _, s := range sumCharges(fresh) {
		_, err := w.budget.ExecContext(ctx, hex.EncodeToString(s.counter[:]), s.period, s.process, s.unit, s.window, s.amount)
		if err != nil {
			return refusal(err)
		}
	}
	return nil
}

// postgresInsert is an INSERT of rows that adds their charges to the sums in the
// same statement, and gives the ids of those that are new. The charges are read from
// the column, as formatCharges writes it.
func postgresInsert(insert string) string {
	return `WITH added AS (` + insert + ` RETURNING id, seq, process, charges),
	parts AS (
		SELECT process, string_to_array(part, '/') AS f FROM added, unnest(string_to_array(charges, ' ')) AS part WHERE charges <> ''
	), sums AS (
		SELECT f[1] AS counter, f[4]::bigint AS period_s, process, min(f[2]) AS unit, min(f[3]) AS span, sum(f[5]::bigint) AS amount
		FROM parts WHERE f[5]::bigint > 0 GROUP BY 1, 2, 3
	), noted AS (
		INSERT INTO sluice_budgets (counter, period_s, process, unit, span, amount)
		SELECT counter, period_s, process, unit, span, least(amount, ` + strconv.Itoa(mostBudget) + `)::bigint FROM sums ORDER BY 1, 2, 3
		` + fmt.Sprintf(addBudget, "least", "sluice_budgets", mostBudget) + `
	) SELECT id, seq FROM added`
}

var postgresAddBudget = "INSERT INTO sluice_budgets (counter, period_s, process, unit, span, amount) VALUES ($1, $2, $3, $4, $5, $6) " + fmt.Sprintf(addBudget, "least", "sluice_budgets", mostBudget)

// noteCharges adds the charges of a row that has taken the place of another.
func (p *postgres) noteCharges(ctx context.Context, tx pgx.Tx, row *tenancy.Row) error {
	for _, s := range sumCharges([]*tenancy.Row{row}) {
		if _, err := tx.Exec(ctx, postgresAddBudget, hex.EncodeToString(s.counter[:]), s.period, s.process, s.unit, s.window, s.amount); err != nil {
			return err
		}
	}
	return nil
}

// Budgets sums what rows of other processes were charged on limits whose period
// began at since or later: those of earlier runs of this gateway, and of gateways
// that share the database. Rows in the spool are not in it yet.
func (l *Ledger) Budgets(ctx context.Context, since time.Time) ([]Budget, error) {
	return l.reader.budgets(ctx, since, l.process)
}

// Budgets sums what rows were charged on limits whose period began at since or
// later.
func (r *Reader) Budgets(ctx context.Context, since time.Time) ([]Budget, error) {
	return r.budgets(ctx, since, "")
}

func (r *Reader) budgets(ctx context.Context, since time.Time, except string) ([]Budget, error) {
	out, err := r.readBudgets(ctx, since, except)
	if err != nil {
		return nil, fmt.Errorf("cannot read what is used of budgets in the ledger %s: %w", r.path, explain(err))
	}
	return out, nil
}

func (r *Reader) readBudgets(ctx context.Context, since time.Time, except string) ([]Budget, error) {
	d := r.dialect
	if d.schema < withPeriods {
		return nil, nil
	}
	found, err := r.db.QueryContext(ctx, "SELECT counter, period_s, unit, span, amount FROM "+d.budgets+
		" WHERE period_s >= "+d.mark(1)+" AND process <> "+d.mark(2), since.Unix(), except)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	type key struct {
		counter [16]byte
		period  int64
	}
	at := make(map[key]int)
	var out []Budget
	for found.Next() {
		var b Budget
		var counter string
		var period, amount int64
		if err := found.Scan(&counter, &period, &b.Unit, &b.Window, &amount); err != nil {
			return nil, err
		}
		if n, err := hex.Decode(b.Counter[:], []byte(counter[:min(len(counter), 2*len(b.Counter))])); err != nil || n != len(b.Counter) {
			return nil, fmt.Errorf("the counter %q of a budget is not one", counter)
		}
		k := key{b.Counter, period}
		i, ok := at[k]
		if !ok {
			i = len(out)
			b.Period = time.Unix(period, 0).UTC()
			at[k], out = i, append(out, b)
		}
		out[i].Amount = min(out[i].Amount+min(amount, mostBudget), mostBudget)
	}
	return out, found.Err()
}
