//go:build !race

// What plays the load is of one goroutine at a time; the race detector would take a
// minute to find nothing.

package gateway

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/scoring/simulate"
	"github.com/sluicegate/sluice/scoring/simworker/engine"
	"github.com/sluicegate/sluice/tenancy"
)

// TestSimulatorAndGatewayAgree plays one load through scoring/simulate and, in virtual
// time, through the gateway's own turns before the same engines: a moment of overload of
// three classes and nine tenants in two pools, of which some return when they are told
// to. Each request comes, is given to the same worker and ends at the same nanosecond,
// and each refusal has the same reason and Retry-After. So what the simulator says of
// the queue it says of the one that is shipped.
//
// The gateway's look every 100 ms at what nothing has told of is put off: the simulator
// has none, and what it finds is given to workers a little earlier than there.
// What ends with one step of a worker is told with the queue's lock held: the gateway's
// goroutine may else look between two of them, the simulator does not. Answers of one
// tenant are equally long: the gateway forgets old ones, the simulator does not.
func TestSimulatorAndGatewayAgree(t *testing.T) {
	const seed = 1
	cfg := simulate.DefaultConfig()
	cfg.Workers, cfg.Pools, cfg.Seed, cfg.LoadInterval = 5, []int{3, 2}, seed, 0
	queue := qos.DefaultConfig("interactive", "standard", "batch")
	for i, wait := range []time.Duration{4 * time.Second, 12 * time.Second, 40 * time.Second} {
		c := &queue.Classes[i]
		c.Target, c.MaxWait, c.Bound = wait/4, wait, 0
	}
	queue.Classes[1].Share, queue.Classes[2].Share = 0.1, 0.15
	qos.SetBounds(queue.Classes)
	queue.MaxEntries = 150
	cfg.QoS = &queue
	plan := agreedPlan(seed)
	want, err := simulate.Run(&cfg, plan, simulate.Strategy{})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		l := newLive(t, &cfg, plan)
		l.run()
		l.agrees(want)
	})
}

// agreedPlan asks for more than the workers can do for eight seconds.
func agreedPlan(seed uint64) *simulate.Plan {
	m := simulate.Mix{
		Name: "agreed", For: 14 * time.Second,
		Prompts: simulate.Prefixed{Buckets: simulate.Mixed(), FreshMin: 16, FreshMax: 600, OutputMin: 1, OutputMax: 1},
	}
	for class, name := range []string{"interactive", "standard", "batch"} {
		m.Groups = append(m.Groups, simulate.Group{
			Name: name, Tenants: 3, Class: class, Rate: 4, Weight: float64(1 + class), Returns: 2,
			Burst: simulate.Burst{Factor: 5, For: 8 * time.Second, Every: time.Hour},
		})
	}
	p := m.Plan(seed)
	for i := range p.Requests {
		r := &p.Requests[i]
		r.Output = 64 << (r.Tenant % 3)
		r.MaxTokens = 2*r.Output + 100
		r.Pools = [][]int{nil, {0}, {1}}[i%3]
	}
	return p
}

// live is a gateway without a network, before engines, in virtual time. It is of one
// goroutine, but for those of the requests that ask for turns and the gateway's own.
type live struct {
	t       *testing.T
	cfg     *simulate.Config
	plan    *simulate.Plan
	engine  engine.Config
	fleet   *liveFleet
	g       *Gateway
	start   time.Time
	workers []*liveWorker
	agenda  []liveEvent
	asking  []*liveCall
	news    chan struct{} // somebody's turn has come, or will not

	left     int
	samples  []simulate.Sample
	refusals []string
}

// liveFleet notes who is given a worker, in order.
type liveFleet struct {
	*scoring.Fleet
	given []*scoring.Prepared
}

func (f *liveFleet) Offer(now time.Time, p *scoring.Prepared, terms scoring.Terms) (*scoring.Reservation, scoring.Refusal, error) {
	res, no, err := f.Fleet.Offer(now, p, terms)
	if res != nil {
		f.given = append(f.given, p)
	}
	return res, no, err
}

type liveWorker struct {
	id    scoring.WorkerID
	eng   *engine.Engine
	busy  bool
	calls map[engine.ID]*liveCall
}

type liveCall struct {
	ex     *exchange
	index  int
	came   time.Duration
	cached int
	rej    *rejection
	over   bool
}

type liveEvent struct {
	at time.Duration
	do func()
}

func newLive(t *testing.T, cfg *simulate.Config, plan *simulate.Plan) *live {
	sc := scoring.DefaultConfig()
	sc.Seed, sc.BlockSize, sc.BatchTokens, sc.MaxSeqs, sc.Predictions = cfg.Seed, cfg.Engine.BlockSize, cfg.Engine.BatchTokens, cfg.Engine.MaxSeqs, 0
	l := &live{
		t: t, cfg: cfg, plan: plan, engine: cfg.Engine, fleet: &liveFleet{Fleet: scoring.NewFleet(sc)}, start: time.Now(),
		news: make(chan struct{}, 1), left: len(plan.Requests), samples: make([]simulate.Sample, len(plan.Requests)),
	}
	l.engine.Seed, l.engine.Vocab = cfg.Seed, 1<<17
	l.engine.MaxModelLen = (cfg.Engine.Blocks - 1) * cfg.Engine.BlockSize
	st := &State{Pools: make(map[string]Pool), Queue: *cfg.QoS}
	for pool, n := range cfg.Pools {
		name := fmt.Sprint("pool ", pool+1)
		st.Pools[name] = Pool{}
		for range n {
			eng, err := engine.New(l.engine)
			if err != nil {
				t.Fatal(err)
			}
			up := l.start.Add(-time.Hour)
			id, err := l.fleet.Add(up, scoring.WorkerSpec{Name: fmt.Sprint("worker ", len(l.workers)), Pool: name, Models: []string{"model"}})
			if err != nil {
				t.Fatal(err)
			}
			l.fleet.SetReady(up, id, true, "")
			l.fleet.SetCapacity(id, l.engine.BlockSize, l.engine.Blocks)
			l.fleet.SetView(id, 0, scoring.ViewLive)
			l.workers = append(l.workers, &liveWorker{id: id, eng: eng, calls: make(map[engine.ID]*liveCall)})
		}
	}
	l.g = bareGateway(l.fleet, st)
	l.g.turns.mu.Lock()
	l.g.turns.belt = time.Hour
	l.g.turns.mu.Unlock()
	for i := range plan.Requests {
		l.at(plan.Requests[i].At, func() { l.arrive(i, 0) })
	}
	return l
}

func (l *live) now() time.Duration { return time.Since(l.start) }

func (l *live) at(when time.Duration, do func()) {
	i, _ := slices.BinarySearchFunc(l.agenda, when+1, func(e liveEvent, at time.Duration) int { return cmp.Compare(e.at, at) })
	l.agenda = slices.Insert(l.agenda, i, liveEvent{when, do})
}

func (l *live) run() {
	defer l.g.turns.stop()
	for l.left > 0 {
		if len(l.agenda) == 0 {
			l.t.Fatalf("%d requests are left and nothing happens", l.left)
		}
		timer := time.NewTimer(l.agenda[0].at - l.now())
		select {
		case <-timer.C:
			do := l.agenda[0].do
			l.agenda = l.agenda[1:]
			do()
		case <-l.news:
			timer.Stop()
		}
		synctest.Wait()
		l.settle()
	}
}

// settle sends those to their workers that were given one, in that order, and has those
// that were refused come again.
func (l *live) settle() {
	for _, p := range l.fleet.given {
		i := slices.IndexFunc(l.asking, func(c *liveCall) bool { return c.ex.turn.prepared == p })
		l.dispatch(l.asking[i])
	}
	l.fleet.given = l.fleet.given[:0]
	l.asking = slices.DeleteFunc(l.asking, func(c *liveCall) bool {
		if c.rej != nil {
			l.refuse(c)
		}
		return c.over
	})
}

// arrive has request i ask for its turn.
func (l *live) arrive(i, returns int) {
	r := &l.plan.Requests[i]
	tenant := &l.plan.Tenants[r.Tenant]
	pick := scoring.Request{Model: "model", Pools: []string{"pool 1", "pool 2"}}
	if len(r.Pools) > 0 {
		pick.Pools = []string{fmt.Sprint("pool ", r.Pools[0]+1)}
	}
	for _, s := range r.Prompt {
		rng := rand.New(rand.NewPCG(s.ID, 1))
		for range s.Tokens {
			pick.Tokens = append(pick.Tokens, rng.Uint32N(1<<17))
		}
	}
	ex := l.g.asks(l.cfg.QoS.Classes[r.Class].Name, tenant.Name, pick)
	ex.principal.Tenant.Weight = tenant.Weight
	said := int64(r.MaxTokens)
	ex.req.MaxTokens, ex.req.PromptCount = &said, 1
	// A hash of the body stands for it, and its size.
	ex.turn.ready, ex.turn.key = make(chan struct{}, 1), splitmix(uint64(i)+1)
	ex.turn.bytes = turnBytes + 8*int64(len(pick.Tokens))
	l.samples[i] = simulate.Sample{Sent: l.now(), Return: returns}
	c := &liveCall{ex: ex, index: i, came: l.now()}
	l.asking = append(l.asking, c)
	go func() {
		_, c.rej = ex.takeTurn(time.Time{})
		select {
		case l.news <- struct{}{}:
		default:
		}
	}()
}

// splitmix is splitmix64's output function, by which the simulator names its requests.
func splitmix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (l *live) refuse(c *liveCall) {
	s := &l.samples[c.index]
	c.over = true
	after := (c.rej.retryAfter + time.Second - 1).Truncate(time.Second)
	l.refusals = append(l.refusals, fmt.Sprintf("request %d, return %d, came %v: %s, %v", c.index, s.Return, c.came, c.ex.turn.reason, after))
	c.ex.left()
	if s.Return < l.plan.Tenants[l.plan.Requests[c.index].Tenant].Returns {
		l.at(l.now()+after, func() { l.arrive(c.index, s.Return+1) })
		return
	}
	s.Refused = true
	l.left--
}

func (l *live) dispatch(c *liveCall) {
	c.over, c.ex.dispatched = true, time.Now()
	s := &l.samples[c.index]
	s.Queued = l.now() - c.came
	s.Worker = slices.IndexFunc(l.workers, func(w *liveWorker) bool { return w.id == c.ex.res.Worker().ID })
	s.Predicted = c.ex.res.Predicted()
	w := l.workers[s.Worker]
	p, err := l.engine.Prepare(engine.Request{Prompt: c.ex.pick.Tokens, MaxTokens: l.plan.Requests[c.index].Output, IgnoreEOS: true})
	if err != nil {
		l.t.Fatal(err)
	}
	id, err := w.eng.AddPrepared(time.Now(), p)
	if err != nil {
		l.t.Fatal(err)
	}
	w.calls[id] = c
	c.ex.dropTurn()
	if !w.busy {
		l.begin(w)
	}
}

func (l *live) begin(w *liveWorker) {
	var st engine.Step
	if st, w.busy = w.eng.Begin(time.Now()); w.busy {
		l.at(l.now()+st.Duration, func() { l.end(w) })
	}
}

// end ends a worker's step.
func (l *live) end(w *liveWorker) {
	l.g.turns.mu.Lock()
	defer l.g.turns.mu.Unlock()
	res := w.eng.End(time.Now())
	for i := range res.Outputs {
		o := &res.Outputs[i]
		c := w.calls[o.ID]
		s := &l.samples[c.index]
		if o.First {
			c.cached, s.TTFT = o.Cached, l.now()-c.came
			c.ex.res.FirstToken(time.Now())
		}
		if o.Finish != 0 {
			delete(w.calls, o.ID)
			l.finish(c, s)
		}
	}
	if len(res.Events) > 0 {
		events := liveEvents(res.Events, l.engine.BlockSize)
		l.at(l.now()+l.cfg.EventDelay, func() { l.fleet.ApplyEvents(time.Now(), w.id, 0, events) })
	}
	l.begin(w)
}

func (l *live) finish(c *liveCall, s *simulate.Sample) {
	s.Prompt, s.Cached, s.Output = len(c.ex.pick.Tokens), c.cached, l.plan.Requests[c.index].Output
	s.Total = l.now() - c.came
	c.ex.res.Output(s.Output)
	c.ex.res.Done(time.Now(), scoring.Completed)
	end := &ending{outcome: tenancy.OutcomeCompleted, charge: charge{settle: true, usage: wire.Usage{Known: true, Input: int64(s.Prompt), Output: int64(s.Output)}}}
	c.ex.learnOutput(end)
	c.ex.settleTurn(&end.charge, &tenancy.Row{CachedTokens: int64(s.Cached)})
	c.ex.cancel()
	l.left--
}

// liveEvents are an engine's events as a subscription decodes them.
func liveEvents(batch []engine.Event, blockSize int) (events []scoring.Event) {
	name := func(h engine.Hash) scoring.EngineHash {
		return scoring.EngineHash(binary.BigEndian.AppendUint64(nil, h.Low64()))
	}
	for _, e := range batch {
		out := scoring.Event{Kind: scoring.BlockRemoved, BlockSize: blockSize}
		for _, h := range e.Hashes {
			out.Hashes = append(out.Hashes, name(h))
		}
		if e.Kind == engine.Stored {
			out.Kind, out.Tokens, out.Usable = scoring.BlockStored, e.Tokens, len(e.Hashes)
			if e.Parent != nil {
				out.Parent = name(*e.Parent)
			}
		}
		events = append(events, out)
	}
	return events
}

// agrees compares with what the simulator says.
func (l *live) agrees(want *simulate.Result) {
	var refused []string
	reasons := make(map[qos.Reason]int)
	for _, r := range want.Refusals {
		reasons[r.Reason]++
		refused = append(refused, fmt.Sprintf("request %d, return %d, came %v: %s, %v", r.Request, r.Return, r.At, r.Reason, r.RetryAfter))
	}
	waited, perPool := 0, [2]int{}
	first, at := -1, time.Duration(math.MaxInt64)
	for i := range want.Samples {
		w, is := &want.Samples[i], &l.samples[i]
		w.Work, w.Forecast = 0, 0 // of the simulator alone
		if since := min(w.Sent+w.Queued, is.Sent+is.Queued); *w != *is && since < at {
			first, at = i, since
		}
		if w.Queued > 0 {
			waited++
			perPool[min(1, w.Worker/l.cfg.Pools[0])]++
		}
	}
	if first >= 0 {
		l.t.Errorf("request %d of %d fares\n%+v before the gateway's turns, and\n%+v in the simulator", first, len(want.Samples), l.samples[first], want.Samples[first])
	}
	slices.Sort(refused)
	slices.Sort(l.refusals)
	if !slices.Equal(refused, l.refusals) {
		l.t.Errorf("the gateway refuses\n%q, the simulator\n%q", l.refusals, refused)
	}
	if n := l.g.turns.late.Load(); n != 0 {
		l.t.Errorf("%d late wake-ups", n)
	}
	l.t.Logf("%d requests, %d waited, by pool %v, refused: %v", len(want.Samples), waited, perPool, reasons)
	if min(perPool[0], perPool[1]) < 20 || len(reasons) < 2 {
		l.t.Error("the load tries too little")
	}
}
