package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/ledger"
)

// RetentionConfig says for how long rows stay in the ledger.
type RetentionConfig struct {
	Months  int    `yaml:"months"`  // that are over and stay; 0: all
	Archive string `yaml:"archive"` // folder of the files of older ones
}

// retention checks for how long rows stay.
func (v *validator) retention(c *RetentionConfig) {
	v.count("ledger.retention.months", int64(c.Months), 0, 1200)
	switch {
	case c.Months == 0 && c.Archive != "":
		v.errorf("ledger.retention.months", "is missing, should be how many months that are over stay in the ledger")
	case c.Months > 0 && c.Archive == "":
		v.errorf("ledger.retention.archive", "is missing, should be the folder for the files of older months")
	}
	if c.Archive != "" {
		if st, err := os.Stat(c.Archive); err != nil || !st.IsDir() {
			v.errorf("ledger.retention.archive", "the folder %s does not exist; make it first", c.Archive)
		}
	}
	if c.Months > 0 && v.cfg.Ledger.PostgresFile != "" {
		v.errorf("ledger.retention", "is for a ledger in SQLite: several gateways may share one in PostgreSQL; run `sluice ledger archive` for it, from one place")
	}
}

// retentionEvery is how often the ledger is looked at.
const retentionEvery = time.Hour

// retention moves the months of the ledger that are older than it is to hold into
// files of their own, one after the other, while the gateway serves.
type retention struct {
	months int
	// due lists months that begin before an instant and have rows, archive moves
	// one.
	due     func(ctx context.Context, before time.Time) ([]ledger.Month, error)
	archive func(ctx context.Context, month, now time.Time) (ledger.Archived, error)
	log     *slog.Logger

	failing atomic.Bool // the last look has left something undone that is due
	warned  map[time.Time]bool
}

func newRetention(c *LedgerConfig, books *ledger.Ledger, log *slog.Logger) *retention {
	return &retention{
		months: c.Retention.Months, due: books.Months, log: log, warned: make(map[time.Time]bool),
		archive: func(ctx context.Context, month, now time.Time) (ledger.Archived, error) {
			return ledger.Archive(ctx, c.Path, c.Retention.Archive, month, now)
		},
	}
}

// Run looks at once and then every hour, until ctx ends.
func (r *retention) Run(ctx context.Context) error {
	if r.months == 0 {
		return nil
	}
	tick := time.NewTicker(retentionEvery)
	defer tick.Stop()
	for {
		r.look(ctx, time.Now())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// look archives what is due. A month that is not closed stays: nothing may be added
// to it once it is archived.
func (r *retention) look(ctx context.Context, now time.Time) {
	before := tenancy.Month(now).AddDate(0, -r.months, 0)
	months, err := r.due(ctx, before)
	failed := err != nil && !errors.Is(err, context.Canceled)
	if failed {
		r.log.Warn("cannot look for months to archive; it is tried again", "error", err, "after", retentionEvery)
	}
	for _, m := range months {
		if ctx.Err() != nil {
			return
		}
		name := m.First.Format("2006-01")
		if !m.Closed {
			failed = true
			if !r.warned[m.First] {
				r.warned[m.First] = true
				r.log.Warn("a month is to be archived and is not closed; it stays in the ledger until it is", "month", name)
			}
			continue
		}
		a, err := r.archive(ctx, m.First, now)
		if err != nil {
			failed = failed || ctx.Err() == nil
			r.log.Error("cannot archive a month; it is tried again", "month", name, "error", err, "after", retentionEvery)
			continue
		}
		r.log.Info("a month of the ledger is archived", "month", name, "rows", a.Rows, "file", a.File, "sha256", a.SHA256)
	}
	r.failing.Store(failed)
}
