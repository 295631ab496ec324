package scoring

import "time"

// A worker that said it has no room, or that fails and is the last of its pool, is left
// alone for shortSaturation, and twice as long each further time until it answers a
// request, up to longSaturation.
const (
	shortSaturation = 250 * time.Millisecond
	longSaturation  = 5 * time.Second
)

// saturation is what a worker's refusals say of it. Guarded by Fleet.mu.
type saturation struct {
	until time.Time
	pause time.Duration // the last one; 0 after an answer
}

// refuse notes that the worker refused a request. Those that were under way when the
// first refusal came say nothing new.
func (s *saturation) refuse(now time.Time) {
	if now.Before(s.until) {
		return
	}
	s.pause = min(max(2*s.pause, shortSaturation), longSaturation)
	s.until = now.Add(s.pause)
}

// answer notes that the worker answered a request.
func (s *saturation) answer() { *s = saturation{} }

// left is how long the worker is to be left alone, in seconds.
func (s *saturation) left(now time.Time) float64 {
	if s.pause == 0 {
		return 0
	}
	return max(0, s.until.Sub(now).Seconds())
}

// Saturated reports that a worker refused a request for want of room, or that it fails
// requests and there is no other in its place. It is taken to have no room for 250 ms, or
// twice the last time up to 5 s, until it answers one. Requests that can't wait ([Fleet.Pick])
// go to it all the same where there is no other.
func (f *Fleet) Saturated(now time.Time, id WorkerID) {
	f.change(id, func(w *worker) bool {
		w.saturation.refuse(now)
		return true
	})
}
