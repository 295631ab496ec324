package verify

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sluicegate/sluice/scoring/tokenize"
)

const (
	// tick is how often it is looked whether there is something to compare.
	tick = 500 * time.Millisecond
	// samplePause is the least time between two samples.
	samplePause = time.Second
	// maxQueue bounds the samples that wait, maxSample the size of one.
	maxQueue  = 4
	maxSample = 1 << 20
	// doubtAfter answers in a row that disagree put a tokenizer in doubt. One
	// alone may be a request that the engine cuts by a parameter of its own.
	doubtAfter = 3
	// doubtPause bounds how often that happens, since a client can bring such
	// answers about.
	doubtPause = time.Minute
	// firstWait and lastWait bound the growing pause between attempts to probe a
	// worker that can't be asked.
	firstWait = tick
	lastWait  = 30 * time.Second
	// maxFailed of the probes may fail before a worker counts as one that can't
	// be asked.
	maxFailed = 2
)

// Worker is a worker that can be asked.
type Worker struct {
	// ID changes when the worker may have become another one: a restart, a new
	// version.
	ID uint64
	// Name is for logs and status.
	Name string
	// Tokenise asks it.
	Tokenise Source
	// Pool is where it stands: a live request is put to workers of the pools that
	// it may go to, and to no others.
	Pool string
}

// Options are what a Checker works with.
type Options struct {
	// Model is the model's name, for the log.
	Model string
	// Local is what is judged.
	Local Source
	// Workers returns the ready workers that serve the model.
	Workers func() []Worker
	// Probes are the fixed requests; nil means DefaultProbes.
	Probes []Probe
	// Every is the mean number of requests from one sample to the next; 0 means
	// that none are taken.
	Every int
	Log   *slog.Logger
}

// Checker judges the tokenizer of one model. It is safe for concurrent use; Run
// does all comparisons.
type Checker struct {
	opts     Options
	verdicts [shapes]verdict
	probed   [shapes]bool // shapes that there are probes for; the others are not judged
	samples  chan Probe
	wake     chan struct{} // holds one

	lastSample    atomic.Int64 // Unix nanoseconds
	dropped       atomic.Int64
	disagreements atomic.Int64 // answers of another length
	inARow        atomic.Int64 // of them, since the last that agreed
	doubted       atomic.Int64 // when last, in Unix nanoseconds
	compared      atomic.Bool  // a worker was probed with everything
	anew          atomic.Bool  // all workers are to be probed again

	// Of Run alone: the workers that were probed, and those that are to be tried
	// again later.
	known   map[uint64]bool
	waiting map[uint64]wait
	turn    int // of the workers that samples are put to
}

// wait is when a worker that could not be asked is tried again.
type wait struct {
	until time.Time
	pause time.Duration
}

// New returns a Checker to which nothing is known yet.
func New(opts Options) *Checker {
	if opts.Probes == nil {
		opts.Probes = DefaultProbes()
	}
	c := &Checker{
		opts: opts, samples: make(chan Probe, maxQueue), wake: make(chan struct{}, 1),
		known: make(map[uint64]bool), waiting: make(map[uint64]wait),
	}
	for i := range c.verdicts {
		c.verdicts[i].Shape = Shape(i)
		c.verdicts[i].fresh.Store(freshSamples)
	}
	for i := range opts.Probes {
		c.probed[opts.Probes[i].Shape] = true
	}
	return c
}

// Trusts says whether requests of a shape are to be tokenised locally.
func (c *Checker) Trusts(s Shape) bool { return c.verdicts[s].trusted() }

// Offer may take a request as a sample, to be compared with a worker of the given
// pools; with none it takes nothing. It copies what it takes, never waits, and
// takes at most one a second.
func (c *Checker) Offer(s Shape, kind tokenize.Kind, body []byte, pools []string) {
	v := &c.verdicts[s]
	if len(pools) == 0 || c.opts.Every <= 0 || len(body) > maxSample || v.fresh.Load() <= 0 && rand.IntN(c.opts.Every) != 0 {
		return
	}
	now, last := time.Now().UnixNano(), c.lastSample.Load()
	if now-last < int64(samplePause) || !c.lastSample.CompareAndSwap(last, now) {
		return
	}
	if len(c.samples) == cap(c.samples) {
		c.dropped.Add(1)
		return
	}
	select {
	case c.samples <- Probe{s, kind, bytes.Clone(body), slices.Clone(pools)}:
		v.fresh.Add(-1)
	default:
		c.dropped.Add(1)
	}
}

// Answered tells of an answer whose usage says whether the engine found the
// prompt to be as long as it was found here. Several in a row that disagree have
// all workers probed again and the next requests sampled: a worker may have been
// started anew with another tokenizer or template.
func (c *Checker) Answered(now time.Time, sameLength bool) {
	if sameLength {
		c.inARow.Store(0)
		return
	}
	c.disagreements.Add(1)
	if c.inARow.Add(1) < doubtAfter {
		return
	}
	last := c.doubted.Load()
	if now.UnixNano()-last < int64(doubtPause) || !c.doubted.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	c.inARow.Store(0)
	c.opts.Log.Warn("answers say that prompts have another length than the local tokenizer finds; comparing it with the workers again",
		"model", c.opts.Model)
	c.again()
}

// again has all workers probed and the next requests of all shapes sampled.
func (c *Checker) again() {
	for i := range c.verdicts {
		c.verdicts[i].fresh.Store(freshSamples)
	}
	c.anew.Store(true)
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Status is the state of a Checker.
type Status struct {
	// Compared says that a worker was put all probes.
	Compared bool
	// Disagreements counts answers whose prompt had another length, Dropped the
	// samples for which there was no room.
	Disagreements, Dropped int64
	Shapes                 []ShapeStatus
}

// Status returns the state as of now, with all shapes that are judged in order.
func (c *Checker) Status() Status {
	s := Status{Compared: c.compared.Load(), Disagreements: c.disagreements.Load(), Dropped: c.dropped.Load()}
	for i := range c.verdicts {
		if c.probed[i] {
			s.Shapes = append(s.Shapes, c.verdicts[i].status())
		}
	}
	return s
}

// Run compares until ctx ends.
func (c *Checker) Run(ctx context.Context) {
	timer := time.NewTicker(tick)
	defer timer.Stop()
	for {
		c.probeAll(ctx)
		select {
		case <-ctx.Done():
			return
		case s := <-c.samples:
			c.judge(ctx, &s)
		case <-c.wake:
		case <-timer.C:
		}
	}
}

// probeAll puts the probes to workers that have not seen them, and looks again
// at shapes that disagreed.
func (c *Checker) probeAll(ctx context.Context) {
	if c.anew.Swap(false) {
		clear(c.known)
	}
	workers := c.opts.Workers()
	c.forget(workers)
	for i := range workers {
		w, now := &workers[i], time.Now()
		if c.known[w.ID] || now.Before(c.waiting[w.ID].until) {
			continue
		}
		var doubted [shapes]bool
		for i := range c.verdicts {
			doubted[i] = !c.verdicts[i].trusted()
		}
		if !c.probe(ctx, w) {
			pause := min(max(2*c.waiting[w.ID].pause, firstWait), lastWait)
			c.waiting[w.ID] = wait{now.Add(pause), pause}
			continue
		}
		delete(c.waiting, w.ID)
		c.known[w.ID] = true
		c.compared.Store(true)
		for i := range c.verdicts {
			if doubted[i] {
				c.verdicts[i].hurry() // the new worker may have put it right
			}
		}
	}
	for i := range c.verdicts {
		if evidence, due := c.verdicts[i].due(time.Now()); due {
			c.recheck(ctx, Shape(i), evidence, workers)
		}
	}
}

// forget drops what is kept of workers that are gone.
func (c *Checker) forget(workers []Worker) {
	gone := func(id uint64) bool {
		return !slices.ContainsFunc(workers, func(w Worker) bool { return w.ID == id })
	}
	for id := range c.known {
		if gone(id) {
			delete(c.known, id)
		}
	}
	for id := range c.waiting {
		if gone(id) {
			delete(c.waiting, id)
		}
	}
}

// probe puts all probes to a worker. It reports false if the worker can't be
// asked; a single probe may fail, since it may be what breaks the worker.
func (c *Checker) probe(ctx context.Context, w *Worker) bool {
	equal, skipped, failed, shown := 0, 0, 0, [shapes]bool{}
	for i := range c.opts.Probes {
		p := &c.opts.Probes[i]
		switch res, at := c.ask(ctx, w, p); res {
		case unavailable:
			if failed++; failed > maxFailed {
				return false
			}
			c.verdicts[p.Shape].undecided(false)
		case agree:
			equal++
			c.verdicts[p.Shape].agreed(false)
		case disagree:
			if !shown[p.Shape] {
				c.mismatch(p, w, at, false)
			}
			shown[p.Shape] = true
		case undecided:
			c.verdicts[p.Shape].undecided(false)
		case notOffered:
			skipped++
		}
	}
	if equal > 0 && equal+skipped == len(c.opts.Probes) {
		c.opts.Log.Info("the local tokenizer agrees with the worker", "model", c.opts.Model, "worker", w.Name, "comparisons", equal)
	}
	return true
}

// ask compares one request.
func (c *Checker) ask(ctx context.Context, w *Worker, p *Probe) (res result, at int) {
	var local, engine tokenize.Prompts
	engineErr := w.Tokenise(ctx, &engine, p.Kind, p.Body)
	if status, ok := errors.AsType[*tokenize.StatusError](engineErr); ok && p.Kind == tokenize.Messages && status.Absent() {
		return notOffered, 0
	}
	return compare(&local, c.opts.Local(ctx, &local, p.Kind, p.Body), &engine, engineErr)
}

// mismatch notes a disagreement and says so the first time.
func (c *Checker) mismatch(p *Probe, w *Worker, at int, sample bool) {
	if c.verdicts[p.Shape].disagreed(time.Now(), p, w.Name, at, sample) {
		c.opts.Log.Warn("the local tokenizer disagrees with the worker; asking workers about such requests from now on",
			"model", c.opts.Model, "shape", p.Shape.String(), "worker", w.Name, "first_difference", at, "sample", sample)
	}
}

// recheck looks whether a shape that disagreed agrees with every worker now, in
// its probes and, where that request may go, in the very one that showed the
// disagreement.
func (c *Checker) recheck(ctx context.Context, s Shape, evidence *Probe, workers []Worker) {
	v, agreed, shown := &c.verdicts[s], 0, evidence == nil
	probes := slices.DeleteFunc(slices.Clone(c.opts.Probes), func(p Probe) bool { return p.Shape != s })
	if evidence != nil {
		probes = append(probes, *evidence)
	}
	for i := range workers {
		for j := range probes {
			if !probes[j].mayGo(&workers[i]) {
				continue
			}
			shown = shown || j == len(probes)-1
			switch res, at := c.ask(ctx, &workers[i], &probes[j]); res {
			case unavailable:
				v.postpone(time.Now())
				return
			case disagree:
				c.mismatch(&probes[j], &workers[i], at, false)
				return
			case agree:
				agreed++
			case undecided, notOffered:
			}
		}
	}
	if agreed == 0 || !shown {
		v.postpone(time.Now())
		return
	}
	v.recover()
	c.opts.Log.Info("the local tokenizer agrees with the workers again", "model", c.opts.Model, "shape", s.String(), "comparisons", agreed)
}

// judge compares a sample with a worker of its pools, and once more if they
// disagree: a template may print the time, which passes between the two.
func (c *Checker) judge(ctx context.Context, s *Probe) {
	v := &c.verdicts[s.Shape]
	workers := slices.DeleteFunc(slices.Clone(c.opts.Workers()), func(w Worker) bool { return !s.mayGo(&w) })
	if len(workers) == 0 || !v.trusted() {
		return
	}
	c.turn++
	w := &workers[c.turn%len(workers)]
	res, at := c.ask(ctx, w, s)
	if res == disagree {
		if res, at = c.ask(ctx, w, s); res == agree {
			res = undecided
		}
	}
	switch res {
	case agree:
		v.agreed(true)
	case disagree:
		c.mismatch(s, w, at, true)
		// What the probes of one shape don't show, those of the others may not
		// show either.
		for i := range c.verdicts {
			c.verdicts[i].fresh.Store(freshSamples)
		}
	case undecided, unavailable, notOffered:
		v.undecided(true)
	}
}
