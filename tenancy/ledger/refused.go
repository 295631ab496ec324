package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// RefusedRow is one of the file of rows that the database would not have.
type RefusedRow struct {
	// At is when it was refused, Error why.
	At    time.Time
	Error string
	Row   *tenancy.Row
}

// refusedFile is where the rows are.
func refusedFile(path string) string { return path + "-refused" }

// appendRefused adds a row to the file.
func appendRefused(path string, r *RefusedRow) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := lockRefused(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Sync(), f.Close())
}

// lockRefused opens the file and waits until nobody else has it: who puts rows back
// replaces it. Closing it lets the next one in.
func lockRefused(path string, flag int) (*os.File, error) {
	for {
		f, err := os.OpenFile(refusedFile(path), flag, 0o600)
		if err != nil {
			return nil, err
		}
		if err := flock(f); err != nil {
			f.Close()
			return nil, err
		}
		ours, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, err
		}
		// It may have been replaced while it was waited for.
		if named, err := os.Stat(refusedFile(path)); err == nil && os.SameFile(ours, named) {
			return f, nil
		}
		f.Close()
	}
}

// flock waits for the lock on a file, which its closing gives up.
func flock(f *os.File) error {
	for {
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// Refused lists the rows that the ledger at path could not keep in its database,
// oldest first.
func Refused(path string) ([]RefusedRow, error) {
	text, err := os.ReadFile(refusedFile(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot read the refused rows: %w", err)
	}
	rows, err := parseRefused(refusedFile(path), text)
	if err != nil {
		return nil, fmt.Errorf("cannot read the refused rows: %w", err)
	}
	return rows, nil
}

func parseRefused(name string, text []byte) ([]RefusedRow, error) {
	var rows []RefusedRow
	n := 0
	for line := range bytes.Lines(text) {
		n++
		var r RefusedRow
		err := json.Unmarshal(line, &r)
		if err == nil && r.Row == nil {
			err = errors.New("it has no row")
		}
		if err == nil {
			err = r.Row.Check()
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: the line is no refused row: %w; move it to another file", name, n, err)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// PutBack is what became of the refused rows.
type PutBack struct {
	// Stored rows are in the database now; There ones were already.
	Stored, There int
	// Left are those that it still refuses, with why. They are in the file.
	Left []RefusedRow
}

// PutBackRefused offers the refused rows of the ledger at path to its database
// again, while a gateway may be writing. What it takes is marked as recovered and
// leaves the file. An error leaves the file as it is; doing it again is harmless.
func PutBackRefused(ctx context.Context, path string) (PutBack, error) {
	if _, err := readMode(path); err != nil {
		return PutBack{}, fmt.Errorf("cannot put refused rows back: %w", err)
	}
	return putBack(ctx, path, func() (store, error) {
		r, err := openReader(path)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		if err := r.current(ctx); err != nil {
			return nil, err
		}
		return openWriter(path, 5*time.Second)
	})
}

// PutBackRefusedPostgres is as PutBackRefused, of a ledger in a PostgreSQL database
// whose refused rows are beside path.
func PutBackRefusedPostgres(ctx context.Context, path, dsn string) (PutBack, error) {
	return putBack(ctx, path, func() (store, error) {
		p, down, err := openPostgres(dsn)
		if err = errors.Join(err, down); err != nil {
			if p != nil {
				p.pool.Close()
			}
			return nil, fmt.Errorf("PostgreSQL: %w", err)
		}
		return p, nil
	})
}

// current returns an error unless the database has the schema that this program
// writes: bringing it up to date is the gateway's.
func (r *Reader) current(ctx context.Context) error {
	version, err := r.schema(ctx)
	if err == nil && version != r.dialect.known {
		err = fmt.Errorf("the ledger's schema is version %d, this program writes version %d: start the gateway of this version once", version, r.dialect.known)
	}
	return err
}

func putBack(ctx context.Context, path string, open func() (store, error)) (p PutBack, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot put refused rows back: %w", explain(err))
		}
	}()
	f, err := lockRefused(path, os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return p, err
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		return p, err
	}
	rows, err := parseRefused(f.Name(), text)
	if err != nil {
		return p, err
	}
	db, err := open()
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, db.close()) }()
	for _, r := range rows {
		res, err := offerAgain(ctx, db, r.Row)
		var bad *rowError
		switch {
		case errors.As(err, &bad):
			r.Error = bad.Error()
			p.Left = append(p.Left, r)
		case err != nil:
			return p, err
		case res == conflicting:
			r.Error = ErrConflict.Error()
			p.Left = append(p.Left, r)
		case res == repeated:
			p.There++
		default:
			p.Stored++
		}
	}
	return p, replaceRefused(path, p.Left)
}

// offerAgain stores a row, marked as one that did not come from the gateway that
// made it.
func offerAgain(ctx context.Context, db store, row *tenancy.Row) (result, error) {
	marked := *row
	marked.Flags |= tenancy.FlagRecovered
	results, err := db.commit(ctx, []*tenancy.Row{&marked})
	if err == nil && results[0] == conflicting { // with the row itself, as its gateway stored it?
		results, err = db.commit(ctx, []*tenancy.Row{row})
	}
	if err != nil {
		return 0, err
	}
	return results[0], nil
}

// replaceRefused makes the file one of the rows that are left. The caller has it
// locked; who waits for it finds that it is another one.
func replaceRefused(path string, left []RefusedRow) error {
	name := refusedFile(path)
	if len(left) == 0 {
		return errors.Join(os.Remove(name), syncFolder(name))
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	for i := range left {
		if err := enc.Encode(&left[i]); err != nil {
			return err
		}
	}
	tmp := name + ".new"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text.Bytes())
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return errors.Join(os.Rename(tmp, name), syncFolder(name))
}
