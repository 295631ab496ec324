package gateway

import (
	"maps"
	"sync"
	"time"

	"github.com/sluicegate/sluice/scoring"
)

// workClock shares out the time for which a worker has something of ours in
// hand among the requests that it has at that time, by equal parts: while n
// requests run there, each gets a n-th of what passes, times the worker's GPUs.
// An engine batches, so no better is known of one request without asking the
// GPU.
//
// A worker's clock is the share that a request would have that had been there
// from the beginning; a request's own is what the clock gains between its begin
// and its end, so both are cheap however many run. Nothing is lost to rounding: the
// clock is whole nanoseconds, and what a division leaves is kept for the next one;
// a share is whole microseconds, and what that leaves is kept for the pool's next
// one. So the shares of a pool whose workers are idle sum to their busy time times
// their GPUs, less than a microsecond apart.
type workClock struct {
	mu      sync.Mutex // protects what follows
	workers map[scoring.WorkerID]*workerClock
	busy    map[string]time.Duration // by pool: what has been shared out, in GPU time
	kept    map[string]time.Duration // by pool: what is left of shares that have ended
}

// workerClock is that of a worker with requests in hand.
type workerClock struct {
	pool    string
	gpus    int64
	running int64
	at      time.Time     // up to where time has been shared out
	clock   time.Duration // what a request from the beginning would have
	rest    int64         // nanoseconds that could not be shared out evenly; less than running was
}

// work is a request's share that is being measured. The zero value is none.
type work struct {
	worker scoring.WorkerID
	of     *workerClock
	from   time.Duration
}

func newWorkClock() *workClock {
	return &workClock{
		workers: make(map[scoring.WorkerID]*workerClock),
		busy:    make(map[string]time.Duration), kept: make(map[string]time.Duration),
	}
}

// begin starts the share of a request that is about to be sent to a worker with
// so many GPUs. It is followed by one end. A worker whose GPUs have changed
// counts by the new number once it has been idle.
func (c *workClock) begin(w scoring.WorkerInfo, gpus int, now time.Time) work {
	c.mu.Lock()
	defer c.mu.Unlock()
	wc := c.workers[w.ID]
	if wc == nil {
		wc = &workerClock{pool: w.Pool, gpus: int64(max(1, gpus)), at: now}
		c.workers[w.ID] = wc
	}
	c.advanceLocked(wc, now)
	wc.running++
	return work{worker: w.ID, of: wc, from: wc.clock}
}

// end returns the share of a request that the worker no longer has, in whole
// microseconds.
func (c *workClock) end(w work, now time.Time) time.Duration {
	if w.of == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advanceLocked(w.of, now)
	w.of.running--
	if w.of.running == 0 {
		delete(c.workers, w.worker) // its clock may begin anew: nobody is measured by it
	}
	share := w.of.clock - w.from + c.kept[w.of.pool]
	c.kept[w.of.pool] = share % time.Microsecond
	return share.Truncate(time.Microsecond)
}

// advanceLocked shares out the time up to now. The caller holds mu. Requests
// read their clocks before they get here, so now may be a little before what was
// shared out already: nothing has passed then.
func (c *workClock) advanceLocked(wc *workerClock, now time.Time) {
	passed := int64(max(0, now.Sub(wc.at)))
	if passed > 0 {
		wc.at = now
	}
	if wc.running == 0 {
		return
	}
	passed *= wc.gpus
	c.busy[wc.pool] += time.Duration(passed)
	passed += wc.rest
	wc.clock += time.Duration(passed / wc.running)
	wc.rest = passed % wc.running
}

// total returns how much GPU time was busy in each pool, up to now.
func (c *workClock) total(now time.Time) map[string]time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, wc := range c.workers {
		c.advanceLocked(wc, now)
	}
	return maps.Clone(c.busy)
}

// GPUTime returns for how long the GPUs of each pool have had requests of this
// gateway in hand, up to now: the sum of the requests' shares.
func (g *Gateway) GPUTime(now time.Time) map[string]time.Duration { return g.work.total(now) }

// beginWork starts the share of the attempt whose request is about to be
// written, unless a first connection to the same worker has done so. What puts no
// prompt through an engine keeps no GPU busy.
func (ex *exchange) beginWork(now time.Time) {
	if ex.work.of == nil && ex.route.billsTokens {
		w := ex.res.Worker()
		ex.work = ex.g.work.begin(w, ex.st.Pools[w.Pool].GPUs, now)
	}
}

// endWork adds the share of the attempt that has ended, if one had begun. What
// an attempt took that failed counts, too: the worker may have worked for it.
func (ex *exchange) endWork(now time.Time) {
	ex.gpuTime += ex.g.work.end(ex.work, now)
	ex.work = work{}
}
