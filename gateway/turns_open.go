package gateway

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/scoring"
)

// keptRoom is the room that a class must leave in a pool, as the queue has last said,
// for those that can't wait to ask it. Its numbers are those of a [scoring.Keep].
type keptRoom struct{ requests, tokens atomic.Uint64 }

func (k *keptRoom) set(keep qos.Keep) {
	k.requests.Store(math.Float64bits(keep.Requests))
	k.tokens.Store(math.Float64bits(keep.Tokens))
}

func (k *keptRoom) get() qos.Keep {
	return qos.Keep{Requests: math.Float64frombits(k.requests.Load()), Tokens: math.Float64frombits(k.tokens.Load())}
}

// keptAt is where the room is noted that a class must leave in a pool; nil for a pool
// that the generation does not know.
func (c *turnConf) keptAt(class qos.ClassID, pool qos.PoolID) *keptRoom {
	if i := int(class)*len(c.byID) + int(pool); int(pool) < len(c.byID) && i < len(c.kept) {
		return &c.kept[i]
	}
	return nil
}

// open returns the terms on which a request may go past the queue to one of these
// pools. Where the queue can't be asked at once, they are by what it has last said: a
// request that passes waits for no lock.
func (t *turns) open(now time.Time, class *turnClass, pools []qos.PoolID) scoring.Terms {
	terms := qos.Terms{Pool: qos.AnyPool, Bound: class.Bound}
	locked := t.mu.TryLock()
	if locked {
		defer t.mu.Unlock()
		defer t.survive()
	}
	c := t.marks.Load() // that of the queue while mu is held
	id := c.class(class.Name).id
	for i, pool := range pools {
		at := c.keptAt(id, pool)
		if at == nil {
			continue
		}
		if locked {
			open := t.queue.Open(now, id, pools[i:i+1])
			terms.Bound = open.Bound
			at.set(open.Keep)
		}
		keep := at.get()
		terms.Keep.Requests, terms.Keep.Tokens = max(terms.Keep.Requests, keep.Requests), max(terms.Keep.Tokens, keep.Tokens)
	}
	return t.placer.Terms(&terms)
}
