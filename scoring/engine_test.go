package scoring

import (
	"cmp"
	"container/list"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// simEngine is a small model of one vLLM engine in virtual time: steps with a
// token budget, running requests before waiting ones, first come first served,
// a block cache with LRU eviction that publishes its events.
type simEngine struct {
	id WorkerID

	budget, slots, blockSize, blocks int
	// A step takes stepTime + tokenTime per prompt token + seqTime per decode,
	// + pairTime per million attention pairs, all in seconds, times slow.
	stepTime, tokenTime, seqTime, pairTime, slow float64

	waiting, running []*simRequest
	// cache maps a block's key to its place in lru (of *simBlock), which holds
	// the blocks that no running request uses, oldest first.
	cache  map[Key]*simBlock
	lru    list.List
	events []Event
	busy   bool

	// computed counts prompt tokens computed, total those asked for.
	computed, total int
}

type simBlock struct {
	key    Key
	parent Key // 0 at the root
	tokens []uint32
	users  int
	elem   *list.Element
}

type simRequest struct {
	tokens []uint32
	output int
	// done counts prompt tokens in the cache, sent output tokens.
	done, sent int
	started    bool
	held       []*simBlock
	arrived    time.Time

	res    *Reservation
	ttft   time.Duration
	worker int
	onDone func(time.Time)
}

func newSimEngine(id WorkerID) *simEngine {
	return &simEngine{
		id: id, budget: 1024, slots: 64, blockSize: 64, blocks: 1024,
		stepTime: 0.008, tokenTime: 1.0 / 8000, seqTime: 0.0002, pairTime: 0.002, slow: 1,
		cache: map[Key]*simBlock{},
	}
}

// step schedules one step and returns how long it takes; 0 when there is
// nothing to do. finish must be called at its end.
func (e *simEngine) step() float64 {
	left, decodes, pairs := e.budget, 0, 0.0
	for _, r := range e.running {
		if r.done == len(r.tokens) {
			decodes++
			left--
		}
	}
	prefill := func(r *simRequest) {
		n := min(left, len(r.tokens)-r.done)
		pairs += attentionPairs(float64(n), float64(r.done))
		left -= n
		r.done += n
		e.computed += n
	}
	before := left
	for _, r := range e.running {
		prefill(r)
	}
	for len(e.waiting) > 0 && left > 0 && len(e.running) < e.slots {
		r := e.waiting[0]
		if !r.started && !e.admit(r) {
			break
		}
		e.waiting = e.waiting[1:]
		e.running = append(e.running, r)
		prefill(r)
	}
	if decodes == 0 && before == left {
		return 0
	}
	return e.slow * (e.stepTime + e.tokenTime*float64(before-left) + e.seqTime*float64(decodes) + e.pairTime*pairs)
}

// admit finds the request's cached blocks and takes room for the others. It
// reports whether there is room.
func (e *simEngine) admit(r *simRequest) bool {
	keys := AppendKeys(nil, Root("m", "", ""), r.tokens, e.blockSize)
	hits := 0
	for hits < min(len(keys), (len(r.tokens)-1)/e.blockSize) && e.cache[keys[hits]] != nil {
		hits++
	}
	pinned := len(e.cache) - e.lru.Len()
	for _, k := range keys[:hits] {
		if e.cache[k].users == 0 {
			pinned++
		}
	}
	if pinned+len(keys)-hits+1 > e.blocks && len(e.running) > 0 {
		return false
	}
	// What the request hits is pinned before room is made.
	for _, k := range keys[:hits] {
		e.pin(e.cache[k])
	}
	for len(e.cache)+len(keys)-hits > e.blocks && e.lru.Len() > 0 {
		b := e.lru.Remove(e.lru.Front()).(*simBlock)
		delete(e.cache, b.key)
		e.publish(BlockRemoved, b)
	}
	r.started = true
	r.done = hits * e.blockSize
	e.total += len(r.tokens)
	for i, k := range keys {
		b := e.cache[k]
		if b == nil {
			b = &simBlock{key: k, tokens: r.tokens[i*e.blockSize : (i+1)*e.blockSize]}
			if i > 0 {
				b.parent = keys[i-1]
			}
			e.cache[k] = b
			e.publish(BlockStored, b)
		}
		if i >= hits {
			e.pin(b)
		}
		r.held = append(r.held, b)
	}
	return true
}

func (e *simEngine) pin(b *simBlock) {
	if b.users++; b.elem != nil {
		e.lru.Remove(b.elem)
		b.elem = nil
	}
}

func (e *simEngine) publish(kind EventKind, b *simBlock) {
	ev := Event{Kind: kind, Hashes: []EngineHash{simHash(b.key)}}
	if kind == BlockStored {
		ev.Tokens, ev.BlockSize, ev.Usable = b.tokens, e.blockSize, 1
		if b.parent != 0 {
			ev.Parent = simHash(b.parent)
		}
	}
	e.events = append(e.events, ev)
}

func simHash(k Key) EngineHash {
	return EngineHash(binary.BigEndian.AppendUint64(nil, ^uint64(k)))
}

// finish ends a step: it returns the requests that got their first token and
// those that are done.
func (e *simEngine) finish() (first, done []*simRequest) {
	e.running = slices.DeleteFunc(e.running, func(r *simRequest) bool {
		if r.done < len(r.tokens) {
			return false
		}
		if r.sent++; r.sent == 1 {
			first = append(first, r)
		}
		if r.sent < r.output {
			return false
		}
		done = append(done, r)
		// The last block becomes free first, so that it is evicted first.
		for _, b := range slices.Backward(r.held) {
			if b.users--; b.users == 0 {
				b.elem = e.lru.PushBack(b)
			}
		}
		return true
	})
	return first, done
}

// simulation drives a fleet and its engines in virtual time.
type simulation struct {
	fleet   *Fleet
	engines []*simEngine
	now     time.Time
	agenda  []agendaItem
	rng     *rand.Rand
	seq     int
	// pick chooses a worker; by default the fleet does.
	pick func(*simRequest) *Reservation
	// noise is the standard deviation of ln(step time).
	noise float64
	all   []*simRequest
}

type agendaItem struct {
	at  time.Time
	seq int
	do  func()
}

func newSimulation(cfg Config, workers int) *simulation {
	s := &simulation{
		fleet: NewFleet(cfg), now: epoch,
		rng: rand.New(rand.NewPCG(cfg.Seed, 7)), noise: 0.05,
	}
	for i := range workers {
		id, err := s.fleet.Add(s.now, WorkerSpec{Name: "w" + string(rune('0'+i)), Pool: "p", Models: []string{"m"}})
		if err != nil {
			panic(err)
		}
		e := newSimEngine(id)
		s.fleet.SetReady(s.now, id, true, "")
		s.fleet.SetView(id, 0, ViewLive)
		s.fleet.SetCapacity(id, e.blockSize, e.blocks)
		s.engines = append(s.engines, e)
	}
	s.pick = func(r *simRequest) *Reservation { return s.pickExcept(r, nil) }
	return s
}

func (s *simulation) pickExcept(r *simRequest, others []WorkerID) *Reservation {
	res, err := s.fleet.Pick(s.now, &Request{
		Model: "m", Pools: []string{"p"}, Tokens: r.tokens, Exclude: others,
	})
	if err != nil {
		panic(err)
	}
	return res
}

func (s *simulation) after(d time.Duration, do func()) {
	s.seq++
	item := agendaItem{s.now.Add(d), s.seq, do}
	i, _ := slices.BinarySearchFunc(s.agenda, item, func(a, b agendaItem) int {
		return cmp.Or(b.at.Compare(a.at), cmp.Compare(b.seq, a.seq))
	})
	s.agenda = slices.Insert(s.agenda, i, item)
}

// run plays until nothing is left to do.
func (s *simulation) run() {
	for len(s.agenda) > 0 {
		item := s.agenda[len(s.agenda)-1]
		s.agenda = s.agenda[:len(s.agenda)-1]
		s.now = item.at
		item.do()
	}
}

// submit sends a request, d from now.
func (s *simulation) submit(d time.Duration, r *simRequest) {
	s.all = append(s.all, r)
	s.after(d, func() {
		r.arrived = s.now
		r.res = s.pick(r)
		r.worker = int(r.res.Worker().ID) - 1
		e := s.engines[r.worker]
		s.after(3*time.Millisecond, func() {
			e.waiting = append(e.waiting, r)
			s.wake(e)
		})
	})
}

// wake starts a step unless one is under way.
func (s *simulation) wake(e *simEngine) {
	if e.busy {
		return
	}
	took := e.step()
	if took == 0 {
		return
	}
	e.busy = true
	s.after(seconds(took*math.Exp(s.noise*s.rng.NormFloat64())), func() {
		e.busy = false
		first, done := e.finish()
		if evs := e.events; len(evs) > 0 {
			e.events = nil
			s.after(2*time.Millisecond, func() { s.fleet.ApplyEvents(s.now, e.id, 0, evs) })
		}
		s.after(3*time.Millisecond, func() {
			for _, r := range first {
				r.ttft = s.now.Sub(r.arrived)
				r.res.FirstToken(s.now)
			}
			for _, r := range done {
				r.res.Done(s.now, Completed)
				if r.onDone != nil {
					r.onDone(s.now)
				}
			}
		})
		s.wake(e)
	})
}

// prompt returns n tokens of the text named by seed.
func prompt(seed uint64, n int) []uint32 {
	rng := rand.New(rand.NewPCG(seed, 1))
	out := make([]uint32, n)
	for i := range out {
		out[i] = rng.Uint32N(150000)
	}
	return out
}
