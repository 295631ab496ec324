package ledger

import (
	"context"
	"database/sql"
	"sync/atomic"
)

const (
	// logPages is how far the write-ahead log grows, in pages and about, before it
	// is copied into the database, and logPagesMost before a commit waits for that.
	logPages, logPagesMost = 16000, 64000
	// rowPages is what a row in a transaction of its own adds to the log: pages of
	// the table and its indexes.
	rowPages = 4
)

// copyLog copies what is committed from the log into the database, and waits for
// nobody: what a reader still needs stays.
const copyLog = "PRAGMA wal_checkpoint(PASSIVE)"

// checkpointer copies the write-ahead log into the database beside the commits.
// Requests wait for commits, and copying takes several times as long as one. The
// log begins anew once all of it is copied, which a copying beside commits never
// finds; so the writer copies the little that came meanwhile by itself.
//
// Its methods are the writer's. What fails is tried again when the log has grown
// further: until then it holds what the database does not, which costs space alone.
type checkpointer struct {
	db     *sql.DB
	cancel context.CancelFunc
	kick   chan struct{}
	done   chan struct{}
	copied atomic.Bool // most of the log, by the goroutine

	pages  int // that the log has grown by since it was last copied whole
	kicked bool
}

// newCheckpointer starts one for an open database.
func newCheckpointer(path string) (*checkpointer, error) {
	db, err := openDB(path, "rw", "synchronous(FULL)", "wal_autocheckpoint(0)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	ctx, cancel := context.WithCancel(context.Background())
	c := &checkpointer{db: db, cancel: cancel, kick: make(chan struct{}, 1), done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.run(ctx)
	}()
	return c, nil
}

func (c *checkpointer) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.kick:
			_, _ = c.db.ExecContext(ctx, copyLog)
			c.copied.Store(true)
		}
	}
}

// grown is told of a commit of so many rows, by the connection that wrote them.
func (c *checkpointer) grown(ctx context.Context, conn *sql.Conn, rows int) {
	c.pages += rowPages * rows
	switch {
	case c.copied.CompareAndSwap(true, false), c.pages >= logPagesMost:
		_, _ = conn.ExecContext(ctx, copyLog)
		c.pages, c.kicked = 0, false
	case c.pages >= logPages && !c.kicked:
		c.kicked = true
		select {
		case c.kick <- struct{}{}:
		default: // it has yet to begin with what was asked before
		}
	}
}

func (c *checkpointer) close() {
	c.cancel()
	<-c.done
	_ = c.db.Close() // nothing of it is to be kept
}
