package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// store is a database of rows. One goroutine uses it at a time.
type store interface {
	// commit stores rows in one transaction and returns what became of each. After
	// an error none is known to be durable; one for which errors.As finds a
	// *rowError is about a row, any other about the database.
	commit(ctx context.Context, rows []*tenancy.Row) ([]result, error)
	// seq is the highest place that a commit has given a row, 0 before the first.
	seq() int64
	// checkpoint notes what this process has counted as of the rows that are there.
	checkpoint(ctx context.Context, list []tenancy.Checkpoint) error
	close() error
}

// result is the fate of one row of a committed batch.
type result uint8

const (
	stored      result = iota // new, or in the place of a row with outcome lost, and durable now
	repeated                  // the same row was stored before, or this one is lost and another was
	conflicting               // another row has the id
)

// compare decides on a row whose id is taken. It is the one rule for all stores.
// A row that says how a request ended takes the place of one that says it was
// lost; among rows that say it, the first stands.
func compare(there, row *tenancy.Row) (res result, replace bool) {
	switch {
	case equalRows(there, row):
		return repeated, false
	case row.Outcome == tenancy.OutcomeLost:
		return repeated, false
	case there.Outcome == tenancy.OutcomeLost:
		return stored, true
	}
	return conflicting, false
}

// rowError says that the database refuses a row for what is in it.
type rowError struct{ err error }

func (e *rowError) Error() string { return "the database refuses the row: " + e.err.Error() }
func (e *rowError) Unwrap() error { return e.err }

// fate is what became of a row: stored, or refused for good and why.
type fate struct {
	result result
	err    error
}

// commit stores rows. A row that the database refuses does not keep the others
// from being stored: the batch is halved until the row is alone, and the row is
// kept in the file of refused rows. An error means that none is known to be
// durable; rows may be offered again.
func (l *Ledger) commit(ctx context.Context, rows []*tenancy.Row) ([]fate, error) {
	results, err := l.store.commit(ctx, rows)
	var bad *rowError
	switch {
	case err == nil:
		return l.fates(rows, results)
	case !errors.As(err, &bad):
		return nil, explain(err)
	case len(rows) == 1:
		if err := l.refuse(rows[0], bad); err != nil {
			return nil, err
		}
		return []fate{{conflicting, bad}}, nil
	}
	half := len(rows) / 2
	first, err := l.commit(ctx, rows[:half])
	if err != nil {
		return nil, err
	}
	second, err := l.commit(ctx, rows[half:])
	if err != nil {
		return nil, err
	}
	return append(first, second...), nil
}

func (l *Ledger) fates(rows []*tenancy.Row, results []result) ([]fate, error) {
	fates := make([]fate, len(rows))
	for i, res := range results {
		fates[i] = fate{result: res}
		if res == conflicting {
			fates[i].err = ErrConflict
			if err := l.refuse(rows[i], ErrConflict); err != nil {
				return nil, err
			}
		}
	}
	return fates, nil
}

// refuse keeps a row that the database will not have where finance finds it, as
// one line of JSON.
func (l *Ledger) refuse(row *tenancy.Row, why error) error {
	if err := appendRefused(l.path, &RefusedRow{At: time.Now().UTC(), Error: why.Error(), Row: row}); err != nil {
		return explain(fmt.Errorf("cannot keep a refused row: %w", err))
	}
	l.opts.Log.LogAttrs(context.Background(), slog.LevelError, "the ledger refuses a row; it is kept in the file of refused rows",
		slog.String("file", refusedFile(l.path)), slog.String("id", row.ID), slog.Any("error", why))
	return nil
}

func (l *Ledger) count(f fate) {
	switch {
	case f.err != nil:
		l.failed.Add(1)
	case f.result == repeated:
		l.duplicates.Add(1)
	default:
		l.rows.Add(1)
	}
}
