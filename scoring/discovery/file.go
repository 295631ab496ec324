package discovery

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/sluicegate/sluice/scoring/discovery/folders"
	"github.com/sluicegate/sluice/tenancy/plainfile"
)

const (
	// defaultPoll is how often a watched file is looked at without being told
	// of a change: not every file system tells.
	defaultPoll = 5 * time.Second
	// settle is how long a changed file has to stay the same before it is
	// believed: a list that is being written may read as a shorter one.
	settle = 100 * time.Millisecond
	// maxListBytes bounds a file, against the wrong one being named.
	maxListBytes = 4 << 20
)

// File is a Discoverer that follows a file. The file may be written in place,
// replaced by another, or be a link that is turned to another, as Kubernetes
// does with a mounted ConfigMap.
type File struct {
	Path string
	// Parse turns the file's content into the complete list. An error keeps the
	// last list in force.
	Parse func(data []byte) ([]Worker, error)
	// Poll is the time between looks at the file if nothing tells of a change; 0
	// means 5 seconds.
	Poll time.Duration
	Log  *slog.Logger
}

// look is what one look at the file found.
type look struct {
	data string
	err  string
}

// Run implements Discoverer.
func (f *File) Run(ctx context.Context, up chan<- Update) {
	poll := f.Poll
	if poll <= 0 {
		poll = defaultPoll
	}
	watcher := f.watch()
	var changed <-chan string
	var missed <-chan error
	if watcher != nil {
		defer watcher.Close()
		changed, missed = watcher.Changed, watcher.Missed
	}
	tick := time.NewTicker(poll)
	defer tick.Stop()
	told := f.look()
	f.tell(ctx, up, told)
	seen := told
	settled := time.NewTimer(settle)
	settled.Stop()
	defer settled.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case path, ok := <-changed:
			if !ok {
				changed = nil
				continue
			}
			if !f.concerns(path) {
				continue
			}
			settled.Reset(settle)
			continue
		case _, ok := <-missed:
			if !ok {
				missed = nil
			}
			settled.Reset(settle)
			continue
		case <-tick.C:
			if watcher != nil {
				// A folder that was replaced is watched anew; else this changes nothing.
				_ = watcher.Add(filepath.Dir(f.Path))
			}
		case <-settled.C:
		}
		now := f.look()
		switch {
		case now != seen:
			seen = now
			settled.Reset(settle)
		case now != told:
			told = now
			f.tell(ctx, up, told)
		}
	}
}

// watch returns a watcher of the file's folder: a file that is replaced is
// another file. It is nil if there can be none, and then the file is polled.
func (f *File) watch() *folders.Watch {
	w, err := folders.New()
	if err == nil {
		if err = w.Add(filepath.Dir(f.Path)); err == nil {
			return w
		}
		_ = w.Close()
	}
	f.Log.Info("cannot watch the file of workers, looking at it from time to time instead", "file", f.Path, "error", err)
	return nil
}

// concerns reports whether a change in the file's folder may be about the file:
// about itself, or about the link through which Kubernetes turns all files of a
// volume at once.
func (f *File) concerns(path string) bool {
	name := filepath.Base(path)
	return name == filepath.Base(f.Path) || name == "..data"
}

func (f *File) look() look {
	data, err := plainfile.Read(f.Path, maxListBytes)
	if err != nil {
		return look{err: err.Error()}
	}
	return look{data: string(data)}
}

func (f *File) tell(ctx context.Context, up chan<- Update, l look) {
	if l.err != "" {
		send(ctx, up, Update{Err: fmt.Errorf("cannot read the list of workers: %s", l.err)})
		return
	}
	workers, err := f.Parse([]byte(l.data))
	send(ctx, up, Update{Workers: workers, Err: err})
}
