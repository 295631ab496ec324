package kvevents

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/sluicegate/sluice/scoring"
)

// publisher is an engine's event publisher on real ZeroMQ sockets.
type publisher struct {
	t        testing.TB
	pub      zmq4.Socket
	router   zmq4.Socket
	old      bool // replies without a topic, as engines before 0.26
	started  float64
	done     chan struct{}
	endpoint string
	replayAt string

	mu     sync.Mutex // protects what follows
	seq    uint64
	buffer [][]byte // payload by sequence number
	asked  []uint64
	mute   bool // replies lack the end marker
}

func quiet() zmq4.Option { return zmq4.WithLogger(log.New(io.Discard, "", 0)) }

// startPublisher listens on the given endpoints; "" means a free port.
func startPublisher(t testing.TB, endpoint, replay string, old bool) *publisher {
	t.Helper()
	if endpoint == "" {
		endpoint = "tcp://127.0.0.1:0"
	}
	if replay == "" {
		replay = "tcp://127.0.0.1:0"
	}
	p := &publisher{t: t, old: old, started: float64(time.Now().UnixNano()), done: make(chan struct{})}
	p.pub = zmq4.NewPub(context.Background(), quiet())
	p.router = zmq4.NewRouter(context.Background(), quiet())
	if err := p.pub.Listen(endpoint); err != nil {
		t.Fatal(err)
	}
	if err := p.router.Listen(replay); err != nil {
		t.Fatal(err)
	}
	p.endpoint = "tcp://" + p.pub.Addr().String()
	p.replayAt = "tcp://" + p.router.Addr().String()
	go p.serveReplay()
	t.Cleanup(p.stop)
	return p
}

func (p *publisher) stop() {
	p.pub.Close()
	p.router.Close()
	<-p.done
}

func (p *publisher) serveReplay() {
	defer close(p.done)
	for {
		msg, err := p.router.Recv()
		if err != nil {
			return
		}
		if len(msg.Frames) != 3 || len(msg.Frames[1]) != 0 || len(msg.Frames[2]) != 8 {
			continue // the engine logs a warning and says nothing
		}
		from := binary.BigEndian.Uint64(msg.Frames[2])
		p.mu.Lock()
		p.asked = append(p.asked, from)
		buffer, mute := p.buffer, p.mute
		p.mu.Unlock()
		for seq := from; seq < uint64(len(buffer)); seq++ {
			p.reply(msg.Frames[0], seq, buffer[seq])
		}
		if !mute {
			p.reply(msg.Frames[0], endSeq, nil)
		}
	}
}

func (p *publisher) reply(id []byte, seq uint64, payload []byte) {
	frames := [][]byte{id, nil}
	if !p.old {
		topic := []byte("kv@w@m")
		if seq == endSeq {
			topic = nil
		}
		frames = append(frames, topic)
	}
	frames = append(frames, binary.BigEndian.AppendUint64(nil, seq), payload)
	_ = p.router.SendMulti(zmq4.NewMsgFrom(frames...))
}

// step publishes one batch. A lost one is buffered for replay but not sent.
func (p *publisher) step(lost bool, events ...any) {
	p.t.Helper()
	p.mu.Lock()
	ts := p.started + float64(p.seq)
	p.mu.Unlock()
	p.payload(lost, pack(p.t, list{ts, events, 0}))
}

func (p *publisher) payload(lost bool, payload []byte) {
	p.mu.Lock()
	seq := p.seq
	p.seq++
	p.buffer = append(p.buffer, payload)
	p.mu.Unlock()
	if !lost {
		p.send([]byte("kv@w@m"), binary.BigEndian.AppendUint64(nil, seq), payload)
	}
}

func (p *publisher) send(frames ...[]byte) {
	if err := p.pub.SendMulti(zmq4.NewMsgFrom(frames...)); err != nil {
		p.t.Error(err)
	}
}

func (p *publisher) source() Source {
	return Source{Worker: 7, Rank: 1, Name: "w", Endpoint: p.endpoint, Replay: p.replayAt}
}

func storeEvent(hash int) any {
	return list{"BlockStored", list{hash}, nil, list{hash, hash}, 2}
}

func removeEvent(hash int) any { return list{"BlockRemoved", list{hash}} }

// sink is a Sink that keeps a set of hashes.
type sink struct {
	mu     sync.Mutex // protects what follows
	blocks map[scoring.EngineHash]bool
	view   scoring.ViewState
	clears int
	tick   chan struct{} // closed and replaced at every change
	delay  time.Duration
}

func newSink() *sink {
	return &sink{blocks: map[scoring.EngineHash]bool{}, tick: make(chan struct{})}
}

func (s *sink) changed(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.tick)
	s.tick = make(chan struct{})
}

func (s *sink) ApplyEvents(_ time.Time, id scoring.WorkerID, rank int, evs []scoring.Event) scoring.ApplyStats {
	if s.delay > 0 {
		time.Sleep(s.delay) // a slow index, not synchronisation
	}
	s.changed(func() {
		if id != 7 || rank != 1 {
			panic("BUG: events for another worker or rank")
		}
		for _, ev := range evs {
			switch ev.Kind {
			case scoring.BlockStored:
				for _, h := range ev.Hashes {
					s.blocks[h] = true
				}
			case scoring.BlockRemoved:
				for _, h := range ev.Hashes {
					delete(s.blocks, h)
				}
			default:
				clear(s.blocks)
			}
		}
	})
	return scoring.ApplyStats{}
}

func (s *sink) ClearView(scoring.WorkerID, int) {
	s.changed(func() { clear(s.blocks); s.clears++ })
}

func (s *sink) SetView(_ scoring.WorkerID, _ int, v scoring.ViewState) {
	s.changed(func() { s.view = v })
}

// wait blocks until the view has the state and holds exactly these hashes.
func (s *sink) wait(t *testing.T, view scoring.ViewState, hashes ...int) {
	t.Helper()
	want := map[scoring.EngineHash]bool{}
	for _, h := range hashes {
		want[hashOf(uint64(h))] = true
	}
	timeout := time.After(time.Minute)
	for {
		s.mu.Lock()
		ok := s.view == view && maps.Equal(s.blocks, want)
		tick := s.tick
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-tick:
		case <-timeout:
			s.mu.Lock()
			defer s.mu.Unlock()
			t.Fatalf("the view is %v with %q, want %v with %v", s.view, slices.Collect(maps.Keys(s.blocks)), view, hashes)
		}
	}
}

// eventually waits for what only Stats can tell.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

// checkGoroutines fails if a goroutine of this package is left.
func checkGoroutines(t *testing.T) {
	t.Helper()
	own := func() string {
		buf := make([]byte, 1<<20)
		buf = buf[:runtime.Stack(buf, true)]
		for g := range bytes.SplitSeq(buf, []byte("\n\n")) {
			s := string(g)
			if strings.Contains(s, "kvevents.read") || strings.Contains(s, "kvevents.decode") ||
				strings.Contains(s, "kvevents.(*Subscriber)") || strings.Contains(s, "kvevents.(*link)") {
				return s
			}
		}
		return ""
	}
	if g := own(); g != "" {
		t.Errorf("left behind: %s", g)
	}
}
