package folders

import (
	"os"
	"path/filepath"
	"testing"
)

// A file that stays open, as the ledger's do, says nothing at its writes.
func TestOpenFiles(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ledger")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := newWatch(t, dir)
	for range 10 {
		if _, err := file.WriteString("row"); err != nil {
			t.Fatal(err)
		}
	}
	mark := filepath.Join(dir, "mark")
	write(t, mark)
	// What is told comes in order.
	if got := <-w.Changed; got != mark {
		t.Errorf("told of %s first, want %s", got, mark)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	next(t, w, path)
}

// Who follows a folder by two names is told under both.
func TestTwoNames(t *testing.T) {
	dir := t.TempDir()
	folder, link := filepath.Join(dir, "folder"), filepath.Join(dir, "link")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(folder, link); err != nil {
		t.Fatal(err)
	}
	w := newWatch(t, folder, link)
	write(t, filepath.Join(folder, "a"))
	next(t, w, filepath.Join(folder, "a"))
	next(t, w, filepath.Join(link, "a"))
}
