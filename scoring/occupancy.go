package scoring

import (
	"sort"
	"time"
)

// sampleTokens is the stretch of a prompt that one key stands for when the
// tokens that requests hold are counted.
const sampleTokens = 256

// occupancy is how much of a worker's cache the requests in its hands hold. An
// engine lets a request begin only when there are free blocks for it, and
// blocks that running requests hold are not free, however long they have been
// there. Guarded by Fleet.mu.
type occupancy struct {
	// used counts, for the last key of each whole stretch of sampleTokens, the
	// requests in flight that hold it: what several of them share is there once.
	// Each key stands for the tokens it maps to.
	used map[Key]share
	// taken sums the tokens that the keys of used stand for and the loose ones:
	// those of requests beyond their last stretch, or of unknown prompts.
	taken int
	// more is what the worker's metrics showed beyond taken at seenAt: answers
	// as they grow, and requests of others.
	more   float64
	seenAt time.Time
	// foreign is what it showed beyond what its requests and their answers were believed
	// to hold: requests of others. It is below zero where it showed less: prompts that
	// share less than a whole stretch.
	foreign float64
	// shared is the part of taken that goes with no claim's end; see share.
	shared int
	growth
}

type share struct {
	requests int32
	tokens   int32
	// owner is whose end makes the stretch free, as far as can be told: of those who
	// hold it, the one that is expected to end last. When it ends before others there
	// is none, and the stretch counts as held on until nobody holds it.
	owner *claim
}

// claim is what one request has entered in an occupancy.
type claim struct {
	keys  []Key
	loose int
	// own is the tokens that become free when it ends; it begins and ends at those
	// times of the growth's clock, and was expected to have an answer of that length.
	own                float64
	start, end, length float64
}

// stride is the number of blocks of size tokens that one key stands for.
func stride(size int) int { return max(1, sampleTokens/size) }

// enter counts a request with a prompt of the given length, whose blocks of
// size tokens have the given keys; none when they are unknown. Its answer is expected
// to have so many tokens. h is in use until it leaves.
func (o *occupancy) enter(now time.Time, h *claim, keys []Key, size, prompt, output int) {
	*h = claim{loose: prompt}
	o.begin(h, now, output)
	if len(keys) > 0 {
		if o.used == nil {
			o.used = make(map[Key]share)
		}
		step := stride(size)
		h.keys = make([]Key, 0, len(keys)/step)
		for i := step - 1; i < len(keys); i += step {
			k, n := keys[i], step*size
			h.keys = append(h.keys, k)
			h.loose -= n
			s := o.used[k]
			if s.requests == 0 {
				s.tokens = int32(n)
				o.taken += n
			}
			switch {
			case s.requests == 0:
				s.owner, h.own = h, h.own+float64(n)
			case s.owner != nil && h.end > s.owner.end:
				s.owner.own -= float64(n)
				s.owner, h.own = h, h.own+float64(n)
			}
			s.requests++
			o.used[k] = s
		}
	}
	o.taken += h.loose
	h.own += float64(h.loose)
}

// leave takes a request out.
func (o *occupancy) leave(h *claim) {
	for _, k := range h.keys {
		s := o.used[k]
		if s.requests--; s.requests == 0 {
			o.taken -= int(s.tokens)
			if s.owner == nil {
				o.shared -= int(s.tokens)
			}
			delete(o.used, k)
			continue
		}
		if s.owner == h {
			s.owner = nil
			o.shared += int(s.tokens)
		}
		o.used[k] = s
	}
	o.taken -= h.loose
	if h.end > 0 {
		o.drop(h)
	}
	*h = claim{}
}

// observe takes over that the worker said it holds so many tokens; 0 says nothing. Of
// what its requests were believed to hold, so many may not have come there yet.
func (o *occupancy) observe(now time.Time, tokens, pending float64) {
	o.more, o.seenAt, o.foreign = max(0, tokens-float64(o.taken)), now, 0
	if believed := float64(o.taken) + o.grown(); tokens > believed {
		o.foreign = tokens - believed
	} else if tokens > 0 && tokens < believed-pending {
		o.foreign = tokens - believed + pending
	}
}

// held is the tokens held as of now. What the worker said loses its weight until
// stale.
func (o *occupancy) held(now time.Time, stale time.Duration) float64 {
	weight := clamp(1-now.Sub(o.seenAt).Seconds()/stale.Seconds(), 0, 1)
	return float64(o.taken) + weight*o.more
}

// needs is the tokens of a prompt that nobody in the worker's hands holds yet.
func (o *occupancy) needs(keys []Key, size, prompt int) int {
	step := stride(size)
	// Who holds a stretch holds all before it.
	held := sort.Search(len(keys)/step, func(i int) bool { return o.used[keys[(i+1)*step-1]].requests == 0 })
	return prompt - held*step*size
}
