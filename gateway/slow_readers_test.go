//go:build !race

package gateway

import (
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
)

// TestSlowReaders: clients that read less than their worker sends hold the worker
// back. What the gateway holds of their streams doesn't grow, nobody is blamed for it
// and nobody is cut off.
func TestSlowReaders(t *testing.T) {
	const clients = 200
	var sent atomic.Int64
	worker := gatewaytest.NewWorker(t, endless(&sent))
	r := newRig(t, []string{worker.URL()}, withListener(func(ln net.Listener) net.Listener { return narrow{ln} }))
	held := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := held()
	var group sync.WaitGroup
	defer group.Wait()
	stop := make(chan struct{})
	defer close(stop)
	var cut atomic.Int64
	for range clients {
		c := r.chat(streamBody)
		group.Go(func() {
			defer c.Leave(gatewaytest.RST)
			body, kilobyte := c.Head().Body, make([]byte, 1<<10)
			for tick := time.NewTicker(time.Second); ; {
				select {
				case <-stop:
					tick.Stop()
					return
				case <-tick.C:
				}
				_ = c.Write("") // gives the client itself more time
				if _, err := io.ReadFull(body, kilobyte); err != nil {
					cut.Add(1)
					return
				}
			}
		})
	}
	// Once the sockets are full a worker can send no more than its client reads.
	calm := 0
	for end, full := time.Now().Add(3*time.Minute), sent.Load(); calm < 3; {
		time.Sleep(time.Second)
		now := sent.Load()
		if calm++; now-full > 4<<20 || now == 0 {
			calm = 0
		}
		full = now
		if time.Now().After(end) {
			t.Fatalf("the workers go on sending: %d MiB by now", now>>20)
		}
	}
	// What 200 streams hold at most, with their clients and workers, which are in this
	// process; the workers have sent many times as much.
	if more := held() - before; more > clients*(256<<10) {
		t.Errorf("the heap has grown by %d KiB, when %d MiB were sent", more>>10, sent.Load()>>20)
	}
	if n := cut.Load(); n > 0 {
		t.Errorf("%d clients were cut off", n)
	}
	if n := len(r.ledger.all()); n > 0 {
		t.Errorf("%d streams have ended", n)
	}
	r.health.mu.Lock()
	defer r.health.mu.Unlock()
	if r.health.failures != 0 {
		t.Errorf("the worker has %d failures", r.health.failures)
	}
}
