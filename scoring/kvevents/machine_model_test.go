package kvevents

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/sluicegate/sluice/scoring"
	"pgregory.net/rapid"
)

// op is one change of a cache: store (+1), removal (-1) or clear (0).
type op struct {
	kind  int
	block int
}

type blocks map[int]bool

func (b blocks) apply(ops []op) {
	for _, o := range ops {
		switch o.kind {
		case 1:
			b[o.block] = true
		case -1:
			delete(b, o.block)
		default:
			clear(b)
		}
	}
}

func (b blocks) within(o blocks) bool {
	for k := range b {
		if !o[k] {
			return false
		}
	}
	return true
}

type modelBatch struct {
	seq uint64
	ts  float64
	ops []op
}

// process is a naive engine: what it holds, what it published, and what it
// still has for replay.
type process struct {
	seq    uint64
	cache  blocks
	buffer []modelBatch
	whole  bool // no batch was lost to encoding or to the buffer's end
}

// world is one publisher, its connections, and a machine with its view.
type world struct {
	t      *rapid.T
	cfg    MachineConfig
	keep   int // batches in the replay buffer
	now    time.Time
	ts     float64
	proc   *process
	m      *Machine
	view   blocks
	truth  map[string]blocks // by batch name: what the cache held after it
	sent   map[*Batch]modelBatch
	up     bool
	miss   int          // live batches the subscription comes too late for
	live   []modelBatch // in flight
	asked  bool
	id     uint64
	answer []modelBatch // in flight
	got    int          // replies delivered
	marker bool         // the end marker follows them
}

func name(seq uint64, ts float64) string { return fmt.Sprint(seq, "@", ts) }

func newWorld(t *rapid.T) *world {
	cfg := testMachineConfig()
	cfg.Replay = rapid.IntRange(0, 4).Draw(t, "replay") > 0
	cfg.QueueItems = rapid.IntRange(1, 6).Draw(t, "queue")
	cfg.Attempts = rapid.IntRange(1, 6).Draw(t, "attempts")
	w := &world{
		t: t, cfg: cfg, keep: rapid.SampledFrom([]int{1000, 1000, 4}).Draw(t, "buffer"),
		now: time.Unix(1000, 0), view: blocks{}, truth: map[string]blocks{}, sent: map[*Batch]modelBatch{},
		m: NewMachine(cfg),
	}
	w.newProcess()
	return w
}

func (w *world) newProcess() { w.proc = &process{cache: blocks{}, whole: true} }

// publish lets the engine take one step. A batch that fails to encode uses up
// its number and is never seen.
func (w *world) publish(ops []op, encodes bool) {
	w.ts++
	b := modelBatch{seq: w.proc.seq, ts: w.ts, ops: ops}
	w.proc.seq++
	w.proc.cache.apply(ops)
	w.truth[name(b.seq, b.ts)] = maps.Clone(w.proc.cache)
	if !encodes {
		w.proc.whole = false
		return
	}
	w.proc.buffer = append(w.proc.buffer, b)
	if len(w.proc.buffer) > w.keep {
		w.proc.buffer = w.proc.buffer[1:]
		w.proc.whole = false
	}
	if !w.up {
		return
	}
	if w.miss > 0 {
		w.miss--
		return
	}
	w.live = append(w.live, b)
}

func (w *world) drawOps() []op {
	var ops []op
	for range rapid.IntRange(0, 3).Draw(w.t, "ops") {
		kind := rapid.SampledFrom([]int{1, 1, 1, -1, -1, 0}).Draw(w.t, "kind")
		ops = append(ops, op{kind, rapid.IntRange(0, 5).Draw(w.t, "block")})
	}
	return ops
}

func (w *world) item(b modelBatch) Item {
	batch := new(Batch)
	w.sent[batch] = b
	return Item{Seq: b.seq, TS: b.ts, Size: 100, Batch: batch}
}

// do carries out actions as the Subscriber would.
func (w *world) do(actions []Action) {
	for _, a := range actions {
		switch a.Kind {
		case ActApply, ActDiscard:
			b, ok := w.sent[a.Item.Batch]
			if !ok {
				w.t.Fatalf("batch handed back twice: %v", a)
			}
			delete(w.sent, a.Item.Batch)
			if a.Kind == ActApply {
				w.view.apply(b.ops)
			}
		case ActClear:
			clear(w.view)
		case ActCancel:
			if !w.asked || w.id != a.ID {
				w.t.Fatalf("cancelled a replay that is not under way")
			}
			w.asked = false
		case ActAsk:
			if w.asked || !w.up {
				w.t.Fatalf("asked while another replay is under way, or without a connection")
			}
			w.ask(a)
		}
	}
}

// ask answers a replay from the engine's buffer as it is now.
func (w *world) ask(a Action) {
	w.asked, w.id, w.answer, w.got, w.marker = true, a.ID, nil, 0, true
	for _, b := range w.proc.buffer {
		if b.seq >= a.From {
			w.answer = append(w.answer, b)
		}
	}
}

func (w *world) deliverLive() {
	b := w.live[0]
	w.live = w.live[1:]
	w.do(w.m.Live(w.now, w.item(b)))
}

func (w *world) deliverReplay() {
	switch {
	case len(w.answer) > 0:
		b := w.answer[0]
		w.answer = w.answer[1:]
		w.got++
		w.do(w.m.Replayed(w.now, w.id, w.item(b)))
	case w.marker:
		w.endReplay(true)
	}
}

func (w *world) endReplay(complete bool) {
	w.asked = false
	w.do(w.m.ReplayEnd(w.now, w.id, complete))
}

func (w *world) connect() {
	w.up, w.live = true, nil
	w.do(w.m.Connected(w.now))
}

func (w *world) disconnect() {
	w.up, w.live = false, nil
	w.do(w.m.Disconnected(w.now))
}

func (w *world) advance(d time.Duration) {
	until := w.now.Add(d)
	for {
		at, ok := w.m.Deadline()
		if !ok || at.After(until) {
			break
		}
		if at.After(w.now) {
			w.now = at
		}
		w.do(w.m.Tick(w.now))
	}
	w.now = until
}

// check holds at every moment.
func (w *world) check() {
	next, known := w.m.Position()
	if !known {
		if len(w.view) > 0 {
			w.t.Fatalf("a view of %v without a position", w.view)
		}
		return
	}
	if next == 0 {
		if len(w.view) > 0 {
			w.t.Fatalf("a view of %v before the first batch", w.view)
		}
		return
	}
	truth, ok := w.truth[name(next-1, w.m.lastTS)]
	if !ok {
		w.t.Fatalf("position %d@%v was never published", next-1, w.m.lastTS)
	}
	if !w.view.within(truth) {
		w.t.Fatalf("view %v holds more than the truth %v", w.view, truth)
	}
	if !w.m.partial && !truth.within(w.view) {
		w.t.Fatalf("view %v is said to be whole, the truth is %v", w.view, truth)
	}
	if len(w.m.queue) > w.cfg.QueueItems {
		w.t.Fatalf("%d items queued, the limit is %d", len(w.m.queue), w.cfg.QueueItems)
	}
}

// settle lets everything come to rest without further faults.
func (w *world) settle() {
	if !w.up {
		w.connect()
	}
	w.miss = 0
	for range 200 {
		for w.asked && (len(w.answer) > 0 || w.marker) {
			w.deliverReplay()
		}
		for len(w.live) > 0 {
			w.deliverLive()
		}
		if !w.asked {
			w.publish([]op{{1, 3}}, true)
		}
		w.advance(10 * time.Second)
		w.check()
	}
	for w.asked || len(w.live) > 0 {
		if len(w.live) > 0 {
			w.deliverLive()
		} else {
			w.deliverReplay()
		}
	}
}

// TestMachineModel compares the machine with a naive model of a publisher that
// loses, delays, truncates, restarts and disconnects as it likes.
func TestMachineModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		// An action that makes no sense in the present state is drawn anew: this
		// Skip is rapid's way to say so and skips no test. rapid fails the test if
		// too few actions are left.
		need := func(ok bool) {
			if !ok {
				t.Skip()
			}
		}
		cut := func(from []modelBatch, least int) []modelBatch {
			need(len(from) > least)
			i := rapid.IntRange(least, len(from)-1).Draw(t, "from")
			n := rapid.IntRange(1, len(from)-i).Draw(t, "n")
			return append(from[:i:i], from[i+n:]...)
		}
		t.Repeat(map[string]func(*rapid.T){
			"publish":  func(t *rapid.T) { w.t = t; w.publish(w.drawOps(), true) },
			"publish2": func(t *rapid.T) { w.t = t; w.publish(w.drawOps(), true) },
			"unencoded": func(t *rapid.T) {
				w.t = t
				need(rapid.IntRange(0, 9).Draw(t, "rare") == 0)
				w.publish(w.drawOps(), false)
			},
			"live":  func(*rapid.T) { need(len(w.live) > 0); w.deliverLive() },
			"live2": func(*rapid.T) { need(len(w.live) > 0); w.deliverLive() },
			"reply": func(*rapid.T) { need(w.asked); w.deliverReplay() },
			"replies": func(*rapid.T) {
				need(w.asked)
				id := w.id
				for w.asked && w.id == id && (len(w.answer) > 0 || w.marker) {
					w.deliverReplay()
				}
			},
			"lose live": func(*rapid.T) { w.live = cut(w.live, 0) },
			// A queue between us and the publisher overflows, which its first
			// two messages can't bring about.
			"lose reply": func(*rapid.T) { need(w.asked); w.answer = cut(w.answer, max(0, 2-w.got)) },
			"lose end":   func(*rapid.T) { need(w.asked); w.marker = false },
			"fail":       func(*rapid.T) { need(w.asked); w.endReplay(false) },
			"connect": func(t *rapid.T) {
				need(!w.up)
				w.miss = rapid.IntRange(0, 2).Draw(t, "miss")
				w.connect()
			},
			"disconnect": func(*rapid.T) { need(w.up); w.disconnect() },
			"restart": func(*rapid.T) {
				w.newProcess()
				if w.up {
					w.disconnect()
				}
			},
			"hidden restart": func(*rapid.T) {
				// Something in between keeps our connection. What the new
				// process sends is then seen from its first batch on.
				need(w.up && w.miss == 0)
				w.newProcess()
				w.live = nil
				if w.asked {
					w.endReplay(false)
				}
				w.publish([]op{{1, 4}}, true)
				w.deliverLive()
			},
			"wait": func(t *rapid.T) {
				w.advance(time.Duration(rapid.IntRange(1, 40_000).Draw(t, "ms")) * time.Millisecond)
			},
			"": func(t *rapid.T) { w.t = t; w.check() },
		})
		w.t = t
		w.settle()
		w.check()
		next, known := w.m.Position()
		if !known || next != w.proc.seq {
			t.Fatalf("at rest at %d (known: %v), the publisher at %d", next, known, w.proc.seq)
		}
		if len(w.sent) != 0 {
			t.Fatalf("%d batches were never handed back", len(w.sent))
		}
		if w.cfg.Replay && w.proc.whole {
			if w.m.View() != scoring.ViewLive || !w.proc.cache.within(w.view) {
				t.Fatalf("view %v (%v), the truth is %v", w.view, w.m.View(), w.proc.cache)
			}
		}
	})
}
