package tokenize

import (
	"context"
	"runtime"
	"slices"
	"sync"
)

const (
	// shortText is the length in bytes up to which texts are encoded without a
	// place: a millisecond or two of one processor.
	shortText = 4 << 10
	// longText is the length from which a text goes behind shorter ones.
	longText = 32 << 10
	// turnsBefore is how many shorter texts may go before a long one that waits.
	turnsBefore = 3
)

// Gate bounds how many long texts are encoded at the same time, by all the
// tokenizers that share it. Encoding is pure computation and holds a thread; two
// hundred prompts of 220 KB at once would take the processors from everything
// else. Who waits is served in order, but shorter texts go before long ones,
// three to one, so that a message does not wait behind a pile of books and the
// books are read all the same. It is safe for concurrent use.
type Gate struct {
	mu sync.Mutex // protects what follows
	// free counts places nobody holds; there are none while somebody waits.
	free        int
	short, long []chan struct{} // closed when the place is theirs
	turns       int             // of short ones while a long one waited
}

// NewGate returns a gate with the given number of places; 0 or less means
// GOMAXPROCS.
func NewGate(places int) *Gate {
	if places <= 0 {
		places = runtime.GOMAXPROCS(0)
	}
	return &Gate{free: places}
}

// Waiting is the number of texts that wait for a place.
func (g *Gate) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.short) + len(g.long)
}

// acquire takes a place for n bytes of text. It returns the context's error if
// ctx ends first; else the caller must call release.
func (g *Gate) acquire(ctx context.Context, n int) error {
	g.mu.Lock()
	if g.free > 0 {
		g.free--
		g.mu.Unlock()
		return nil
	}
	line := &g.short
	if n >= longText {
		line = &g.long
	}
	mine := make(chan struct{})
	*line = append(*line, mine)
	g.mu.Unlock()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	if i := slices.Index(*line, mine); i >= 0 {
		*line = slices.Delete(*line, i, i+1)
		g.mu.Unlock()
		return ctx.Err()
	}
	g.mu.Unlock()
	g.release() // the place came at the same moment
	return ctx.Err()
}

// release gives a place to the next in line, or back.
func (g *Gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	line := &g.short
	switch {
	case len(g.short) == 0 && len(g.long) == 0:
		g.free++
		return
	case len(g.short) == 0, len(g.long) > 0 && g.turns >= turnsBefore:
		line, g.turns = &g.long, 0
	case len(g.long) > 0:
		g.turns++
	}
	close((*line)[0])
	*line = slices.Delete(*line, 0, 1)
}
