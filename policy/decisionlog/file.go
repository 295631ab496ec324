package decisionlog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"
)

// file is the current file. The goroutine that writes uses it; rotations may be
// read by any.
type file struct {
	path string
	lock *os.File // holds the lock until close
	f    *os.File // nil after a failure, until the next attempt
	size int64
	// limit is the size beyond which the file is rotated: maxBytes, and more
	// after a rotation that failed.
	maxBytes, limit int64
	rotations       atomic.Uint64
	// cannotRotate is told why a file is larger than it should be.
	cannotRotate func(error)
}

// openFile locks the path and opens the file for appending.
func openFile(cfg Config, cannotRotate func(error)) (*file, error) {
	lock, err := lockPath(cfg.Path + ".lock")
	if err != nil {
		return nil, err
	}
	w := &file{path: cfg.Path, maxBytes: cfg.MaxBytes, lock: lock, cannotRotate: cannotRotate}
	if err := w.open(); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return w, nil
}

// lockPath takes a lock that the kernel frees at the end of the process.
func lockPath(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s is locked: another gateway writes this log; give each its own path", path)
		}
		return nil, fmt.Errorf("cannot lock %s: %w", path, err)
	}
	return f, nil
}

// open opens the path for appending. A last line that a crash has cut off gets
// its line break, so that it can't run into the next one; it stays in the file,
// and readers skip it.
func (w *file) open() (err error) {
	f, err := os.OpenFile(w.path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file, so that it can't be rotated", w.path)
	}
	size := info.Size()
	if size > 0 {
		var last [1]byte
		if _, err := f.ReadAt(last[:], size-1); err != nil {
			return err
		}
		if last[0] != '\n' {
			if _, err := f.Write([]byte("\n")); err != nil {
				return err
			}
			size++
		}
	}
	w.f, w.size, w.limit = f, size, w.maxBytes
	return nil
}

// release closes the file. The next append opens the path anew, whatever is
// there by then.
func (w *file) release() error {
	if w.f == nil {
		return nil
	}
	err := errors.Join(w.f.Sync(), w.f.Close())
	w.f = nil
	return err
}

// append writes whole lines, rotating where a line would make the file too
// large. After an error n is what was written of them: whole lines, too.
func (w *file) append(lines []byte, now time.Time) (n int, err error) {
	for n < len(lines) {
		if w.f == nil {
			if err := w.open(); err != nil {
				return n, err
			}
		}
		part := fitting(lines[n:], w.limit-w.size)
		if part == 0 && w.size > 0 {
			if err := w.rotate(now); err != nil {
				if w.f == nil {
					return n, err
				}
				// A file that is too large is better than records that are lost.
				w.cannotRotate(err)
				w.limit = w.size + w.maxBytes
			}
			continue
		}
		if part == 0 { // a line larger than a file has one to itself
			part = bytes.IndexByte(lines[n:], '\n') + 1
		}
		written, err := w.write(lines[n : n+part])
		n += written
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// fitting is the length of the whole lines that fit into room bytes.
func fitting(lines []byte, room int64) int {
	if int64(len(lines)) <= room {
		return len(lines)
	}
	if room <= 0 {
		return 0
	}
	return bytes.LastIndexByte(lines[:room], '\n') + 1
}

// write appends lines. Of a line that was written in part, what was written is
// taken back, so that another attempt makes no fragment.
func (w *file) write(lines []byte) (int, error) {
	n, err := w.f.Write(lines)
	if err == nil {
		w.size += int64(n)
		return n, nil
	}
	whole := bytes.LastIndexByte(lines[:n], '\n') + 1
	if whole < n {
		// Where this fails, too, open ends the fragment's line.
		err = errors.Join(err, w.f.Truncate(w.size+int64(whole)))
	}
	w.size += int64(whole)
	return whole, err
}

// rotate moves the file to a name with the time and begins a new one.
func (w *file) rotate(now time.Time) error {
	name, err := w.freeName(now)
	if err != nil {
		return err
	}
	if err := os.Rename(w.path, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	w.rotations.Add(1)
	if err := w.release(); err != nil {
		return err
	}
	if err := w.open(); err != nil {
		return err
	}
	return syncFolder(w.path)
}

// stamp is the time in the name of a rotated file: names sort by it.
const stamp = "20060102T150405.000"

// freeName is a name for a file rotated now that no file has. Two rotations in
// one millisecond get different names.
func (w *file) freeName(now time.Time) (string, error) {
	for now = now.UTC(); ; now = now.Add(time.Millisecond) {
		before, after := splitName(w.path)
		name := before + now.Format(stamp) + after
		taken := false
		for _, candidate := range []string{name, name + ".gz"} {
			_, err := os.Lstat(candidate)
			if err == nil {
				taken = true
			} else if !errors.Is(err, fs.ErrNotExist) {
				return "", err
			}
		}
		if !taken {
			return name, nil
		}
	}
}

// splitName gives what stands before and after the time in a rotated file's
// path: decisions.jsonl becomes decisions-TIME.jsonl.
func splitName(path string) (before, after string) {
	ext := filepath.Ext(path)
	return path[:len(path)-len(ext)] + "-", ext
}

// syncFolder makes renames in the folder of a path durable.
func syncFolder(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// close flushes the file and gives up the lock.
func (w *file) close() error {
	return errors.Join(w.release(), w.lock.Close())
}
