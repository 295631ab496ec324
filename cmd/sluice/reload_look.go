package main

import (
	"context"
	"time"
)

// look notices that files have changed: it is told by the file system where that is possible, and looks by
// itself from time to time.
type look struct {
	r        *reloader
	on       bool
	folders  *folderWatch
	changed  <-chan string // paths; nil when there are none
	missed   <-chan error
	poll     *time.Ticker
	due      *time.Timer // of the next look while something is changing
	armed    bool        // due runs
	settling settling
}

// newLook begins to watch the sources of r as its configuration says.
func newLook(r *reloader) *look {
	c := r.generation().cfg.Reload
	l := &look{r: r, on: c.Watch, poll: time.NewTicker(c.Poll), due: time.NewTimer(time.Hour)}
	l.due.Stop()
	if l.on {
		l.folders = newFolderWatch(r.log)
		l.changed, l.missed = l.folders.events()
		l.follow()
	}
	return l
}

func (l *look) close() {
	l.poll.Stop()
	l.due.Stop()
	if l.folders != nil {
		if err := l.folders.Close(); err != nil {
			l.r.log.Debug("cannot end the watch of files", "error", err)
		}
	}
}

// follow watches what there is to watch now. A change that came before a folder was watched is found by
// another look.
func (l *look) follow() {
	if !l.on {
		return
	}
	if s, _ := l.r.watched(); l.folders.follow(s) {
		l.soon()
	}
}

// event takes in what the file system tells.
func (l *look) event(path string, ok bool) {
	switch {
	case !ok:
		l.changed = nil
	case l.folders.concerns(path):
		l.soon()
	}
}

// lost takes in that changes were not told.
func (l *look) lost(ok bool) {
	if !ok {
		l.missed = nil
		return
	}
	l.soon()
}

// soon arranges a look.
func (l *look) soon() {
	if !l.armed {
		l.armed = true
		l.due.Reset(settle)
	}
}

// act looks at the files, and reloads if they have changed and settled.
func (l *look) act(ctx context.Context) {
	if !l.on {
		return
	}
	var s sources
	s, l.settling.told = l.r.watched()
	wait, act := l.settling.look(s.fingerprint(), l.r.now())
	if l.armed = wait > 0; l.armed {
		l.due.Reset(wait)
	}
	if act {
		l.r.attempt(ctx, causeFiles)
	}
	l.follow()
}
