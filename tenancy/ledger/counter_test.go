package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// tally is a Counter that keeps what it is told.
type tally struct {
	mu    sync.Mutex
	ids   []string
	at    tenancy.Counted
	month map[time.Time]*tenancy.Totals
}

func (c *tally) Count(rows []*tenancy.Row, at tenancy.Counted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = at
	for _, row := range rows {
		c.ids = append(c.ids, row.ID)
		month := tenancy.Month(row.End())
		if c.month == nil {
			c.month = make(map[time.Time]*tenancy.Totals)
		}
		if c.month[month] == nil {
			c.month[month] = &tenancy.Totals{Currency: "USD"}
		}
		c.month[month].Add(row)
	}
}

func (c *tally) Checkpoint() (list []tenancy.Checkpoint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, month := range slices.SortedFunc(maps.Keys(c.month), time.Time.Compare) {
		list = append(list, tenancy.Checkpoint{Month: month, Usage: []tenancy.Usage{{Tenant: "acme", Model: "qwen", Totals: *c.month[month]}}})
	}
	return list
}

func (c *tally) counted() ([]string, tenancy.Counted) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.ids), c.at
}

// snapshot reads the ledger's books of a month.
func snapshot(t testing.TB, l *Ledger, month time.Time) (noted []tenancy.Checkpoint, counted map[string][]tenancy.Usage, uncounted [3]int64) {
	t.Helper()
	s, err := l.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if noted, err = s.Checkpoints(t.Context(), month); err != nil {
		t.Fatal(err)
	}
	if counted, err = s.Counted(t.Context(), month); err != nil {
		t.Fatal(err)
	}
	if uncounted[0], uncounted[1], uncounted[2], err = s.Uncounted(t.Context(), month); err != nil {
		t.Fatal(err)
	}
	return noted, counted, uncounted
}

// A row is counted once, when it is durable and before its request is told; a note
// of what is counted stands for exactly the rows that the ledger has.
func TestCounterCountsDurableRows(t *testing.T) {
	eachLedger(t, func(t *testing.T, path string, open func(Options) *Ledger, _ func(context.Context) (PutBack, error)) {
		c := &tally{}
		l := open(Options{Counter: c, Gateway: "gw-1", NoteEvery: time.Hour})
		for i := range 5 {
			if err := serve(t, l, fmt.Sprint("r", i)); err != nil {
				t.Fatal(err)
			}
			if ids, at := c.counted(); len(ids) != i+1 || at.Seq == 0 || at.Waiting != 0 {
				t.Fatalf("after row %d: counted %v, %+v", i, ids, at)
			}
		}
		other := fullRow("r0")
		other.OutputTokens++
		if err := l.Record(t.Context(), other); !errors.Is(err, ErrConflict) {
			t.Fatal(err)
		}
		april := fullRow("april")
		april.Start = april.Start.AddDate(0, 1, 0)
		if err := l.RecordLater(t.Context(), april); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		ids, at := c.counted()
		if want := []string{"r0", "r1", "r2", "r3", "r4", "april"}; !slices.Equal(ids, want) {
			t.Errorf("counted %v, want %v: a refused row is none", ids, want)
		}
		l = open(Options{})
		for month, rows := range map[time.Time]int64{march: 5, april.Start: 1} {
			noted, counted, uncounted := snapshot(t, l, month)
			if len(noted) != 1 || noted[0].Gateway != "gw-1" || noted[0].Process == "" || noted[0].Seq < at.Seq || noted[0].At.IsZero() {
				t.Fatalf("noted %+v, counted up to %+v", noted, at)
			}
			if got := counted[noted[0].Process]; !reflect.DeepEqual(got, noted[0].Usage) || len(got) != 1 || got[0].Rows != rows {
				t.Errorf("the ledger has %+v, the note says %+v", got, noted[0].Usage)
			}
			if uncounted != [3]int64{} {
				t.Errorf("uncounted %v", uncounted)
			}
		}
	})
}

// Rows that came by the spool are counted once, when they are in it, and are not
// noted before the database has them.
func TestCounterInAnOutage(t *testing.T) {
	path := tempPath(t)
	c := &tally{}
	opts := impatient()
	opts.Counter, opts.NoteEvery = c, time.Millisecond
	l := mustOpen(t, path, opts)
	if err := serve(t, l, "before"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a note", func() bool {
		noted, _, _ := snapshot(t, l, march)
		return len(noted) == 1 && noted[0].Usage[0].Rows == 1
	})
	release := hold(t, path)
	for i := range 10 {
		if err := serve(t, l, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if ids, at := c.counted(); len(ids) != 11 || at.Waiting != 10 {
		t.Errorf("in the outage: counted %v, %+v", ids, at)
	}
	if noted, counted, _ := snapshot(t, l, march); noted[0].Usage[0].Rows != 1 || !reflect.DeepEqual(counted[noted[0].Process], noted[0].Usage) {
		t.Errorf("noted in the outage: %+v", noted)
	}
	release()
	eventually(t, "a note of all", func() bool { noted, _, _ := snapshot(t, l, march); return noted[0].Usage[0].Rows == 11 })
	ids, at := c.counted()
	if len(ids) != 11 || at.Waiting != 0 {
		t.Errorf("counted %v, %+v", ids, at)
	}
	if noted, counted, uncounted := snapshot(t, l, march); !reflect.DeepEqual(counted[noted[0].Process], noted[0].Usage) || uncounted != [3]int64{} {
		t.Errorf("the ledger has %+v, the note says %+v, uncounted %v", counted, noted, uncounted)
	}
}

// A database that is slow has its rows counted once, though they are offered to it
// twice.
func TestCounterOfSlowDatabase(t *testing.T) {
	gate := make(chan struct{})
	c := &tally{}
	l := mustOpen(t, tempPath(t), Options{Counter: c, Patience: time.Millisecond, wrap: func(s store) store { return &stuckStore{s, gate} }})
	for i := range 10 {
		if err := serve(t, l, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	close(gate)
	eventually(t, "the spool to be empty", func() bool { return !l.Stats().Failing })
	ids, at := c.counted()
	slices.Sort(ids)
	if len(slices.Compact(slices.Clone(ids))) != 10 || len(ids) != 10 || at.Waiting != 0 {
		t.Errorf("counted %v, %+v", ids, at)
	}
}

// A process that was killed has noted less than it had counted; its note still
// stands for exactly the rows that were there then, also where its last rows are
// stored by the next process, and what that counts is its own.
func TestCounterAfterAKill(t *testing.T) {
	path := tempPath(t)
	opts := impatient()
	gate := &noteGate{}
	opts.Counter, opts.NoteEvery = &tally{}, time.Millisecond
	opts.wrap = func(s store) store { gate.store = s; return gate }
	l := mustOpen(t, path, opts)
	if err := serve(t, l, "noted"); err != nil {
		t.Fatal(err)
	}
	awaitNote(t, l)
	gate.shut.Store(true)
	if err := serve(t, l, "after the note"); err != nil {
		t.Fatal(err)
	}
	release := hold(t, path)
	if err := serve(t, l, "in the spool"); err != nil {
		t.Fatal(err)
	}
	if err := l.Begin(t.Context(), intent("in flight")); err != nil {
		t.Fatal(err)
	}
	killed := copyLedger(t, path)
	release()

	next := &tally{}
	again := mustOpen(t, killed, Options{Counter: next, NoteEvery: time.Millisecond})
	if rows := storedRows(t, again); len(rows) != 4 {
		t.Fatalf("%d rows", len(rows))
	}
	if err := serve(t, again, "new"); err != nil {
		t.Fatal(err)
	}
	awaitNote(t, again)
	noted, counted, uncounted := snapshot(t, again, march)
	if len(noted) != 2 {
		t.Fatalf("noted %+v", noted)
	}
	for _, n := range noted {
		if got := counted[n.Process]; !reflect.DeepEqual(got, n.Usage) || got[0].Rows != 1 {
			t.Errorf("process %s: the ledger has %+v, the note says %+v", n.Process, got, n.Usage)
		}
	}
	if want := [3]int64{0, 1, 2}; uncounted != want {
		t.Errorf("uncounted %v, want %v: one lost, two after the note", uncounted, want)
	}
	if ids, _ := next.counted(); !slices.Equal(ids, []string{"new"}) {
		t.Errorf("the next process counts %v", ids)
	}
}

// A note that fails is made again.
func TestNoteFails(t *testing.T) {
	path := tempPath(t)
	opts := impatient()
	opts.Counter, opts.NoteEvery = &tally{}, 5*time.Millisecond
	l := mustOpen(t, path, opts)
	release := hold(t, path)
	if err := serve(t, l, "r"); err != nil {
		t.Fatal(err)
	}
	release()
	eventually(t, "the note", func() bool { noted, _, _ := snapshot(t, l, march); return len(noted) == 1 })
	tool := hold(t, path)
	tool()
	if err := serve(t, l, "s"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the next note", func() bool { noted, _, _ := snapshot(t, l, march); return noted[0].Usage[0].Rows == 2 })
}

func TestMonths(t *testing.T) {
	eachLedger(t, func(t *testing.T, _ string, open func(Options) *Ledger, _ func(context.Context) (PutBack, error)) {
		l := open(Options{})
		for i, end := range []time.Time{march, march.Add(time.Hour), april.Add(-1), june} {
			row := fullRow(fmt.Sprint(i))
			row.Duration, row.Start = time.Second, end.Add(-time.Second)
			if err := l.Record(t.Context(), row); err != nil {
				t.Fatal(err)
			}
		}
		got, err := l.Months(t.Context(), june)
		if err != nil || len(got) != 1 || !got[0].First.Equal(march) || got[0].Closed {
			t.Errorf("before June: %+v, %v", got, err)
		}
		if got, err := l.Months(t.Context(), distantFuture); err != nil || len(got) != 2 || !got[1].First.Equal(june) {
			t.Errorf("all: %+v, %v", got, err)
		}
		if got, err := l.Months(t.Context(), february); err != nil || len(got) != 0 {
			t.Errorf("before February: %+v, %v", got, err)
		}
	})
}

// Rows belong to the month that they are booked in: one whose rows have all gone to
// an archive is none that has rows, though a late one ended in it.
func TestMonthsOfLateRows(t *testing.T) {
	eachBooks(t, func(t *testing.T, _ string, reopen func() *Ledger, books func() *Books) {
		l, b := reopen(), books()
		if _, err := b.Freeze(t.Context(), Closing{Month: march, At: june, By: "j.doe"}); err != nil {
			t.Fatal(err)
		}
		for _, row := range []*tenancy.Row{endsAt("late", march.Add(time.Hour)), endsAt("june", june)} {
			if err := l.Record(t.Context(), row); err != nil {
				t.Fatal(err)
			}
		}
		got, err := l.Months(t.Context(), distantFuture)
		if want := []Month{{First: april}, {First: june}}; err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	})
}

// What a process has counted can't be compared once some of it is in an archive.
func TestUsageOfArchivedMonths(t *testing.T) {
	path := tempPath(t)
	l := mustOpen(t, path, Options{})
	if err := l.Record(t.Context(), endsAt("r", march.Add(time.Hour))); err != nil {
		t.Fatal(err)
	}
	if _, err := Archive(t.Context(), path, t.TempDir(), march, june); err != nil {
		t.Fatal(err)
	}
	s, err := l.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.UsageOf(t.Context(), l.process, 1, march, distantFuture); !errors.Is(err, ErrArchived) {
		t.Errorf("of March: %v", err)
	}
	if _, err := s.UsageOf(t.Context(), l.process, 1, april, distantFuture); err != nil {
		t.Errorf("of later months: %v", err)
	}
}

// noteGate is a store that takes no notes while it is shut.
type noteGate struct {
	store
	shut atomic.Bool
}

func (g *noteGate) checkpoint(ctx context.Context, list []tenancy.Checkpoint) error {
	if g.shut.Load() {
		return errors.New("not now")
	}
	return g.store.checkpoint(ctx, list)
}

// awaitNote waits until the ledger has noted what is counted.
func awaitNote(t testing.TB, l *Ledger) {
	t.Helper()
	eventually(t, "a note", func() bool {
		noted, _, _ := snapshot(t, l, march)
		return slices.ContainsFunc(noted, func(c tenancy.Checkpoint) bool { return c.Process == l.process })
	})
}

// SQL sums to what the rows sum to, by tenant, model and currency; and of one
// process up to a place to what it has made by then, corrections and what was put
// back apart.
func TestUsage(t *testing.T) {
	eachLedger(t, func(t *testing.T, _ string, open func(Options) *Ledger, _ func(context.Context) (PutBack, error)) {
		c := &tally{}
		l := open(Options{Counter: c})
		var rows []*tenancy.Row
		for i := range 24 {
			row := fullRow(fmt.Sprint("r", i))
			row.Tenant, row.Model, row.Currency = fmt.Sprint("t", i%2), fmt.Sprint("m", i%3), []string{"EUR", "USD"}[i/12]
			row.OutputTokens += int64(i)
			rows = append(rows, row)
		}
		rows[5].Flags |= tenancy.FlagRecovered
		rows[6].CorrectionOf = "r0"
		sums := func(list []*tenancy.Row) []tenancy.Usage {
			byKey := make(map[[3]string]*tenancy.Usage)
			for _, row := range list {
				key := [3]string{row.Tenant, row.Model, row.Currency}
				if byKey[key] == nil {
					byKey[key] = &tenancy.Usage{Tenant: row.Tenant, Model: row.Model, Totals: tenancy.Totals{Currency: row.Currency}}
				}
				byKey[key].Add(row)
			}
			var out []tenancy.Usage
			for _, key := range slices.SortedFunc(maps.Keys(byKey), func(a, b [3]string) int { return slices.Compare(a[:], b[:]) }) {
				out = append(out, *byKey[key])
			}
			return out
		}
		var half tenancy.Counted
		for i, row := range rows {
			if err := l.Record(t.Context(), row); err != nil {
				t.Fatal(err)
			}
			if i == 11 {
				_, half = c.counted()
			}
		}
		s, err := l.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		got, err := s.Usage(t.Context(), march, april)
		if want := sums(rows); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("the month has %+v, %v; the rows sum to %+v", got, err, want)
		}
		made := slices.Concat(rows[:5], rows[7:12])
		if got, err = s.UsageOf(t.Context(), l.process, half.Seq, march, april); err != nil || !reflect.DeepEqual(got, sums(made)) {
			t.Errorf("up to %d there is %+v, %v; the rows sum to %+v", half.Seq, got, err, sums(made))
		}
		if got, err = s.UsageOf(t.Context(), "another", half.Seq, march, april); err != nil || len(got) != 0 {
			t.Errorf("another process has %+v, %v", got, err)
		}
		if got, err = s.Usage(t.Context(), april, june); err != nil || len(got) != 0 {
			t.Errorf("April has %+v, %v", got, err)
		}
	})
}
