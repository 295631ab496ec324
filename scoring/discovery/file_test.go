package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// parseLines is a list of one worker name a line.
func parseLines(data []byte) ([]Worker, error) {
	var list []Worker
	for name := range strings.FieldsSeq(string(data)) {
		if name == "broken" {
			return nil, errors.New("line 1: broken")
		}
		list = append(list, Worker{Name: name})
	}
	return list, nil
}

// following is a Discoverer that runs.
type following struct {
	t  *testing.T
	up chan Update
}

func run(t *testing.T, d Discoverer) *following {
	t.Helper()
	f := &following{t: t, up: make(chan Update)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.Run(ctx, f.up)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return f
}

// next is what came next, as "a b" or as "error: text".
func (f *following) next() string {
	f.t.Helper()
	select {
	case u := <-f.up:
		if u.Err != nil {
			return "error: " + u.Err.Error()
		}
		var names []string
		for _, w := range u.Workers {
			names = append(names, w.Name)
		}
		return strings.Join(names, " ")
	case <-time.After(30 * time.Second):
		f.t.Fatal("nothing came")
		return ""
	}
}

func (f *following) want(want string) {
	f.t.Helper()
	if got := f.next(); got != want {
		f.t.Fatalf("got %q, want %q", got, want)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// replace puts another file in the place of path.
func replace(t *testing.T, path, text string) {
	t.Helper()
	write(t, path+".new", text)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func followFile(t *testing.T, path string, poll time.Duration) *following {
	return run(t, &File{Path: path, Parse: parseLines, Poll: poll, Log: slog.New(slog.DiscardHandler)})
}

// Events alone tell of these changes: nothing is polled for an hour.
func TestFileIsWatched(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers")
	write(t, path, "a b")
	f := followFile(t, path, time.Hour)
	f.want("a b")
	write(t, path, "a b c") // in place
	f.want("a b c")
	replace(t, path, "a")
	f.want("a")
	replace(t, path, "a c") // the new file is watched, too
	f.want("a c")
	write(t, path, "broken")
	f.want("error: line 1: broken")
	write(t, path, "")
	f.want("")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := f.next(); !strings.HasPrefix(got, "error: cannot read the list of workers: open ") {
		t.Fatalf("got %q", got)
	}
	write(t, path, "b")
	f.want("b")
	write(t, path, strings.Repeat(" ", maxListBytes+1))
	if got := f.next(); !strings.Contains(got, "larger than") {
		t.Fatalf("got %q", got)
	}
}

// configMap lays a volume out as Kubernetes does: the file is a link into
// ..data, which is a link to a folder of its own for each version.
func configMap(t *testing.T, dir string, version int, text string) {
	t.Helper()
	folder := fmt.Sprintf("..v%d", version)
	if err := os.Mkdir(filepath.Join(dir, folder), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, folder, "workers"), text)
	if err := os.Symlink(folder, filepath.Join(dir, "..data_tmp")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	if version > 1 {
		if err := os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..v%d", version-1))); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFileInConfigMap(t *testing.T) {
	dir := t.TempDir()
	configMap(t, dir, 1, "a")
	path := filepath.Join(dir, "workers")
	if err := os.Symlink(filepath.Join("..data", "workers"), path); err != nil {
		t.Fatal(err)
	}
	f := followFile(t, path, time.Hour)
	f.want("a")
	for version, text := range []string{"a b", "b", "b c d"} {
		configMap(t, dir, version+2, text)
		f.want(text)
	}
}

// A file whose changes nobody tells of is looked at from time to time.
func TestFileIsPolled(t *testing.T) {
	elsewhere, dir := t.TempDir(), t.TempDir()
	target, path := filepath.Join(elsewhere, "list"), filepath.Join(dir, "workers")
	write(t, target, "a")
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
	f := followFile(t, path, 10*time.Millisecond)
	f.want("a")
	write(t, target, "a b")
	f.want("a b")
	replace(t, target, "b")
	f.want("b")

	// A folder that comes late is found.
	late := filepath.Join(dir, "late", "workers")
	f = followFile(t, late, 10*time.Millisecond)
	if got := f.next(); !strings.HasPrefix(got, "error: ") {
		t.Fatalf("got %q", got)
	}
	if err := os.Mkdir(filepath.Dir(late), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, late, "a")
	f.want("a")
}

// A folder that is replaced is watched anew.
func TestFileInReplacedFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "folder")
	path := filepath.Join(dir, "workers")
	for _, text := range []string{"a", "b"} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, path, text)
		if text == "a" {
			f := followFile(t, path, 10*time.Millisecond)
			f.want("a")
			defer func() {
				for got := f.next(); got != "b"; got = f.next() {
					if !strings.HasPrefix(got, "error: ") {
						t.Errorf("got %q", got)
					}
				}
				write(t, path, "c")
				f.want("c")
			}()
		}
	}
}

// A list that is being written in pieces is believed only when it is whole.
func TestFileWrittenInPieces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers")
	write(t, path, "a b c d e f g h")
	f := followFile(t, path, time.Hour)
	f.want("a b c d e f g h")
	write(t, path, "")
	tick := time.NewTicker(settle / 10)
	defer tick.Stop()
	for _, name := range "abcdefghi" {
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		_, err = file.WriteString(string(name) + " ")
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
		<-tick.C
	}
	f.want("a b c d e f g h i")
}
