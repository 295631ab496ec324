package gateway

import (
	"math/bits"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
)

const (
	// noWorkerRetry is how long clients are told to stay away if no worker is ready for
	// their requests, and how long one that waits is kept if there is none any more: a
	// worker that restarts finds its queue, and nobody waits for one that has gone for
	// longer than those do who are told at once.
	noWorkerRetry = 5 * time.Second
	// lonelyEvery is how often it is looked for requests that no worker could take.
	lonelyEvery = time.Second
)

// lonely is the look for requests that wait although no worker could take them: the
// last one of their pools is gone, a reload has removed the pool, or all that are left
// have failed the request.
type lonely struct {
	last time.Time         // when it was looked for them
	seen map[servedBy]bool // of this look: whether there is a worker
}

// servedBy is by what most requests are told apart as to who could take them.
type servedBy struct {
	model string
	pools [qos.MaxPools]qos.PoolID
	n     int
	bits  int // of its length
}

// strand refuses those for whom no worker has been there for noWorkerRetry. The caller
// holds mu, and delivers.
func (t *turns) strand(now time.Time) {
	if now.Sub(t.lonely.last) < lonelyEvery {
		return
	}
	t.lonely.last, t.lonely.seen = now, make(map[servedBy]bool)
	for tn := range t.members {
		switch {
		case t.served(tn):
			tn.alone = time.Time{}
		case tn.alone.IsZero():
			tn.alone = now
		case now.Sub(tn.alone) >= noWorkerRetry:
			t.out = t.queue.Strand(now, &tn.entry, t.out)
		}
	}
	t.lonely.seen = nil
}

// served reports whether a worker is ready that may take the request. The caller holds
// mu.
func (t *turns) served(tn *turn) bool {
	pick := &tn.ex.pick
	if pick.Only != 0 || len(pick.Exclude) > 0 {
		return t.router.Serves(pick) == nil
	}
	return t.servedUpTo(tn, bits.Len(uint(pick.Length))) ||
		pick.Length > 0 && t.servedUpTo(tn, 0) && t.router.Serves(pick) == nil
}

// servedUpTo reports whether a worker is ready that may take the request if its length has
// at most so many bits. It asks once a look for all that are alike. The caller holds mu.
func (t *turns) servedUpTo(tn *turn, long int) bool {
	key := servedBy{model: tn.ex.pick.Model, n: len(tn.entry.Pools), bits: long}
	copy(key.pools[:], tn.entry.Pools)
	is, known := t.lonely.seen[key]
	if !known {
		longest := tn.ex.pick // who takes the longest of that many bits takes the others
		longest.Length = 1<<long - 1
		is = t.router.Serves(&longest) == nil
		t.lonely.seen[key] = is
	}
	return is
}
