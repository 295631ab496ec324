package gateway

import (
	"bufio"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// TestIdleConnectionsAreClosed: connections to a worker that nobody asks any
// more don't stay open, since the worker has closed its side long before.
func TestIdleConnectionsAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpstreams(time.Second, nil)
		var theirs []net.Conn
		put := func() {
			ours, other := net.Pipe()
			theirs = append(theirs, other)
			u.put(&upstream{Conn: ours, br: bufio.NewReader(ours), key: "http://a"})
		}
		left := func() (workers int, sweeping bool) {
			u.mu.Lock()
			defer u.mu.Unlock()
			return len(u.idle), u.sweep != nil
		}
		put()
		time.Sleep(3 * time.Second)
		put()
		time.Sleep(2 * maxIdleUpstream)
		synctest.Wait()
		for i, c := range theirs {
			_ = c.SetReadDeadline(time.Now())
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("connection %d: got %v, want the end", i, err)
			}
		}
		if n, sweeping := left(); n != 0 || sweeping {
			t.Errorf("%d workers are left, sweeping %v", n, sweeping)
		}
		put()
		u.Close()
		put() // comes back from a request that ended late
		if n, sweeping := left(); n != 0 || sweeping {
			t.Errorf("after Close %d workers are left, sweeping %v", n, sweeping)
		}
	})
}
