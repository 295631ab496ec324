package scoring

import (
	"math"
	"testing"
	"time"
)

// TestDelay holds what a choice costs others to the queue's arithmetic: work x
// behind backlog u delays arrivals at rate r by r*x*(u + x/2)/(1 - utilisation).
func TestDelay(t *testing.T) {
	f, _ := testFleet(t, 1)
	w := f.workers[0]
	perToken := 0.1 / 1000
	w.predictor.pool.coef = vector{minBase.Seconds(), 1000 * perToken, 0, 0}
	w.predictor.coef = w.predictor.pool.coef
	w.meanTokens = 1000
	const rate = 4.0
	busy := rate * perToken * w.meanTokens
	for _, u := range []float64{0, 0.05, 0.3} {
		c := &candidate{worker: w, work: 1000, speed: 1, x: vector{1, 1 + u/perToken/1000, 0, 0}}
		c.conclude(rate)
		x := 0.1
		want := rate * x * (u + x/2) / (1 - busy)
		if math.Abs(c.delay-want) > 1e-6 {
			t.Errorf("behind %v s of work the delay is %v s, want %v", u, c.delay, want)
		}
	}
	// However long the queue, it is bounded by a multiple of the request's own.
	c := &candidate{worker: w, work: 1000, speed: 1, x: vector{1, 1000, 0, 0}}
	c.conclude(rate)
	if bound := delayCap * 0.1; c.delay > bound+1e-9 {
		t.Errorf("behind %v the delay is %v s, want at most %v", seconds(c.raw).Round(time.Second), c.delay, bound)
	}
}
