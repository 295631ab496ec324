package ledger

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// lockPath, set in the environment, makes this test binary a process that says
// whether another one holds SQLite's lock on a database.
const lockPath = "SLUICE_TEST_LOCKED_LEDGER"

func lockChild(path string) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	// The bytes of SQLite's shared lock, by its file format.
	lock := syscall.Flock_t{Type: syscall.F_WRLCK, Whence: io.SeekStart, Start: 1<<30 + 2, Len: 510}
	if err := syscall.FcntlFlock(f.Fd(), syscall.F_GETLK, &lock); err != nil {
		fmt.Println(err)
		return
	}
	if lock.Type == syscall.F_UNLCK {
		fmt.Print("free")
		return
	}
	fmt.Print("locked by ", lock.Pid)
}

// TestOtherProcessesSeeTheWriter: POSIX locks are of the process, and closing
// any descriptor of the file gives them all up. A tool that found none would
// take itself for the last user of the database when it ends, as the sqlite3
// shell does, and remove the log that the writer still writes to: every row
// from then on would be lost.
func TestOtherProcessesSeeTheWriter(t *testing.T) {
	path := tempPath(t)
	l := mustOpen(t, path, Options{})
	check := func(when string) {
		t.Helper()
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), lockPath+"="+path)
		out, err := cmd.CombinedOutput()
		if want := fmt.Sprint("locked by ", os.Getpid()); err != nil || string(out) != want {
			t.Errorf("%s the database is %q (%v), want %q", when, out, err, want)
		}
	}
	check("once open")
	own, err := OpenReader(path) // in the writer's process
	if err != nil {
		t.Fatal(err)
	}
	check("with a reader")
	if err := own.Close(); err != nil {
		t.Error(err)
	}
	check("after a reader")
	if other, err := Open(path, Options{}); err == nil {
		other.Close()
		t.Error("a second writer opens it")
	}
	check("after a second writer was refused")
	if n := len(collect(t, l)); n != 0 {
		t.Errorf("%d rows", n)
	}
}
