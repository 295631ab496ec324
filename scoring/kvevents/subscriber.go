package kvevents

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/sluicegate/sluice/scoring"
)

// Sink is where the events go: a *scoring.Fleet, or a fake in tests.
type Sink interface {
	ApplyEvents(now time.Time, id scoring.WorkerID, rank int, evs []scoring.Event) scoring.ApplyStats
	ClearView(id scoring.WorkerID, rank int)
	SetView(id scoring.WorkerID, rank int, s scoring.ViewState)
}

// Subscriber follows one publisher for as long as it runs.
type Subscriber struct {
	src  Source
	sink Sink
	log  *slog.Logger
	opts Options

	machine *Machine
	free    *batchPool
	replay  *replay           // the one under way; nil if none
	settled scoring.ViewState // last one logged

	mu    sync.Mutex // protects what follows
	stats Stats
	// warned says that a refused peer was logged since the last admitted one.
	warned bool
}

// NewSubscriber returns a subscriber that does nothing until Run. It doesn't
// check src; Run does.
func NewSubscriber(src Source, sink Sink, log *slog.Logger, opts Options) *Subscriber {
	opts = opts.withDefaults()
	return &Subscriber{
		src:     src,
		sink:    sink,
		log:     log.With("worker", src.Name, "rank", src.Rank),
		opts:    opts,
		machine: NewMachine(opts.machine(src.Replay != "")),
		free:    newBatchPool(256),
	}
}

// Source returns what it follows.
func (s *Subscriber) Source() Source { return s.src }

// Stats returns a snapshot. It is safe for concurrent use.
func (s *Subscriber) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

func (s *Subscriber) note(f func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.stats)
}

// Run follows the publisher until ctx ends, connecting again whenever the
// connection is lost, and then returns nil. An endpoint that can't be used is
// an error at once. When Run returns, its goroutines and connections are gone
// and the view is cleared and marked as not reporting. Call it once.
func (s *Subscriber) Run(ctx context.Context) error {
	if err := s.src.Validate(); err != nil {
		return fmt.Errorf("cannot follow the cache events of worker %q: %w", s.src.Name, err)
	}
	defer func() {
		s.sink.ClearView(s.src.Worker, s.src.Rank)
		s.sink.SetView(s.src.Worker, s.src.Rank, scoring.ViewNotReporting)
		s.note(func(st *Stats) { st.View, st.Connected, st.Since = scoring.ViewNotReporting, false, s.opts.Now() })
	}()
	var c connector
	defer c.close()
	failures := 0
	for ctx.Err() == nil {
		l, err := s.connect(ctx, &c)
		if l == nil && err == nil {
			continue
		}
		if err == nil {
			began := s.opts.Now()
			err = s.session(ctx, l)
			if ctx.Err() == nil {
				s.opts.OnLost()
			}
			if s.opts.Now().Sub(began) >= s.opts.BackoffMax {
				failures = 0
			}
		} else if ctx.Err() == nil {
			s.note(func(st *Stats) { st.ConnectErrors++ })
		}
		if ctx.Err() != nil {
			break
		}
		s.note(func(st *Stats) { st.Err = err.Error() })
		if failures == 0 {
			s.log.Warn("no connection to cache events, trying again", s.problem(err)...)
		}
		s.pause(ctx, failures)
		failures++
	}
	return nil
}

// problem is what the log shows of a connection that could not be made or kept.
func (s *Subscriber) problem(err error) []any {
	args := []any{"endpoint", s.src.Endpoint, "err", err}
	if s.src.Hint != "" {
		args = append(args, "hint", s.src.Hint)
	}
	return args
}

// refused counts a peer that may not connect. A scanner may come again and
// again, so only the first one since the last admitted is shown at once.
func (s *Subscriber) refused(err error) {
	level := slog.LevelDebug
	s.note(func(st *Stats) {
		st.Refused++
		if !s.warned {
			s.warned, level = true, slog.LevelWarn
		}
	})
	s.log.Log(context.Background(), level, "refused a connection to the endpoint of cache events", "endpoint", s.src.Endpoint, "err", err)
}

// pause waits before the next connection, while the machine's own deadlines
// (a view getting stale) go on.
func (s *Subscriber) pause(ctx context.Context, failures int) {
	wait := s.opts.BackoffMax
	if failures < 20 {
		wait = min(s.opts.Backoff<<failures, s.opts.BackoffMax)
	}
	// Jitter keeps the ranks of a restarted worker from coming all at once.
	wait = wait/2 + rand.N(wait/2+1)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	s.do(s.machine.Tick(s.opts.Now()))
}

// connect waits for the next live connection, but no longer than until the
// machine has something to do; both results are nil then.
func (s *Subscriber) connect(ctx context.Context, c *connector) (*link, error) {
	wait := ctx
	if at, ok := s.machine.Deadline(); ok {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, at.Sub(s.opts.Now()))
		defer cancel()
	}
	l, err := c.connect(ctx, wait, s.src, s.opts.DialTimeout, s.refused)
	if l == nil && ended(wait) && ctx.Err() == nil {
		s.do(s.machine.Tick(s.opts.Now()))
		return nil, nil
	}
	return l, err
}

// ended reports whether ctx has ended, or would have by now: what was given its
// deadline may notice first.
func ended(ctx context.Context) bool {
	at, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(at)
}

// connector makes live connections, by dialling or by accepting.
type connector struct{ ln net.Listener }

func (c *connector) close() {
	if c.ln != nil {
		c.ln.Close()
	}
}

// connect returns the next live connection. When binding, it waits for the
// publisher as long as wait lasts, and tells refused of peers that may not
// connect; ctx bounds the handshake that follows.
func (c *connector) connect(ctx, wait context.Context, src Source, timeout time.Duration, refused func(error)) (*link, error) {
	if !src.Bind {
		return dialLink(wait, src.Endpoint, zmq4.Sub, timeout)
	}
	if c.ln == nil {
		network, addr, err := parseEndpoint(src.Endpoint, true)
		if err != nil {
			return nil, err
		}
		lc := net.ListenConfig{KeepAliveConfig: keepAlive()}
		if c.ln, err = lc.Listen(ctx, network, addr); err != nil {
			return nil, err
		}
	}
	for {
		conn, err := c.accept(wait)
		if err != nil {
			return nil, err
		}
		if err := src.admits(ctx, conn.RemoteAddr()); err != nil {
			refused(err) // first: who sees the close may ask for the count
			conn.Close()
			continue
		}
		return newLink(ctx, conn, zmq4.Sub, true, timeout)
	}
}

// accept waits for a connection until ctx ends. The listener outlives it: a
// publisher that connects in between waits in the backlog.
func (c *connector) accept(ctx context.Context) (net.Conn, error) {
	ln, ok := c.ln.(interface{ SetDeadline(time.Time) error })
	if !ok {
		panic(fmt.Sprintf("BUG: listener %T has no deadline", c.ln))
	}
	if err := ln.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	stop := onDone(ctx, func() {
		_ = ln.SetDeadline(time.Unix(1, 0)) // wakes Accept, which reports it
	})
	conn, err := c.ln.Accept()
	stop()
	return conn, err
}

// session follows one live connection until it breaks or ctx ends, and owns l.
func (s *Subscriber) session(ctx context.Context, l *link) error {
	ctx, cancel := context.WithCancel(ctx)
	stop := onDone(ctx, l.close)
	live := make(chan received, 256)
	var readErr error
	var wg sync.WaitGroup
	defer func() {
		cancel()
		stop()
		l.close()
		for r := range live {
			s.free.put(r.item.Batch)
		}
		wg.Wait()
		s.do(s.machine.Disconnected(s.opts.Now()))
		s.stopReplay()
		s.note(func(st *Stats) { st.Connected, st.Since = false, s.opts.Now() })
	}()
	if err := l.send(s.opts.DialTimeout, []byte{1}); err != nil {
		close(live)
		return fmt.Errorf("cannot subscribe: %w", err)
	}
	wg.Go(func() {
		defer close(live)
		readErr = readLive(ctx, l, live, s.free)
	})
	s.note(func(st *Stats) {
		st.Connects++
		st.Connected, st.Since, st.Err = true, s.opts.Now(), ""
		s.warned = false
	})
	s.log.Info("connected to cache events", "endpoint", s.src.Endpoint, "replay", s.src.Replay != "")
	s.do(s.machine.Connected(s.opts.Now()))
	s.loop(ctx, live)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// live was closed, so readErr is set.
	return fmt.Errorf("cannot read cache events: %w", readErr)
}

// loop feeds the machine until live is closed or ctx ends. It alone touches
// the machine and the sink.
func (s *Subscriber) loop(ctx context.Context, live <-chan received) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := time.Hour
		if at, ok := s.machine.Deadline(); ok {
			wait = max(0, at.Sub(s.opts.Now()))
		}
		timer.Reset(wait)
		var replayed <-chan received
		if s.replay != nil {
			replayed = s.replay.ch
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			s.do(s.machine.Tick(s.opts.Now()))
		case r, ok := <-live:
			if !ok {
				return
			}
			if s.arrived(r) {
				s.do(s.machine.Live(s.opts.Now(), r.item))
			}
		case r, ok := <-replayed:
			if !ok {
				s.replayOver()
			} else if s.arrived(r) {
				s.do(s.machine.Replayed(s.opts.Now(), s.replay.id, r.item))
			}
		}
	}
}

// arrived counts a message and reports whether it carries a batch.
func (s *Subscriber) arrived(r received) bool {
	if r.badMessage || r.badBatch {
		s.note(func(st *Stats) {
			if r.badMessage {
				st.BadMessages++
			} else {
				st.BadBatches++
			}
		})
	}
	return !r.badMessage
}

// replayOver handles the end of the replay under way.
func (s *Subscriber) replayOver() {
	r := s.replay
	s.replay = nil
	r.stop(s.free)
	if r.err != nil {
		s.note(func(st *Stats) { st.Err = r.err.Error() })
		s.log.Debug("replay failed", "endpoint", s.src.Replay, "err", r.err)
	}
	s.do(s.machine.ReplayEnd(s.opts.Now(), r.id, r.err == nil))
}

func (s *Subscriber) stopReplay() {
	if s.replay == nil {
		return
	}
	s.replay.stop(s.free)
	s.replay = nil
}

// do carries out what the machine asks for.
func (s *Subscriber) do(actions []Action) {
	for i := range actions {
		a := &actions[i]
		switch a.Kind {
		case ActApply:
			s.applyBatch(a.Item.Batch)
			s.free.put(a.Item.Batch)
		case ActDiscard:
			s.free.put(a.Item.Batch)
		case ActClear:
			s.sink.ClearView(s.src.Worker, s.src.Rank)
		case ActAsk:
			s.stopReplay()
			s.replay = startReplay(context.Background(), s.src.Replay, a.ID, a.From, s.opts, s.free)
		case ActCancel:
			s.stopReplay()
		case ActView:
			s.sink.SetView(s.src.Worker, s.src.Rank, a.View)
			s.logView(a.View)
		}
	}
	s.note(func(st *Stats) {
		st.View, st.Queued, st.Machine = s.machine.View(), s.machine.Queued(), s.machine.Stats()
		st.Next, _ = s.machine.Position()
	})
}

// logView tells where the view came to rest. A gap that was repaired is for
// the counters.
func (s *Subscriber) logView(v scoring.ViewState) {
	level := slog.LevelInfo
	if v == scoring.ViewJoining || v == scoring.ViewRecovering || v == s.settled {
		level = slog.LevelDebug
	} else {
		s.settled = v
	}
	s.log.Log(context.Background(), level, "cache view changed", "view", v.String())
}

func (s *Subscriber) applyBatch(b *Batch) {
	now := s.opts.Now()
	if len(b.Events) > 0 {
		s.sink.ApplyEvents(now, s.src.Worker, s.src.Rank, b.Events)
	}
	s.note(func(st *Stats) {
		st.LastBatch = now
		st.Events += uint64(len(b.Events))
		st.Skipped.Add(&b.Skipped)
		if b.HasRank && b.Rank != s.src.Rank {
			st.OtherRank++
		}
	})
}

// readLive reads and decodes until the connection breaks.
func readLive(ctx context.Context, l *link, live chan<- received, free *batchPool) error {
	for {
		r := received{badMessage: true}
		frames, err := l.recv()
		if err == nil {
			if m, err := ParseFrames(frames); err == nil && !m.End {
				r = decodeMessage(m.Seq, m.Payload, free)
			}
		} else if !errors.Is(err, errOversize) {
			return err
		}
		select {
		case live <- r:
		case <-ctx.Done():
			free.put(r.item.Batch)
			return ctx.Err()
		}
	}
}
