package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// postgresMigrations bring an older schema to the next version, in order. An
// entry that has been released never changes; a change of the schema is a new
// entry. Texts that order rows compare by bytes, as in SQLite.
var postgresMigrations = []string{
	`CREATE TABLE sluice_requests (
		seq              BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
		id               TEXT COLLATE "C" NOT NULL UNIQUE,
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
		status           BIGINT NOT NULL,
		error_code       TEXT NOT NULL,
		outcome          TEXT NOT NULL,
		phase            TEXT NOT NULL,
		flags            BIGINT NOT NULL,
		attempts         BIGINT NOT NULL,
		input_tokens     BIGINT NOT NULL,
		cached_tokens    BIGINT NOT NULL,
		output_tokens    BIGINT NOT NULL,
		reasoning_tokens BIGINT NOT NULL,
		currency         TEXT COLLATE "C" NOT NULL,
		input_price      BIGINT NOT NULL,
		cached_price     BIGINT NOT NULL,
		output_price     BIGINT NOT NULL,
		input_cost       BIGINT NOT NULL,
		cached_cost      BIGINT NOT NULL,
		output_cost      BIGINT NOT NULL,
		start_ns         BIGINT NOT NULL,
		end_ns           BIGINT NOT NULL,
		queue_ns         BIGINT NOT NULL,
		ttft_ns          BIGINT NOT NULL,
		duration_ns      BIGINT NOT NULL
	);
	CREATE INDEX sluice_requests_by_end ON sluice_requests (end_ns);`,
	`CREATE TABLE sluice_archived_months (
		month_ns    BIGINT PRIMARY KEY,
		file        TEXT NOT NULL,
		row_count   BIGINT NOT NULL,
		sha256      TEXT NOT NULL,
		archived_ns BIGINT NOT NULL
	);`,
	`ALTER TABLE sluice_requests
		ADD COLUMN gateway         TEXT NOT NULL DEFAULT '',
		ADD COLUMN process         TEXT NOT NULL DEFAULT '',
		ADD COLUMN principal_kind  TEXT NOT NULL DEFAULT '',
		ADD COLUMN reasoning_price BIGINT NOT NULL DEFAULT 0,
		ADD COLUMN gpu_price       BIGINT NOT NULL DEFAULT 0,
		ADD COLUMN discount_ppm    BIGINT NOT NULL DEFAULT 0,
		ADD COLUMN reasoning_cost  BIGINT NOT NULL DEFAULT 0,
		ADD COLUMN gpu_cost        BIGINT NOT NULL DEFAULT 0,
		ADD COLUMN gpu_us          BIGINT NOT NULL DEFAULT 0,
		ADD COLUMN charges         TEXT NOT NULL DEFAULT '',
		ADD COLUMN correction_of   TEXT NOT NULL DEFAULT '',
		ADD COLUMN reason          TEXT NOT NULL DEFAULT '',
		ADD COLUMN author          TEXT NOT NULL DEFAULT '',
		ADD COLUMN period          BIGINT NOT NULL DEFAULT 0;
	CREATE INDEX sluice_requests_by_period ON sluice_requests (period, end_ns) WHERE period <> 0;
	CREATE INDEX sluice_requests_by_correction ON sluice_requests (correction_of) WHERE correction_of <> '';
	CREATE TABLE sluice_closed_months (
		month       BIGINT PRIMARY KEY,
		from_ns     BIGINT NOT NULL,
		to_ns       BIGINT NOT NULL,
		closed_ns   BIGINT NOT NULL,
		closed_by   TEXT NOT NULL,
		meta        TEXT NOT NULL,
		row_count   BIGINT NOT NULL,
		csv_sha256  TEXT NOT NULL,
		json_sha256 TEXT NOT NULL
	);
	CREATE FUNCTION sluice_requests_added() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF EXISTS (SELECT 1 FROM added AS r JOIN sluice_closed_months AS c
			ON c.month = r.period OR r.period = 0 AND r.end_ns >= c.from_ns AND r.end_ns < c.to_ns) THEN
			RAISE EXCEPTION 'the month is closed: a row can''t be added to it' USING ERRCODE = 'SLC01';
		END IF;
		RETURN NULL;
	END $$;
	CREATE FUNCTION sluice_requests_removed() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF EXISTS (SELECT 1 FROM removed AS r JOIN sluice_closed_months AS c
			ON c.month = r.period OR r.period = 0 AND r.end_ns >= c.from_ns AND r.end_ns < c.to_ns
			WHERE TG_OP = 'UPDATE' OR NOT EXISTS (SELECT 1 FROM sluice_archived_months AS a WHERE a.month_ns = c.from_ns)) THEN
			RAISE EXCEPTION 'the month is closed: a row of it can''t be changed or removed' USING ERRCODE = 'SLC01';
		END IF;
		RETURN NULL;
	END $$;
	CREATE FUNCTION sluice_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		RAISE EXCEPTION 'a closed month stays as it is' USING ERRCODE = 'SLC01';
	END $$;
	CREATE TRIGGER inserted AFTER INSERT ON sluice_requests REFERENCING NEW TABLE AS added
		FOR EACH STATEMENT EXECUTE FUNCTION sluice_requests_added();
	CREATE TRIGGER updated AFTER UPDATE ON sluice_requests REFERENCING OLD TABLE AS removed
		FOR EACH STATEMENT EXECUTE FUNCTION sluice_requests_removed();
	CREATE TRIGGER updated_new AFTER UPDATE ON sluice_requests REFERENCING NEW TABLE AS added
		FOR EACH STATEMENT EXECUTE FUNCTION sluice_requests_added();
	CREATE TRIGGER deleted AFTER DELETE ON sluice_requests REFERENCING OLD TABLE AS removed
		FOR EACH STATEMENT EXECUTE FUNCTION sluice_requests_removed();
	CREATE TRIGGER truncated BEFORE TRUNCATE ON sluice_requests FOR EACH STATEMENT EXECUTE FUNCTION sluice_refuse();
	CREATE TRIGGER updated BEFORE UPDATE ON sluice_closed_months FOR EACH ROW
		WHEN (OLD.csv_sha256 <> '' OR NEW.month <> OLD.month OR NEW.from_ns <> OLD.from_ns OR NEW.to_ns <> OLD.to_ns)
		EXECUTE FUNCTION sluice_refuse();
	CREATE TRIGGER deleted BEFORE DELETE ON sluice_closed_months FOR EACH ROW
		WHEN (OLD.csv_sha256 <> '') EXECUTE FUNCTION sluice_refuse();
	CREATE TRIGGER truncated BEFORE TRUNCATE ON sluice_closed_months FOR EACH STATEMENT EXECUTE FUNCTION sluice_refuse();
	CREATE TABLE sluice_usage_checkpoints (
		process TEXT NOT NULL,
		month   BIGINT NOT NULL,
		gateway TEXT NOT NULL,
		seq     BIGINT NOT NULL,
		at_ns   BIGINT NOT NULL,
		counted TEXT NOT NULL,
		PRIMARY KEY (process, month)
	);` + postgresBudgets,
}

// errNewerSchema: a newer program has been at the database.
var errNewerSchema = errors.New("use a newer program")

// migratePostgres brings the schema up to date in one transaction. The advisory
// lock makes gateways that start at once do so one after the other.
func migratePostgres(ctx context.Context, tx pgx.Tx) error {
	setup := fmt.Sprintf(`SELECT pg_advisory_xact_lock(%d);
		CREATE TABLE IF NOT EXISTS sluice_ledger_migrations (version BIGINT PRIMARY KEY, applied_at TIMESTAMPTZ NOT NULL DEFAULT now())`, applicationID)
	if _, err := tx.Exec(ctx, setup); err != nil {
		return err
	}
	var version int
	if err := tx.QueryRow(ctx, "SELECT coalesce(max(version), 0) FROM sluice_ledger_migrations").Scan(&version); err != nil {
		return err
	}
	if version > len(postgresMigrations) {
		return fmt.Errorf("its schema is version %d, this program knows up to %d: %w", version, len(postgresMigrations), errNewerSchema)
	}
	for v := version; v < len(postgresMigrations); v++ {
		if _, err := tx.Exec(ctx, postgresMigrations[v]); err != nil {
			return fmt.Errorf("cannot bring the schema to version %d: %w", v+1, err)
		}
		if _, err := tx.Exec(ctx, "INSERT INTO sluice_ledger_migrations (version) VALUES ($1)", v+1); err != nil {
			return err
		}
	}
	return nil
}
