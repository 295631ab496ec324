package gateway

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// watcher notices when the peer of an accepted connection leaves.
//
// fasthttp reads nothing from a connection while its handler or its body
// stream runs, so a client that closes would go unseen until a write fails.
// One epoll set holds every accepted connection for its whole life and asks
// for EPOLLRDHUP alone: bytes of a pipelined request neither wake it nor hide
// a close. Registering once a connection, edge-triggered, keeps the cost of a
// request at zero system calls.
type watcher struct {
	epfd, wakefd int
	done         chan struct{}

	// mu protects the fields below and the life of the two descriptors.
	mu     sync.Mutex
	conns  map[int32]*conn
	next   int32
	closed bool
}

// newWatcher starts the watcher's goroutine; Close ends it and waits for it.
func newWatcher() (*watcher, error) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot create the epoll set that watches for clients leaving: %w", err)
	}
	wakefd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(epfd)
		return nil, fmt.Errorf("cannot create the eventfd that stops the watcher: %w", err)
	}
	w := &watcher{epfd: epfd, wakefd: wakefd, done: make(chan struct{}), conns: make(map[int32]*conn)}
	wake := unix.EpollEvent{Events: unix.EPOLLIN, Fd: -1}
	if err := unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, wakefd, &wake); err != nil {
		_ = unix.Close(wakefd)
		_ = unix.Close(epfd)
		return nil, fmt.Errorf("cannot watch the stop eventfd: %w", err)
	}
	go w.run()
	return w, nil
}

// add begins watching c. A connection that can't be watched is not an error
// for its client: it is then noticed at the next write, as without a watcher.
func (w *watcher) add(c *conn) {
	raw, err := c.tcp.SyscallConn()
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	w.next++
	id := w.next
	for w.conns[id] != nil || id <= 0 {
		w.next = max(w.next+1, 1)
		id = w.next
	}
	ev := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLET&0xffffffff, Fd: id}
	ctlErr := raw.Control(func(fd uintptr) {
		err = unix.EpollCtl(w.epfd, unix.EPOLL_CTL_ADD, int(fd), &ev)
	})
	if ctlErr != nil || err != nil {
		return
	}
	c.watchID = id
	w.conns[id] = c
}

// remove stops watching c; the kernel drops a closed descriptor from the set
// by itself, so only the map entry is left to release.
func (w *watcher) remove(c *conn) {
	if c.watchID == 0 {
		return
	}
	w.mu.Lock()
	delete(w.conns, c.watchID)
	w.mu.Unlock()
}

// run hands each close to its connection until Close.
func (w *watcher) run() {
	defer close(w.done)
	events := make([]unix.EpollEvent, 128)
	for {
		n, err := unix.EpollWait(w.epfd, events, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			panic(fmt.Sprintf("BUG: epoll_wait on the client watcher: %v", os.NewSyscallError("epoll_wait", err)))
		}
		for _, ev := range events[:n] {
			if ev.Fd == -1 {
				return
			}
			w.mu.Lock()
			c := w.conns[ev.Fd]
			w.mu.Unlock()
			if c != nil {
				c.peerGone()
			}
		}
	}
}

// Close stops the watcher and waits for its goroutine.
func (w *watcher) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil
	}
	w.closed = true
	w.mu.Unlock()
	if _, err := unix.Write(w.wakefd, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		return fmt.Errorf("cannot stop the client watcher: %w", err)
	}
	<-w.done
	_ = unix.Close(w.wakefd)
	return unix.Close(w.epfd)
}
