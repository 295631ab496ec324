package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

var noon = time.Date(2026, 3, 10, 12, 0, 0, 123456789, time.UTC)

// distantFuture and the zero time enclose all rows.
var distantFuture = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

func mustOpen(t testing.TB, path string, opts Options) *Ledger {
	t.Helper()
	l, err := Open(path, opts.patient())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// patient are options under which a disk that others keep busy spools no rows.
func (o Options) patient() Options {
	if o.Patience == 0 {
		o.Patience = time.Minute
	}
	return o
}

func tempPath(t testing.TB) string { return filepath.Join(t.TempDir(), "ledger.db") }

// fullRow has every field set.
func fullRow(id string) *tenancy.Row {
	return &tenancy.Row{
		ID: id, RequestID: "client's own", DecisionID: "d1", PolicyRevision: "sha256:1", PolicyRule: "p/r",
		Gateway: "g1", Process: "p1",
		Tenant: "acme", Team: "search", Principal: "key:k1", PrincipalKind: tenancy.KindAPIKey, KeyID: "k1",
		Operation: "chat", Dialect: "openai", Model: "qwen", RequestedModel: "qwen-alias",
		Pool: "a", Worker: "w1", Class: "batch", Labels: []string{"pii", "restricted"},
		Status: 200, ErrorCode: "none", Outcome: tenancy.OutcomeCompleted, Phase: tenancy.PhaseDone,
		Flags: tenancy.FlagStream | tenancy.FlagEstimated | tenancy.FlagReasoningApart, Attempts: 2,
		InputTokens: 900, CachedTokens: 600, OutputTokens: 250, ReasoningTokens: 50,
		GPUTime: 1234 * time.Microsecond, Currency: "USD", Discount: 125_000,
		Prices: tenancy.Prices{Input: 150_000, CachedInput: 15_000, Output: 600_000, Reasoning: 700_000, GPUSecond: 800_000},
		Costs:  tenancy.Costs{Input: 45, CachedInput: 9, Output: 150, Reasoning: 30, GPU: 7},
		Start:  noon, Queue: 3 * time.Millisecond, TTFT: 90 * time.Millisecond, Duration: 4 * time.Second,
		Charges: []tenancy.Charge{
			{Counter: [16]byte{1, 0xff, 15: 3}, Unit: "cost", Window: "month", Period: march, Amount: 241},
			{Counter: [16]byte{9}, Unit: "requests", Window: "day", Period: noon.Truncate(24 * time.Hour), Amount: 1},
		},
		Period: march, Reason: "a reason", Author: "somebody",
	}
}

// asStored is how the ledger gives rows back, with what it puts in itself: the
// month, and a gateway and process, which collect leaves out.
func asStored(rows ...*tenancy.Row) []*tenancy.Row {
	var out []*tenancy.Row
	for _, row := range rows {
		copied := *row
		copied.Gateway, copied.Process = "", ""
		if copied.Period.IsZero() {
			copied.Period = tenancy.Month(copied.End())
		}
		out = append(out, &copied)
	}
	return out
}

func intent(id string) *tenancy.Intent {
	return &tenancy.Intent{
		ID: id, RequestID: "r", DecisionID: "d", PolicyRevision: "sha256:1", Tenant: "acme", Team: "search",
		Principal: "key:k1", PrincipalKind: tenancy.KindAPIKey, KeyID: "k1", Operation: "chat", Dialect: "openai", Model: "qwen",
		RequestedModel: "q", Pool: "a", Class: "batch", Flags: tenancy.FlagStream, Start: noon,
	}
}

func collect(t testing.TB, l *Ledger) []*tenancy.Row {
	t.Helper()
	var out []*tenancy.Row
	for row, err := range l.Rows(context.Background(), time.Time{}, distantFuture) {
		if err != nil {
			t.Fatal(err)
		}
		if row.Process == "" {
			t.Errorf("row %s is of no process", row.ID)
		}
		row.Gateway, row.Process = "", ""
		out = append(out, row)
	}
	return out
}

func TestFullRowHasNoZeroField(t *testing.T) {
	v := reflect.ValueOf(*fullRow("r"))
	for i := range v.NumField() {
		// A correction has rules of its own, and tests of its own.
		if name := v.Type().Field(i).Name; v.Field(i).IsZero() && name != "CorrectionOf" {
			t.Errorf("fullRow leaves %s empty, so no test sees it stored", name)
		}
	}
}

// The ledger says itself which gateway and which run of it stored a row or
// announced one, and whose request was lost.
func TestRowsNameTheirProcess(t *testing.T) {
	eachStore(t, func(t *testing.T, reopen func() *Ledger) {
		var processes []string
		for _, id := range []string{"a", "b"} {
			l := reopen()
			l.opts.Gateway = "g-" + id
			processes = append(processes, l.Stats().Process)
			if err := l.Record(t.Context(), fullRow(id)); err != nil {
				t.Fatal(err)
			}
			if err := l.Begin(t.Context(), intent("lost-"+id)); err != nil {
				t.Fatal(err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if processes[0] == processes[1] {
			t.Error("two runs have one name")
		}
		l := reopen()
		// The same row from another process is no conflict.
		if err := l.Record(t.Context(), fullRow("a")); err != nil {
			t.Error(err)
		}
		got := make(map[string][2]string)
		for row, err := range l.Rows(t.Context(), time.Time{}, distantFuture) {
			if err != nil {
				t.Fatal(err)
			}
			got[row.ID] = [2]string{row.Gateway, row.Process}
		}
		want := make(map[string][2]string)
		for i, id := range []string{"a", "b"} {
			want[id] = [2]string{"g-" + id, processes[i]}
			want["lost-"+id] = want[id]
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

func TestRowsComeBackAsRecorded(t *testing.T) {
	path := tempPath(t)
	l := mustOpen(t, path, Options{})
	least := &tenancy.Row{ID: "least", Outcome: tenancy.OutcomeDenied, Start: noon.Add(-time.Hour)}
	late := fullRow("late")
	late.Start = noon.In(time.FixedZone("+9", 9*3600)).Add(time.Hour)
	for _, row := range []*tenancy.Row{fullRow("full"), least, late} {
		if err := l.Record(t.Context(), row); err != nil {
			t.Fatal(err)
		}
	}
	late.Start = late.Start.UTC()
	want := asStored(least, fullRow("full"), late)
	if got := collect(t, l); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	again := mustOpen(t, path, Options{})
	if got := collect(t, again); !reflect.DeepEqual(got, want) {
		t.Errorf("after a restart: %+v", got)
	}
	if st := again.Stats(); st.Recovered != 0 || st.OpenIntents != 0 {
		t.Errorf("stats %+v", st)
	}
}

func TestRecordIsIdempotent(t *testing.T) {
	l := mustOpen(t, tempPath(t), Options{})
	for range 3 {
		if err := l.Record(t.Context(), fullRow("r")); err != nil {
			t.Fatal(err)
		}
	}
	other := fullRow("r")
	other.OutputTokens++
	if err := l.Record(t.Context(), other); !errors.Is(err, ErrConflict) {
		t.Errorf("another row under the same id: %v", err)
	}
	if got := collect(t, l); len(got) != 1 || got[0].OutputTokens != 250 {
		t.Errorf("rows %+v", got)
	}
	if st := l.Stats(); st.Rows != 1 || st.Duplicates != 2 || st.Failed != 1 {
		t.Errorf("stats %+v", st)
	}
}

func TestRecordRefusesNonsense(t *testing.T) {
	l := mustOpen(t, tempPath(t), Options{})
	row := fullRow("r")
	row.CachedTokens = 901
	if err := l.Record(t.Context(), row); err == nil || !strings.Contains(err.Error(), "more cached tokens") {
		t.Errorf("got %v", err)
	}
	if err := l.Begin(t.Context(), &tenancy.Intent{}); err == nil {
		t.Error("an intent without id was taken")
	}
}

func TestRowIsCopied(t *testing.T) {
	l := mustOpen(t, tempPath(t), Options{})
	row := fullRow("r")
	if err := l.Record(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	row.Labels[0], row.Charges[0].Unit, row.Tenant = "changed", "changed", "changed"
	if got := collect(t, l); !reflect.DeepEqual(got, asStored(fullRow("r"))) {
		t.Errorf("got %+v", got)
	}
}

func totalsOf(rows ...*tenancy.Row) tenancy.Totals {
	t := tenancy.Totals{Currency: rows[0].Currency}
	for _, row := range rows {
		t.Add(row)
	}
	return t
}

func TestRangesAreByEndTimeHalfOpen(t *testing.T) {
	l := mustOpen(t, tempPath(t), Options{})
	march := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	for i, end := range []time.Time{march.Add(-1), march, march.AddDate(0, 1, 0).Add(-1), march.AddDate(0, 1, 0)} {
		row := fullRow(fmt.Sprint("r", i))
		row.Duration = time.Hour
		row.Start = end.Add(-time.Hour)
		if i == 1 {
			row.Currency = "EUR"
		}
		if err := l.Record(t.Context(), row); err != nil {
			t.Fatal(err)
		}
	}
	var ids []string
	for row, err := range l.Rows(t.Context(), march, march.AddDate(0, 1, 0)) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, row.ID)
	}
	if !reflect.DeepEqual(ids, []string{"r1", "r2"}) {
		t.Errorf("rows of March: %v", ids)
	}
	totals, err := l.Totals(t.Context(), march, march.AddDate(0, 1, 0))
	one := totalsOf(fullRow("r"))
	one.Currency = "EUR"
	two := one
	two.Currency = "USD"
	if err != nil || !reflect.DeepEqual(totals, []tenancy.Totals{one, two}) {
		t.Errorf("totals %+v, %v", totals, err)
	}
}

func TestConcurrentRecords(t *testing.T) {
	const workers, each = 32, 40
	path := tempPath(t)
	l := mustOpen(t, path, Options{Queue: 8, MaxBatch: 16})
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				id := fmt.Sprintf("%d-%d", w, i)
				if err := l.Begin(t.Context(), intent(id)); err != nil {
					t.Error(err)
				}
				row := fullRow(id)
				row.OutputTokens, row.ReasoningTokens = int64(1000*w+i), 0
				if err := l.Record(t.Context(), row); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	rows := collect(t, l)
	var sum int64
	for _, row := range rows {
		sum += row.OutputTokens
	}
	want := int64(1000*each*workers*(workers-1)/2 + workers*each*(each-1)/2)
	if len(rows) != workers*each || sum != want {
		t.Errorf("%d rows with %d tokens, want %d with %d", len(rows), sum, workers*each, want)
	}
	st := l.Stats()
	if st.OpenIntents != 0 || st.Rows != workers*each || st.Queued != 0 {
		t.Errorf("stats %+v", st)
	}
	if st.Batches >= st.Rows {
		t.Errorf("%d commits for %d rows: no group commit", st.Batches, st.Rows)
	}
}

func TestCloseStoresWhatIsQueued(t *testing.T) {
	path := tempPath(t)
	l := mustOpen(t, path, Options{})
	var wg sync.WaitGroup
	errs := make([]error, 200)
	for i := range errs {
		wg.Go(func() {
			errs[i] = l.Record(t.Context(), fullRow(fmt.Sprint(i)))
		})
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	want := 0
	for _, err := range errs {
		if err == nil {
			want++
		} else if !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}
	if err := l.Begin(t.Context(), intent("x")); !errors.Is(err, ErrClosed) {
		t.Errorf("Begin after Close: %v", err)
	}
	if got := len(collect(t, mustOpen(t, path, Options{}))); got != want {
		t.Errorf("%d rows, %d were acknowledged", got, want)
	}
}

func TestLostRequestsAreMarkedOnce(t *testing.T) {
	path := tempPath(t)
	l := mustOpen(t, path, Options{})
	for _, id := range []string{"done", "lost"} {
		if err := l.Begin(t.Context(), intent(id)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Begin(t.Context(), intent("lost")); err == nil {
		t.Error("a request was announced twice")
	}
	if err := l.Record(t.Context(), fullRow("done")); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	for i := range 2 {
		l := mustOpen(t, path, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		if got, want := l.Stats().Recovered, 1-i; got != want {
			t.Errorf("start %d recovered %d, want %d", i, got, want)
		}
		rows := collect(t, l)
		if len(rows) != 2 {
			t.Fatalf("rows %+v", rows)
		}
		lost := *rows[0]
		want := *asStored(&tenancy.Row{
			ID: "lost", RequestID: "r", DecisionID: "d", PolicyRevision: "sha256:1", Tenant: "acme", Team: "search",
			Principal: "key:k1", PrincipalKind: tenancy.KindAPIKey, KeyID: "k1", Operation: "chat", Dialect: "openai", Model: "qwen",
			RequestedModel: "q", Pool: "a", Class: "batch", Flags: tenancy.FlagStream | tenancy.FlagRecovered,
			Outcome: tenancy.OutcomeLost, Phase: tenancy.PhasePrefill, Start: noon,
		})[0]
		if !reflect.DeepEqual(lost, want) {
			t.Errorf("lost row %+v", lost)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(log.String(), "in flight"); n != 1 {
		t.Errorf("log %q", log.String())
	}
	if names, err := intentFiles(path).files(); err != nil || len(names) != 0 {
		t.Errorf("journal files left: %v, %v", names, err)
	}
}

func TestOneWriter(t *testing.T) {
	path := tempPath(t)
	mustOpen(t, path, Options{})
	if _, err := Open(path, Options{}); !errors.Is(err, ErrLocked) {
		t.Errorf("a second writer: %v", err)
	}
}

func TestReaderSeesAndSnapshotDoesNot(t *testing.T) {
	path := tempPath(t)
	if _, err := OpenReader(path); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("reader of nothing: %v", err)
	}
	l := mustOpen(t, path, Options{})
	if err := l.Record(t.Context(), fullRow("one")); err != nil {
		t.Fatal(err)
	}
	r, err := OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	snap, err := r.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Close()
	if err := l.Record(t.Context(), fullRow("two")); err != nil {
		t.Fatal(err)
	}
	f := func(name string, src interface {
		Totals(context.Context, time.Time, time.Time) ([]tenancy.Totals, error)
	}, want int64) {
		t.Helper()
		totals, err := src.Totals(t.Context(), time.Time{}, distantFuture)
		if err != nil || len(totals) != 1 || totals[0].Rows != want {
			t.Errorf("%s: %+v, %v; want %d rows", name, totals, err, want)
		}
	}
	f("reader", r, 2)
	f("snapshot", snap, 1)
	n := 0
	for _, err := range snap.Rows(t.Context(), time.Time{}, distantFuture) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 1 {
		t.Errorf("snapshot yields %d rows, want 1", n)
	}
	if _, err := r.db.Exec("DELETE FROM requests"); err == nil {
		t.Error("a reader wrote")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	after, err := OpenReader(path)
	if err != nil {
		t.Fatalf("reader without a writer: %v", err)
	}
	f("reader without a writer", after, 2)
	after.Close()
}

func TestReadingStopsEarlyAndOnCancel(t *testing.T) {
	l := mustOpen(t, tempPath(t), Options{})
	for i := range 20 {
		if err := l.Record(t.Context(), fullRow(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	for row, err := range l.Rows(t.Context(), time.Time{}, distantFuture) {
		if row == nil || err != nil {
			t.Fatal(err)
		}
		break
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var last error
	for _, err := range l.Rows(ctx, time.Time{}, distantFuture) {
		last = err
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("cancelled reading ended with %v", last)
	}
}

func TestOpenRefusesWhatIsNoLedger(t *testing.T) {
	f := func(name, want string, prepare func(path string)) {
		t.Helper()
		path := tempPath(t)
		prepare(path)
		l, err := Open(path, Options{})
		if err == nil {
			l.Close()
			t.Errorf("%s: opened", name)
		} else if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		if f, err := lockFile(path); err == nil {
			f.Close()
		} else if name != "no folder" {
			t.Errorf("%s: the lock was not given back: %v", name, err)
		}
	}
	exec := func(path, text string) {
		db, err := openDB(path, "rwc")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.Exec(text); err != nil {
			t.Fatal(err)
		}
	}
	f("text file", "no SQLite database", func(p string) {
		if err := os.WriteFile(p, bytes.Repeat([]byte("tenants: []\n"), 500), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	f("other database", "another program", func(p string) { exec(p, "CREATE TABLE t (x)") })
	f("newer schema", "use a newer program", func(p string) {
		l := mustOpen(t, p, Options{})
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		exec(p, "INSERT INTO migrations VALUES (99, 0)")
	})
	path := filepath.Join(t.TempDir(), "none", "ledger.db")
	if _, err := Open(path, Options{}); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("no folder: %v", err)
	}
}

func TestOddPaths(t *testing.T) {
	for _, name := range []string{"a b.db", "q?mode=memory.db", "h#ash.db", "per%20cent.db", "ümlaut.db"} {
		path := filepath.Join(t.TempDir(), name)
		l := mustOpen(t, path, Options{})
		if err := l.Record(t.Context(), fullRow("r")); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() == 0 || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}
