package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/sluicegate/sluice/tenancy"
)

const (
	// postgresTimeout ends a transaction that the server does not: one that waits
	// for a lock, or whose connection has gone silent.
	postgresTimeout = 15 * time.Second
	// connectTimeout is for one attempt to reach the server.
	connectTimeout = 5 * time.Second
)

// postgres is the store in a PostgreSQL database that several gateways share.
type postgres struct {
	pool     *pgxpool.Pool
	migrated atomic.Bool
	closed   closedMonths // as of the last look; the database refuses rows where that is old
	last     atomic.Int64 // the highest place of a row that was stored
	insert   string
	byID     string
	update   string
}

var postgresDialect = &dialect{
	table:       "sluice_requests",
	archived:    "sluice_archived_months",
	closed:      "sluice_closed_months",
	checkpoints: "sluice_usage_checkpoints",
	budgets:     "sluice_budgets",
	mark:        func(i int) string { return "$" + strconv.Itoa(i) },
	view:        &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true},
	lockRows:    " FOR UPDATE",
	version:     "SELECT coalesce(max(version), 0) FROM sluice_ledger_migrations",
	known:       schemaNow, schema: schemaNow,
}

// parsePostgres reads a connection string. Its error never has the string.
func parsePostgres(dsn string) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, errors.New("the connection string of PostgreSQL can't be read: it should be like postgres://user@host:5432/database?sslmode=verify-full")
	}
	// Whatever the role or the string say: a row that is acknowledged is on disk.
	cfg.ConnConfig.RuntimeParams["synchronous_commit"] = "on"
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = "sluice"
	}
	cfg.ConnConfig.ConnectTimeout = connectTimeout
	cfg.MaxConns, cfg.MinConns = 2, 0
	return cfg, nil
}

// CheckPostgres reports what is wrong with a connection string, without using or
// quoting it.
func CheckPostgres(dsn string) error {
	_, err := parsePostgres(dsn)
	return err
}

// openPostgres does not wait for the server. It fails where the server answers
// and says no; where it can't be reached, down is why.
func openPostgres(dsn string) (p *postgres, down error, err error) {
	cfg, err := parsePostgres(dsn)
	if err != nil {
		return nil, nil, err
	}
	p = newPostgres()
	if p.pool, err = pgxpool.NewWithConfig(context.Background(), cfg); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	if err := p.ready(ctx); err != nil {
		if !unreachable(err) {
			p.pool.Close()
			return nil, nil, err
		}
		return p, err, nil
	}
	return p, nil, nil
}

func newPostgres() *postgres {
	n := len(columns) + 1
	types, marks := make([]string, n), make([]string, n)
	for i, value := range appendValues(nil, &tenancy.Row{}, 0) {
		kind := "bigint"
		if _, ok := value.(string); ok {
			kind = "text"
		}
		types[i] = fmt.Sprintf("$%d::%s[]", i+1, kind)
		marks[i] = "$" + strconv.Itoa(i+1)
	}
	all := columnNames()
	return &postgres{
		insert: postgresInsert("INSERT INTO sluice_requests (" + all + ") SELECT * FROM unnest(" + strings.Join(types, ", ") + ") ON CONFLICT (id) DO NOTHING"),
		byID:   "SELECT " + all + " FROM sluice_requests WHERE id = ANY($1::text[]) FOR UPDATE",
		update: fmt.Sprintf("UPDATE sluice_requests SET (%s) = ROW(%s) WHERE id = $%d", all, strings.Join(marks, ", "), n+1),
	}
}

// unreachable reports whether an error is of the way to the server or of its
// coming and going, and not an answer that stays the same until somebody acts.
func unreachable(err error) bool {
	if pe, ok := errors.AsType[*pgconn.PgError](err); ok {
		class := pe.Code[:min(2, len(pe.Code))]
		return class == "08" || class == "53" || class == "57"
	}
	return !errors.Is(err, errNewerSchema)
}

// ready brings the schema up to date, once.
func (p *postgres) ready(ctx context.Context) error {
	if p.migrated.Load() {
		return nil
	}
	err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error { return migratePostgres(ctx, tx) })
	if err == nil {
		err = p.readClosed(ctx)
	}
	if err == nil {
		_, err = p.pool.Exec(ctx, postgresForget, forgotten())
	}
	if err == nil {
		p.migrated.Store(true)
	}
	return err
}

func (p *postgres) readClosed(ctx context.Context) error {
	found, err := p.pool.Query(ctx, "SELECT month FROM sluice_closed_months")
	if err != nil {
		return err
	}
	months, err := pgx.CollectRows(found, pgx.RowTo[int64])
	if err != nil {
		return err
	}
	p.closed = make(closedMonths, len(months))
	for _, month := range months {
		p.closed[month] = true
	}
	return nil
}

// errMonthClosed is PostgreSQL's code for what a trigger of a closed month refuses.
const errMonthClosed = "SLC01"

// commit implements store. A month may have been closed since the last look; the
// database refuses the rows then, and they are booked anew.
func (p *postgres) commit(ctx context.Context, rows []*tenancy.Row) ([]result, error) {
	ctx, cancel := context.WithTimeout(ctx, postgresTimeout)
	defer cancel()
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	// A closing that was not completed is taken back: late rows are few, so that is
	// looked up for each.
	if slices.ContainsFunc(rows, func(row *tenancy.Row) bool { return p.closed.book(row.End()) != 0 }) {
		if err := p.readClosed(ctx); err != nil {
			return nil, err
		}
	}
	for tries := 1; ; tries++ {
		results, err := p.commitBooked(ctx, rows)
		pe, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || pe.Code != errMonthClosed || tries == 3 {
			return results, err
		}
		if err := p.readClosed(ctx); err != nil {
			return nil, err
		}
	}
}

// commitBooked commits rows by the closed months that are known. All new rows are
// one statement, and so one transaction in one round trip; only ids that are taken
// need a second one.
func (p *postgres) commitBooked(ctx context.Context, rows []*tenancy.Row) ([]result, error) {
	inserted, err := p.insertNew(ctx, rows)
	if err != nil {
		return nil, postgresRefusal(err)
	}
	results := make([]result, len(rows))
	var rest []int
	for i, row := range rows {
		if inserted[row.ID] {
			delete(inserted, row.ID) // its first row; others of the batch are compared with it
			continue
		}
		rest = append(rest, i)
	}
	if len(rest) > 0 {
		err = pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error { return p.settle(ctx, tx, rows, rest, results) })
	}
	return results, postgresRefusal(err)
}

// insertNew returns the ids that were not there.
func (p *postgres) insertNew(ctx context.Context, rows []*tenancy.Row) (map[string]bool, error) {
	seen := make(map[string]bool, len(rows))
	first := make([]*tenancy.Row, 0, len(rows))
	for _, row := range rows {
		if !seen[row.ID] {
			seen[row.ID] = true
			first = append(first, row)
		}
	}
	found, err := p.pool.Query(ctx, p.insert, p.arrays(first)...)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	inserted := make(map[string]bool, len(rows))
	last := p.last.Load()
	for found.Next() {
		var id string
		var seq int64
		if err := found.Scan(&id, &seq); err != nil {
			return nil, err
		}
		inserted[id] = true
		last = max(last, seq)
	}
	if err := found.Err(); err != nil {
		return nil, err
	}
	p.last.Store(last)
	return inserted, nil
}

// arrays are the columns of rows, each as an array.
func (p *postgres) arrays(rows []*tenancy.Row) []any {
	args := make([]any, len(columns), len(columns)+1)
	for i := range columns {
		args[i] = columnOf(&columns[i], rows)
	}
	booked := make([]int64, len(rows))
	for i, row := range rows {
		booked[i] = p.closed.book(row.End())
	}
	return append(args, booked)
}

// columnOf is one column of rows, as an array.
func columnOf(c *column, rows []*tenancy.Row) any {
	var texts []string
	var numbers []int64
	for _, row := range rows {
		switch v := c.put(row).(type) {
		case string:
			texts = append(texts, v)
		case int64:
			numbers = append(numbers, v)
		default:
			panic(fmt.Sprintf("BUG: column %s is of type %T", c.name, v))
		}
	}
	if texts != nil {
		return texts
	}
	return numbers
}

// settle compares the rows whose ids are taken with those that are there.
func (p *postgres) settle(ctx context.Context, tx pgx.Tx, rows []*tenancy.Row, rest []int, results []result) error {
	ids := make([]string, len(rest))
	for i, at := range rest {
		ids[i] = rows[at].ID
	}
	there, err := p.locked(ctx, tx, ids)
	if err != nil {
		return err
	}
	for _, at := range rest {
		row := rows[at]
		if there[row.ID] == nil {
			return fmt.Errorf("row %s was removed while it was compared", row.ID)
		}
		res, replace := compare(there[row.ID], row)
		switch {
		case replace && p.closed.has(there[row.ID]):
			if res, err = p.storeLate(ctx, tx, afterClose(row)); err != nil {
				return err
			}
		case replace:
			if _, err := tx.Exec(ctx, p.update, append(appendValues(nil, row, p.closed.book(row.End())), row.ID)...); err != nil {
				return err
			}
			if err := p.noteCharges(ctx, tx, row); err != nil {
				return err
			}
			there[row.ID] = row
		}
		results[at] = res
	}
	return nil
}

// storeLate stores a row beside the one that it corrects.
func (p *postgres) storeLate(ctx context.Context, tx pgx.Tx, row *tenancy.Row) (result, error) {
	tag, err := tx.Exec(ctx, p.insert, p.arrays([]*tenancy.Row{row})...)
	if err != nil || tag.RowsAffected() == 1 {
		return stored, err
	}
	there, err := p.locked(ctx, tx, []string{row.ID})
	if err != nil {
		return 0, err
	}
	if there[row.ID] == nil {
		return 0, fmt.Errorf("row %s was removed while it was compared", row.ID)
	}
	res, _ := compare(there[row.ID], row)
	return res, nil
}

// locked reads rows by id, which stay as they are until the transaction ends.
func (p *postgres) locked(ctx context.Context, tx pgx.Tx, ids []string) (map[string]*tenancy.Row, error) {
	found, err := tx.Query(ctx, p.byID, ids)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	there := make(map[string]*tenancy.Row, len(ids))
	for found.Next() {
		row, err := scanRow(found.Scan)
		if err != nil {
			return nil, err
		}
		there[row.ID] = row
	}
	return there, found.Err()
}

// postgresRefusal marks the errors of PostgreSQL that are about a row: its data,
// or a constraint.
func postgresRefusal(err error) error {
	var pe *pgconn.PgError
	if errors.As(err, &pe) && (strings.HasPrefix(pe.Code, "22") || strings.HasPrefix(pe.Code, "23")) {
		return &rowError{err}
	}
	return err
}

func (p *postgres) close() error {
	p.pool.Close()
	return nil
}

// OpenPostgres is as Open, with the rows in the PostgreSQL database that dsn
// names. Several gateways may share it. path names what each keeps on a disk of
// its own: a lock, the requests in flight, and the rows that wait for the
// database; the disk must outlive the process. A database that can't be reached
// is no error: the ledger goes on with the spool until it can.
func OpenPostgres(path, dsn string, opts Options) (*Ledger, error) {
	return open(path, opts, func(l *Ledger) error {
		p, down, err := openPostgres(dsn)
		if err != nil {
			return fmt.Errorf("PostgreSQL: %w", err)
		}
		l.store, l.away = p, down != nil
		if down != nil {
			l.opts.Log.Error("the ledger's database can't be reached; rows go to the spool until it can", "path", path, "error", down)
		}
		l.reader, err = newPostgresReader(dsn)
		return err
	})
}

// OpenPostgresReader opens the ledger in a PostgreSQL database for reading alone.
func OpenPostgresReader(dsn string) (*Reader, error) {
	r, err := newPostgresReader(dsn)
	if err != nil {
		return nil, fmt.Errorf("cannot open the ledger: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*connectTimeout)
	defer cancel()
	if err := r.fit(ctx); err != nil {
		r.db.Close()
		return nil, fmt.Errorf("cannot open the ledger: PostgreSQL: %w", err)
	}
	return r, nil
}

func newPostgresReader(dsn string) (*Reader, error) {
	cfg, err := parsePostgres(dsn)
	if err != nil {
		return nil, err
	}
	cfg.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	db := stdlib.OpenDB(*cfg.ConnConfig)
	db.SetMaxOpenConns(4)
	return &Reader{path: "in PostgreSQL", db: db, dialect: postgresDialect}, nil
}
