package simulate

import (
	"fmt"
	"time"

	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// epoch is where virtual time begins.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	model = "model"
	pool  = "pool"
)

// call is one request under way.
type call struct {
	index  int
	worker int
	id     engine.ID
	res    *scoring.Reservation
	sent   time.Duration
	first  time.Duration // 0 until it came
	cached int
	// text is the conversation so far, kept when a later turn needs it.
	text []uint32
	keep bool
}

// sim is one run of a plan under one strategy.
type sim struct {
	cfg    *Config
	eng    engine.Config
	plan   *Plan
	fleet  *scoring.Fleet
	nodes  []*node
	cores  cores
	agenda agenda
	now    time.Duration
	oracle *oracle // nil: the router chooses
	ids    []scoring.WorkerID

	// head is the next request of a closed loop that no stream has taken.
	head int
	left int // requests not ended
	// text is the conversation that a later turn goes on with, by the turn's
	// index.
	text   map[int][]uint32
	prompt []uint32 // scratch
	record []Sample
	end    time.Duration
}

// Sample is how one request fared.
type Sample struct {
	// Worker is its index.
	Worker int
	// Sent is since the start; TTFT and Total are since then.
	Sent, TTFT, Total time.Duration
	// Predicted is the router's prediction of TTFT for the worker.
	Predicted time.Duration
	// Prompt, Cached and Output are tokens.
	Prompt, Cached, Output int
}

// Run routes the plan under a strategy and reports how it went. The strategy
// oracle-foresight needs to know what comes next: it fails with shared cores, in
// a closed loop and for conversations.
func Run(cfg *Config, plan *Plan, s Strategy) (*Result, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := plan.check(cfg.capacity() - 1); err != nil {
		return nil, err
	}
	m, err := newSim(cfg, plan, s)
	if err != nil {
		return nil, err
	}
	m.start()
	for m.left > 0 {
		m.step()
	}
	return m.result(s), nil
}

func newSim(cfg *Config, plan *Plan, s Strategy) (*sim, error) {
	m := &sim{
		cfg: cfg, plan: plan, eng: cfg.engine(0),
		fleet: scoring.NewFleet(cfg.scoring(s.live)),
		cores: cores{limit: cfg.SharedCores},
		left:  len(plan.Requests), text: make(map[int][]uint32),
		record: make([]Sample, len(plan.Requests)),
	}
	for i := range cfg.Workers {
		eng, err := engine.New(cfg.engine(i))
		if err != nil {
			return nil, err
		}
		// The fleet has been up for a while, so no worker is spared as new.
		up := epoch.Add(-time.Hour)
		id, err := m.fleet.Add(up, scoring.WorkerSpec{Name: fmt.Sprint("worker ", i), Pool: pool, Models: []string{model}})
		if err != nil {
			return nil, err
		}
		m.fleet.SetReady(up, id, true, "")
		m.fleet.SetCapacity(id, cfg.Engine.BlockSize, cfg.Engine.Blocks)
		m.fleet.SetView(id, 0, scoring.ViewLive)
		m.nodes = append(m.nodes, &node{id: id, eng: eng, fixed: cfg.engine(i).Timing.Step, calls: make(map[engine.ID]*call)})
		m.ids = append(m.ids, id)
	}
	if s.oracle != noOracle {
		var err error
		if m.oracle, err = newOracle(m, s.oracle); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// clock is the present as the router and the engines see it.
func (m *sim) clock() time.Time { return epoch.Add(m.now) }

// start puts on the agenda what happens by itself.
func (m *sim) start() {
	if m.plan.Streams > 0 {
		for range m.plan.Streams {
			m.nextHead()
		}
	} else {
		for i := range m.plan.Requests {
			if r := &m.plan.Requests[i]; !r.Turn {
				m.agenda.add(r.At, requestArrives, i)
			}
		}
	}
	if every := m.cfg.LoadInterval; every > 0 {
		for i := range m.nodes {
			m.agenda.add(every*time.Duration(i+1)/time.Duration(len(m.nodes)), loadRead, i)
		}
	}
}

// nextHead lets the first turn come that is next in order, if there is one.
func (m *sim) nextHead() {
	for ; m.head < len(m.plan.Requests); m.head++ {
		if !m.plan.Requests[m.head].Turn {
			m.agenda.add(m.now, requestArrives, m.head)
			m.head++
			return
		}
	}
}

// step lets the next thing happen.
func (m *sim) step() {
	if at, worker, ends, ok := m.cores.next(); ok && (len(m.agenda.heap) == 0 || at <= m.agenda.heap[0].at) {
		m.now = at
		if !ends {
			m.cores.advance(at)
			return
		}
		m.cores.leave(at, worker)
		m.endStep(worker)
		return
	}
	if len(m.agenda.heap) == 0 {
		panic("BUG: requests are left and nothing is to happen")
	}
	e := m.agenda.next()
	m.now = e.at
	switch e.kind {
	case stepEnds:
		m.endStep(e.index)
	case eventsArrive:
		n := m.nodes[e.index]
		batch := n.posted[0]
		n.posted = n.posted[1:]
		m.fleet.ApplyEvents(m.clock(), n.id, 0, n.translate(batch, m.eng.BlockSize))
	case loadRead:
		m.readLoad(e.index)
	case requestArrives:
		m.arrive(e.index)
	}
}

// arrive sends request i to the worker that is chosen for it.
func (m *sim) arrive(i int) {
	r := &m.plan.Requests[i]
	m.prompt = append(m.prompt[:0], m.text[i]...)
	delete(m.text, i)
	for _, s := range r.Prompt {
		m.prompt = s.append(m.prompt)
	}
	p := m.prepare(i, m.prompt)
	c := &call{index: i, sent: m.now, keep: !m.plan.end(i)}
	req := scoring.Request{Model: model, Pools: []string{pool}, Tokens: p.Prompt()}
	if m.oracle != nil {
		chosen := m.oracle.choose(i, p)
		for w, id := range m.ids {
			if w != chosen {
				req.Exclude = append(req.Exclude, id)
			}
		}
	}
	var err error
	c.res, err = m.fleet.Pick(m.clock(), &req)
	if err != nil {
		panic("BUG: no worker although all are ready: " + err.Error())
	}
	c.worker = int(c.res.Worker().ID - m.ids[0])
	n := m.nodes[c.worker]
	c.id, err = n.eng.AddPrepared(m.clock(), p)
	if err != nil {
		panic("BUG: an engine refuses a request that it prepared: " + err.Error())
	}
	if m.oracle != nil {
		m.oracle.sent(c.worker, p)
	}
	if c.keep {
		c.text = append(make([]uint32, 0, len(m.prompt)+r.Output), m.prompt...)
	}
	n.calls[c.id] = c
	n.requests++
	m.record[i] = Sample{
		Worker: c.worker, Sent: m.now, Predicted: c.res.Predicted(), Prompt: len(m.prompt), Output: r.Output,
	}
	if !n.busy {
		m.beginStep(c.worker)
	}
}

// prepare makes the engines' request of request i and its whole prompt.
func (m *sim) prepare(i int, prompt []uint32) *engine.Prepared {
	p, err := m.eng.Prepare(engine.Request{Prompt: prompt, MaxTokens: m.plan.Requests[i].Output, IgnoreEOS: true})
	if err != nil {
		panic("BUG: a plan that was checked does not fit: " + err.Error())
	}
	return p
}

// beginStep starts a worker's next step, if it has anything to do.
func (m *sim) beginStep(worker int) {
	n := m.nodes[worker]
	st, ok := n.eng.Begin(m.clock())
	if !ok {
		return
	}
	n.busy = true
	n.computed += st.Prefill
	n.busyTime += st.Duration
	if m.cores.limit > 0 {
		m.cores.enter(m.now, worker, n.fixed, st.Duration)
		return
	}
	m.agenda.add(m.now+st.Duration, stepEnds, worker)
}

// endStep brings what a step brought to the clients and the router, and starts
// the next one.
func (m *sim) endStep(worker int) {
	n := m.nodes[worker]
	n.busy = false
	now := m.clock()
	res := n.eng.End(now)
	for i := range res.Outputs {
		o := &res.Outputs[i]
		c := n.calls[o.ID]
		if o.First {
			c.first, c.cached = m.now, o.Cached
			c.res.FirstToken(now)
		}
		if c.keep {
			c.text = append(c.text, o.Token)
		}
		if o.Finish != 0 {
			delete(n.calls, o.ID)
			m.finish(c)
		}
	}
	if len(res.Events) > 0 {
		n.posted = append(n.posted, res.Events)
		m.agenda.add(m.now+m.cfg.EventDelay, eventsArrive, worker)
	}
	m.beginStep(worker)
}

// finish closes a request and lets come what waited for its end.
func (m *sim) finish(c *call) {
	c.res.Done(m.clock(), scoring.Completed)
	s := &m.record[c.index]
	if s.Total != 0 {
		panic("BUG: a request ends twice")
	}
	s.TTFT, s.Total, s.Cached = c.first-s.Sent, m.now-s.Sent, c.cached
	m.left--
	m.end = m.now
	switch next := c.index + 1; {
	case c.keep:
		m.text[next] = c.text
		m.agenda.add(m.now+m.plan.Requests[next].Think, requestArrives, next)
	case m.plan.Streams > 0:
		m.nextHead()
	}
}

// readLoad gives the router a worker's own account of its load.
func (m *sim) readLoad(worker int) {
	n := m.nodes[worker]
	st := n.eng.Stats()
	m.fleet.ObserveLoad(m.clock(), n.id, scoring.Load{Running: st.Running, Waiting: st.Waiting, KVUsage: st.Usage()})
	m.agenda.add(m.now+m.cfg.LoadInterval, loadRead, worker)
}
