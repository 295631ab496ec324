// Package plainfile reads files whose names somebody else may give to something that is no file: a pipe
// that nobody writes to, or a device without end. A process that opens the former waits for ever, and one
// that reads the latter takes memory until none is left.
package plainfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ErrIrregular says that a name stands for something that may have no end, or nothing to read yet.
var ErrIrregular = errors.New("it is a pipe, a socket or a device, should be an ordinary file")

// Open opens an ordinary file or a folder, and waits for nobody. For anything else the error is
// [ErrIrregular] in an [fs.PathError].
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	const irregular = fs.ModeNamedPipe | fs.ModeSocket | fs.ModeDevice | fs.ModeCharDevice | fs.ModeIrregular
	info, err := f.Stat()
	if err == nil && info.Mode()&irregular != 0 {
		err = &fs.PathError{Op: "read", Path: path, Err: ErrIrregular}
	}
	if err != nil {
		_ = f.Close() // nothing was written
		return nil, err
	}
	return f, nil
}

// Read reads a whole ordinary file of at most limit bytes. A longer one is an error, and no more than limit
// bytes of it are read.
func Read(path string, limit int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ReadFrom(f, path, limit)
}

// ReadFrom is [Read] for what is open already; path names it in the error.
func ReadFrom(r io.Reader, path string, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s is larger than %s", path, size(limit))
	}
	return data, nil
}

// size writes a limit in the largest unit that divides it.
func size(n int64) string {
	for _, u := range []struct {
		bytes int64
		name  string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.bytes && n%u.bytes == 0 {
			return fmt.Sprintf("%d%s", n/u.bytes, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}
