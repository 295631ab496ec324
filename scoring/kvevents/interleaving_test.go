package kvevents_test

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/scoring/kvevents"
	"pgregory.net/rapid"
)

func sortSpots(s []spot) {
	slices.SortFunc(s, func(a, b spot) int {
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.medium, b.medium),
			cmp.Compare(a.text.lora, b.text.lora), cmp.Compare(a.text.salt, b.text.salt), cmp.Compare(a.text.tokens, b.text.tokens))
	})
}

// naive is what a view must hold after the facts it was told, worked out block
// by block with nothing but sets.
type naive struct {
	held map[spot]bool
	// waiting are blocks whose parent is not held. One that was removed while
	// it waited still tells where its children belong.
	waiting map[spot]bool
	linked  map[int]map[text]bool
	// storing are the groups that have stored in a medium.
	storing map[string]map[int]bool
}

func newNaive() *naive {
	return &naive{held: map[spot]bool{}, waiting: map[spot]bool{}, linked: map[int]map[text]bool{}, storing: map[string]map[int]bool{}}
}

var media = []string{"GPU", "CPU"}

func (n *naive) known(g int, x text) bool {
	return x.root() || slices.ContainsFunc(media, func(m string) bool { return n.held[spot{g, m, x}] })
}

func (n *naive) tell(f fact) {
	switch f.kind {
	case "clear":
		*n = *newNaive()
	case "remove":
		for _, x := range f.chain {
			delete(n.held, spot{f.group, f.medium, x})
			delete(n.waiting, spot{f.group, f.medium, x})
		}
	case "repeat":
		for _, x := range f.chain {
			switch {
			case n.known(f.group, x):
				n.hold(spot{f.group, f.medium, x})
			case n.linked[f.group][x]:
				n.waiting[spot{f.group, f.medium, x}] = true
			}
		}
	case "store":
		for _, x := range f.chain {
			s := spot{f.group, f.medium, x}
			if n.known(f.group, x) || n.known(f.group, x.parent()) {
				n.hold(s)
				n.adopt(f.group, x)
				continue
			}
			n.waiting[s] = true
			if n.linked[f.group] == nil {
				n.linked[f.group] = map[text]bool{}
			}
			n.linked[f.group][x] = true
		}
	}
}

func (n *naive) hold(s spot) {
	n.held[s] = true
	if n.storing[s.medium] == nil {
		n.storing[s.medium] = map[int]bool{}
	}
	n.storing[s.medium][s.group] = true
}

// adopt takes in the blocks that waited for x, and those behind them.
func (n *naive) adopt(g int, x text) {
	for _, w := range words {
		child := x
		child.tokens += w
		if !n.linked[g][child] {
			continue
		}
		delete(n.linked[g], child)
		for _, m := range media {
			if s := (spot{g, m, child}); n.waiting[s] {
				delete(n.waiting, s)
				n.hold(s)
			}
		}
		n.adopt(g, child)
	}
}

// cached is how many tokens of a prompt the engine would take from its cache.
func (n *naive) cached(x text) int {
	tokens := 0
	for tokens < len(x.tokens) {
		at := x
		at.tokens = x.tokens[:tokens+blockTokens]
		if !slices.ContainsFunc(media, func(m string) bool { return n.everywhere(m, at) }) {
			break
		}
		tokens += blockTokens
	}
	return tokens
}

func (n *naive) everywhere(m string, x text) bool {
	for g := range n.storing[m] {
		if !n.held[spot{g, m, x}] {
			return false
		}
	}
	return len(n.storing[m]) > 0
}

// universe is every prompt of full length that an engine here may cache.
func universe() []text {
	var out []text
	for _, lora := range []string{"", "poet"} {
		for _, salt := range []string{"", "tenant-a", "poet"} {
			for i := range 1 << 4 {
				x := text{lora: lora, salt: salt}
				for j := range 4 {
					x.tokens += words[i>>j&1]
				}
				out = append(out, x)
			}
		}
	}
	return out
}

// world is one publisher behind connections that lose and delay, and the whole
// path from its frames to a fleet's index.
type world struct {
	t      *rapid.T
	now    time.Time
	keep   int  // batches in the replay buffer
	old    bool // replies without a topic, as engines before 0.26
	bound  bool // few blocks may wait for their parent
	replay bool
	eng    *engine
	sent   map[*kvevents.Batch]batch // not handed back
	up     bool
	live   []batch // in flight
	asked  bool
	id     uint64
	answer []batch // in flight
	marker bool    // the end marker follows them
	m      *kvevents.Machine
	fleet  *scoring.Fleet
	worker scoring.WorkerID
	view   *naive
	last   batch // the last one applied to view
	began  bool
}

func newWorld(t *rapid.T) *world {
	w := &world{
		t: t, now: time.Unix(1000, 0), old: rapid.Bool().Draw(t, "old framing"), keep: rapid.SampledFrom([]int{1000, 1000, 1, 2}).Draw(t, "buffer"),
		replay: rapid.IntRange(0, 4).Draw(t, "replay") > 0, bound: rapid.IntRange(0, 3).Draw(t, "bound") == 0,
		sent: map[*kvevents.Batch]batch{}, view: newNaive(),
	}
	w.m = kvevents.NewMachine(kvevents.MachineConfig{
		Replay: w.replay, QueueItems: rapid.IntRange(1, 6).Draw(t, "queue"), QueueBytes: 1 << 20,
		ReplayIdle: 5 * time.Second, ReplayMax: time.Minute, Attempts: rapid.IntRange(1, 6).Draw(t, "attempts"), Stable: 30 * time.Second,
		Backoff: 100 * time.Millisecond, BackoffMax: 5 * time.Second, StaleAfter: 30 * time.Second, Confirm: time.Second,
		Rejoin: 2 * time.Minute, RejoinMax: 10 * time.Minute,
	})
	cfg := scoring.DefaultConfig()
	if w.bound {
		cfg.HeldBlocks = rapid.IntRange(0, 3).Draw(t, "held")
	}
	w.fleet = scoring.NewFleet(cfg)
	var err error
	if w.worker, err = w.fleet.Add(w.now, scoring.WorkerSpec{Name: "w", Pool: "p", Models: []string{"m"}}); err != nil {
		t.Fatal(err)
	}
	w.fleet.SetReady(w.now, w.worker, true, "")
	w.fleet.SetCapacity(w.worker, blockTokens, 1<<16)
	w.restart()
	// What was published before we came may have left the buffer, so that
	// blocks come whose parents were never seen.
	for range rapid.IntRange(0, 8).Draw(t, "before") {
		w.publish(3, true)
	}
	return w
}

func (w *world) restart() {
	process := 1
	if w.eng != nil {
		process = w.eng.process + 1
	}
	w.eng = &engine{
		t: w.t, process: process, cache: map[spot]bool{}, whole: true,
		groups: rapid.SampledFrom([]int{1, 1, 2}).Draw(w.t, "groups"), bytes: rapid.Bool().Draw(w.t, "digests"),
	}
}

// publish lets the engine run once. A batch that it can't encode uses up its
// number and is never seen.
func (w *world) publish(most int, encodes bool) {
	w.now = w.now.Add(time.Millisecond)
	b := w.eng.step(float64(w.now.UnixNano())/1e9, most)
	if !encodes {
		w.eng.whole = false
		return
	}
	w.eng.buffer = append(w.eng.buffer, b)
	if len(w.eng.buffer) > w.keep {
		w.eng.buffer, w.eng.whole = w.eng.buffer[1:], false
	}
	if w.up {
		w.live = append(w.live, b)
	}
}

// receive reads a message as it comes from a socket.
func (w *world) receive(b batch, frames ...[]byte) kvevents.Item {
	m, err := kvevents.ParseFrames(frames)
	if err != nil || m.End {
		w.t.Fatalf("cannot take a message apart: %+v, %v", m, err)
	}
	out := new(kvevents.Batch)
	if err := kvevents.Decode(m.Payload, out); err != nil {
		w.t.Fatal(err)
	}
	w.sent[out] = b
	return kvevents.Item{Seq: m.Seq, TS: out.TS, Size: len(m.Payload), Batch: out}
}

func seqFrame(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func (w *world) deliverLive() {
	b := w.live[0]
	w.live = w.live[1:]
	frames := [][]byte{[]byte("kv@w@m"), seqFrame(b.seq), b.payload}
	w.do(w.m.Live(w.now, w.receive(b, frames[rapid.IntRange(0, 1).Draw(w.t, "topic"):]...)))
}

func (w *world) deliverReply() {
	frames := [][]byte{nil, []byte("kv@w@m")}
	if w.old {
		frames = frames[:1]
	}
	if len(w.answer) > 0 {
		b := w.answer[0]
		w.answer = w.answer[1:]
		w.do(w.m.Replayed(w.now, w.id, w.receive(b, append(frames, seqFrame(b.seq), b.payload)...)))
		return
	}
	if !w.marker {
		return
	}
	if m, err := kvevents.ParseFrames(append(frames, seqFrame(1<<64-1), nil)); err != nil || !m.End {
		w.t.Fatalf("the end marker is read as %+v, %v", m, err)
	}
	w.endReplay(true)
}

func (w *world) endReplay(complete bool) {
	w.asked = false
	w.do(w.m.ReplayEnd(w.now, w.id, complete))
}

// do carries out actions as a Subscriber would, and tells the naive view.
func (w *world) do(actions []kvevents.Action) {
	for _, a := range actions {
		switch a.Kind {
		case kvevents.ActApply, kvevents.ActDiscard:
			b := w.sent[a.Item.Batch]
			delete(w.sent, a.Item.Batch)
			if a.Kind == kvevents.ActApply {
				w.apply(a.Item.Batch, b)
			}
		case kvevents.ActClear:
			w.fleet.ClearView(w.worker, 0)
			w.view, w.began = newNaive(), false
		case kvevents.ActView:
			w.fleet.SetView(w.worker, 0, a.View)
		case kvevents.ActCancel:
			w.asked = false
		case kvevents.ActAsk:
			w.asked, w.id, w.answer, w.marker = true, a.ID, nil, true
			for _, b := range w.eng.buffer {
				if b.seq >= a.From {
					w.answer = append(w.answer, b)
				}
			}
		}
	}
}

// apply checks that nothing was left out since the view was empty.
func (w *world) apply(decoded *kvevents.Batch, b batch) {
	if w.began && (b.process != w.last.process || b.seq != w.last.seq+1) {
		w.t.Fatalf("batch %d of process %d follows batch %d of process %d", b.seq, b.process, w.last.seq, w.last.process)
	}
	w.last, w.began = b, true
	for _, f := range b.facts {
		w.view.tell(f)
	}
	w.fleet.ApplyEvents(w.now, w.worker, 0, decoded.Events)
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

func (w *world) connect() {
	w.up, w.live = true, nil
	w.do(w.m.Connected(w.now))
}

func (w *world) disconnect() {
	w.up, w.live = false, nil
	w.do(w.m.Disconnected(w.now))
}

// picked is how many tokens a pick finds cached.
func (w *world) picked(x text) int {
	tokens := make([]uint32, 0, len(x.tokens)+1)
	for _, c := range []byte(x.tokens) {
		tokens = append(tokens, uint32(c))
	}
	// One token more: the engine computes at least the last one itself.
	r, err := w.fleet.Pick(w.now, &scoring.Request{
		Model: "m", Pools: []string{"p"}, Tokens: append(tokens, 0), LoRA: x.lora, Salt: x.salt,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	defer r.Done(w.now, scoring.NotSent)
	return r.Cached()
}

// check compares the index with the naive view, and that with the truth.
func (w *world) check() {
	for _, x := range universe() {
		got, want := w.picked(x), w.view.cached(x)
		if got > want || got < want && !w.bound {
			w.t.Fatalf("a pick finds %d tokens of %q, want %d\nheld: %v", got, x, want, w.view.held)
		}
	}
	var count [2]int
	for s := range w.view.held {
		count[slices.Index(media, s.medium)]++
		if !w.last.after[s] {
			w.t.Fatalf("the view holds %v, which the engine did not hold after batch %d of process %d", s, w.last.seq, w.last.process)
		}
	}
	v := w.fleet.Snapshot(w.now)[0].Views[0]
	if !w.bound && (v.GPU != count[0] || v.CPU != count[1]) {
		w.t.Fatalf("the view counts %d and %d blocks, want %v", v.GPU, v.CPU, count)
	}
	if v.State != w.m.View() {
		w.t.Fatalf("the view's state is %v, the machine's %v", v.State, w.m.View())
	}
}

// settle lets everything come to rest without further faults.
func (w *world) settle() {
	if !w.up {
		w.connect()
	}
	for range 100 {
		w.drain()
		w.publish(0, true)
		for range 20 {
			w.advance(time.Second)
			w.drain()
		}
	}
}

// drain delivers all that is under way, until nothing is asked for.
func (w *world) drain() {
	for w.asked || len(w.live) > 0 {
		switch {
		case len(w.live) > 0:
			w.deliverLive()
		case len(w.answer) > 0 || w.marker:
			w.deliverReply()
		default:
			w.endReplay(false)
		}
	}
}

// TestInterleavings: any interleaving of what an engine publishes (stored,
// removed, cleared, in every encoding) with what befalls it on the way (gaps,
// duplicates, restarts, reconnects, replays in both framings, whole and
// truncated) leaves the index as a naive model of the same facts has it, and
// never with more than the engine holds.
func TestInterleavings(t *testing.T) {
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
		cut := func(from []batch, least int) []batch {
			need(len(from) > least)
			i := rapid.IntRange(least, len(from)-1).Draw(t, "from")
			n := rapid.IntRange(1, len(from)-i).Draw(t, "n")
			return append(from[:i:i], from[i+n:]...)
		}
		publish := func(*rapid.T) { w.publish(3, true) }
		deliver := func(*rapid.T) { need(len(w.live) > 0); w.deliverLive() }
		t.Repeat(map[string]func(*rapid.T){
			"publish": publish, "publish2": publish, "publish3": publish,
			"live": deliver, "live2": deliver,
			"unencoded": func(*rapid.T) {
				need(rapid.IntRange(0, 9).Draw(t, "rare") == 0)
				w.publish(3, false)
			},
			"again":     func(*rapid.T) { need(len(w.live) > 0); w.live = slices.Insert(w.live, 0, w.live[0]) },
			"reply":     func(*rapid.T) { need(w.asked); w.deliverReply() },
			"lose live": func(*rapid.T) { w.live = cut(w.live, 0) },
			// What a queue on the way drops, it drops behind the first replies.
			"lose replies": func(*rapid.T) { need(w.asked); w.answer = cut(w.answer, 2) },
			"lose end":     func(*rapid.T) { need(w.asked); w.marker = false },
			"fail":         func(*rapid.T) { need(w.asked); w.endReplay(false) },
			"replies": func(*rapid.T) {
				need(w.asked)
				for id := w.id; w.asked && w.id == id && (len(w.answer) > 0 || w.marker); {
					w.deliverReply()
				}
			},
			"connect":    func(*rapid.T) { need(!w.up); w.connect() },
			"disconnect": func(*rapid.T) { need(w.up); w.disconnect() },
			"restart": func(*rapid.T) {
				w.restart()
				if w.up {
					w.disconnect()
				}
			},
			"wait": func(*rapid.T) {
				w.advance(time.Duration(rapid.IntRange(1, 40_000).Draw(t, "ms")) * time.Millisecond)
			},
			"": func(*rapid.T) { w.check() },
		})
		w.settle()
		w.check()
		next, known := w.m.Position()
		if !known || next != w.eng.seq || len(w.sent) != 0 {
			t.Fatalf("at rest at %d (known: %v), the publisher at %d, %d batches not handed back", next, known, w.eng.seq, len(w.sent))
		}
		if w.replay && w.eng.whole && w.m.View() != scoring.ViewLive {
			t.Fatalf("the view is %v although nothing is missing", w.m.View())
		}
		if w.replay && w.eng.whole && !w.bound && fmt.Sprint(len(w.view.held)) != fmt.Sprint(len(w.eng.cache)) {
			t.Fatalf("the view holds %d blocks, the engine %d", len(w.view.held), len(w.eng.cache))
		}
	})
}
