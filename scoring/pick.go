package scoring

import (
	"slices"
	"time"
)

// Request is what a pick needs to know of a request.
type Request struct {
	// Model is the name the client asked for.
	Model string
	// Pools are the permitted pools. With none, no worker is permitted.
	Pools []string
	// Tokens is the prompt as the engine sees it, nil when unknown. It is not
	// retained.
	Tokens []uint32
	// Estimate is the prompt's length when Tokens is nil.
	Estimate int
	// MaxTokens is the answer's bound, 0 when there is none.
	MaxTokens int
	// LoRA is the adapter's name; empty is taken from Model where that names an
	// adapter of the worker.
	LoRA string
	// Salt is the cache salt that goes with the request, or empty.
	Salt string
	// Unary says that the answer comes in one piece, so its first token can't
	// be seen: FirstToken then releases load but trains nothing, and until it or
	// Done is called the prefill counts as over once its predicted time is.
	Unary bool
	// Exclude are the workers that already failed this request.
	Exclude []WorkerID
}

// Pick chooses the worker with the least predicted TTFT, ties at random, and
// counts the request's load on it. The error is [ErrNoWorker] or [ErrNotReady].
// The caller must call Done on the reservation.
func (f *Fleet) Pick(now time.Time, req *Request) (*Reservation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	prompt := len(req.Tokens)
	if req.Tokens == nil {
		prompt = max(0, req.Estimate)
	}
	var best *worker
	ties, serving := 0, false
	for _, w := range f.workers {
		if !w.serves(req.Model) || !slices.Contains(req.Pools, w.spec.Pool) {
			continue
		}
		serving = true
		if !w.ready || slices.Contains(req.Exclude, w.id) {
			continue
		}
		switch {
		case best == nil || w.ahead < best.ahead || w.ahead == best.ahead && w.inFlight < best.inFlight:
			best, ties = w, 1
		case w.ahead == best.ahead && w.inFlight == best.inFlight:
			if ties++; f.rng.IntN(ties) == 0 {
				best = w
			}
		}
	}
	if best == nil {
		if serving {
			f.stats.NotReady++
			return nil, ErrNotReady
		}
		f.stats.NoWorker++
		return nil, ErrNoWorker
	}
	f.stats.Picks++
	best.picks++
	best.inFlight++
	best.ahead += prompt
	return &Reservation{
		fleet: f, worker: best, info: best.info(), prompt: prompt,
		prefilling: true, picked: now,
	}, nil
}
