package keystore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite" // the driver named "sqlite"
)

const (
	// busyTimeout is how long a transaction waits for another process that has the
	// file locked.
	busyTimeout = 5 * time.Second
	// connectTimeout is for one attempt to reach a server.
	connectTimeout = 5 * time.Second
)

// dialect is how the two databases differ.
type dialect struct {
	schema  []string // migrations, in order
	setup   string   // before them, in their transaction
	mark    func(i int) string
	noteAll func(ctx context.Context, tx *sql.Tx, ids []string, at []int64) error
}

// Open opens the keys in an SQLite file, and makes the file where there is none.
// Gateways and commands on one machine may have it open at once.
func Open(ctx context.Context, path string) (*Store, error) {
	s, err := openSQLite(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("cannot open the keys in %s: %w", path, explain(err))
	}
	return s, nil
}

func openSQLite(ctx context.Context, path string) (*Store, error) {
	if err := createPrivate(path); err != nil {
		return nil, err
	}
	q := url.Values{"mode": {"rwc"}, "_txlock": {"immediate"}, "_pragma": {
		// FULL: a key that was revoked stays so after a loss of power.
		fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()), "journal_mode(WAL)", "synchronous(FULL)",
	}}
	// PathEscape keeps '?', '#' and '%' of a path from being read as URI syntax.
	parts := strings.Split(path, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	db, err := sql.Open("sqlite", "file:"+strings.Join(parts, "/")+"?"+q.Encode())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(2)
	s := &Store{db: db, dialect: sqliteDialect, where: path}
	if err = s.own(ctx); err == nil {
		err = s.migrate(ctx)
	}
	return s.orClose(err)
}

// createPrivate makes an empty file if there is none, its owner's alone.
func createPrivate(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case err != nil:
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// explain says of SQLite's error for a file of something else what to do.
func explain(err error) error {
	if err != nil && strings.Contains(err.Error(), "not a database") {
		return errors.New("the file is no SQLite database: name another path")
	}
	return err
}

// own returns an error if the file is a database of another program.
func (s *Store) own(ctx context.Context) error {
	var id, tables int
	if err := s.db.QueryRowContext(ctx, "PRAGMA application_id").Scan(&id); err != nil {
		return err
	}
	if err := s.db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables); err != nil {
		return err
	}
	if id != applicationID && (id != 0 || tables > 0) {
		return fmt.Errorf("the file is a database of something else (application id %#x): name another path", id)
	}
	return nil
}

// OpenPostgres opens the keys in a PostgreSQL database, which has to answer. It may
// be the one that keeps the ledger.
func OpenPostgres(ctx context.Context, dsn string) (*Store, error) {
	s, err := openPostgres(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("cannot open the keys in PostgreSQL: %w", err)
	}
	return s, nil
}

// CheckPostgres reports what is wrong with a connection string, without using or
// quoting it.
func CheckPostgres(dsn string) error {
	_, err := parsePostgres(dsn)
	return err
}

func parsePostgres(dsn string) (*pgx.ConnConfig, error) {
	// As the ledger's is read: the same string does for both, with the settings of a
	// pool, which are not used here.
	pool, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, errors.New("the connection string of PostgreSQL can't be read: it should be like postgres://user@host:5432/database?sslmode=verify-full")
	}
	cfg := pool.ConnConfig
	// Whatever the role or the string say: a key that was revoked is so on disk.
	cfg.RuntimeParams["synchronous_commit"] = "on"
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "sluice"
	}
	cfg.ConnectTimeout = connectTimeout
	return cfg, nil
}

func openPostgres(ctx context.Context, dsn string) (*Store, error) {
	cfg, err := parsePostgres(dsn)
	if err != nil {
		return nil, err
	}
	db := stdlib.OpenDB(*cfg)
	db.SetMaxOpenConns(2)
	db.SetMaxIdleConns(2)
	s := &Store{db: db, dialect: postgresDialect, where: "PostgreSQL"}
	return s.orClose(s.migrate(ctx))
}

func (s *Store) orClose(err error) (*Store, error) {
	if err != nil {
		return nil, errors.Join(err, s.db.Close())
	}
	return s, nil
}

// Close gives the connections back.
func (s *Store) Close() error { return s.db.Close() }

// String says where the keys are, for people.
func (s *Store) String() string { return s.where }

// sql puts the dialect's marks in the place of question marks.
func (s *Store) sql(text string) string {
	var b strings.Builder
	n := 0
	for _, c := range text {
		if c == '?' {
			n++
			b.WriteString(s.dialect.mark(n))
			continue
		}
		b.WriteRune(c)
	}
	return b.String()
}

var sqliteDialect = &dialect{
	schema: sqliteSchema,
	setup: fmt.Sprintf(`PRAGMA application_id = %d;
		CREATE TABLE IF NOT EXISTS sluice_key_migrations (version INTEGER PRIMARY KEY) STRICT;`, applicationID),
	mark: func(int) string { return "?" },
	noteAll: func(ctx context.Context, tx *sql.Tx, ids []string, at []int64) error {
		for i, id := range ids {
			if _, err := tx.ExecContext(ctx, "UPDATE sluice_keys SET used_ns = max(used_ns, ?) WHERE id = ?", at[i], id); err != nil {
				return err
			}
		}
		return nil
	},
}

var postgresDialect = &dialect{
	schema: postgresSchema,
	setup: fmt.Sprintf(`SELECT pg_advisory_xact_lock(%d);
		CREATE TABLE IF NOT EXISTS sluice_key_migrations (version BIGINT PRIMARY KEY);`, applicationID),
	mark: func(i int) string { return "$" + strconv.Itoa(i) },
	noteAll: func(ctx context.Context, tx *sql.Tx, ids []string, at []int64) error {
		// One gateway at a time: two that took the rows in another order would wait
		// for each other.
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", applicationID+1)); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `UPDATE sluice_keys SET used_ns = greatest(used_ns, u.at)
			FROM unnest($1::text[], $2::bigint[]) AS u (id, at) WHERE sluice_keys.id = u.id`, ids, at)
		return err
	},
}
