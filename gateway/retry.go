package gateway

import (
	"sync"
	"time"
)

const (
	// retryWindow is how far back requests count for the retries that they allow.
	retryWindow = 10 * time.Second
	// retryFloor retries are allowed a second whatever the share, so that a gateway
	// with few requests can try on.
	retryFloor = 3
)

// retryBudget keeps retries from multiplying the load of a pool that fails: in each
// window at most a share of its requests may be sent on. It is safe for concurrent
// use.
type retryBudget struct {
	share float64

	mu    sync.Mutex // protects pools
	pools map[string]*retryCount
}

// retryCount are the requests and retries of one pool, by second.
type retryCount struct {
	seconds [int(retryWindow / time.Second)]retrySecond
}

type retrySecond struct {
	at                int64 // the Unix second that it counts
	requests, retries int
}

func newRetryBudget(share float64) *retryBudget {
	return &retryBudget{share: share, pools: make(map[string]*retryCount)}
}

// request counts a request that was sent to a pool for the first time.
func (b *retryBudget) request(now time.Time, pool string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pool(pool).second(now.Unix()).requests++
}

// take counts a retry after a failure in a pool, if there is room for it.
func (b *retryBudget) take(now time.Time, pool string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.pool(pool)
	at := now.Unix()
	requests, retries := 0, 0
	for _, s := range c.seconds {
		if at-s.at < int64(len(c.seconds)) {
			requests, retries = requests+s.requests, retries+s.retries
		}
	}
	if retries >= max(int(b.share*float64(requests)), retryFloor*len(c.seconds)) {
		return false
	}
	c.second(at).retries++
	return true
}

// pool requires that mu is held. Pools are names of the configuration: they are few,
// and one that is gone costs next to nothing.
func (b *retryBudget) pool(name string) *retryCount {
	c := b.pools[name]
	if c == nil {
		c = new(retryCount)
		b.pools[name] = c
	}
	return c
}

func (c *retryCount) second(at int64) *retrySecond {
	s := &c.seconds[at%int64(len(c.seconds))]
	if s.at != at {
		s.at, s.requests, s.retries = at, 0, 0
	}
	return s
}
