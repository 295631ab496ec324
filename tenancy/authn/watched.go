package authn

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

const (
	// lookEvery is the time between two looks at a file that may change. A change
	// is believed at the second look that finds it, so it takes two of them.
	lookEvery = 100 * time.Millisecond
	// restless bounds the wait for a file that changes at every look.
	restless = 400 * time.Millisecond
	// fresh is how long after a change of a file's times its content is compared
	// all the same: a second change within the clock's granularity leaves them as
	// they are.
	fresh = 2 * time.Second
)

// watched is a file that is looked at again and again. It relies on nothing that
// a file system may keep to itself: it opens the file each time, since a network
// file system asks its server for the truth when a file is opened.
type watched struct {
	path  string
	limit int64

	stat    fileStat
	since   time.Time // that stat has been as it is
	is      contentHash
	known   bool // is holds for stat
	told    contentHash
	pending bool
	seen    contentHash
	first   time.Time // look that found the change that is pending
}

// contentHash is equal for equal states of a file: its content, or why it can't be
// read.
type contentHash [sha256.Size]byte

func failureHash(err error) contentHash { return sha256.Sum256([]byte("error " + err.Error())) }

// sight is what a file was found to be.
type sight struct {
	text []byte // nil if it was not read, since it was known
	is   contentHash
	err  error
}

// fileStat tells one state of a file from another, most of the time.
type fileStat struct {
	size, changed int64
	inode         uint64
}

// look reports whether the file is another than when look last said so, and has
// come to rest; then it was read.
func (w *watched) look(now time.Time) (sight, bool) {
	s := w.see(now)
	if s.is == w.told {
		w.pending = false
		return sight{}, false
	}
	if !w.pending {
		w.pending, w.first = true, now
	} else if s.is == w.seen || now.Sub(w.first) >= restless {
		w.pending, w.told = false, s.is
		if s.text == nil && s.err == nil {
			s = w.read()
			w.told = s.is
		}
		return s, true
	}
	w.seen = s.is
	return sight{}, false
}

// see finds out what the file is. It reads it unless it is certainly what it was.
func (w *watched) see(now time.Time) sight {
	f, st, err := openOrdinary(w.path)
	if st != w.stat {
		w.stat, w.since, w.known = st, now, false
	}
	if err != nil {
		return sight{is: failureHash(err), err: err}
	}
	defer f.Close()
	if w.known && now.Sub(w.since) > fresh {
		return sight{is: w.is}
	}
	s := sightOf(f, w.limit)
	w.is, w.known = s.is, s.err == nil
	return s
}

// read reads the file whatever is known of it.
func (w *watched) read() sight {
	f, _, err := openOrdinary(w.path)
	if err != nil {
		return sight{is: failureHash(err), err: err}
	}
	defer f.Close()
	return sightOf(f, w.limit)
}

func sightOf(f *os.File, limit int64) sight {
	text, err := readAll(f, limit)
	if err != nil {
		return sight{is: failureHash(err), err: err}
	}
	return sight{text: text, is: sha256.Sum256(text)}
}

// tell makes a state of the file the one that was acted on.
func (w *watched) tell(is contentHash) { w.told, w.pending = is, false }

// openOrdinary opens a file unless it is a pipe or the like, which may have
// nothing to read yet.
func openOrdinary(path string) (*os.File, fileStat, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fileStat{}, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no ordinary file", path)
	}
	if err != nil {
		_ = f.Close() // nothing was written
		return nil, fileStat{}, err
	}
	st := fileStat{size: info.Size(), changed: info.ModTime().UnixNano()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		st.inode = sys.Ino
	}
	return f, st, nil
}

// readUpTo reads an ordinary file of at most limit bytes.
func readUpTo(path string, limit int64) ([]byte, error) {
	f, _, err := openOrdinary(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readAll(f, limit)
}

func readAll(f *os.File, limit int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("%s is larger than %d MiB", f.Name(), limit>>20)
	}
	return text, nil
}
