package scoring

import (
	"math"
	"testing"
	"time"
)

// TestUnaryTrafficIsLearned serves a worker with answers in one piece alone: the
// prediction is worked out from their ends, once the worker says how long its
// tokens take.
func TestUnaryTrafficIsLearned(t *testing.T) {
	const perToken, gap = 0.0005, 0.02 // of the prompt and of the answer, in seconds
	inferred := false
	learned := func(said time.Duration, output int) float64 {
		f, ids := testFleet(t, 1)
		now := epoch
		f.ObserveLoad(now, ids[0], Load{InterToken: said})
		f.ObserveLoad(now, ids[0], Load{}) // no new tokens: what was said holds
		for i := range 40 {
			n := 400 + 100*(i%20)
			r := pick(t, f, now, &Request{Tokens: prompt(uint64(i), n), Unary: true})
			now = now.Add(seconds(0.03 + perToken*float64(n) + gap*float64(max(0, output-1))))
			r.Output(output)
			r.Done(now, Completed)
			if want := seconds(0.03 + perToken*float64(n)); r.Inferred() != 0 && (r.Inferred()-want).Abs() > time.Microsecond {
				t.Fatalf("a first token after %v was inferred to be after %v", want, r.Inferred())
			}
			inferred = inferred || r.Inferred() > 0
			now = now.Add(time.Second)
		}
		r := pick(t, f, now, &Request{Tokens: prompt(1000, 2000), Unary: true})
		defer r.Done(now, NotSent)
		return r.Predicted().Seconds() / (0.03 + perToken*2000)
	}
	for _, c := range []struct {
		name   string
		said   time.Duration
		output int
		learns bool
	}{
		{"short answers", seconds(gap), 5, true},
		{"single tokens need no word of the worker", 0, 1, true},
		{"nothing is known of the time between tokens", 0, 5, false},
		{"long answers", seconds(gap), 400, false},
		{"answers of unknown length", seconds(gap), 0, false},
	} {
		inferred = false
		off := math.Abs(learned(c.said, c.output) - 1)
		if inferred != c.learns {
			t.Errorf("%s: first tokens were inferred: %v", c.name, inferred)
		}
		if learns := off < 0.1; learns != c.learns {
			t.Errorf("%s: the prediction is off by %.2f, learned should be %v", c.name, off, c.learns)
		}
	}
}
