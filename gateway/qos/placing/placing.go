// Package placing is the fleet of scoring as the queue of gateway/qos sees it.
//
// The gateway and the simulator both put the queue in front of that fleet. They share
// what is here, so that the same requests before the same workers are offered alike,
// cost alike and hold for the same worker.
package placing

import (
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/scoring"
)

const (
	// OutputCost is how many tokens of a prompt take a worker as long as one of an
	// answer, which it computes beside those of others: with the times of docs/0006
	// about 4 at the batches of a busy worker.
	OutputCost = 4
	// NoPool is no pool's name: an offer to it is never taken, and tells what the
	// request would meet.
	NoPool = "\x00"
)

// Cost is the work of a request of which so many tokens of the prompt are computed and
// so many are answered.
func Cost(prompt int, output int64) int64 { return max(1, int64(prompt)+OutputCost*output) }

// Own is how long a request's first token takes on the worker that it met, without the
// wait there.
func Own(met *scoring.Refusal) time.Duration { return max(0, met.TTFT-met.Wait) }

// Fleet is what is needed of a [scoring.Fleet].
type Fleet interface {
	Offer(now time.Time, p *scoring.Prepared, terms scoring.Terms) (*scoring.Reservation, scoring.Refusal, error)
	Wait(now time.Time, pool, model string, bound time.Duration) (wait time.Duration, look time.Time)
}

// Pools are the pools' ids at the queue, and their names at the fleet.
type Pools interface {
	// ID is the id of the pool of a name; false where the queue does not know it.
	ID(name string) (qos.PoolID, bool)
	// Name is the name of a pool that the queue knows.
	Name(id qos.PoolID) string
}

// Request is the Payload of an entry.
type Request interface {
	// Prepared is what is offered to workers.
	Prepared() *scoring.Prepared
	// Costs is its work on a worker that computes so many tokens of its prompt.
	Costs(prompt int) int64
	// Reserve keeps the reservation that an offer has brought.
	Reserve(*scoring.Reservation)
}

// Placer implements [qos.Placer]. Like its queue it is used by one goroutine at a time.
type Placer struct {
	Fleet Fleet
	Pools Pools
	held  scoring.Held
}

// Begin implements [qos.Placer].
func (p *Placer) Begin() { p.held.Reset() }

// Wait implements [qos.Placer].
func (p *Placer) Wait(now time.Time, pool qos.PoolID, bound time.Duration) (time.Duration, time.Time) {
	return p.Fleet.Wait(now, p.Pools.Name(pool), "", bound)
}

// Place implements [qos.Placer].
func (p *Placer) Place(now time.Time, e *qos.Entry, terms qos.Terms) (qos.Placement, bool) {
	r := e.Payload.(Request)
	st := p.Terms(&terms)
	st.Held = &p.held
	res, no, err := p.Fleet.Offer(now, r.Prepared(), st)
	switch {
	case err != nil: // nobody is there; somebody may come
		return qos.Placement{Pool: terms.Pool}, false
	case res == nil:
		pool := p.pool(no.Pool, &terms)
		if !no.Open && pool == terms.Pool { // else it is offered there, too, or will be given that room
			p.held.Add(no.Best, no.Work, no.Room)
		}
		return qos.Placement{Pool: pool, Work: r.Costs(no.Work), Look: no.Look}, false
	}
	r.Reserve(res)
	return qos.Placement{
		Pool: p.pool(res.Worker().Pool, &terms), Work: r.Costs(res.Prompt() - res.Cached()),
	}, true
}

// pool is the id of a pool of the fleet's.
func (p *Placer) pool(name string, terms *qos.Terms) qos.PoolID {
	if id, ok := p.Pools.ID(name); ok {
		return id
	}
	return terms.Pool
}

// Terms puts the queue's terms into the fleet's words. Nothing is held by them.
func (p *Placer) Terms(t *qos.Terms) scoring.Terms {
	st := scoring.Terms{Bound: t.Bound, Keep: scoring.Keep(t.Keep)}
	if t.Pool != qos.AnyPool {
		st.Pool = p.Pools.Name(t.Pool)
	}
	return st
}
