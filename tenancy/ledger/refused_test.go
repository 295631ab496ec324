package ledger

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// eachLedger runs a test with both databases, with what puts refused rows back.
func eachLedger(t *testing.T, test func(t *testing.T, path string, open func(Options) *Ledger, back func(context.Context) (PutBack, error))) {
	t.Run("sqlite", func(t *testing.T) {
		path := tempPath(t)
		test(t, path, func(o Options) *Ledger { return mustOpen(t, path, o) },
			func(ctx context.Context) (PutBack, error) { return PutBackRefused(ctx, path) })
	})
	t.Run("postgres", func(t *testing.T) {
		dsn, path := database(t), tempPath(t)
		test(t, path, func(o Options) *Ledger { return mustOpenPostgres(t, path, dsn, o) },
			func(ctx context.Context) (PutBack, error) { return PutBackRefusedPostgres(ctx, path, dsn) })
	})
}

// storedRows reads all rows, whoever has made them.
func storedRows(t testing.TB, l *Ledger) []*tenancy.Row {
	t.Helper()
	var out []*tenancy.Row
	for row, err := range l.Rows(context.Background(), time.Time{}, distantFuture) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, row)
	}
	return out
}

// Refused rows go back once the database takes them, while the gateway writes; what
// it still refuses stays, and doing it again does no harm.
func TestPutBackRefused(t *testing.T) {
	eachLedger(t, func(t *testing.T, path string, open func(Options) *Ledger, back func(context.Context) (PutBack, error)) {
		l := open(Options{})
		if p, err := back(t.Context()); err != nil || p.Stored+p.There+len(p.Left) != 0 {
			t.Fatalf("without refused rows: %+v, %v", p, err)
		}
		if err := l.Record(t.Context(), fullRow("there")); err != nil {
			t.Fatal(err)
		}
		other := fullRow("there")
		other.OutputTokens++
		fine, same := fullRow("fine"), fullRow("there")
		for _, row := range []*tenancy.Row{other, fine, same, fine} {
			if err := l.refuse(row, fmt.Errorf("the database refuses the row: some constraint")); err != nil {
				t.Fatal(err)
			}
		}
		if rows, err := Refused(path); err != nil || len(rows) != 4 || rows[1].Row.ID != "fine" || rows[1].At.IsZero() ||
			!strings.Contains(rows[1].Error, "some constraint") {
			t.Fatalf("refused %+v, %v", rows, err)
		}
		p, err := back(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if p.Stored != 1 || p.There != 2 || len(p.Left) != 1 || p.Left[0].Row.OutputTokens != 251 || p.Left[0].Error != ErrConflict.Error() {
			t.Errorf("put back %+v", p)
		}
		rows := storedRows(t, l)
		if len(rows) != 2 {
			t.Fatalf("%d rows", len(rows))
		}
		for _, row := range rows {
			if got := row.Flags.Has(tenancy.FlagRecovered); got != (row.ID == "fine") {
				t.Errorf("row %s: recovered %v", row.ID, got)
			}
			if row.OutputTokens != 250 {
				t.Errorf("row %s has %d output tokens", row.ID, row.OutputTokens)
			}
		}
		p, err = back(t.Context())
		if err != nil || p.Stored+p.There != 0 || len(p.Left) != 1 {
			t.Errorf("again: %+v, %v", p, err)
		}
		if left, err := Refused(path); err != nil || len(left) != 1 || !equalRows(left[0].Row, other) {
			t.Errorf("left %+v, %v", left, err)
		}
	})
}

// What is refused while rows are put back is not lost.
func TestPutBackBesideRefusals(t *testing.T) {
	path := tempPath(t)
	l := mustOpen(t, path, Options{})
	const each, writers = 40, 4
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if err := l.refuse(fullRow(fmt.Sprint(w, "-", i)), ErrConflict); err != nil {
					t.Error(err)
				}
			}
		})
	}
	stored := 0
	put := func() {
		p, err := PutBackRefused(t.Context(), path)
		if err != nil {
			t.Error(err)
		}
		stored += p.Stored
	}
	for range 10 {
		put()
	}
	wg.Wait()
	put()
	if rows := storedRows(t, l); stored != each*writers || len(rows) != stored {
		t.Errorf("%d rows put back, %d stored, want %d", stored, len(rows), each*writers)
	}
	if rows, err := Refused(path); err != nil || len(rows) != 0 {
		t.Errorf("%d rows left, %v", len(rows), err)
	}
}

// A file that is not what it should be is an error that names the line, and stays.
func TestBadRefusedFile(t *testing.T) {
	path := tempPath(t)
	l := mustOpen(t, path, Options{})
	if err := l.refuse(fullRow("r"), ErrConflict); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path + "-refused")
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"{}\n", "no JSON\n", `{"Row":{"ID":"r"}}` + "\n", string(good[:len(good)/2])} {
		text := string(good) + bad
		if err := os.WriteFile(path+"-refused", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := PutBackRefused(t.Context(), path); err == nil || !strings.Contains(err.Error(), "-refused:2: the line is no refused row") {
			t.Errorf("%q: %v", bad, err)
		}
		if _, err := Refused(path); err == nil {
			t.Errorf("%q was listed", bad)
		}
		if after, err := os.ReadFile(path + "-refused"); err != nil || string(after) != text {
			t.Errorf("the file is %q, %v", after, err)
		}
	}
	if rows := storedRows(t, l); len(rows) != 0 {
		t.Errorf("%d rows", len(rows))
	}
	if _, err := PutBackRefused(t.Context(), path+"x"); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("no ledger: %v", err)
	}
}

func FuzzParseRefused(f *testing.F) {
	f.Add([]byte(`{"At":"2026-03-01T00:00:00Z","Error":"x","Row":{"ID":"r","Outcome":"completed","Start":"2026-03-01T00:00:00Z"}}` + "\n"))
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		rows, err := parseRefused("f", text)
		for i := range rows {
			if err == nil && rows[i].Row.Check() != nil {
				t.Errorf("an unfit row: %+v", rows[i].Row)
			}
		}
	})
}
