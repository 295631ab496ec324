package simulate

import (
	"fmt"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// epoch is where virtual time begins.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const model = "model"

// call is one request under way, or one that waits for a worker.
type call struct {
	index    int
	worker   int
	id       engine.ID
	prepared *engine.Prepared
	req      scoring.Request
	res      *scoring.Reservation
	sent     time.Duration
	first    time.Duration // 0 until it came
	cached   int
	// returns is how often it was refused before.
	returns int

	// With a queue: what stands in it, what is offered to workers, how long its answer
	// is expected to be, and the work that was charged. before is the conversation
	// before this turn.
	sim     *sim
	entry   qos.Entry
	offer   *scoring.Prepared
	output  int64
	charged int64
	before  []uint32
	// forecast is what the queue forecast of its first token.
	forecast time.Duration
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
	queue  *queue  // nil: whatever arrives is sent
	ids    []scoring.WorkerID
	pools  []string // their names
	// from is when the warm-up ends, until when the last request of an open loop
	// comes.
	from, until time.Duration

	// head is the next request of a closed loop that no stream has taken.
	head int
	left int // requests not ended
	// text is the conversation that a later turn goes on with, by the turn's
	// index.
	text map[int][]uint32
	// returns is how often a request was refused that will come again.
	returns map[int]int
	prompt  []uint32 // scratch
	record  []Sample
	end     time.Duration
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
	// Queued is how long it waited for a worker, Return how often it was refused
	// before, Refused says that it was for good; then there is nothing more here
	// but Sent. Work is the tokens that it cost, as the queue counts them.
	Queued  time.Duration
	Return  int
	Refused bool
	Work    int64
	// Forecast is the time to first token that the queue forecast when it came; 0: nobody
	// waited.
	Forecast time.Duration
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
	if err := plan.checkPlaces(cfg); err != nil {
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
		left:  len(plan.Requests), text: make(map[int][]uint32), returns: make(map[int]int),
		record: make([]Sample, len(plan.Requests)),
		pools:  cfg.pools(), until: plan.until(),
	}
	for i := range cfg.Workers {
		eng, err := engine.New(cfg.engine(i))
		if err != nil {
			return nil, err
		}
		// The fleet has been up for a while, so no worker is spared as new.
		up := epoch.Add(-time.Hour)
		id, err := m.fleet.Add(up, scoring.WorkerSpec{Name: fmt.Sprint("worker ", i), Pool: m.pools[cfg.poolOf(i)], Models: []string{model}})
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
	if cfg.QoS != nil {
		var err error
		if m.queue, err = newQueue(m); err != nil {
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
	if m.queue != nil {
		if at := m.queue.next(); at != never && m.nothingBefore(at) {
			m.now = at
			m.queue.pump()
			return
		}
	}
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

// nothingBefore says that nothing else happens before that time, nor at it but
// that requests arrive.
func (m *sim) nothingBefore(at time.Duration) bool {
	if step, _, _, ok := m.cores.next(); ok && step <= at {
		return false
	}
	if len(m.agenda.heap) == 0 {
		return true
	}
	e := &m.agenda.heap[0]
	return e.at > at || e.at == at && e.kind == requestArrives
}

// arrive lets request i come.
func (m *sim) arrive(i int) {
	c := &call{sim: m, index: i, sent: m.now, keep: !m.plan.end(i), returns: m.returns[i], before: m.text[i]}
	delete(m.text, i)
	delete(m.returns, i)
	if i == m.cfg.Warmup && c.returns == 0 {
		m.from = m.now
		if m.queue != nil {
			m.queue.mark(true)
		}
	}
	if m.queue != nil && m.queue.ends == nil && m.now >= m.until {
		m.queue.mark(false)
	}
	m.prompt = append(m.prompt[:0], c.before...)
	for _, s := range m.plan.Requests[i].Prompt {
		m.prompt = s.append(m.prompt)
	}
	c.prepared = m.prepare(i, m.prompt)
	c.req = scoring.Request{Model: model, Pools: m.permitted(i), Tokens: c.prepared.Prompt()}
	var err error
	if m.queue != nil {
		if c.offer, err = m.fleet.Prepare(m.clock(), &c.req); err != nil {
			panic("BUG: no worker although all are ready: " + err.Error())
		}
		m.queue.arrive(c)
		return
	}
	if m.oracle != nil {
		chosen := m.oracle.choose(i, c.prepared)
		for w, id := range m.ids {
			if w != chosen {
				c.req.Exclude = append(c.req.Exclude, id)
			}
		}
	}
	c.res, err = m.fleet.Pick(m.clock(), &c.req)
	if err != nil {
		panic("BUG: no worker although all are ready: " + err.Error())
	}
	m.dispatch(c)
}

// permitted are the names of the pools that request i may go to.
func (m *sim) permitted(i int) []string {
	r := &m.plan.Requests[i]
	if len(r.Pools) == 0 {
		return m.pools
	}
	names := make([]string, len(r.Pools))
	for k, p := range r.Pools {
		names[k] = m.pools[p]
	}
	return names
}

// dispatch sends a request to the worker that was chosen for it.
func (m *sim) dispatch(c *call) {
	c.worker = int(c.res.Worker().ID - m.ids[0])
	n := m.nodes[c.worker]
	var err error
	c.id, err = n.eng.AddPrepared(m.clock(), c.prepared)
	if err != nil {
		panic("BUG: an engine refuses a request that it prepared: " + err.Error())
	}
	if m.oracle != nil {
		m.oracle.sent(c.worker, c.prepared)
	}
	prompt, output := c.prepared.Prompt(), m.plan.Requests[c.index].Output
	if c.keep {
		c.text = append(make([]uint32, 0, len(prompt)+output), prompt...)
	}
	n.calls[c.id] = c
	n.requests++
	m.record[c.index] = Sample{
		Worker: c.worker, Sent: c.sent, Predicted: c.res.Predicted(), Prompt: len(prompt), Output: output,
		Queued: m.now - c.sent, Return: c.returns, Forecast: c.forecast,
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
	s := &m.record[c.index]
	c.res.Output(s.Output)
	c.res.Done(m.clock(), scoring.Completed)
	if s.Total != 0 {
		panic("BUG: a request ends twice")
	}
	s.TTFT, s.Total, s.Cached = c.first-s.Sent, m.now-s.Sent, c.cached
	if m.queue != nil {
		m.queue.ended(c, s)
	}
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

// lose gives up a request that was refused for good, and the turns after it, which
// will not come.
func (m *sim) lose(c *call) {
	for i := c.index; ; i++ {
		m.record[i] = Sample{Sent: c.sent, Return: c.returns, Refused: true}
		m.left--
		if m.plan.end(i) {
			break
		}
	}
	if m.plan.Streams > 0 {
		m.nextHead()
	}
}

// measures says whether what happens then counts: after the warm-up, and as long as
// requests come.
func (m *sim) measures(at time.Duration) bool { return at >= m.from && at < m.until }

// readLoad gives the router a worker's own account of its load.
func (m *sim) readLoad(worker int) {
	n := m.nodes[worker]
	st := n.eng.Stats()
	m.fleet.ObserveLoad(m.clock(), n.id, scoring.Load{Running: st.Running, Waiting: st.Waiting, KVUsage: st.Usage()})
	m.agenda.add(m.now+m.cfg.LoadInterval, loadRead, worker)
}
