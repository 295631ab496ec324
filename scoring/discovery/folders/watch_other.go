//go:build !linux

package folders

import (
	"fmt"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// Watch is a set of folders. Its methods are safe for concurrent use.
type Watch struct {
	// Changed has the paths of files that changed, under the names by which their
	// folders were added. Missed has ErrMissed. Both are closed when the watch ends.
	Changed <-chan string
	Missed  <-chan error

	notify     *fsnotify.Watcher
	quit, done chan struct{}
	once       sync.Once
}

// New returns a watch of nothing. Close ends it.
func New() (*Watch, error) {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("cannot watch folders: %w", err)
	}
	changed, missed := make(chan string), make(chan error)
	w := &Watch{Changed: changed, Missed: missed, notify: notify, quit: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		pass(notify, changed, missed, w.quit)
	}()
	return w, nil
}

func pass(notify *fsnotify.Watcher, changed chan<- string, missed chan<- error, quit <-chan struct{}) {
	defer close(changed)
	defer close(missed)
	for {
		select {
		case ev, ok := <-notify.Events:
			if !ok {
				return
			}
			select {
			case changed <- ev.Name:
			case <-quit:
				return
			}
		case _, ok := <-notify.Errors:
			if !ok {
				return
			}
			select {
			case missed <- ErrMissed:
			case <-quit:
				return
			}
		}
	}
}

// Add begins to watch a folder. A folder that is watched stays so.
func (w *Watch) Add(folder string) error {
	if err := w.notify.Add(folder); err != nil {
		return fmt.Errorf("cannot watch the folder %s: %w", folder, err)
	}
	return nil
}

// Remove ends the watching of a folder. It does nothing for one that is not watched.
func (w *Watch) Remove(folder string) { _ = w.notify.Remove(folder) }

// Close ends the watch, and waits for that.
func (w *Watch) Close() (err error) {
	w.once.Do(func() {
		close(w.quit)
		err = w.notify.Close()
		<-w.done
	})
	return err
}
