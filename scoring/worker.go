package scoring

import (
	"slices"
	"time"
)

// WorkerID names a worker within one Fleet. It is assigned by [Fleet.Add] and
// never reused, so an old choice can't name a new worker. Zero names none.
type WorkerID uint32

// WorkerSpec says who a worker is and what it serves.
type WorkerSpec struct {
	// Name is unique among the workers of a fleet that are not retired.
	Name string
	// Pool is the group it belongs to; policies permit pools.
	Pool string
	// Address is opaque here; [WorkerInfo] hands it back.
	Address string
	// Models are the names it answers to. The first one is the base model and
	// seeds its block keys; the others are aliases of it. At least one.
	Models []string
	// Adapters are further names it answers to, each a LoRA adapter on the base
	// model.
	Adapters []string
}

// WorkerInfo is what a caller needs to send a request.
type WorkerInfo struct {
	ID      WorkerID
	Name    string
	Pool    string
	Address string
}

// Load is a worker's own account of its load, from its metrics.
type Load struct {
	// Running and Waiting are counts of requests, summed over ranks.
	Running, Waiting int
	// KVUsage is the share of cache blocks that running requests hold, 0 to 1.
	KVUsage float64
	// InterToken is the mean time between two tokens of one answer lately, 0
	// when unknown.
	InterToken time.Duration
	// Ranks is how many engines (data-parallel ranks) report, 0 when unknown.
	Ranks int
}

// ViewState says how far the view of one rank's cache can be trusted.
type ViewState uint8

const (
	// ViewNotReporting: no events come; the cache's content is unknown, which
	// is not the same as empty.
	ViewNotReporting ViewState = iota
	// ViewJoining: the subscription is new and its replay is under way.
	ViewJoining
	// ViewLive: every event since the engine started was seen.
	ViewLive
	// ViewPartial: what the view says is true, but older blocks may be missing.
	ViewPartial
	// ViewRecovering: events were lost and are being asked for again.
	ViewRecovering
)

// String returns the state's name as metrics and debug pages show it.
func (s ViewState) String() string {
	switch s {
	case ViewNotReporting:
		return "not_reporting"
	case ViewJoining:
		return "joining"
	case ViewLive:
		return "live"
	case ViewPartial:
		return "partial"
	case ViewRecovering:
		return "recovering"
	}
	return "invalid"
}

// Outcome says how a request ended, as far as its worker is concerned.
type Outcome uint8

const (
	// Completed: the answer was relayed to its end.
	Completed Outcome = iota + 1
	// ClientGone: the client left; the worker is not to blame.
	ClientGone
	// WorkerFailed: the worker failed or dropped the connection.
	WorkerFailed
	// NotSent: nothing reached the worker.
	NotSent
)

// String returns the outcome's name as metrics and debug pages show it.
func (o Outcome) String() string {
	switch o {
	case Completed:
		return "completed"
	case ClientGone:
		return "client_gone"
	case WorkerFailed:
		return "worker_failed"
	case NotSent:
		return "not_sent"
	}
	return "open"
}

// Coefficients are what a worker's TTFT prediction is made of.
//
//	TTFT = Base + PerKilo*tokens/1000 + PerSeq*seqs*steps + Attention*pairs/1e6
//
// docs/0004-scoring.md explains the terms.
type Coefficients struct {
	// Base is the part no request escapes: network, engine front end, one step.
	Base time.Duration
	// PerKilo is the time to prefill 1,000 uncached tokens.
	PerKilo time.Duration
	// PerSeq is what one running sequence adds to a step.
	PerSeq time.Duration
	// Attention is the time a prefill takes for each million (new token, token
	// before it) pairs, the part that grows with the length of the context.
	Attention time.Duration
}

// worker is one member of a fleet. Guarded by Fleet.mu, its views by their own
// locks.
type worker struct {
	id      WorkerID
	spec    WorkerSpec
	added   time.Time
	ready   bool
	reason  string
	removed bool
	// readySince is when it last became ready.
	readySince time.Time
	// retired is set by Retire, trial by SetTrial.
	retired, trial bool

	// context is set by SetContext.
	context int

	// views holds one view for each rank heard of, rank 0 first and always.
	views                  []*view
	capacity, capacitySize int

	predictor predictor
	workload
	occupancy
	saturation

	picks, firstTokens, failures int64
	// lastPick is the number of the fleet's pick that last chose it.
	lastPick int64
}

func (w *worker) info() WorkerInfo {
	return WorkerInfo{ID: w.id, Name: w.spec.Name, Pool: w.spec.Pool, Address: w.spec.Address}
}

// starting reports whether the worker is in its slow start.
func (w *worker) starting(now time.Time, slowStart time.Duration) bool {
	return slowStart > 0 && now.Sub(w.readySince) < slowStart
}

func (w *worker) serves(model string) bool {
	return slices.Contains(w.spec.Models, model) || slices.Contains(w.spec.Adapters, model)
}

// adapter is the LoRA adapter that the request uses on this worker, or empty.
func (w *worker) adapter(req *Request) string {
	if req.LoRA == "" && slices.Contains(w.spec.Adapters, req.Model) {
		return req.Model
	}
	return req.LoRA
}

// blockSize is the tokens of a block of the worker's cache, assumed when no
// rank has said so.
func (w *worker) blockSize(assumed int) int {
	for _, v := range w.views {
		if n := v.size.Load(); n > 0 {
			return int(n)
		}
	}
	return assumed
}

// delay is the time that requests still to come lose on this worker if it takes
// c, all together, in seconds. Work that joins a backlog delays each arrival by
// itself until the backlog is gone, and then by what is left of it, on average
// half; those delayed delay others in turn, which multiplies it by
// 1/(1-utilisation), as in any first-come-first-served queue. Without this term
// a worker under load answers a long queue by computing on another worker what
// it holds itself, which makes all queues longer.
//
// On top comes computing again what the request evicts, half of which is taken
// to be asked for. Among full caches this changes little; it makes new prefixes
// go where there is still room for them.
//
// Requests of other senders that are in the worker's hands arrive at the rate
// that Little's law gives for the time they stay. Each of several engines (ranks)
// gets its part of all of them. What a token takes is taken from the pool's
// coefficients: what tells two workers' coefficients apart is noise at this
// place. How long the request is in the way is c's own, at the level of its
// prediction.
func (w *worker) delay(c *candidate, free float64) float64 {
	pool := &w.predictor.pool.coef
	level := (c.raw - c.fixed) / pool.dot(c.x)
	rate := (c.bound + free + c.foreign/(c.raw+w.meanDecode)) / float64(w.engines())
	busy := clamp(rate*level*pool[termTokens]*w.meanTokens/1000, 0, busiest)
	own := pool.dot(vector{termTokens: float64(c.work) / 1000, termPairs: c.pairs})
	backlog := max(0, c.raw-level*(pool[termBase]+own))
	again := evictedShare * w.evicted(c.work) / 1000 * pool[termTokens]
	return min(own*rate*(backlog+level*own/2)/(1-busy), delayCap*own) + again
}

// evicted is how many tokens must leave the caches for that many new ones to be
// stored: those for which there is no free block left, once what waits to be
// prefilled is stored. Where the caches' size is known and their content is not,
// they are taken to be full.
func (w *worker) evicted(tokens int) float64 {
	room := w.room()
	if room == 0 {
		return 0
	}
	free := room - float64(w.tokens)
	for _, v := range w.views {
		if !v.trusted.Load() {
			return float64(tokens)
		}
		free -= float64(v.stored.Load()) * float64(w.capacitySize)
	}
	return float64(tokens) - clamp(free, 0, float64(tokens))
}

// spaceWait is how long a request waits until its prompt finds room among what
// the requests in the worker's hands hold, in seconds: until one of them ends,
// or as many as hold that much. They are taken to hold alike and to end evenly,
// each after the mean time that answers took lately. others of them were sent by
// somebody else.
func (w *worker) spaceWait(now time.Time, stale time.Duration, keys []Key, size, prompt int, others float64) float64 {
	room := w.room()
	if room == 0 {
		return 0
	}
	held := w.held(now, stale)
	if held+float64(prompt) <= room {
		return 0
	}
	over := held + float64(w.needs(keys, size, prompt)) - room
	if over <= 0 || held <= 0 {
		return 0
	}
	n := max(1, float64(w.inFlight())+others)
	return w.meanDecode / n * clamp(over*n/held, 1, n)
}

// expects is the most tokens that are expected to be held at any time while a request
// runs that needs so many and gets an answer of that many. What was seen of others
// has the weight that it had when something was reported last.
func (w *worker) expects(needs, output int, room float64, stale time.Duration) float64 {
	weight := clamp(1-w.told.Sub(w.seenAt).Seconds()/stale.Seconds(), 0, 1)
	base := float64(w.shared) + weight*w.foreign
	return base + w.peak(float64(needs), output, float64(w.capacitySize)/2, room-base)
}

// pending is the tokens of those requests that have no first token yet.
func (w *worker) pending() float64 {
	sum := 0.0
	for r := w.head; r != nil; r = r.next {
		sum += r.holds.own
	}
	return sum
}

// growsBy is the most by which what the worker holds can grow until all that is in its
// hands has ended, and a request with an answer of so many tokens, in tokens. Where that is
// next to nothing no answer takes another's memory, and what finds none for its prompt waits
// as well at the worker, which begins with it at once when there is some.
func (w *worker) growsBy(output int) float64 {
	return float64(output) + w.sumEnds - float64(len(w.claims))*w.clock
}

// engines is how many engines (ranks) the worker has, as far as is known.
func (w *worker) engines() int { return max(len(w.views), w.ranks) }

// room is the tokens that all its engines' caches hold together, 0 when unknown.
func (w *worker) room() float64 {
	return float64(w.capacity) * float64(w.capacitySize) * float64(w.engines())
}

// slots is how many sequences it runs at once: what is configured for an engine,
// or more where it was seen to.
func (w *worker) slots(configured int) int {
	return max(configured*w.engines(), w.mostRunning)
}
