//go:build unix

package plainfile

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("ten"), []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at("empty"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"link": "ten", "zero": "/dev/zero", "null": "/dev/null", "to-pipe": "pipe", "gone": "nothing"} {
		if err := os.Symlink(target, at(link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(at("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		limit int64
		want  string // of the content, or of the error
		fails bool
	}{
		{"ten", 10, "0123456789", false},
		{"ten", 9, "ten is larger than 9 bytes", true},
		{"link", 1 << 20, "0123456789", false},
		{"empty", 0, "", false},
		{"pipe", 10, "pipe: it is a pipe, a socket or a device", true},
		{"to-pipe", 10, "to-pipe: it is a pipe", true},
		{"zero", 1 << 20, "zero: it is a pipe, a socket or a device", true},
		{"null", 10, "null: it is a pipe", true},
		{"gone", 10, "no such file", true},
		{".", 10, "is a directory", true},
	} {
		data, err := Read(at(c.name), c.limit)
		switch {
		case c.fails != (err != nil):
			t.Errorf("%s: got %q, %v", c.name, data, err)
		case c.fails && !strings.Contains(err.Error(), c.want):
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		case !c.fails && string(data) != c.want:
			t.Errorf("%s: got %q, want %q", c.name, data, c.want)
		}
	}
	if _, err := Open(at("pipe")); !errors.Is(err, ErrIrregular) {
		t.Errorf("got %v", err)
	}
}

// endless counts what is read of it.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	e.read += len(p)
	return len(p), nil
}

func TestReadFromStopsAtTheLimit(t *testing.T) {
	var e endless
	data, err := ReadFrom(&e, "endless", 3<<20)
	if err == nil || err.Error() != "endless is larger than 3MiB" || data != nil || e.read > 3<<20+1 {
		t.Errorf("got %d bytes, %v, after %d", len(data), err, e.read)
	}
	if data, err := ReadFrom(bytes.NewReader(make([]byte, 1<<10)), "x", 1<<10); err != nil || len(data) != 1<<10 {
		t.Errorf("got %d bytes, %v", len(data), err)
	}
}
