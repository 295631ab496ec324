package ledger

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/sluicegate/sluice/tenancy"
)

func journalBytes(t testing.TB, path string) int64 {
	t.Helper()
	names, err := intentFiles(path).files()
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		sum += info.Size()
	}
	return sum
}

func TestJournalStaysSmall(t *testing.T) {
	path := tempPath(t)
	j, err := newJournal(path, false)
	if err != nil {
		t.Fatal(err)
	}
	// One long request among many short ones, a few of them at a time.
	if err := j.begin(intent("long")); err != nil {
		t.Fatal(err)
	}
	for i := range 20_000 {
		if err := j.begin(intent(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
		if i >= 3 {
			j.end(fmt.Sprint(i - 3))
		}
	}
	if got := journalBytes(t, path); got > 3*segmentSize {
		t.Errorf("journal of 4 open requests has %d bytes", got)
	}
	old, err := readJournals(path)
	if err != nil {
		t.Fatal(err)
	}
	open := make(map[string]bool)
	for _, in := range old.intents {
		open[in.ID] = true
	}
	for _, id := range []string{"long", "19997", "19998", "19999"} {
		if !open[id] {
			t.Errorf("intent %s is not in the journal", id)
		}
	}
	for _, id := range []string{"long", "19997", "19998", "19999", "19999", "unknown"} {
		j.end(id)
	}
	if got := j.open(); got != 0 {
		t.Errorf("%d open", got)
	}
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	if names, err := intentFiles(path).files(); err != nil || len(names) != 0 {
		t.Errorf("left: %v, %v", names, err)
	}
}

func TestJournalStartsOverWhenNothingIsOpen(t *testing.T) {
	path := tempPath(t)
	j, err := newJournal(path, false)
	if err != nil {
		t.Fatal(err)
	}
	defer j.close()
	for i := range 2000 {
		if err := j.begin(intent(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
		j.end(fmt.Sprint(i))
	}
	if got := journalBytes(t, path); got > segmentSize/8 {
		t.Errorf("an idle journal has %d bytes", got)
	}
}

// A record that the end of a process, or a stray byte, has damaged ends the
// reading; what is before it counts.
func TestDamagedJournal(t *testing.T) {
	path := tempPath(t)
	j, err := newJournal(path, false)
	if err != nil {
		t.Fatal(err)
	}
	var ends []int64
	for i := range 3 {
		if err := j.begin(intent(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, j.active.size)
	}
	text, err := os.ReadFile(j.active.file.Name())
	if err != nil {
		t.Fatal(err)
	}
	for n := range len(text) {
		want := 0
		for _, end := range ends {
			if int64(n) >= end {
				want++
			}
		}
		if got := appendIntents(nil, text[:n]); len(got) != want {
			t.Fatalf("of %d bytes %d intents were read, want %d", n, len(got), want)
		}
	}
	for n := range len(text) {
		damaged := append([]byte(nil), text...)
		damaged[n] ^= 0x10
		got := appendIntents(nil, damaged)
		for i := range got {
			if !reflect.DeepEqual(&got[i], intent(fmt.Sprint(i))) {
				t.Fatalf("byte %d damaged: intent %d read as %+v", n, i, got[i])
			}
		}
	}
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(intentFiles(path).name(7), append(text[:ends[1]], "garbage"...), 0o600); err != nil {
		t.Fatal(err)
	}
	l := mustOpen(t, path, Options{})
	if st := l.Stats(); st.Recovered != 3 {
		t.Errorf("recovered %d, want the 3 of the first file, 2 of them in the second too", st.Recovered)
	}
	if !strings.HasSuffix(l.intents.active.file.Name(), "-intents-00000001") {
		t.Errorf("new journal %s; the old ones are gone", l.intents.active.file.Name())
	}
}

func FuzzJournal(f *testing.F) {
	path := tempPath(f)
	j, err := newJournal(path, false)
	if err != nil {
		f.Fatal(err)
	}
	for i := range 3 {
		if err := j.begin(intent(fmt.Sprint(i))); err != nil {
			f.Fatal(err)
		}
	}
	text, err := os.ReadFile(j.active.file.Name())
	if err != nil {
		f.Fatal(err)
	}
	if err := j.close(); err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add(text[:len(text)-1])
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, in := range appendIntents(nil, text) {
			row := lostRow(&in)
			if err := row.Check(); err != nil {
				t.Fatalf("the journal gave an unusable row: %v", err)
			}
			if row.Costs != (tenancy.Costs{}) {
				t.Fatal("a lost request costs something")
			}
		}
	})
}

// With sync, what begin has returned for is on disk: a loss of power that takes
// everything that was not flushed takes none of it.
func TestSyncedIntentsSurviveALossOfPower(t *testing.T) {
	path := tempPath(t)
	j, err := newJournal(path, true)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 50 {
				if err := j.begin(intent(fmt.Sprintf("%d-%d", w, i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	text, err := os.ReadFile(j.active.file.Name())
	if err != nil {
		t.Fatal(err)
	}
	torn := append(text[:j.active.flushed:j.active.flushed], "\x10\x00\x00\x00torn"...)
	if got := appendIntents(nil, torn); len(got) != 400 {
		t.Errorf("%d intents are durable, want 400", len(got))
	}
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
}
