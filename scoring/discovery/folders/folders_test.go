package folders

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// next returns the next path that a watch tells of and that is one of those, or fails.
func next(t *testing.T, w *Watch, want ...string) {
	t.Helper()
	for {
		select {
		case path, ok := <-w.Changed:
			if !ok {
				t.Fatal("the watch has ended")
			}
			if slices.Contains(want, path) {
				return
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("nobody told of %v", want)
		}
	}
}

func newWatch(t *testing.T, folders ...string) *Watch {
	t.Helper()
	w, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, folder := range folders {
		if err := w.Add(folder); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(path), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Every way in which a file becomes another is told.
func TestChanges(t *testing.T) {
	dir := t.TempDir()
	w := newWatch(t, dir)
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for _, change := range []struct {
		name string
		do   func() error
		path string
	}{
		{"made", func() error { return os.WriteFile(a, nil, 0o600) }, a},
		{"written", func() error { return os.WriteFile(a, []byte("a"), 0o600) }, a},
		{"renamed", func() error { return os.Rename(a, b) }, b},
		{"linked", func() error { return os.Symlink(b, a) }, a},
		{"its mode", func() error { return os.Chmod(b, 0o400) }, b},
		{"removed", func() error { return os.Remove(b) }, b},
		{"a folder", func() error { return os.Mkdir(b, 0o700) }, b},
	} {
		if err := change.do(); err != nil {
			t.Fatalf("%s: %v", change.name, err)
		}
		next(t, w, change.path)
	}
}

// A folder may have two names, be replaced, and be left.
func TestFolders(t *testing.T) {
	dir := t.TempDir()
	folder, link := filepath.Join(dir, "folder"), filepath.Join(dir, "link")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(folder, link); err != nil {
		t.Fatal(err)
	}
	w := newWatch(t, folder, link, folder)
	write(t, filepath.Join(folder, "a"))
	next(t, w, filepath.Join(folder, "a"))
	w.Remove(link)
	write(t, filepath.Join(folder, "b"))
	next(t, w, filepath.Join(folder, "b"))
	if err := os.Rename(folder, filepath.Join(dir, "old")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := w.Add(folder); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(folder, "c"))
	next(t, w, filepath.Join(folder, "c"))
	w.Remove(filepath.Join(dir, "never"))
	if err := w.Add(filepath.Join(dir, "never")); err == nil {
		t.Error("a folder that is not there is watched")
	}
}

// Close ends a watch that nobody listens to.
func TestClose(t *testing.T) {
	dir := t.TempDir()
	w := newWatch(t, dir)
	for _, name := range []string{"a", "b", "c"} {
		write(t, filepath.Join(dir, name))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for range w.Changed {
		t.Error("something came after the end")
	}
	if err := w.Add(dir); err == nil {
		t.Error("a closed watch takes folders")
	}
}
