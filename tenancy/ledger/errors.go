package ledger

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Errors a caller may branch on.
var (
	// ErrClosed: the ledger was closed before the row was taken.
	ErrClosed = errors.New("ledger is closed")
	// ErrConflict: a different row with the same id is stored already.
	ErrConflict = errors.New("a different row with this id exists")
	// ErrFull: the disk or quota is full.
	ErrFull = errors.New("no space left for the ledger; free some and the next rows are stored")
	// ErrLocked: another process holds the ledger.
	ErrLocked = errors.New("the ledger is in use by another process")
)

// explain adds what an operator can do to the errors of SQLite and the system.
func explain(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w (%w)", ErrFull, err)
	}
	var se *sqlite.Error
	if !errors.As(err, &se) {
		return err
	}
	switch se.Code() & 0xff {
	case sqlite3.SQLITE_FULL:
		return fmt.Errorf("%w (%w)", ErrFull, err)
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return fmt.Errorf("%w: end the tool that has locked the database (%w)", ErrLocked, err)
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM:
		return fmt.Errorf("the file or its folder can't be written: check that the folder exists and its owner (%w)", err)
	case sqlite3.SQLITE_NOTADB:
		return fmt.Errorf("the file is no SQLite database: name another path, or move it away (%w)", err)
	case sqlite3.SQLITE_CORRUPT:
		return fmt.Errorf("the database is damaged: restore it from a copy (%w)", err)
	case sqlite3.SQLITE_IOERR:
		return fmt.Errorf("the disk failed or is full (%w)", err)
	}
	return err
}

// awaitLock takes the lock, and waits a little for a report that stores what a
// gateway that died has left.
func awaitLock(path string) (*os.File, error) {
	const patience, pause = time.Second, 20 * time.Millisecond
	for began := time.Now(); ; time.Sleep(pause) {
		f, err := lockFile(path)
		if err == nil || !errors.Is(err, ErrLocked) || time.Since(began) > patience {
			return f, err
		}
	}
}

// lockFile takes the lock that one writer holds at a time. The kernel frees it
// when the process ends, however it ends.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path+"-lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, explain(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w; a ledger has one writer", path, ErrLocked)
		}
		return nil, fmt.Errorf("cannot lock %s-lock: %w", path, err)
	}
	return f, nil
}
