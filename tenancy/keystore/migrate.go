package keystore

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"strings"
	"time"
)

// applicationID marks an SQLite file as one of keys, and is the lock under which
// gateways bring a PostgreSQL schema up to date one after the other.
const applicationID = 0x534c4b31 // "SLK1"

// schema is the first version, with the types of a dialect.
func schema(integer, text, strict string) string {
	return strings.NewReplacer("INTEGER", integer, "TEXT", text, "STRICT", strict).Replace(`
	CREATE TABLE sluice_keys (
		id           TEXT PRIMARY KEY,
		sha256       TEXT NOT NULL UNIQUE,
		tenant       TEXT NOT NULL,
		name         TEXT NOT NULL,
		grants       TEXT NOT NULL,
		created_ns   INTEGER NOT NULL,
		expires_ns   INTEGER NOT NULL,
		revoked_ns   INTEGER NOT NULL,
		revoked_by   TEXT NOT NULL,
		reason       TEXT NOT NULL,
		rotated_from TEXT NOT NULL,
		seq          INTEGER NOT NULL,
		used_ns      INTEGER NOT NULL
	)STRICT;
	CREATE INDEX sluice_keys_by_seq ON sluice_keys (seq);
	CREATE TABLE sluice_key_state (
		one      INTEGER PRIMARY KEY CHECK (one = 1),
		epoch    TEXT NOT NULL,
		seq      INTEGER NOT NULL,
		since_ns INTEGER NOT NULL
	)STRICT;`)
}

// The migrations bring an older schema to the next version, in order. An entry that
// has been released never changes; a change of the schema is a new entry.
var (
	sqliteSchema   = []string{schema("INTEGER", "TEXT", " STRICT")}
	postgresSchema = []string{schema("BIGINT", "TEXT", "")}
)

// migrate brings the schema up to date in one transaction. One that is up to date
// is only read.
func (s *Store) migrate(ctx context.Context) error {
	var version int
	const has = "SELECT coalesce(max(version), 0) FROM sluice_key_migrations"
	if err := s.db.QueryRowContext(ctx, has).Scan(&version); err == nil && version == len(s.dialect.schema) {
		return nil
	}
	return s.change(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, s.dialect.setup); err != nil {
			return err
		}
		if err := tx.QueryRowContext(ctx, has).Scan(&version); err != nil {
			return err
		}
		if version > len(s.dialect.schema) {
			return fmt.Errorf("its schema is version %d, this program knows up to %d: use a newer program", version, len(s.dialect.schema))
		}
		for v := version; v < len(s.dialect.schema); v++ {
			if err := s.step(ctx, tx, v); err != nil {
				return fmt.Errorf("cannot bring the schema to version %d: %w", v+1, err)
			}
		}
		return nil
	})
}

func (s *Store) step(ctx context.Context, tx *sql.Tx, v int) error {
	if _, err := tx.ExecContext(ctx, s.dialect.schema[v]); err != nil {
		return err
	}
	if v == 0 {
		_, err := tx.ExecContext(ctx, s.sql("INSERT INTO sluice_key_state (one, epoch, seq, since_ns) VALUES (1, ?, 1, ?)"), rand.Text(), time.Now().UnixNano())
		if err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, s.sql("INSERT INTO sluice_key_migrations (version) VALUES (?)"), v+1)
	return err
}

// change runs f in a transaction.
func (s *Store) change(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it has nothing to do
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}
