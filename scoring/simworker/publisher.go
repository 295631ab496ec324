package simworker

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// publisher publishes event batches and answers replays. Like the engine's
// publisher thread, one goroutine does both by turns, so nothing live is sent
// in the middle of a replay.
type publisher struct {
	topic     string
	encoder   encoder
	oldReplay bool
	log       *slog.Logger
	pub       *socket
	router    *socket       // nil without replay
	more      chan struct{} // capacity 1: a job was added
	buffer    *ring         // run's alone

	mu    sync.Mutex // protects what follows
	jobs  []job
	fault EventFault
	seq   uint64
}

// job is one thing for the publisher to do: a batch, or a replay for a peer.
type job struct {
	at     time.Time
	events []engine.Event
	peer   *peer
	start  uint64
}

// batch is one published batch.
type batch struct {
	seq     uint64
	payload []byte
}

// ring keeps the last batches.
type ring struct {
	list []batch
	next int // where the next one goes once the list is full
	max  int
}

func (r *ring) add(b batch) {
	if len(r.list) < r.max {
		r.list = append(r.list, b)
		return
	}
	r.list[r.next] = b
	r.next = (r.next + 1) % r.max
}

// each calls f for every batch, oldest first.
func (r *ring) each(f func(batch)) {
	for i := range r.list {
		f(r.list[(r.next+i)%len(r.list)])
	}
}

// newPublisher binds the sockets of cfg; the caller runs them and it.
func newPublisher(cfg *Config, topic string, log *slog.Logger) (*publisher, error) {
	p := &publisher{
		topic: topic, oldReplay: cfg.OldReplay, log: log,
		encoder: encoder{blockSize: cfg.BlockSize, arrays: cfg.ArrayEvents, bytes: cfg.ByteHashes, loras: cfg.LoRAs},
		buffer:  &ring{max: cfg.BufferSteps}, more: make(chan struct{}, 1),
	}
	var err error
	p.pub, err = listen(cfg.EventsAddr, zmq4.Pub, cfg.HWM, log, func(peer *peer, msg zmq4.Msg) { peer.subscribe(msg) })
	if err != nil {
		return nil, fmt.Errorf("cannot listen for event subscribers: %w", err)
	}
	if cfg.ReplayAddr == "" {
		return p, nil
	}
	p.router, err = listen(cfg.ReplayAddr, zmq4.Router, 0, log, p.replayRequest)
	if err != nil {
		p.pub.close(false)
		return nil, fmt.Errorf("cannot listen for replay requests: %w", err)
	}
	return p, nil
}

func (p *publisher) eventsAddr() net.Addr { return p.pub.ln.Addr() }

func (p *publisher) replayAddr() net.Addr { return p.router.ln.Addr() }

// close ends the sockets; run ends by its context.
func (p *publisher) close(reset bool) {
	p.pub.close(reset)
	if p.router != nil {
		p.router.close(reset)
	}
}

// publish queues a batch.
func (p *publisher) publish(at time.Time, events []engine.Event) {
	p.enqueue(job{at: at, events: events})
}

// replayRequest handles a message to the ROUTER: an empty frame and the first
// sequence number wanted. Anything else gets no answer, as in the engine.
func (p *publisher) replayRequest(peer *peer, msg zmq4.Msg) {
	if len(msg.Frames) != 2 || len(msg.Frames[0]) != 0 || len(msg.Frames[1]) != 8 {
		p.log.LogAttrs(context.Background(), slog.LevelWarn, "replay request is not an empty frame and 8 bytes",
			slog.Int("frames", len(msg.Frames)))
		return
	}
	p.enqueue(job{peer: peer, start: binary.BigEndian.Uint64(msg.Frames[1])})
}

func (p *publisher) enqueue(j job) {
	p.mu.Lock()
	p.jobs = append(p.jobs, j)
	p.mu.Unlock()
	select {
	case p.more <- struct{}{}:
	default:
	}
}

func (p *publisher) setFault(f EventFault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
}

// published returns how many sequence numbers were used.
func (p *publisher) published() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seq
}

// run works off the jobs in order until ctx ends.
func (p *publisher) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.more:
		}
		p.mu.Lock()
		jobs := p.jobs
		p.jobs = nil
		p.mu.Unlock()
		for _, j := range jobs {
			if j.peer != nil {
				p.replay(j.peer, j.start)
			} else {
				p.send(j)
			}
		}
	}
}

// step takes the next sequence number and the fault that hits its batch, if
// any.
func (p *publisher) step() (seq uint64, f EventFault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	seq = p.seq
	p.seq++
	for _, n := range []struct{ left, hit *int }{
		{&p.fault.Drop, &f.Drop}, {&p.fault.Lose, &f.Lose}, {&p.fault.Duplicate, &f.Duplicate},
		{&p.fault.Corrupt, &f.Corrupt}, {&p.fault.BadEvent, &f.BadEvent},
	} {
		if *n.left > 0 {
			*n.left--
			*n.hit = 1
			break
		}
	}
	return seq, f
}

func (p *publisher) send(j job) {
	seq, fault := p.step()
	if fault.Lose > 0 {
		return
	}
	payload, err := p.encoder.encode(j.at, j.events, batchShape{unknownFirst: fault.BadEvent > 0})
	if err != nil {
		panic("BUG: cannot encode events: " + err.Error())
	}
	p.buffer.add(batch{seq, payload})
	switch {
	case fault.Drop > 0:
		return
	case fault.Corrupt > 0:
		payload = []byte{0xc1, 0xff, 0x00} // 0xc1 is never used in msgpack
	}
	frames := [][]byte{[]byte(p.topic), binary.BigEndian.AppendUint64(nil, seq), payload}
	p.pub.each(func(peer *peer) {
		if !peer.wants(p.topic) {
			return
		}
		for range 1 + fault.Duplicate {
			peer.send(frames...)
		}
	})
}

// replay sends every buffered batch from start on, and the end marker.
func (p *publisher) replay(peer *peer, start uint64) {
	p.buffer.each(func(b batch) {
		if b.seq < start {
			return
		}
		seq := binary.BigEndian.AppendUint64(nil, b.seq)
		if p.oldReplay {
			peer.send(nil, seq, b.payload)
		} else {
			peer.send(nil, []byte(p.topic), seq, b.payload)
		}
	})
	end := binary.BigEndian.AppendUint64(nil, 1<<64-1)
	if p.oldReplay {
		peer.send(nil, end, nil)
	} else {
		peer.send(nil, nil, end, nil)
	}
}
