package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sluicegate/sluice/tenancy/ledger"
)

// LedgerConfig says where the ledger's rows are kept.
type LedgerConfig struct {
	Path         string          `yaml:"path"`         // SQLite database; with postgresFile, the name of the files beside one
	PostgresFile string          `yaml:"postgresFile"` // holds the connection string of a PostgreSQL database
	Spool        ByteSize        `yaml:"spool"`        // rows that the database does not take
	CommitEvery  time.Duration   `yaml:"commitEvery"`  // rows are in the spool before; 0: they go to the database at once
	SyncIntents  bool            `yaml:"syncIntents"`  // requests in flight leave a trace after a loss of power
	Retention    RetentionConfig `yaml:"retention"`
}

// Bounds of LedgerConfig.Spool, and the most of CommitEvery.
const (
	maxCommitEvery = 10 * time.Second

	minSpool = 1 * MiB
	maxSpool = 1024 * 1024 * MiB
)

func defaultLedger() LedgerConfig {
	return LedgerConfig{Path: "sluice.db", Spool: 256 * MiB}
}

// ledger checks where the rows go.
func (v *validator) ledger() {
	c := &v.cfg.Ledger
	if c.Path == "" {
		v.errorf("ledger.path", "is missing, should be the SQLite database to write to")
	} else if st, err := os.Stat(filepath.Dir(c.Path)); err != nil || !st.IsDir() {
		v.errorf("ledger.path", "the folder %s does not exist; make it first", filepath.Dir(c.Path))
	}
	if c.Spool != 0 && (c.Spool < minSpool || c.Spool > maxSpool) {
		v.errorf("ledger.spool", "should be 1MiB to 1024GiB, or 0 for none")
	}
	switch {
	case c.CommitEvery < 0 || c.CommitEvery > maxCommitEvery:
		v.errorf("ledger.commitEvery", "should be 0s to %s", maxCommitEvery)
	case c.CommitEvery > 0 && c.Spool == 0:
		v.errorf("ledger.commitEvery", "needs ledger.spool: rows are kept there until the database has them")
	}
	v.retention(&c.Retention)
	if c.PostgresFile == "" {
		return
	}
	dsn, err := readSecretText(c.PostgresFile)
	if err == nil {
		err = ledger.CheckPostgres(dsn)
	}
	if err != nil && !isMissing(err) {
		v.errorf("ledger.postgresFile", "cannot use %s: %v", c.PostgresFile, err)
	}
}

func (a *app) openBooks() (*ledger.Ledger, error) {
	c := &a.cfg.Ledger
	opts := ledger.Options{Spool: int64(c.Spool), CommitEvery: c.CommitEvery, SyncIntents: c.SyncIntents, Counter: a.tenants, Log: a.log}
	// Only a name in the rows: without one they are told apart by Process.
	opts.Gateway, _ = os.Hostname()
	if c.Spool == 0 {
		opts.Spool = -1
	}
	if c.PostgresFile == "" {
		return ledger.Open(c.Path, opts)
	}
	dsn, err := readSecretText(c.PostgresFile)
	if err != nil {
		return nil, fmt.Errorf("cannot read ledger.postgresFile: %w", err)
	}
	return ledger.OpenPostgres(c.Path, dsn, opts)
}

// booksReader reads the ledger of a configuration, with the rows that have been
// acknowledged by now.
func booksReader(ctx context.Context, c *LedgerConfig) (*ledger.Reader, error) {
	if c.PostgresFile == "" {
		return fileReader(ctx, c.Path)
	}
	dsn, err := readSecretText(c.PostgresFile)
	if err != nil {
		return nil, fmt.Errorf("cannot read ledger.postgresFile: %w", err)
	}
	r, err := ledger.OpenPostgresReader(dsn)
	if err != nil {
		return nil, err
	}
	return caughtUp(ctx, r, c.Path)
}

// fileReader reads the ledger in a file, likewise.
func fileReader(ctx context.Context, path string) (*ledger.Reader, error) {
	r, err := ledger.OpenReader(path)
	if err != nil {
		return nil, err
	}
	return caughtUp(ctx, r, path)
}

func caughtUp(ctx context.Context, r *ledger.Reader, path string) (*ledger.Reader, error) {
	if err := r.CatchUp(ctx, path); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}
