package redis

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Backoff of attempts to reach a store that does not answer.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
	// redialAfter is how many attempts in a row fail before one begins with a new
	// connection: passwords and addresses may have changed.
	redialAfter = 8
)

// Run connects to the store, reports to it and finds it again when it is lost, until
// ctx ends. Then it tells what is left to tell, gives back what is leased, and
// returns nil: no request must use the limiter any more.
func (l *Limiter) Run(ctx context.Context) error {
	defer l.link.set(nil)
	pause, failures := time.Duration(0), 0
	tick := time.NewTimer(0)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			l.depart()
			return nil
		case <-tick.C:
		case <-l.kicked:
			if pause > 0 { // whoever kicks does not know that the store is away
				continue
			}
			tick.Stop()
		}
		err := l.round(ctx)
		l.noteRound(err)
		switch {
		case err == nil:
			pause, failures = 0, 0
			tick.Reset(l.cfg.FlushEvery)
		case errors.Is(err, errSession) && pause == 0:
			pause = firstPause
			tick.Reset(0) // join again at once
		default:
			if failures++; failures%redialAfter == 0 {
				l.link.set(nil)
			}
			pause = min(max(2*pause, firstPause), lastPause)
			tick.Reset(pause)
		}
	}
}

// noteRound makes the state of the store known.
func (l *Limiter) noteRound(err error) {
	var lost *sessionError
	switch {
	case errors.As(err, &lost):
		if s := l.session.Load(); s != nil {
			l.lose(s, err)
		}
	case errors.Is(err, errSession), errors.Is(err, context.Canceled), err == nil:
	default:
		l.health.lost(err)
	}
	mode, tell := l.health.toTell()
	switch {
	case !tell:
	case mode == modeUp:
		l.cfg.Log.Info("the store of limits answers", "replicas", l.near.Load())
	case mode == modeSlow:
		l.cfg.Log.Warn("the store of limits answers too slowly", "err", errLate)
	case err != nil:
		l.cfg.Log.Warn("the store of limits does not answer", "err", err)
	}
}

// reports tells those who wait of each report that was answered.
type reports struct {
	mu   sync.Mutex
	done chan struct{}
}

// next is closed when everything that is untold now has been told. Who is being
// told of already counts as told with that report.
func (r *reports) next() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done == nil {
		r.done = make(chan struct{})
	}
	return r.done
}

func (r *reports) told() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done != nil {
		close(r.done)
		r.done = nil
	}
}

// round makes sure of a connection and a session, and reports.
func (l *Limiter) round(ctx context.Context) error {
	if l.link.now.Load() == nil {
		fresh, err := l.dial(ctx, &l.cfg)
		if err != nil {
			return err
		}
		l.link.set(fresh)
	}
	if l.session.Load() == nil {
		if err := l.rejoin(ctx); err != nil {
			return err
		}
	}
	l.flusher.round++
	err := l.flush(ctx)
	if err == nil {
		l.reports.told()
	}
	return err
}

// rejoin begins a session. What the counters had of the last one is void before
// anybody sees the new one.
func (l *Limiter) rejoin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.flushTimeout())
	defer cancel()
	number := l.sessions.Load() + 1
	sent := l.mono()
	s, err := l.join(ctx, number)
	if err != nil {
		return err
	}
	lost := l.flusher.epoch != "" && l.flusher.epoch != s.epoch
	l.flusher.epoch, l.flusher.pending = s.epoch, nil
	l.sessions.Store(number)
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		for _, k := range sh.list {
			k.void(number, lost)
			sh.queue(k)
		}
		sh.mu.Unlock()
	}
	l.heardAt.Store(sent)
	l.session.Store(s)
	return nil
}

// lose ends a session that the store does not know any more.
func (l *Limiter) lose(s *session, err error) {
	if !l.session.CompareAndSwap(s, nil) {
		return
	}
	l.losses.Add(1)
	l.cfg.Log.Warn("the store of limits has to be told anew what is in use", "err", err)
	l.kick()
}

// departTime bounds what is done at the end.
const departTime = 2 * time.Second

// depart reports for the last time, and gives back what is leased.
func (l *Limiter) depart() {
	s := l.session.Load()
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), departTime)
	defer cancel()
	l.flusher.leaving = true
	l.flusher.round++
	err := l.flush(ctx)
	if err == nil {
		err = s.leave(ctx)
	}
	if err != nil {
		l.cfg.Log.Warn("cannot give back leased limits; they count as taken for a while", "err", err)
	}
	l.session.CompareAndSwap(s, nil)
}
