package ledger

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// Pending is what a gateway keeps beside its database and may yet become rows.
type Pending struct {
	// SpoolRows wait in the spool for the database.
	SpoolRows int
	// Open requests are in flight, or were when a gateway died that has not been
	// started since; Oldest is when the first of them began.
	Open   int
	Oldest time.Time
}

// Pending looks in the files beside path, which are those of one gateway, for
// requests that began before an instant and have no row yet.
func (r *Reader) Pending(ctx context.Context, path string, before time.Time) (Pending, error) {
	var p Pending
	spooled, err := r.pendingRows(ctx, path, before)
	if err != nil {
		return p, fmt.Errorf("cannot read what waits beside the ledger: %w", explain(err))
	}
	p.SpoolRows = len(spooled)
	open, err := r.openIntents(ctx, path, before, spooled)
	if err != nil {
		return p, fmt.Errorf("cannot read what is in flight beside the ledger: %w", explain(err))
	}
	p.Open = len(open)
	for _, in := range open {
		if p.Oldest.IsZero() || in.Start.Before(p.Oldest) {
			p.Oldest = in.Start
		}
	}
	return p, nil
}

// pendingRows are the ids of the rows that are in a spool and not in the database.
func (r *Reader) pendingRows(ctx context.Context, path string, before time.Time) (map[string]bool, error) {
	ids, err := r.spooledRows(path, before.After)
	if err != nil {
		return nil, err
	}
	return ids, r.withoutStored(ctx, ids)
}

func always(time.Time) bool { return true }

// spooledRows are the ids of the rows in a spool whose requests began when it
// counts.
func (r *Reader) spooledRows(path string, counts func(start time.Time) bool) (map[string]bool, error) {
	names, err := spoolFiles(path).files()
	if err != nil {
		return nil, err
	}
	ids := make(map[string]bool)
	for _, name := range names {
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // stored meanwhile
		}
		if err != nil {
			return nil, err
		}
		rows, _ := parseRows(text, len(text))
		for _, row := range rows {
			if counts(row.Start) {
				ids[row.ID] = true
			}
		}
	}
	return ids, nil
}

// openIntents are the intents that have no row.
func (r *Reader) openIntents(ctx context.Context, path string, before time.Time, spooled map[string]bool) ([]tenancy.Intent, error) {
	names, err := intentFiles(path).files()
	if err != nil {
		return nil, err
	}
	var intents []tenancy.Intent
	ids := make(map[string]bool)
	for _, name := range names {
		text, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, in := range appendIntents(nil, text) {
			if in.Start.Before(before) && !spooled[in.ID] {
				intents, ids[in.ID] = append(intents, in), true
			}
		}
	}
	if err := r.withoutStored(ctx, ids); err != nil {
		return nil, err
	}
	// A request of an archived month has its row there.
	return slices.DeleteFunc(intents, func(in tenancy.Intent) bool {
		return !ids[in.ID] || errors.Is(notArchived(ctx, r.db, r.dialect, in.Start, in.Start.Add(1)), ErrArchived)
	}), nil
}

// withoutStored removes the ids that the database has.
func (r *Reader) withoutStored(ctx context.Context, ids map[string]bool) error {
	const atOnce = 500
	list := make([]any, 0, len(ids))
	for id := range ids {
		list = append(list, id)
	}
	for chunk := range slices.Chunk(list, atOnce) {
		found, err := r.db.QueryContext(ctx, "SELECT id FROM "+r.dialect.table+" WHERE id IN ("+marks(r.dialect, len(chunk))+")", chunk...)
		if err != nil {
			return err
		}
		for found.Next() {
			var id string
			if err := found.Scan(&id); err != nil {
				found.Close()
				return err
			}
			delete(ids, id)
		}
		if err := errors.Join(found.Err(), found.Close()); err != nil {
			return err
		}
	}
	return nil
}
