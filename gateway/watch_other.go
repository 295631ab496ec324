//go:build !linux

package gateway

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// pollEvery is how often connections are looked at where there is no epoll.
const pollEvery = 200 * time.Millisecond

// watcher notices when the peer of an accepted connection leaves. Outside
// Linux there is no signal that pipelined bytes can't hide, so it peeks: an
// empty peek is a close. That is enough for development machines.
type watcher struct {
	stop, done chan struct{}

	// mu protects conns.
	mu    sync.Mutex
	conns map[*conn]struct{}
}

func newWatcher() (*watcher, error) {
	w := &watcher{stop: make(chan struct{}), done: make(chan struct{}), conns: make(map[*conn]struct{})}
	go w.run()
	return w, nil
}

func (w *watcher) add(c *conn) {
	w.mu.Lock()
	w.conns[c] = struct{}{}
	w.mu.Unlock()
}

func (w *watcher) remove(c *conn) {
	w.mu.Lock()
	delete(w.conns, c)
	w.mu.Unlock()
}

func (w *watcher) run() {
	defer close(w.done)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-tick.C:
		}
		w.mu.Lock()
		var gone []*conn
		for c := range w.conns {
			if peerClosed(c) {
				gone = append(gone, c)
				delete(w.conns, c)
			}
		}
		w.mu.Unlock()
		for _, c := range gone {
			c.peerGone()
		}
	}
}

func peerClosed(c *conn) bool {
	raw, err := c.tcp.SyscallConn()
	if err != nil {
		return false
	}
	closed := false
	_ = raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		closed = n == 0 && err == nil || err == unix.ECONNRESET
	})
	return closed
}

// Close stops the watcher and waits for its goroutine.
func (w *watcher) Close() error {
	close(w.stop)
	<-w.done
	return nil
}
