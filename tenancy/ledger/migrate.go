package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// applicationID marks the file as a ledger for the file command and for us.
const applicationID = 0x534c4331 // "SLC1"

// migrations bring an older schema to the next version, in order. An entry that
// has been released never changes; a change of the schema is a new entry.
var migrations = []string{
	`CREATE TABLE requests (
		seq              INTEGER PRIMARY KEY,
		id               TEXT NOT NULL UNIQUE,
		request_id       TEXT NOT NULL,
		decision_id      TEXT NOT NULL,
		policy_revision  TEXT NOT NULL,
		policy_rule      TEXT NOT NULL,
		tenant           TEXT NOT NULL,
		team             TEXT NOT NULL,
		principal        TEXT NOT NULL,
		key_id           TEXT NOT NULL,
		operation        TEXT NOT NULL,
		dialect          TEXT NOT NULL,
		model            TEXT NOT NULL,
		requested_model  TEXT NOT NULL,
		pool             TEXT NOT NULL,
		worker           TEXT NOT NULL,
		class            TEXT NOT NULL,
		labels           TEXT NOT NULL,
		status           INTEGER NOT NULL,
		error_code       TEXT NOT NULL,
		outcome          TEXT NOT NULL,
		phase            TEXT NOT NULL,
		flags            INTEGER NOT NULL,
		attempts         INTEGER NOT NULL,
		input_tokens     INTEGER NOT NULL,
		cached_tokens    INTEGER NOT NULL,
		output_tokens    INTEGER NOT NULL,
		reasoning_tokens INTEGER NOT NULL,
		currency         TEXT NOT NULL,
		input_price      INTEGER NOT NULL,
		cached_price     INTEGER NOT NULL,
		output_price     INTEGER NOT NULL,
		input_cost       INTEGER NOT NULL,
		cached_cost      INTEGER NOT NULL,
		output_cost      INTEGER NOT NULL,
		start_ns         INTEGER NOT NULL,
		end_ns           INTEGER NOT NULL,
		queue_ns         INTEGER NOT NULL,
		ttft_ns          INTEGER NOT NULL,
		duration_ns      INTEGER NOT NULL
	) STRICT;
	CREATE INDEX requests_by_end ON requests (end_ns);`,
	`CREATE TABLE archived_months (
		month_ns    INTEGER PRIMARY KEY,
		file        TEXT NOT NULL,
		row_count   INTEGER NOT NULL,
		sha256      TEXT NOT NULL,
		archived_ns INTEGER NOT NULL
	) STRICT;`,
	`ALTER TABLE requests ADD COLUMN gateway         TEXT NOT NULL DEFAULT '';
	ALTER TABLE requests ADD COLUMN process         TEXT NOT NULL DEFAULT '';
	ALTER TABLE requests ADD COLUMN principal_kind  TEXT NOT NULL DEFAULT '';
	ALTER TABLE requests ADD COLUMN reasoning_price INTEGER NOT NULL DEFAULT 0;
	ALTER TABLE requests ADD COLUMN gpu_price       INTEGER NOT NULL DEFAULT 0;
	ALTER TABLE requests ADD COLUMN discount_ppm    INTEGER NOT NULL DEFAULT 0;
	ALTER TABLE requests ADD COLUMN reasoning_cost  INTEGER NOT NULL DEFAULT 0;
	ALTER TABLE requests ADD COLUMN gpu_cost        INTEGER NOT NULL DEFAULT 0;
	ALTER TABLE requests ADD COLUMN gpu_us          INTEGER NOT NULL DEFAULT 0;
	ALTER TABLE requests ADD COLUMN charges         TEXT NOT NULL DEFAULT '';
	ALTER TABLE requests ADD COLUMN correction_of   TEXT NOT NULL DEFAULT '';
	ALTER TABLE requests ADD COLUMN reason          TEXT NOT NULL DEFAULT '';
	ALTER TABLE requests ADD COLUMN author          TEXT NOT NULL DEFAULT '';
	ALTER TABLE requests ADD COLUMN period          INTEGER NOT NULL DEFAULT 0;
	CREATE INDEX requests_by_period ON requests (period, end_ns) WHERE period <> 0;
	CREATE INDEX requests_by_correction ON requests (correction_of) WHERE correction_of <> '';
	CREATE TABLE closed_months (
		month       INTEGER PRIMARY KEY,
		from_ns     INTEGER NOT NULL,
		to_ns       INTEGER NOT NULL,
		closed_ns   INTEGER NOT NULL,
		closed_by   TEXT NOT NULL,
		meta        TEXT NOT NULL,
		row_count   INTEGER NOT NULL,
		csv_sha256  TEXT NOT NULL,
		json_sha256 TEXT NOT NULL
	) STRICT;
	CREATE TRIGGER requests_insert_closed BEFORE INSERT ON requests
	WHEN EXISTS (SELECT 1 FROM closed_months AS c
		WHERE c.month = NEW.period OR NEW.period = 0 AND NEW.end_ns >= c.from_ns AND NEW.end_ns < c.to_ns)
	BEGIN SELECT RAISE(ABORT, 'the month is closed: a row can''t be added to it'); END;
	CREATE TRIGGER requests_update_closed BEFORE UPDATE ON requests
	WHEN EXISTS (SELECT 1 FROM closed_months AS c
		WHERE c.month IN (OLD.period, NEW.period)
			OR OLD.period = 0 AND OLD.end_ns >= c.from_ns AND OLD.end_ns < c.to_ns
			OR NEW.period = 0 AND NEW.end_ns >= c.from_ns AND NEW.end_ns < c.to_ns)
	BEGIN SELECT RAISE(ABORT, 'the month is closed: a row of it can''t be changed'); END;
	CREATE TRIGGER requests_delete_closed BEFORE DELETE ON requests
	WHEN EXISTS (SELECT 1 FROM closed_months AS c
		WHERE (c.month = OLD.period OR OLD.period = 0 AND OLD.end_ns >= c.from_ns AND OLD.end_ns < c.to_ns)
			AND NOT EXISTS (SELECT 1 FROM archived_months AS a WHERE a.month_ns = c.from_ns))
	BEGIN SELECT RAISE(ABORT, 'the month is closed: a row of it can''t be removed'); END;
	CREATE TRIGGER closed_months_update BEFORE UPDATE ON closed_months
	WHEN OLD.csv_sha256 <> '' OR NEW.month <> OLD.month OR NEW.from_ns <> OLD.from_ns OR NEW.to_ns <> OLD.to_ns
	BEGIN SELECT RAISE(ABORT, 'a closed month can''t be changed'); END;
	CREATE TRIGGER closed_months_delete BEFORE DELETE ON closed_months WHEN OLD.csv_sha256 <> ''
	BEGIN SELECT RAISE(ABORT, 'a closed month stays closed'); END;
	CREATE TABLE usage_checkpoints (
		process TEXT NOT NULL,
		month   INTEGER NOT NULL,
		gateway TEXT NOT NULL,
		seq     INTEGER NOT NULL,
		at_ns   INTEGER NOT NULL,
		counted TEXT NOT NULL,
		PRIMARY KEY (process, month)
	) STRICT;` + sqliteBudgets,
}

// migrate brings the schema up to date, each step in a transaction of its own
// together with the note that it was done.
func migrate(ctx context.Context, db *sql.Conn) error {
	version, err := schemaVersion(ctx, db)
	if err != nil {
		return err
	}
	if version > len(migrations) {
		return fmt.Errorf("its schema is version %d, this program knows up to %d: use a newer program", version, len(migrations))
	}
	for v := version; v < len(migrations); v++ {
		if err := step(ctx, db, v); err != nil {
			return fmt.Errorf("cannot bring the schema to version %d: %w", v+1, err)
		}
	}
	return nil
}

func step(ctx context.Context, db *sql.Conn, v int) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it has nothing to do
	if v == 0 {
		setup := fmt.Sprintf("PRAGMA application_id = %d; CREATE TABLE migrations (version INTEGER PRIMARY KEY, applied_ns INTEGER NOT NULL) STRICT;", applicationID)
		if _, err := tx.ExecContext(ctx, setup); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, migrations[v]); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO migrations VALUES (?, ?)", v+1, time.Now().UnixNano()); err != nil {
		return err
	}
	return tx.Commit()
}

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// schemaVersion is 0 for an empty database and an error for one that holds
// something else.
func schemaVersion(ctx context.Context, db querier) (int, error) {
	var id, tables int
	if err := db.QueryRowContext(ctx, "PRAGMA application_id").Scan(&id); err != nil {
		return 0, err
	}
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables); err != nil {
		return 0, err
	}
	if id != applicationID {
		if tables == 0 && id == 0 {
			return 0, nil
		}
		return 0, fmt.Errorf("the file is the database of another program (application id %#x): name another path", id)
	}
	var version int
	err := db.QueryRowContext(ctx, "SELECT coalesce(max(version), 0) FROM migrations").Scan(&version)
	return version, err
}
