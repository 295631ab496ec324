package kvevents

import (
	"math"
	"time"

	"github.com/sluicegate/sluice/scoring"
)

// Item is one received batch as the Machine sees it.
type Item struct {
	// Seq is the batch's sequence number.
	Seq uint64
	// TS is the publisher's time stamp. Together with Seq it names a batch:
	// two processes number their batches alike but do not make them at the
	// same instant.
	TS float64
	// Size is what the item costs in the queue, in bytes.
	Size int
	// Batch is carried along and never looked at. The machine owns it from
	// Live or Replayed until it hands it back in an action.
	Batch *Batch
}

// ActionKind says what an Action asks for.
type ActionKind uint8

const (
	// ActApply asks to apply Item's events to the view; Item is then free.
	ActApply ActionKind = iota + 1
	// ActDiscard hands Item back unused.
	ActDiscard
	// ActClear asks to drop the rank's view.
	ActClear
	// ActAsk asks to start replay ID at sequence number From, inclusive. Any
	// earlier replay has been cancelled or has ended.
	ActAsk
	// ActCancel asks to give up replay ID.
	ActCancel
	// ActView reports the new state of the view.
	ActView
)

// Action is one effect the Machine wants. Only the fields of its kind are set.
type Action struct {
	Kind ActionKind
	Item Item
	ID   uint64
	From uint64
	View scoring.ViewState
}

// MachineConfig holds the bounds of a Machine. All must be positive.
type MachineConfig struct {
	// Replay says whether the publisher can be asked for past batches.
	Replay bool
	// QueueItems and QueueBytes bound the live batches held during a replay.
	// What does not fit is dropped, and asked for again afterwards.
	QueueItems, QueueBytes int
	// ReplayIdle is how long a replay may stay silent, ReplayMax how long it
	// may take. After either it counts as incomplete.
	ReplayIdle, ReplayMax time.Duration
	// Attempts is how many replays may be asked for before the view is
	// dropped and live batches are accepted as they come. The count starts
	// anew after Stable without trouble.
	Attempts int
	Stable   time.Duration
	// Backoff is the pause before the third attempt. It doubles up to
	// BackoffMax.
	Backoff, BackoffMax time.Duration
	// StaleAfter is how long the view is kept while the publisher is away.
	StaleAfter time.Duration
	// Confirm is when, on a connection that has brought no batch yet, a replay
	// is asked for once more. A publisher takes note of a new subscriber in
	// its own time, and a batch sent in between would stay unknown until the
	// next one.
	Confirm time.Duration
	// Rejoin is when a view that was dropped for want of attempts is asked for
	// again as a whole. It doubles up to RejoinMax.
	Rejoin, RejoinMax time.Duration
}

// MachineStats counts what happened to one publisher.
type MachineStats struct {
	Applied   uint64 // batches applied, live and replayed
	Gaps      uint64 // batches missing in the live stream
	Restarts  uint64 // publishers recognised as another process
	Replays   uint64 // replays asked for
	Truncated uint64 // replays whose oldest batches were gone
	Holes     uint64 // batches that no replay can bring back
	Overlaps  uint64 // batches seen twice
	Overflows uint64 // live batches dropped from a full queue
	GaveUp    uint64 // times the attempts were used up
}

type phase uint8

const (
	phaseAway phase = iota
	phaseJoining
	phaseRecovering
	phaseLive
)

// Machine decides what the batches of one publisher (one worker and rank) mean
// for the view of its cache. It is pure: inputs are method calls with the
// present time, effects are the returned actions, which are valid until the
// next call and must be carried out in order. It is not safe for concurrent
// use.
//
// The view starts empty and is true at any time in the sense that every block
// in it was stored by the present process, and no later removal was missed.
// To keep that, batches are applied only in an unbroken sequence; wherever the
// sequence breaks for good, the view is cleared and what follows is applied to
// an empty one. Reading may therefore start anywhere: stores from there on are
// true, and removals of unknown blocks do nothing.
type Machine struct {
	cfg   MachineConfig
	phase phase
	view  scoring.ViewState
	out   []Action
	stats MachineStats

	// known says that next and lastTS are set: everything before next was
	// applied (or came before the view began). Not known implies an empty view.
	known  bool
	next   uint64
	lastTS float64
	// partial: older blocks may be missing. incomplete: and a replay could
	// still bring them, at rejoinAt.
	partial    bool
	incomplete bool
	rejoinAt   time.Time
	rejoinWait time.Duration

	// trusted says that the process behind the present connection is known to
	// be the one whose batches were applied.
	trusted bool

	// The live stream of the present connection.
	liveKnown bool
	liveLast  uint64
	liveSince time.Time
	awayAt    time.Time
	confirmAt time.Time // zero when done

	// Live batches held while a replay is under way, in rising order without
	// a gap of our own making: after the first drop nothing more is taken.
	queue      []Item
	queueBytes int
	overflow   bool

	// The replay under way, if asking; otherwise the next one is due at askAt
	// in the phases joining and recovering.
	asking         bool
	id             uint64
	verify         bool // the first reply must be the last applied batch
	verified       bool
	replies        int
	idleAt, overAt time.Time
	askAt          time.Time
	attempts       int
}

// NewMachine returns a machine without a connection and with an empty view.
func NewMachine(cfg MachineConfig) *Machine {
	return &Machine{cfg: cfg, rejoinWait: cfg.Rejoin}
}

// Stats returns the counters.
func (m *Machine) Stats() MachineStats { return m.stats }

// View returns the state last reported.
func (m *Machine) View() scoring.ViewState { return m.view }

// Position returns the next sequence number expected; ok is false before the
// first batch.
func (m *Machine) Position() (next uint64, ok bool) { return m.next, m.known }

// Queued returns the number of live batches held back.
func (m *Machine) Queued() int { return len(m.queue) }

// Connected tells that a new live stream begins. What was published before it,
// and its first few batches, may be missed: so everything is asked for again,
// and even a sequence that looks contiguous is verified, because another
// process may by now have published past the last one known.
func (m *Machine) Connected(now time.Time) []Action {
	m.begin()
	if m.phase != phaseAway {
		m.away(now)
	}
	if now.Sub(m.awayAt) >= m.cfg.Stable {
		m.attempts = 0
	}
	m.liveKnown, m.trusted = false, false
	if m.cfg.Replay {
		m.confirmAt = now.Add(m.cfg.Confirm)
	}
	if m.known && m.cfg.Replay {
		m.enter(now, phaseRecovering)
		return m.out
	}
	m.join(now)
	return m.out
}

// Disconnected tells that the live stream ended.
func (m *Machine) Disconnected(now time.Time) []Action {
	m.begin()
	if m.phase != phaseAway {
		m.away(now)
	}
	return m.out
}

// Live takes the next batch of the live stream.
func (m *Machine) Live(now time.Time, it Item) []Action {
	m.begin()
	// Within one stream numbers rise. When they don't, something between us
	// and the publisher hides that it was replaced.
	again := m.liveKnown && it.Seq <= m.liveLast
	m.liveKnown, m.liveLast, m.confirmAt = true, it.Seq, time.Time{}
	switch m.phase {
	case phaseAway:
		m.discard(it)
	case phaseLive:
		m.liveBatch(now, it, again)
	default:
		if again {
			m.restart(now, it)
		} else {
			m.push(it)
		}
	}
	return m.out
}

func (m *Machine) liveBatch(now time.Time, it Item, again bool) {
	switch {
	case !m.known:
		m.adopt(it)
		m.reportLive()
	case it.Seq == m.next:
		m.apply(it)
	case it.Seq > m.next:
		m.stats.Gaps += it.Seq - m.next
		m.push(it)
		m.recover(now)
	case it.Seq == m.next-1 && sameTS(it.TS, m.lastTS):
		m.overlap(it)
	case again || it.TS > m.lastTS:
		m.restart(now, it)
	default:
		// Sent before the replay that already brought it.
		m.overlap(it)
	}
}

// Replayed takes the next batch of replay id.
func (m *Machine) Replayed(now time.Time, id uint64, it Item) []Action {
	m.begin()
	if !m.asking || id != m.id {
		m.discard(it)
		return m.out
	}
	m.idleAt = now.Add(m.cfg.ReplayIdle)
	m.replies++
	switch {
	case m.verify && !m.verified:
		m.verifyReply(now, it)
	case !m.known:
		if it.Seq > 0 {
			m.stats.Truncated++
		}
		m.adopt(it)
	case it.Seq < m.next:
		m.overlap(it)
	case it.Seq == m.next:
		m.apply(it)
	default:
		m.hole(now, it)
	}
	return m.out
}

// verifyReply checks that the publisher still knows the last batch applied. If
// not, it is another process, or its buffer no longer reaches back; either way
// removals may be lost.
func (m *Machine) verifyReply(now time.Time, it Item) {
	same := it.Seq == m.next-1 && sameTS(it.TS, m.lastTS)
	if it.Seq == m.next-1 && !same {
		m.stats.Restarts++
	}
	m.discard(it)
	if same {
		m.verified, m.trusted = true, true
		return
	}
	m.cancel()
	m.join(now)
}

// hole handles a reply that leaves numbers out. Directly after the verified
// batch nothing can have been dropped on the way, so the publisher doesn't
// have it either and never will. Later on, it is asked for once more.
func (m *Machine) hole(now time.Time, it Item) {
	if m.verified && m.replies == 2 {
		m.stats.Holes += it.Seq - m.next
		m.clear()
		m.adopt(it)
		return
	}
	m.discard(it)
	m.cancel()
	m.schedule(now)
}

// ReplayEnd tells that replay id ended: complete if its end marker came, not
// complete if it failed before.
func (m *Machine) ReplayEnd(now time.Time, id uint64, complete bool) []Action {
	m.begin()
	if !m.asking || id != m.id {
		return m.out
	}
	m.asking = false
	switch {
	case !complete:
		m.schedule(now)
	case m.verify && !m.verified:
		// It has published less than was applied: another process.
		m.stats.Restarts++
		m.join(now)
	default:
		if !m.known {
			// Nothing was published yet.
			m.known, m.next, m.lastTS, m.trusted = true, 0, 0, true
		}
		m.goLive(now)
	}
	return m.out
}

// Deadline returns when Tick has something to do; ok is false if never.
func (m *Machine) Deadline() (at time.Time, ok bool) {
	switch {
	case m.asking:
		if m.overAt.Before(m.idleAt) {
			return m.overAt, true
		}
		return m.idleAt, true
	case m.phase == phaseJoining, m.phase == phaseRecovering:
		return m.askAt, true
	case m.phase == phaseAway && m.known:
		return m.awayAt.Add(m.cfg.StaleAfter), true
	case m.phase == phaseLive && !m.confirmAt.IsZero():
		return m.confirmAt, true
	case m.phase == phaseLive && m.incomplete:
		return m.rejoinAt, true
	}
	return time.Time{}, false
}

// Tick does what is due at now. Calling it early does nothing.
func (m *Machine) Tick(now time.Time) []Action {
	m.begin()
	if at, ok := m.Deadline(); !ok || now.Before(at) {
		return m.out
	}
	switch {
	case m.asking:
		m.cancel()
		m.schedule(now)
	case m.phase == phaseAway:
		m.clear()
		m.report(scoring.ViewNotReporting)
	case m.phase == phaseLive && !m.confirmAt.IsZero():
		m.confirmAt = time.Time{}
		m.enter(now, phaseRecovering)
	case m.phase == phaseLive:
		m.attempts = 0
		m.join(now)
	default:
		m.ask(now)
	}
	return m.out
}

func sameTS(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }
