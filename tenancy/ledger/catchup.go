package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// catchUpPatience is how long a reader waits for rows that are in a spool. Where
	// the gateway is well they are in the database within Options.CommitEvery.
	catchUpPatience = 5 * time.Second
	catchUpPause    = 10 * time.Millisecond
)

// CatchUp waits until the database has the rows that are in the spool beside path
// when it is called, so that what is read then lacks none that was acknowledged
// before. The files beside path are those of one gateway. Where that has died, its
// rows are stored, if the database is the file at path and may be written. It waits
// for five seconds at most: rows that the gateway itself can't store are what
// Pending tells.
func (r *Reader) CatchUp(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, catchUpPatience)
	defer cancel()
	waiting, err := r.spooledRows(path, always)
	for ; err == nil && len(waiting) > 0; err = r.withoutStored(ctx, waiting) {
		if path == r.path && r.dialect.schema == schemaNow {
			storeLeft(ctx, path)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(catchUpPause):
		}
	}
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("cannot read what waits beside the ledger: %w", explain(err))
	}
	return nil
}

// storeLeft stores what a gateway that has died has left in its spool. It does
// nothing while one runs. What fails is left to the next start of the gateway.
func storeLeft(ctx context.Context, path string) {
	l := &Ledger{path: path, opts: Options{}.withDefaults()}
	var err error
	if l.lock, err = lockFile(path); err != nil {
		return
	}
	defer func() { _ = l.release() }()
	w, err := openWriter(path, l.opts.BusyTimeout)
	if err != nil {
		return
	}
	l.store = w
	// Files that are damaged are set aside, which is for the gateway to tell.
	names, err := spoolFiles(path).files()
	if err != nil || !whole(names) {
		return
	}
	if l.spool, _, err = openSpool(path, l.opts.Spool, l.damaged); err != nil {
		return
	}
	l.replay(ctx)
}
