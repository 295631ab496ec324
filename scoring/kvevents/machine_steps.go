package kvevents

import (
	"time"

	"github.com/sluicegate/sluice/scoring"
)

// This file holds the moves of the Machine; machine.go holds its inputs.

func (m *Machine) begin() {
	clear(m.out)
	m.out = m.out[:0]
}

func (m *Machine) emit(a Action) { m.out = append(m.out, a) }

func (m *Machine) discard(it Item) { m.emit(Action{Kind: ActDiscard, Item: it}) }

func (m *Machine) overlap(it Item) {
	m.stats.Overlaps++
	m.discard(it)
}

func (m *Machine) apply(it Item) {
	m.known, m.next, m.lastTS = true, it.Seq+1, it.TS
	m.stats.Applied++
	m.emit(Action{Kind: ActApply, Item: it})
}

// adopt begins an empty view at a batch of any number. Only from 0 on is it
// the whole truth.
func (m *Machine) adopt(it Item) {
	m.trusted = true
	m.partial = it.Seq != 0
	if !m.partial {
		m.incomplete = false
	}
	m.apply(it)
}

// clear drops the view, if there can be anything in it.
func (m *Machine) clear() {
	if m.known {
		m.emit(Action{Kind: ActClear})
	}
	m.known, m.next, m.lastTS = false, 0, 0
	m.partial, m.incomplete = false, false
}

func (m *Machine) report(v scoring.ViewState) {
	if v == m.view {
		return
	}
	m.view = v
	m.emit(Action{Kind: ActView, View: v})
}

func (m *Machine) reportLive() {
	if m.partial || !m.known {
		m.report(scoring.ViewPartial)
		return
	}
	m.report(scoring.ViewLive)
}

func (m *Machine) away(now time.Time) {
	m.cancel()
	m.dropQueue()
	m.settle(now)
	m.phase, m.awayAt, m.confirmAt = phaseAway, now, time.Time{}
	if m.known {
		m.report(scoring.ViewRecovering)
	} else {
		m.report(scoring.ViewNotReporting)
	}
}

// join starts over with an empty view.
func (m *Machine) join(now time.Time) {
	m.clear()
	m.enter(now, phaseJoining)
}

// restart handles a live batch that shows another process at work.
func (m *Machine) restart(now time.Time, it Item) {
	m.stats.Restarts++
	m.cancel()
	m.dropQueue()
	m.push(it)
	m.join(now)
}

// recover handles a broken sequence; the batches after the break are queued.
func (m *Machine) recover(now time.Time) {
	if !m.cfg.Replay {
		m.clear()
		m.goLive(now)
		return
	}
	m.enter(now, phaseRecovering)
}

func (m *Machine) enter(now time.Time, p phase) {
	if !m.cfg.Replay {
		m.goLive(now)
		return
	}
	m.settle(now)
	m.phase = p
	if p == phaseJoining {
		m.report(scoring.ViewJoining)
	} else {
		m.report(scoring.ViewRecovering)
	}
	m.schedule(now)
}

// settle forgives the attempts of the past when the stream was quiet since.
func (m *Machine) settle(now time.Time) {
	if m.phase == phaseLive && now.Sub(m.liveSince) >= m.cfg.Stable {
		m.attempts = 0
	}
}

// schedule arranges the next replay, at once or after a pause, or gives up.
func (m *Machine) schedule(now time.Time) {
	if m.attempts >= m.cfg.Attempts {
		m.giveUp(now)
		return
	}
	var pause time.Duration
	if m.attempts >= 2 {
		// The shift can't overflow: it is bounded before it is done.
		pause = m.cfg.BackoffMax
		if n := m.attempts - 2; n < 20 {
			pause = min(m.cfg.Backoff<<n, m.cfg.BackoffMax)
		}
	}
	m.askAt = now.Add(pause)
	if pause == 0 {
		m.ask(now)
	}
}

// ask starts a replay: of everything into an empty view, otherwise from the
// last applied batch on, which also proves that it is the same process.
func (m *Machine) ask(now time.Time) {
	m.attempts++
	m.stats.Replays++
	m.id++
	m.asking, m.verified, m.replies = true, false, 0
	m.verify = m.known && m.next > 0
	m.idleAt, m.overAt = now.Add(m.cfg.ReplayIdle), now.Add(m.cfg.ReplayMax)
	var from uint64
	if m.verify {
		from = m.next - 1
	}
	m.emit(Action{Kind: ActAsk, ID: m.id, From: from})
}

func (m *Machine) cancel() {
	if !m.asking {
		return
	}
	m.asking = false
	m.emit(Action{Kind: ActCancel, ID: m.id})
}

// giveUp accepts live batches again although a replay was due. A view stays
// if it is of this process and nothing shows that a batch is missing: should
// one be, the next live batch tells. Anything else is dropped, and asked for
// again as a whole later.
func (m *Machine) giveUp(now time.Time) {
	m.stats.GaveUp++
	if !m.known || !m.trusted || !m.continues() {
		m.clear()
		m.partial, m.incomplete = true, true
		m.rejoinAt = now.Add(m.rejoinWait)
		m.rejoinWait = min(2*m.rejoinWait, m.cfg.RejoinMax)
	}
	m.goLive(now)
}

// continues reports whether the queue goes on where the view ends.
func (m *Machine) continues() bool {
	for _, it := range m.queue {
		if it.Seq >= m.next {
			return it.Seq == m.next
		}
	}
	return true
}

// goLive applies what is queued and then takes live batches directly.
func (m *Machine) goLive(now time.Time) {
	m.phase, m.liveSince = phaseLive, now
	for i, it := range m.queue {
		switch {
		case !m.known:
			m.adopt(it)
		case it.Seq < m.next && it.TS > m.lastTS && m.cfg.Replay:
			// Younger than what the replay brought, with a lower number.
			m.stats.Restarts++
			m.shift(i)
			m.join(now)
			return
		case it.Seq < m.next:
			m.overlap(it)
		case it.Seq == m.next:
			m.apply(it)
		default:
			m.stats.Gaps += it.Seq - m.next
			m.shift(i)
			m.recover(now)
			return
		}
	}
	m.shift(len(m.queue))
	if m.overflow && m.cfg.Replay {
		m.overflow = false
		m.recover(now)
		return
	}
	m.overflow = false
	if !m.incomplete {
		m.rejoinWait = m.cfg.Rejoin
	}
	m.reportLive()
}

// push holds a live batch back. From the first one that doesn't fit on, all
// are dropped until the queue is emptied, so that it never has a gap of its
// own.
func (m *Machine) push(it Item) {
	if m.overflow || len(m.queue) >= m.cfg.QueueItems || m.queueBytes+it.Size > m.cfg.QueueBytes && len(m.queue) > 0 {
		m.overflow = true
		m.stats.Overflows++
		m.discard(it)
		return
	}
	m.queue = append(m.queue, it)
	m.queueBytes += it.Size
}

// shift forgets the first n queued items; they have been handed on.
func (m *Machine) shift(n int) {
	for _, it := range m.queue[:n] {
		m.queueBytes -= it.Size
	}
	rest := copy(m.queue, m.queue[n:])
	clear(m.queue[rest:])
	m.queue = m.queue[:rest]
}

func (m *Machine) dropQueue() {
	for _, it := range m.queue {
		m.discard(it)
	}
	m.shift(len(m.queue))
	m.overflow = false
}
