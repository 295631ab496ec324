package decisionlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// retryEvery is how long the writer waits after a failure of the disk.
const retryEvery = time.Second

// Run writes until ctx ends, then writes what still waits, and releases the
// file. While the disk fails, records wait, and are lost once the queue is full;
// the writer tries again every second. It is called once. Whoever records must
// have ended before ctx does: later records are lost. The error says how many
// could not be written at the end.
func (l *Log) Run(ctx context.Context) error {
	rotated := make(chan struct{}, 1)
	var helpers sync.WaitGroup
	helpers.Go(func() { l.tidy(ctx, rotated) })
	w := &writer{l: l, rotated: rotated}
	w.run(ctx)
	helpers.Wait()
	lost := w.drain()
	err := l.file.close()
	if lost > 0 {
		return fmt.Errorf("cannot write the decision log %s: %d records are lost: %w", l.cfg.Path, lost, errors.Join(w.failure, err))
	}
	if err != nil {
		return fmt.Errorf("cannot close the decision log: %w", err)
	}
	return nil
}

// Close releases the file of a log that never ran. Records that wait are lost.
func (l *Log) Close() error {
	l.queue.close()
	return l.file.close()
}

// writer is the state of the goroutine that writes.
type writer struct {
	l       *Log
	rotated chan<- struct{}
	// lines is the batch at hand, of which done bytes are written.
	lines  []byte
	done   int
	counts [kinds]int
	// failure is the error of the last attempt, nil after a success.
	failure error
}

func (w *writer) run(ctx context.Context) {
	for ctx.Err() == nil {
		if len(w.lines) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-w.l.queue.wake:
			}
			w.mayReopen() // before what was recorded after the call is taken
			w.lines, w.counts = w.l.queue.take(w.lines)
			continue
		}
		if w.attempt() {
			continue
		}
		pause := time.NewTimer(retryEvery)
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
}

// mayReopen closes the file if it was asked to. The next write opens the path.
func (w *writer) mayReopen() {
	select {
	case <-w.l.reopen:
		if err := w.l.file.release(); err != nil {
			w.l.failed("cannot close the decision log's file", err)
		}
	default:
	}
}

// attempt writes what is left of the batch. It reports whether all is written.
func (w *writer) attempt() bool {
	before := w.l.file.rotations.Load()
	n, err := w.l.file.append(w.lines[w.done:], w.l.now())
	w.done += n
	w.l.bytes.Add(uint64(n))
	if w.l.file.rotations.Load() != before {
		select {
		case w.rotated <- struct{}{}:
		default:
		}
	}
	if err != nil {
		first := w.failure == nil
		w.l.failing.Store(true)
		// The next attempt opens the path anew: it can be on another disk by then.
		w.failure = errors.Join(err, w.l.file.release())
		if first {
			w.l.failed("cannot write the decision log; records wait", err)
		} else {
			w.l.failures.Add(1)
		}
		return false
	}
	if w.failure != nil {
		w.failure = nil
		w.l.failing.Store(false)
		w.l.log.LogAttrs(context.Background(), slog.LevelInfo, "the decision log can be written again", slog.String("file", w.l.cfg.Path))
	}
	w.finish()
	return true
}

// finish counts the batch as written.
func (w *writer) finish() {
	for k, n := range w.counts {
		w.l.written[k].Add(uint64(n))
	}
	w.l.queue.written()
	w.lines, w.done, w.counts = recycled(w.lines), 0, [kinds]int{}
}

// recycled is the buffer for a later batch, unless a burst has grown it.
func recycled(lines []byte) []byte {
	if cap(lines) > 1<<20 {
		return nil
	}
	return lines[:0]
}

// drain writes what waits once nobody records any more. After a failure the
// rest is lost: there is nobody to wait for the disk.
func (w *writer) drain() (lost int) {
	w.l.queue.close()
	for {
		if len(w.lines) == 0 {
			w.mayReopen()
			if w.lines, w.counts = w.l.queue.take(w.lines); len(w.lines) == 0 {
				return lost
			}
		}
		if w.attempt() {
			continue
		}
		rest := countLines(w.lines[w.done:])
		for k, n := range rest {
			w.counts[k] -= n
			lost += n
		}
		w.l.queue.drop(rest)
		w.finish()
	}
}

// countLines counts records by type. The type comes first in a line.
func countLines(lines []byte) (counts [kinds]int) {
	for len(lines) > 0 {
		for k, name := range [kinds]string{"decision", "shadow", "settlement"} {
			if bytes.HasPrefix(lines, []byte(`{"type":"`+name+`"`)) {
				counts[k]++
			}
		}
		lines = lines[bytes.IndexByte(lines, '\n')+1:]
	}
	return counts
}
