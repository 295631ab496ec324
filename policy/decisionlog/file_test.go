package decisionlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// recordLine is a record of exactly size bytes, line break included.
func recordLine(id string, size int) []byte {
	start := `{"type":"decision","decision_id":"` + id + `","fill":"`
	return []byte(start + strings.Repeat("x", size-len(start)-3) + "\"}\n")
}

// openTestFile is a file with tiny limits, which Open would refuse.
func openTestFile(t *testing.T, path string, maxBytes int64) *file {
	t.Helper()
	w, err := openFile(Config{Path: path, MaxBytes: maxBytes}, func(err error) { t.Errorf("cannot rotate: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// TestRotation: no file is larger than it should be, no line is cut in two or
// lost, and a line that is larger than a file has one to itself.
func TestRotation(t *testing.T) {
	dir := t.TempDir()
	w := openTestFile(t, filepath.Join(dir, "decisions.jsonl"), 250)
	var batch []byte
	for i, size := range []int{100, 100, 100, 300, 249, 1_000, 100} {
		batch = append(batch, recordLine(fmt.Sprint(i), size)...)
	}
	n, err := w.append(batch, testTime)
	if err != nil || n != len(batch) {
		t.Fatalf("%d of %d bytes: %v", n, len(batch), err)
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, name := range names(t, dir) {
		if !strings.HasSuffix(name, ".lock") {
			got = append(got, name+" "+summary(readLines(t, filepath.Join(dir, name))))
		}
	}
	want := []string{
		"decisions-20260310T120000.123.jsonl decision:0 decision:1",
		"decisions-20260310T120000.124.jsonl decision:2",
		"decisions-20260310T120000.125.jsonl decision:3",
		"decisions-20260310T120000.126.jsonl decision:4",
		"decisions-20260310T120000.127.jsonl decision:5",
		"decisions.jsonl decision:6",
	}
	if !slices.Equal(got, want) || w.rotations.Load() != 5 {
		t.Errorf("%d rotations, files\n%s\nwant\n%s", w.rotations.Load(), strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, name := range names(t, dir) {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}
}

// TestRotationCounts: the size of a file that was there before counts.
func TestRotationCounts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.log")
	for i := range 4 {
		w := openTestFile(t, path, 250)
		if _, err := w.append(recordLine(fmt.Sprint(i), 100), testTime); err != nil {
			t.Fatal(err)
		}
		if got, want := w.rotations.Load(), uint64(i/2*(1-i%2)); got != want {
			t.Errorf("after record %d: %d rotations, want %d", i, got, want)
		}
		if err := w.close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCrashMidLine: what a crash has cut off stays a line of its own.
func TestCrashMidLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d.jsonl")
	whole := string(recordLine("1", 100))
	if err := os.WriteFile(path, []byte(whole+whole[:40]), 0o600); err != nil {
		t.Fatal(err)
	}
	w := openTestFile(t, path, 1<<20)
	if _, err := w.append(recordLine("2", 100), testTime); err != nil {
		t.Fatal(err)
	}
	w.close()
	if got, want := string(readFile(t, path)), whole+whole[:40]+"\n"+string(recordLine("2", 100)); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestMovedAway: after Reopen records go to a new file under the path, and the
// moved one is left alone.
func TestMovedAway(t *testing.T) {
	set, in := testSet(t), testInput("denied")
	l := testLog(t, nil)
	d := set.Decide(t.Context(), in)
	l.Decided("1", "", testTime, in, d)
	w := &writer{l: l}
	w.lines, w.counts = l.queue.take(nil)
	w.attempt()
	moved := l.cfg.Path + ".moved"
	if err := os.Rename(l.cfg.Path, moved); err != nil {
		t.Fatal(err)
	}
	l.Reopen()
	l.Reopen() // before Run has seen the first: no harm
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- l.Run(ctx) }()
	for i := range 100 {
		l.Decided(fmt.Sprint(i), "", testTime, in, d)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	before, after := readLines(t, moved), readLines(t, l.cfg.Path)
	if len(before) != 1 || len(after) != 100 {
		t.Errorf("%d and %d lines", len(before), len(after))
	}
}

// limitedFile makes every write beyond size fail the way a full disk does.
func limitedFile(t *testing.T, size uint64) (lift func()) {
	t.Helper()
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: size, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	lifted := false
	lift = func() {
		if !lifted {
			lifted = true
			if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(lift)
	return lift
}

// TestFullDisk: a write that goes half through leaves whole lines, the rest
// waits, and is written once there is room.
func TestFullDisk(t *testing.T) {
	var logged strings.Builder
	l := testLog(t, nil)
	l.log = slog.New(slog.NewTextHandler(&logged, nil))
	var all []byte
	for i := range 5 {
		line := recordLine(fmt.Sprint(i), 100)
		all = append(all, line...)
		l.queue.put(decisionKind, line)
	}
	w := &writer{l: l}
	w.lines, w.counts = l.queue.take(nil)
	lift := limitedFile(t, 250)
	for range 2 {
		if w.attempt() {
			t.Error("wrote 500 bytes into 250")
		}
	}
	if got := string(readFile(t, l.cfg.Path)); got != string(all[:200]) {
		t.Errorf("half a line stayed: %q", got)
	}
	if !errors.Is(w.failure, syscall.EFBIG) {
		t.Errorf("failure %v", w.failure)
	}
	if s := l.Stats(); s.Errors != 2 || s.Queued != 5 || s.Written.Decision != 0 || strings.Count(logged.String(), "records wait") != 1 {
		t.Errorf("%+v\n%s", s, logged.String())
	}
	lift()
	if !w.attempt() {
		t.Fatal(w.failure)
	}
	finish(t, l)
	if got := string(readFile(t, l.cfg.Path)); got != string(all) {
		t.Errorf("got %q", got)
	}
	if s := l.Stats(); s.Written.Decision != 5 || s.Dropped != (Counts{}) || !strings.Contains(logged.String(), "can be written again") {
		t.Errorf("%+v\n%s", s, logged.String())
	}
}

// TestFullDiskAtTheEnd: Run ends, and says how many records are lost.
func TestFullDiskAtTheEnd(t *testing.T) {
	set, in := testSet(t), testInput("denied")
	l := testLog(t, nil)
	d := set.Decide(t.Context(), in)
	for i := range 3 {
		l.queue.put(decisionKind, recordLine(fmt.Sprint(i), 100))
	}
	l.Settled("x", testTime, "completed", "a", 0, usage, d, nil, nil)
	limitedFile(t, 250)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := l.Run(ctx)
	if err == nil || !strings.Contains(err.Error(), "2 records are lost") || !errors.Is(err, syscall.EFBIG) {
		t.Errorf("%v", err)
	}
	if s := l.Stats(); s.Written != (Counts{Decision: 2}) || s.Dropped != (Counts{Decision: 1, Settlement: 1}) || s.Queued != 0 || s.QueuedBytes != 0 {
		t.Errorf("%+v", s)
	}
	if l.Decided("late", "", testTime, in, d) {
		t.Error("a record after the end was kept")
	}
}

// TestCannotRotate: the file grows rather than that records are lost.
func TestCannotRotate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "d.jsonl")
	var failures []error
	w, err := openFile(Config{Path: path, MaxBytes: 250}, func(err error) { failures = append(failures, err) })
	if err != nil {
		t.Fatal(err)
	}
	// A folder that has gone has no names to give.
	if err := os.Rename(dir, dir+"-moved"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir + "-moved") })
	w.path = filepath.Join(path, "below", "a file") // its Lstat fails with ENOTDIR or ENOENT
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		if _, err := w.append(recordLine(fmt.Sprint(i), 100), testTime); err != nil {
			t.Fatalf("record %d: %v", i, err)
		}
	}
	if len(failures) != 2 || w.rotations.Load() != 0 {
		t.Errorf("%d failures, %d rotations: %v", len(failures), w.rotations.Load(), failures)
	}
	w.close()
	if got := len(readLines(t, filepath.Join(dir+"-moved", "d.jsonl"))); got != 6 {
		t.Errorf("%d lines", got)
	}
}

// TestTidy: rotated files are compressed, the oldest ones deleted, and what a
// crash has left behind is cleared away. Other files are left alone.
func TestTidy(t *testing.T) {
	l := testLog(t, func(c *Config) { c.MaxFiles = 3 })
	dir := filepath.Dir(l.cfg.Path)
	for name, text := range map[string]string{
		"decisions-20260101T000000.000.jsonl":        "oldest",
		"decisions-20260102T000000.000.jsonl.gz":     "old",
		"decisions-20260103T000000.000.jsonl":        "compressed twice",
		"decisions-20260103T000000.000.jsonl.gz":     "cut short",
		"decisions-20260104T000000.000.jsonl":        "plain",
		"decisions-20260105T000000.000.jsonl":        "newest",
		"decisions-20260105T000000.000.jsonl.gz.tmp": "cut short",
		"decisions-notes.jsonl":                      "not ours",
		"decisions-20260105T000000.000.jsonl.bak":    "not ours",
		"decisions-20269905T000000.000.jsonl":        "not ours",
		"other-20260101T000000.000.jsonl":            "not ours",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second time there is nothing to do
		if err := l.tidyOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := []string{
			"decisions-20260103T000000.000.jsonl.gz", "decisions-20260104T000000.000.jsonl.gz", "decisions-20260105T000000.000.jsonl.bak",
			"decisions-20260105T000000.000.jsonl.gz", "decisions-20269905T000000.000.jsonl", "decisions-notes.jsonl", "decisions.jsonl",
			"decisions.jsonl.lock", "other-20260101T000000.000.jsonl",
		}
		if got := names(t, dir); !slices.Equal(got, want) {
			t.Errorf("files\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	if got := string(readFile(t, filepath.Join(dir, "decisions-20260103T000000.000.jsonl.gz"))); got != "compressed twice" {
		t.Errorf("%q", got)
	}
	finish(t, l)
}

// TestTidyStops: a compression that is under way ends with the context and
// leaves the file.
func TestTidyStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	name := filepath.Join(t.TempDir(), "d-20260101T000000.000.jsonl")
	if err := os.WriteFile(name, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := compress(ctx, name); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if got := names(t, filepath.Dir(name)); len(got) != 1 || got[0] != filepath.Base(name) {
		t.Error(got)
	}
}

// TestRunRotates is the whole of it: many goroutines record, Run writes,
// rotates, compresses and prunes, and every record is in exactly one file.
func TestRunRotates(t *testing.T) {
	set, in := testSet(t), testInput("denied")
	l := testLog(t, func(c *Config) { c.MaxBytes, c.MaxFiles = minFileBytes, 0 })
	d := set.Decide(t.Context(), in)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- l.Run(ctx) }()
	const writers, each = 8, 100
	done := make(chan struct{})
	for w := range writers {
		go func() {
			defer func() { done <- struct{}{} }()
			for i := range each {
				id := fmt.Sprintf("%d-%d", w, i)
				if !l.Decided(id, "", time.Now(), in, d) {
					t.Errorf("%s is lost", id)
				}
			}
		}()
	}
	for range writers {
		<-done
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	files, stray, err := rotatedFiles(l.cfg.Path)
	if err != nil || len(stray) != 0 || len(files) != int(l.Stats().Rotations) || len(files) < 10 {
		t.Fatalf("%d files, %d stray, %d rotations, %v", len(files), len(stray), l.Stats().Rotations, err)
	}
	seen := map[string]bool{}
	for _, name := range append(files, l.cfg.Path) {
		for _, line := range readLines(t, name) {
			if seen[line.DecisionID] {
				t.Errorf("%s is there twice", line.DecisionID)
			}
			seen[line.DecisionID] = true
		}
	}
	if len(seen) != writers*each {
		t.Errorf("%d of %d records", len(seen), writers*each)
	}
}
