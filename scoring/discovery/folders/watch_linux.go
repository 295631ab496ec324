package folders

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Watch is a set of folders. Its methods are safe for concurrent use.
type Watch struct {
	// Changed has the paths of files that changed, under the names by which their
	// folders were added. Missed has ErrMissed. Both are closed when the watch ends.
	Changed <-chan string
	Missed  <-chan error

	file *os.File
	quit chan struct{}
	done chan struct{}

	mu      sync.Mutex // protects what follows
	closed  bool
	numbers map[string]int     // of folders, by path
	paths   map[int32][]string // likewise, by number: a folder may have several names
}

// told is what is asked of the kernel. IN_MODIFY is not: it comes at each write.
const told = unix.IN_CREATE | unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_ATTRIB |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// New returns a watch of nothing. Close ends it.
func New() (*Watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot watch folders: %w", err)
	}
	changed, missed := make(chan string), make(chan error)
	w := &Watch{
		Changed: changed, Missed: missed, file: os.NewFile(uintptr(fd), "inotify"), quit: make(chan struct{}), done: make(chan struct{}),
		numbers: make(map[string]int), paths: make(map[int32][]string),
	}
	go func() {
		defer close(w.done)
		w.read(changed, missed)
	}()
	return w, nil
}

// Add begins to watch a folder. A folder that is watched stays so, and one that was
// replaced by another of the same name is watched anew.
func (w *Watch) Add(folder string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.ask(folder)
	if err != nil {
		return fmt.Errorf("cannot watch the folder %s: %w", folder, err)
	}
	old, known := w.numbers[folder]
	if known && old == n {
		return nil
	}
	if known {
		w.forget(folder, int32(old))
	}
	w.numbers[folder] = n
	w.paths[int32(n)] = append(w.paths[int32(n)], folder)
	return nil
}

// ask has the kernel watch a folder. w.mu is held.
func (w *Watch) ask(folder string) (n int, err error) {
	err = w.control(func(fd int) (err error) {
		n, err = unix.InotifyAddWatch(fd, folder, told)
		return err
	})
	return n, err
}

func (w *Watch) control(do func(fd int) error) error {
	if w.closed {
		return fs.ErrClosed
	}
	conn, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := conn.Control(func(fd uintptr) { err = do(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

// Remove ends the watching of a folder. It does nothing for one that is not watched.
func (w *Watch) Remove(folder string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n, ok := w.numbers[folder]; ok {
		delete(w.numbers, folder)
		w.forget(folder, int32(n))
	}
}

// forget takes a name from a watched folder, and with the last one the watch. w.mu is
// held.
func (w *Watch) forget(folder string, n int32) {
	var left []string
	for _, path := range w.paths[n] {
		if path != folder {
			left = append(left, path)
		}
	}
	if len(left) > 0 {
		w.paths[n] = left
		return
	}
	delete(w.paths, n)
	// The folder may be gone, and its watch with it.
	_ = w.control(func(fd int) error { _, err := unix.InotifyRmWatch(fd, uint32(n)); return err })
}

// Close ends the watch, and waits for that.
func (w *Watch) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil
	}
	w.closed = true
	w.mu.Unlock()
	close(w.quit)
	err := w.file.Close()
	<-w.done
	return err
}

// read takes in what the kernel tells, until the file is closed.
func (w *Watch) read(changed chan<- string, missed chan<- error) {
	defer close(changed)
	defer close(missed)
	buf := make([]byte, 16*(unix.SizeofInotifyEvent+unix.NAME_MAX+1))
	for {
		n, err := w.file.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil || !w.tell(buf[:n], changed, missed) {
			<-w.quit // there is nothing more to be told
			return
		}
	}
}

// tell passes events on. It reports false when the watch ends.
func (w *Watch) tell(events []byte, changed chan<- string, missed chan<- error) bool {
	for len(events) >= unix.SizeofInotifyEvent {
		number := int32(binary.NativeEndian.Uint32(events))
		mask := binary.NativeEndian.Uint32(events[4:])
		end := min(len(events), unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(events[12:])))
		name, _, _ := bytes.Cut(events[unix.SizeofInotifyEvent:end], []byte{0})
		file := string(name)
		events = events[end:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			select {
			case missed <- ErrMissed:
			case <-w.quit:
				return false
			}
			continue
		}
		for _, folder := range w.named(number, mask&unix.IN_IGNORED != 0) {
			select {
			case changed <- filepath.Join(folder, file):
			case <-w.quit:
				return false
			}
		}
	}
	return true
}

// named returns the names of a folder, and forgets it if the kernel has.
func (w *Watch) named(number int32, gone bool) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	folders := w.paths[number]
	if gone {
		delete(w.paths, number)
		for _, folder := range folders {
			delete(w.numbers, folder)
		}
	}
	return folders
}
