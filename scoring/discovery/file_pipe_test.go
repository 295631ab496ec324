//go:build unix

package discovery

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestFileThatIsNone: a pipe or a device in the place of the list is told of, waits for
// nobody and is not read; the list is followed again once it is a file.
func TestFileThatIsNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers")
	write(t, path, "a b")
	f := followFile(t, path, 10*time.Millisecond)
	f.want("a b")
	for _, put := range []func(name string) error{
		func(name string) error { return syscall.Mkfifo(name, 0o600) },
		func(name string) error { return os.Symlink("/dev/zero", name) },
	} {
		if err := put(path + ".new"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		if got := f.next(); !strings.Contains(got, "should be an ordinary file") {
			t.Fatalf("got %q", got)
		}
		replace(t, path, "a")
		f.want("a")
	}
}
