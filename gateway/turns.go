package gateway

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/gateway/qos/placing"
	"github.com/sluicegate/sluice/scoring"
)

const (
	// beltEvery is how often the queue is looked at although nothing has told of room:
	// what is found then shows a wake-up that was lost.
	beltEvery = 100 * time.Millisecond
	// maxNotes bounds the notes about work that nobody waited for.
	maxNotes = 1024
)

// turns gives requests their turns at the workers in the order of the queue. It is
// the queue's clock, its lock and the goroutine that gives out room as it comes; it
// decides nothing itself.
//
// While nobody waits a request passes without a lock that it might have to wait for.
//
// mu comes before the fleet's lock. The fleet tells of room after it has unlocked, and
// what it calls does no more than set a mark and then a token: the mark says where,
// the token wakes the goroutine. Whoever looks takes the marks first, so that what
// changes meanwhile is looked at again.
type turns struct {
	router Router
	log    *slog.Logger

	conf    atomic.Pointer[turnConf] // nil without a queue
	marks   atomic.Pointer[turnConf] // the last that was not nil: what waits is still told of room
	waiting atomic.Int64             // requests that wait, or are about to
	wake    chan struct{}
	late    atomic.Int64 // requests placed by a look that nothing had told of
	notes   chan note    // what could not be noted at once

	// mu protects what follows.
	mu      sync.Mutex
	queue   *qos.Queue // nil until a generation has classes
	epoch   int        // counts queues
	placer  placer
	armed   time.Time     // when the goroutine looks again
	belt    time.Duration // beltEvery; tests of what is told alone have more
	out     []qos.Outcome
	members map[*turn]struct{}
	refused refusals
	lonely  lonely
	// suspects are placements of a look that nothing had told of, by pool: the mark
	// may have been about to come.
	suspects map[string]suspect
	// suspecting says that there are some.
	suspecting atomic.Bool

	cancel context.CancelFunc
	ended  chan struct{}
}

// suspect is how many were placed without a mark, and when the last was.
type suspect struct {
	n  int64
	at time.Time
}

// turnConf is a generation of the queue, as those need it who don't hold its lock.
type turnConf struct {
	of      *State
	config  qos.Config
	classes map[string]turnClass
	last    turnClass // stands for classes that are unknown
	pools   map[string]*turnPool
	byID    []string
	kept    []keptRoom // by class and pool
}

type turnClass struct {
	id qos.ClassID
	qos.Class
}

type turnPool struct {
	id    qos.PoolID
	dirty atomic.Bool
}

// class is what stands for a class of this name.
func (c *turnConf) class(name string) turnClass {
	if class, ok := c.classes[name]; ok {
		return class
	}
	return c.last
}

// note is work that went past the queue to a pool, or a correction of work that was
// charged.
type note struct {
	turn    *turn
	settles bool
	pool    string
	work    int64
}

// startTurns begins to give out room for st.
func startTurns(router Router, st *State, log *slog.Logger) *turns {
	t := &turns{
		router: router, log: log, wake: make(chan struct{}, 1), notes: make(chan note, maxNotes),
		members: make(map[*turn]struct{}), suspects: make(map[string]suspect), ended: make(chan struct{}),
		belt:  beltEvery,
		epoch: 1, // that of no request which no queue knows
	}
	t.placer.Fleet = router
	t.configure(st)
	var ctx context.Context
	ctx, t.cancel = context.WithCancel(context.Background())
	if router != nil {
		router.OnRoom(t.madeRoom)
	}
	go t.run(ctx)
	return t
}

// stop ends the goroutine and waits for it. Nobody waits any more by then.
func (t *turns) stop() {
	t.cancel()
	<-t.ended
}

// configure makes st the generation of the queue. A configuration that the queue
// can't take is refused by who loads it.
func (t *turns) configure(st *State) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(st.Queue.Classes) == 0 {
		t.conf.Store(nil) // those that wait keep their turns
		return
	}
	pools := slices.Sorted(maps.Keys(st.Pools))
	if t.queue == nil {
		q, err := qos.New(st.Queue, pools)
		if err != nil {
			panic("BUG: a queue's configuration was not validated: " + err.Error())
		}
		t.queue = q
	} else if err := t.queue.Reconfigure(st.Queue, pools); err != nil {
		panic("BUG: a queue's configuration was not validated: " + err.Error())
	}
	c := &turnConf{of: st, config: st.Queue, classes: make(map[string]turnClass), pools: make(map[string]*turnPool)}
	for _, class := range st.Queue.Classes {
		id, _ := t.queue.Class(class.Name)
		c.last = turnClass{id, class}
		c.classes[class.Name] = c.last
	}
	old := t.placer.conf
	if old != nil { // pools are never forgotten, so that a mark finds its pool
		maps.Copy(c.pools, old.pools)
		c.byID = slices.Clone(old.byID)
	}
	for _, name := range pools {
		if c.pools[name] != nil {
			continue
		}
		id, _ := t.queue.Pool(name)
		c.pools[name] = &turnPool{id: id}
		for len(c.byID) <= int(id) {
			c.byID = append(c.byID, "")
		}
		c.byID[id] = name
	}
	t.use(c)
	t.conf.Store(c)
	t.poke()
}

// use has the queue go by a generation. The caller holds mu.
func (t *turns) use(c *turnConf) {
	most := qos.ClassID(0)
	for _, class := range c.classes {
		most = max(most, class.id)
	}
	c.kept = make([]keptRoom, (int(most)+1)*len(c.byID))
	t.placer.of(c)
	t.marks.Store(c)
}

// madeRoom is called by the fleet.
func (t *turns) madeRoom(pool string) {
	if t.waiting.Load() == 0 && !t.suspecting.Load() {
		return
	}
	if c := t.marks.Load(); c != nil {
		if p := c.pools[pool]; p != nil {
			p.dirty.Store(true)
			t.poke()
		}
	}
}

// poke wakes the goroutine.
func (t *turns) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// run gives out room as it comes, until ctx ends.
func (t *turns) run(ctx context.Context) {
	defer close(t.ended)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		unasked := false
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		case <-timer.C:
			unasked = true
		}
		timer.Reset(t.round(unasked))
	}
}

// idle is how long the goroutine sleeps while nobody waits.
const idle = time.Hour

// round gives out what room there is, and returns after what time it is to be looked
// at again although nothing tells of room. unasked says that nothing has.
func (t *turns) round(unasked bool) (next time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.survive()
	now := time.Now()
	if t.queue == nil {
		return idle
	}
	t.takeNotes()
	if due, ok := t.queue.Next(); ok && !due.After(now) {
		unasked = false
	}
	marked := t.takeMarks()
	t.confirmSuspects(now)
	if t.queue.Waiting() == 0 {
		next = idle
		if len(t.suspects) > 0 {
			next = beltEvery
		}
		t.armed = now.Add(next)
		return next
	}
	if unasked && !marked {
		for _, p := range t.placer.conf.pools {
			t.queue.Dirty(p.id)
		}
	}
	t.out = t.out[:0]
	if due, ok := t.queue.Next(); marked || ok && !due.After(now) || unasked {
		t.out = t.queue.Pump(now, &t.placer, t.out)
	} // else the timer alone is to be set
	if unasked && !marked {
		t.suspect(now)
	}
	t.strand(now)
	t.deliver()
	next = t.belt
	if due, ok := t.queue.Next(); ok {
		next = min(next, max(0, time.Until(due)))
	}
	t.armed = now.Add(next)
	return next
}

// takeMarks passes the marks on to the queue. The caller holds mu.
func (t *turns) takeMarks() (any bool) {
	for name, p := range t.placer.conf.pools {
		if p.dirty.Swap(false) {
			t.queue.Dirty(p.id)
			delete(t.suspects, name) // the mark was on its way
			any = true
		}
	}
	return any
}

// suspect notes what was placed although nothing had told of room. The caller holds
// mu.
func (t *turns) suspect(now time.Time) {
	for i := range t.out {
		if t.out[i].State == qos.Granted {
			name := t.placer.conf.byID[t.out[i].Pool]
			t.suspects[name] = suspect{t.suspects[name].n + 1, now}
			t.suspecting.Store(true)
		}
	}
}

// confirmSuspects counts those whose mark has not come since. The caller holds mu.
func (t *turns) confirmSuspects(now time.Time) {
	for name, s := range t.suspects {
		if now.Sub(s.at) >= beltEvery {
			t.late.Add(s.n)
			delete(t.suspects, name)
		}
	}
	t.suspecting.Store(len(t.suspects) > 0)
}

// deliver tells those that wait what became of them. The caller holds mu.
func (t *turns) deliver() {
	for i := range t.out {
		o := &t.out[i]
		tn := o.Entry.Payload.(*turn)
		tn.outcome = *o
		if o.State == qos.Refused {
			t.refused.add(tn)
		}
		t.release(tn)
		tn.ready <- struct{}{}
	}
	clear(t.out)
}

// release counts a request that waits no longer. The caller holds mu.
func (t *turns) release(tn *turn) {
	delete(t.members, tn)
	t.waiting.Add(-1)
}

// survive is deferred by those that call the queue with mu held: where there is a bug
// in it or below, those that wait get an error instead of waiting for ever, and the
// next ones a new queue.
func (t *turns) survive() {
	bug := recover()
	if bug == nil {
		return
	}
	logPanic(t.log, bug, slog.String("where", "queue"))
	for tn := range t.members {
		tn.broken = true
		t.release(tn)
		tn.ready <- struct{}{}
	}
	clear(t.out)
	c := t.placer.conf
	q, err := qos.New(c.config, c.byID)
	if err != nil {
		panic("BUG: a queue's configuration was valid before: " + err.Error())
	}
	t.queue, t.armed = q, time.Time{}
	t.epoch++
	ids := &turnConf{of: c.of, config: c.config, classes: make(map[string]turnClass), pools: c.pools, byID: c.byID}
	for _, class := range c.config.Classes {
		id, _ := q.Class(class.Name)
		ids.last = turnClass{id, class}
		ids.classes[class.Name] = ids.last
	}
	t.use(ids)
	if t.conf.Load() != nil {
		t.conf.Store(ids)
	}
	t.poke() // the goroutine sleeps for as long as the old queue could wait
}

// note has the queue remember work, now or as soon as it can.
func (t *turns) note(n note) {
	if t.mu.TryLock() {
		defer t.mu.Unlock()
		defer t.survive()
		t.takeNotes()
		t.take(&n)
		return
	}
	select {
	case t.notes <- n:
	default: // it is a matter of fairness alone
	}
}

// takeNotes takes what could not be noted at once. The caller holds mu.
func (t *turns) takeNotes() {
	for {
		select {
		case n := <-t.notes:
			t.take(&n)
		default:
			return
		}
	}
}

func (t *turns) take(n *note) {
	p := t.placer.conf.pools[n.pool]
	switch {
	case n.settles && n.turn.epoch == t.epoch:
		t.queue.Settle(time.Now(), &n.turn.entry, n.work)
	case !n.settles && p != nil:
		n.turn.epoch = t.epoch
		n.turn.entry.Class = t.placer.conf.class(n.turn.class.Name).id
		t.queue.Passed(time.Now(), &n.turn.entry, p.id, n.work)
	}
}

// enter takes a request in that has found no room, or that others wait before, or that
// comes again after an attempt that failed. What becomes of it comes on its channel.
func (t *turns) enter(tn *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.survive()
	t.members[tn], tn.alone = struct{}{}, time.Time{}
	t.waiting.Add(1) // before the workers are looked at, so that room from now on is told
	t.takeNotes()
	now := time.Now()
	again := tn.charged && tn.epoch == t.epoch
	t.complete(tn, again)
	if again {
		t.queue.Again(now, &tn.entry)
		t.takeMarks()
		t.out = t.queue.Pump(now, &t.placer, t.out[:0])
	} else {
		t.out = t.queue.Admit(now, &tn.entry, &t.placer, t.out[:0])
	}
	t.deliver()
	if due, ok := t.queue.Next(); ok && due.Before(t.armed) || t.armed.Sub(now) > t.belt {
		t.poke() // the goroutine has its timer to set
	}
}

// complete tells the queue what nobody needs of a request that passes. The caller
// holds mu.
func (t *turns) complete(tn *turn, again bool) {
	e := &tn.entry
	e.Key, e.Bytes = tn.key, tn.bytes
	e.Own = placing.Own(&tn.meets)
	if !again {
		tn.epoch, e.Class, e.Work = t.epoch, t.placer.conf.class(tn.class.Name).id, tn.Costs(tn.meets.Work)
	}
}

// leave takes a request out, if it still waits. draining says that it is the gateway that
// lets it wait no longer.
func (t *turns) leave(tn *turn, draining bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.survive()
	if _, waits := t.members[tn]; waits {
		if draining {
			t.queue.Drain(time.Now(), &tn.entry)
		} else {
			t.queue.Leave(time.Now(), &tn.entry)
		}
		t.release(tn)
	}
}

// placer is the fleet as the queue sees it.
type placer struct {
	placing.Placer
	conf *turnConf
}

// of has the placer go by a generation.
func (p *placer) of(c *turnConf) { p.conf, p.Pools = c, c }

// ID implements [placing.Pools].
func (c *turnConf) ID(name string) (qos.PoolID, bool) {
	p := c.pools[name]
	if p == nil {
		return 0, false
	}
	return p.id, true
}

// Name implements [placing.Pools].
func (c *turnConf) Name(id qos.PoolID) string { return c.byID[id] }

// Prepared implements [placing.Request].
func (tn *turn) Prepared() *scoring.Prepared { return tn.prepared }

// Costs implements [placing.Request].
func (tn *turn) Costs(prompt int) int64 { return placing.Cost(prompt, tn.output) }

// Reserve implements [placing.Request].
func (tn *turn) Reserve(res *scoring.Reservation) { tn.res = res }
