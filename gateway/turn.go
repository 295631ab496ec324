package gateway

import (
	"errors"
	"hash/maphash"
	"slices"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/gateway/qos/placing"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/tenancy"
)

const (
	// longestAnswer is the most tokens that an answer is expected to have, whatever its
	// client says, longestOutput the most that all answers to a request are.
	longestAnswer = 1 << 18
	longestOutput = 1 << 21
	// turnBytes is what a request holds while it waits, beside its body and tokens:
	// its exchange, its entry, its goroutine's stack and its client's connection.
	turnBytes = 16 << 10
)

// turn is a request as the queue has it. Its owner has it but while it waits; then
// turns.mu protects it.
type turn struct {
	ex       *exchange
	entry    qos.Entry
	pools    [qos.MaxPools]qos.PoolID
	epoch    int // of the queue that knows the entry
	class    turnClass
	target   time.Duration
	prepared *scoring.Prepared
	output   int64           // tokens that the answer is expected to have
	meets    scoring.Refusal // what it met when it was last offered by its owner
	key      uint64
	bytes    int64

	asked   bool      // a worker has been asked for
	charged bool      // the queue has charged it work
	work    int64     // that much
	waits   bool      // the owner waits for ready
	alone   time.Time // since when no worker could take it; zero: one could
	since   time.Time
	waited  time.Duration // all turns together

	counts bool   // its class's target, and how it ended, are counted
	way    string // how it came to its first worker, of QueueTurns
	reason string // why it was refused, of QueueReasons; a worker has not had it then

	ready   chan struct{} // one token: what has become of it is below
	res     *scoring.Reservation
	outcome qos.Outcome
	broken  bool
}

// takeTurn waits until it is the request's turn at a worker, and reserves it. late
// says that until has come first, if that is set. A rejection is what the client is
// told.
func (ex *exchange) takeTurn(until time.Time) (late bool, rej *rejection) {
	if !ex.turn.waits {
		ex.phase = tenancy.PhaseQueue
		if ex.over() {
			return false, shuttingDown()
		}
		if rej := ex.askForTurn(); rej != nil || !ex.turn.waits {
			return false, rej
		}
	}
	return ex.awaitTurn(until)
}

// askForTurn reserves a worker that is open to the request, if nobody waits, and else
// queues it. What does no work on a GPU doesn't wait.
func (ex *exchange) askForTurn() *rejection {
	c := ex.g.turns.conf.Load()
	if ex.turn.counts = ex.route.billsTokens; c == nil || !ex.turn.counts {
		return ex.pickWorker()
	}
	if !ex.turn.asked {
		ex.describe(c)
	}
	var res *scoring.Reservation
	err := scoring.ErrNoWorker
	if len(ex.turn.entry.Pools) > 0 {
		res, err = ex.offer()
	}
	if err != nil {
		return ex.cannotTake(err)
	}
	if res != nil {
		ex.res = res
		return nil
	}
	return ex.enterQueue()
}

// pickWorker reserves the best worker, however long the request would wait there.
func (ex *exchange) pickWorker() *rejection {
	if ex.turn.target = ex.decision.TTFTTarget; ex.turn.target <= 0 {
		ex.turn.target = ex.st.Targets[ex.decision.Class]
	}
	res, err := ex.g.parts.Router.Pick(time.Now(), &ex.pick)
	if err != nil {
		return ex.cannotTake(err)
	}
	ex.res = res
	return nil
}

// cannotTake says why no worker can take the request. What is too long for all of them is
// the client's to change, and has not asked for a worker.
func (ex *exchange) cannotTake(err error) *rejection {
	if e, ok := errors.AsType[*scoring.TooLong](err); ok && len(ex.attempts) == 0 {
		ex.turn.counts = false
		return tooLong(ex.pick.Length, e.Longest)
	}
	return ex.unsent(qos.ReasonNoWorker.String(), ex.noWorker(err))
}

// describe tells the queue's class, tenant, pools and terms of the request.
func (ex *exchange) describe(c *turnConf) {
	tn := &ex.turn
	tn.ex, tn.asked = ex, true
	tn.class = c.class(ex.decision.Class)
	tn.target = tn.class.Target
	if t := ex.decision.TTFTTarget; t > 0 {
		tn.target = t
	}
	hasNot := func(name string) bool {
		p := ex.st.Pools[name]
		return p.Models != nil && !slices.Contains(p.Models, ex.model.Name)
	}
	if slices.ContainsFunc(ex.pools, hasNot) {
		ex.pick.Pools = slices.DeleteFunc(slices.Clone(ex.pools), hasNot)
	}
	if len(ex.pick.Pools) > qos.MaxPools {
		ex.pick.Pools = ex.pick.Pools[:qos.MaxPools]
	}
	if tn.class.HasPriority {
		ex.pick.Priority = tn.class.WorkerPriority
	}
	known := tn.pools[:0]
	for _, name := range ex.pick.Pools {
		if p := c.pools[name]; p != nil && !slices.Contains(known, p.id) {
			known = append(known, p.id)
		}
	}
	prompt := int64(max(len(ex.pick.Tokens), ex.pick.Estimate))
	tn.output = ex.expectedOutput(prompt)
	ex.pick.Output = int(tn.output)
	if ex.arrived.IsZero() {
		ex.arrived = ex.start
	}
	tn.entry = qos.Entry{
		Class: tn.class.id, Tenant: ex.principal.Tenant.ID, Weight: ex.principal.Tenant.Weight, Pools: known,
		Work: tn.Costs(int(prompt)), Room: prompt + tn.output,
		Arrived: ex.arrived, Deadline: ex.arrived.Add(tn.target), Until: ex.arrived.Add(tn.class.MaxWait),
		Preemptible: ex.decision.Preemptible, Payload: tn,
	}
}

// expectedOutput is how many tokens the answer to a prompt of so many is likely to have,
// all texts together: as long as the tenant's others where as much was said of them, and
// no longer than the client says and the model can do.
func (ex *exchange) expectedOutput(prompt int64) int64 {
	if !ex.route.generates {
		return 0
	}
	most := ex.model.DefaultMaxTokens
	for _, n := range [...]*int64{ex.req.MaxTokens, ex.decision.MaxTokens} {
		if n != nil {
			most = *n
		}
	}
	if n, ok := ex.g.answers.mean(ex.principal.Tenant.ID, ex.model.Name, ex.req.MaxTokens); ok && (most <= 0 || n < most) {
		most = n
	}
	most = min(most, longestAnswer)
	if c := int64(ex.model.ContextLength); c > 0 {
		most = min(most, c-prompt/int64(max(1, ex.req.PromptCount)))
	}
	texts := min(max(1, ex.decision.N), longestOutput) * int64(max(1, ex.req.PromptCount))
	return min(max(0, most)*min(texts, longestOutput), longestOutput)
}

// offer offers the request past the queue, or, where others wait or it comes again,
// finds out what it would meet. It returns nil if it has to queue.
func (ex *exchange) offer() (*scoring.Reservation, error) {
	t, tn, now := ex.g.turns, &ex.turn, time.Now()
	if tn.prepared == nil {
		p, err := ex.g.parts.Router.Prepare(now, &ex.pick)
		if err != nil {
			return nil, err
		}
		tn.prepared = p
	}
	terms := scoring.Terms{Pool: placing.NoPool}
	passes := !tn.charged && t.waiting.Load() == 0
	if passes {
		terms = t.open(now, &tn.class, tn.entry.Pools)
	}
	res, no, err := ex.g.parts.Router.Offer(now, tn.prepared, terms)
	if res != nil {
		tn.work, tn.charged = tn.Costs(res.Prompt()-res.Cached()), true
		t.note(note{turn: tn, pool: res.Worker().Pool, work: tn.work})
	}
	tn.meets = no
	return res, err
}

var bodySeed = maphash.MakeSeed()

// enterQueue has the request wait.
func (ex *exchange) enterQueue() *rejection {
	tn := &ex.turn
	if tn.ready == nil {
		ids := 4 * len(ex.pick.Tokens)
		if err := ex.takeMemory(ids); err != nil {
			return ex.unsent(refusedMemory, noMemory(err))
		}
		tn.ready, tn.key = make(chan struct{}, 1), maphash.Bytes(bodySeed, ex.body)
		tn.bytes = int64(len(ex.body) + ids + ex.translation.size() + turnBytes)
	}
	tn.since, tn.waits = time.Now(), true
	ex.g.turns.enter(tn)
	return nil
}

// unsent is the refusal of a request that the gateway itself could not send: unless a
// worker has had it before, it is none that failed it.
func (ex *exchange) unsent(reason string, rej *rejection) *rejection {
	if tn := &ex.turn; tn.counts && tn.way == "" {
		tn.reason = reason
	}
	return rej
}

// turnTaken counts a request that is sent to its first worker.
func (ex *exchange) turnTaken() {
	switch tn := &ex.turn; {
	case !tn.counts || tn.way != "":
	case tn.ready != nil:
		tn.way = TurnGranted
	default:
		tn.way = TurnPassed
	}
}

// endTurn counts a request that has ended, unless it was refused or sent before.
func (ex *exchange) endTurn() {
	tn := &ex.turn
	switch {
	case !tn.counts || tn.way != "" || tn.reason != "":
	case ex.drained():
		tn.reason = qos.ReasonDraining.String()
	case ex.over():
		tn.way = TurnLeft
	default:
		tn.reason = refusedInternal
	}
}

// drained reports whether the request is over because the gateway shuts down.
func (ex *exchange) drained() bool { return ex.over() && !ex.gone.Load() && !ex.revoked.Load() }

// awaitTurn waits for what becomes of a request that is in the queue.
func (ex *exchange) awaitTurn(until time.Time) (late bool, rej *rejection) {
	var beat <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		beat = timer.C
	}
	select {
	case <-ex.turn.ready:
		if !ex.over() {
			return false, ex.turnCame()
		}
		ex.turn.ready <- struct{}{} // who leaves takes it, and gives back what came with it
	case <-ex.ctx.Done():
	case <-beat:
		return true, nil
	}
	if ex.over() {
		ex.leaveQueue()
		return false, shuttingDown()
	}
	return false, ex.turnCame()
}

// turnCame takes over what has become of a request that waited.
func (ex *exchange) turnCame() *rejection {
	tn := &ex.turn
	ex.waitOver()
	switch {
	case tn.broken:
		tn.broken = false
		ex.returnTurn()
		return internal(errors.New("panic in the queue"))
	case tn.outcome.State == qos.Refused:
		return ex.turnRefused(&tn.outcome)
	}
	if !tn.charged {
		tn.charged, tn.work = true, tn.outcome.Work
	}
	if !ex.callerStands() {
		ex.returnTurn()
		if ex.turn.way == "" {
			ex.turn.way = TurnLeft
		}
		return ex.takenBack(errRevokedWaiting)
	}
	ex.res, tn.res = tn.res, nil
	return nil
}

// waitOver counts the wait that has ended.
func (ex *exchange) waitOver() {
	ex.turn.waits = false
	ex.turn.waited += time.Since(ex.turn.since)
}

// returnTurn gives a worker back that was reserved and isn't needed.
func (ex *exchange) returnTurn() {
	if res := ex.turn.res; res != nil {
		ex.turn.res = nil
		res.Done(time.Now(), scoring.NotSent)
	}
}

// leaveQueue takes the request out of the queue, wherever it is by now.
func (ex *exchange) leaveQueue() {
	tn := &ex.turn
	if !tn.waits {
		return
	}
	ex.g.turns.leave(tn, ex.drained())
	ex.waitOver()
	select {
	case <-tn.ready:
		tn.charged = tn.charged || tn.outcome.State == qos.Granted
		tn.work = max(tn.work, tn.outcome.Work)
		ex.returnTurn()
	default:
	}
}

// dropTurn drops what only another offer would need.
func (ex *exchange) dropTurn() {
	if p := ex.turn.prepared; p != nil {
		ex.turn.prepared = nil
		p.Release()
	}
}

// settleTurn tells the queue what the request has truly cost.
func (ex *exchange) settleTurn(c *charge, row *tenancy.Row) {
	tn := &ex.turn
	if !tn.charged {
		return
	}
	tn.charged = false
	cost := int64(0)
	if c.settle && !ex.dispatched.IsZero() {
		prompt := c.usage.Input - row.CachedTokens
		if row.Flags.Has(tenancy.FlagCachedUnknown) || !c.usage.Known {
			prompt = int64(ex.res.Prompt() - ex.res.Cached())
		}
		cost = max(1, prompt) + placing.OutputCost*c.usage.Output
	}
	ex.g.turns.note(note{turn: tn, settles: true, work: cost - tn.work})
}

// turnRefused is what the client is told that the queue has refused. Whoever sheds
// load by what it expects says so with 429; where the queue is full, or has kept the
// request too long, that is the model's own state.
func (ex *exchange) turnRefused(o *qos.Outcome) *rejection {
	rej := &rejection{
		status: fasthttp.StatusServiceUnavailable, kind: "server_error", code: codeOverloaded,
		retryAfter: o.Told(), outcome: tenancy.OutcomeRejected,
		cause: errors.New("the queue refused it: " + o.Reason.String()),
	}
	switch o.Reason {
	case qos.ReasonNoWorker:
		return ex.unsent(o.Reason.String(), ex.noWorker(rej.cause))
	case qos.ReasonForecast:
		rej.status, rej.kind = fasthttp.StatusTooManyRequests, "requests"
		rej.message = "the model has more requests than it can answer in time for one of this class; come again when Retry-After says"
	case qos.ReasonPreempted:
		rej.status, rej.kind = fasthttp.StatusTooManyRequests, "requests"
		rej.message = "another request has taken the place of this one in the queue; come again when Retry-After says"
	case qos.ReasonFull:
		rej.message = "the queue for the model is full; try again"
	case qos.ReasonTenantFull:
		rej.message = "the requests that you have in the queue are as many as one tenant's may be; try again when some have ended"
	case qos.ReasonWaited:
		rej.message = "no worker had room for the request in time; try again"
		if last := ex.tries.last; last != nil {
			rej.cause = errors.Join(rej.cause, last.cause)
		}
	}
	return ex.unsent(o.Reason.String(), rej)
}

// beatsQueued reports whether a stream gets keep-alive comments while it waits.
func (ex *exchange) beatsQueued() bool {
	c := ex.g.turns.conf.Load()
	return c != nil && ex.route.billsTokens && c.class(ex.decision.Class).KeepAlive
}
