package ledger

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/sluicegate/sluice/tenancy"
)

func rowsOf(from, to int) (rows []*tenancy.Row) {
	for i := from; i < to; i++ {
		rows = append(rows, fullRow(fmt.Sprint(i)))
	}
	return rows
}

func mustOpenSpool(t testing.TB, path string, limit int64, damaged *int) (*spool, map[string]bool) {
	t.Helper()
	s, ids, err := openSpool(path, limit, func(string, int64) { *damaged++ })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.close() })
	return s, ids
}

// drain reads a spool to its end, n rows at a time.
func drain(t testing.TB, s *spool, n int) (ids []string) {
	t.Helper()
	for {
		rows, err := s.first(n)
		if err != nil {
			t.Fatal(err)
		}
		if len(rows) == 0 {
			return ids
		}
		for _, row := range rows {
			ids = append(ids, row.ID)
			if !equalRows(row, fullRow(row.ID)) {
				t.Errorf("row %+v", row)
			}
		}
		if err := s.stored(); err != nil {
			t.Fatal(err)
		}
	}
}

func wantIDs(t testing.TB, got []string, n int) {
	t.Helper()
	for i, id := range got {
		if id != fmt.Sprint(i) {
			t.Fatalf("row %d is %s", i, id)
		}
	}
	if len(got) != n {
		t.Errorf("%d rows, want %d", len(got), n)
	}
}

// Rows come back in their order, over files and restarts, while others are
// added; at the end no file is left.
func TestSpoolGivesBackInOrder(t *testing.T) {
	path, damaged := tempPath(t), 0
	s, _ := mustOpenSpool(t, path, 1<<30, &damaged)
	n := 0
	for n < 12_000 {
		if err := s.append(rowsOf(n, n+500)); err != nil {
			t.Fatal(err)
		}
		n += 500
	}
	if len(s.files) < 2 {
		t.Errorf("%d files: no file was ended", len(s.files))
	}
	s.close()
	s, ids := mustOpenSpool(t, path, 1<<30, &damaged)
	if len(ids) != n || s.rows.Load() != int64(n) {
		t.Errorf("%d ids, %d rows, want %d", len(ids), s.rows.Load(), n)
	}
	if err := s.append(rowsOf(n, n+7)); err != nil {
		t.Fatal(err)
	}
	wantIDs(t, drain(t, s, 333), n+7)
	if names, err := spoolFiles(path).files(); err != nil || len(names) != 0 || s.rows.Load() != 0 || s.bytes.Load() != 0 || damaged != 0 {
		t.Errorf("left: %v (%v), %d rows, %d bytes, %d damaged", names, err, s.rows.Load(), s.bytes.Load(), damaged)
	}
}

// A file that power failure or a stray byte has damaged gives the rows before
// that, and is kept.
func TestDamagedSpool(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		path, damaged := tempPath(t), 0
		s, _ := mustOpenSpool(t, path, 1<<30, &damaged)
		var ends []int64
		for i := range 5 {
			if err := s.append(rowsOf(i, i+1)); err != nil {
				t.Fatal(err)
			}
			ends = append(ends, s.files[0].size)
		}
		name := s.files[0].name
		s.close()
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		at := rng.Int64N(int64(len(text)))
		if cut := rng.IntN(2) == 0; cut {
			text = text[:at]
		} else {
			text[at] ^= 0x20
		}
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
		want := 0
		for ends[want] <= at {
			want++
		}
		s, _ = mustOpenSpool(t, path, 1<<30, &damaged)
		wantIDs(t, drain(t, s, 2), want)
		whole := int64(len(text)) == at && (want == 0 && at == 0 || want > 0 && ends[want-1] == at)
		if _, err := os.Stat(name + ".damaged"); (err != nil) != whole || (damaged == 0) != whole {
			t.Errorf("byte %d: kept %v, told %d times", at, err, damaged)
		}
	}
}

// Damage that happens while the spool is in use costs the rows of one file and
// keeps them; the others go on.
func TestSpoolDamagedInUse(t *testing.T) {
	path, damaged := tempPath(t), 0
	s, _ := mustOpenSpool(t, path, 1<<30, &damaged)
	if err := s.append(rowsOf(5, 8)); err != nil {
		t.Fatal(err)
	}
	s.retire()
	if err := s.append(rowsOf(0, 4)); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(s.files[0].name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("x"), 20); err != nil {
		t.Fatal(err)
	}
	wantIDs(t, drain(t, s, 100), 4)
	if damaged != 1 || s.rows.Load() != 0 || s.bytes.Load() != 0 {
		t.Errorf("told %d times, %d rows, %d bytes", damaged, s.rows.Load(), s.bytes.Load())
	}
}

func FuzzSpool(f *testing.F) {
	path, damaged := tempPath(f), 0
	s, _ := mustOpenSpool(f, path, 1<<30, &damaged)
	if err := s.append(rowsOf(0, 3)); err != nil {
		f.Fatal(err)
	}
	text, err := os.ReadFile(s.files[0].name)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(text[:len(text)-1])
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, text []byte) {
		rows, end := parseRows(text, len(text))
		if end > len(text) {
			t.Fatalf("read %d bytes of %d", end, len(text))
		}
		for _, row := range rows {
			if err := row.Check(); err != nil {
				t.Fatalf("the spool gave an unusable row: %v", err)
			}
		}
	})
}
