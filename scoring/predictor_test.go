package scoring

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// trainer feeds a predictor first tokens that follow a known law.
type trainer struct {
	predictor
	rng   *rand.Rand
	now   time.Time
	truth vector
	noise float64
}

func newTrainer(truth vector) *trainer {
	t := &trainer{rng: rand.New(rand.NewPCG(1, 1)), now: epoch, truth: truth, noise: 0.1}
	t.start(newPool(DefaultConfig().Prior.vector()))
	return t
}

const halfLife = 30 * time.Second

func (t *trainer) predict(x vector) float64 {
	t.relax(t.now, halfLife)
	return t.speed(t.now, halfLife) * t.coef.dot(x)
}

// request is what a mixed load looks like: cached and cold prompts, with and
// without a queue.
func (t *trainer) request() vector {
	kilo := []float64{0.016, 0.1, 0.5, 2, 6}[t.rng.IntN(5)] * (0.5 + t.rng.Float64())
	return vector{1, kilo, float64(t.rng.IntN(20)), kilo * kilo / 2}
}

// first trains with one first token and returns its relative error.
func (t *trainer) first(x vector, factor float64) float64 {
	said := t.predict(x)
	actual := factor * t.truth.dot(x) * math.Exp(t.noise*t.rng.NormFloat64())
	t.train(t.now, halfLife, x, said, 0, actual)
	t.pool.learn(t.now, t.coef)
	t.now = t.now.Add(100 * time.Millisecond)
	return math.Abs(said-actual) / actual
}

// meanError is the mean relative error over the next n first tokens.
func (t *trainer) meanError(n int, factor float64) float64 {
	sum := 0.0
	for range n {
		sum += t.first(t.request(), factor)
	}
	return sum / float64(n)
}

// The noise alone makes a mean relative error of 0.08.
const noiseFloor = 0.08

func TestPredictorLearns(t *testing.T) {
	for name, truth := range map[string]vector{
		"as configured":          {0.03, 0.125, 0.0002, 0.003},
		"CPU":                    {0.05, 0.5, 0.005, 0.02},
		"fast GPU":               {0.01, 0.015, 0.0001, 0.0002},
		"far network":            {0.4, 0.125, 0.0002, 0.003},
		"ten times slower":       {0.3, 1.25, 0.002, 0.03},
		"a hundred times slower": {3, 12.5, 0.02, 0.3},
	} {
		p := newTrainer(truth)
		p.meanError(30, 1)
		if e := p.meanError(100, 1); e > 2*noiseFloor {
			t.Errorf("%s: after 30 first tokens the mean error is %.3f, want at most %.3f (%v)", name, e, 2*noiseFloor, p.coef)
		}
	}
}

func TestPredictorFollowsASlowdown(t *testing.T) {
	for _, factor := range []float64{3, 0.4} {
		p := newTrainer(vector{0.03, 0.125, 0.0002, 0.003})
		p.meanError(200, 1)
		p.meanError(30, factor)
		if e := p.meanError(30, factor); e > 3*noiseFloor {
			t.Errorf("30 first tokens after a factor of %v, the mean error is %.3f, want at most %.3f", factor, e, 3*noiseFloor)
		}
		p.meanError(30, 1)
		if e := p.meanError(30, 1); e > 3*noiseFloor {
			t.Errorf("30 first tokens after its end, the mean error is %.3f, want at most %.3f", e, 3*noiseFloor)
		}
	}
}

func TestPredictorBearsOutliers(t *testing.T) {
	p := newTrainer(vector{0.03, 0.125, 0.0002, 0.003})
	p.meanError(100, 1)
	x := vector{1, 1, 5, 0.5}
	before := p.predict(x)
	for _, factor := range []float64{1000, 0.001, 50} {
		p.first(p.request(), factor)
		if r := p.predict(x) / before; r > 1.25 || r < 0.8 {
			t.Errorf("one first token off by a factor of %v moves the prediction by %.2f", factor, r)
		}
		p.meanError(20, 1)
	}
	// One first token in ten is twenty times late.
	sum := 0.0
	for i := range 300 {
		if i%10 == 0 {
			p.first(p.request(), 20)
		} else {
			sum += p.first(p.request(), 1)
		}
	}
	if e := sum / 270; e > 3*noiseFloor {
		t.Errorf("among 10 %% outliers, the mean error of the others is %.3f, want at most %.3f", e, 3*noiseFloor)
	}
}

// TestPredictorRemembersColdPrompts has hours of cached prompts only.
func TestPredictorRemembersColdPrompts(t *testing.T) {
	p := newTrainer(vector{0.02, 0.5, 0.0002, 0.01})
	p.meanError(100, 1)
	for range 2000 {
		p.first(vector{1, 0.016 + 0.05*p.rng.Float64(), float64(p.rng.IntN(20)), 0.001}, 1)
	}
	x := vector{1, 4, 5, 8}
	if r := p.predict(x) / p.truth.dot(x); r < 0.75 || r > 1.33 {
		t.Errorf("a cold prompt is predicted %.2f times its time", r)
	}
}

func TestPredictorForgetsWhenIdle(t *testing.T) {
	p := newTrainer(vector{0.03, 0.125, 0.0002, 0.003})
	x := vector{1, 1, 5, 0.5}
	usual := p.predict(x)
	p.pool.trained = 1000 // others know better
	for range 10 {
		p.train(p.now, halfLife, x, p.predict(x), 0, 10*usual)
	}
	slow := p.predict(x)
	if slow < 3*usual {
		t.Fatalf("after ten first tokens ten times late, it predicts %.1f times the usual", slow/usual)
	}
	p.now = p.now.Add(10 * halfLife)
	if r := p.predict(x) / usual; r > 1.5 {
		t.Errorf("after ten half-lives without requests it still predicts %.2f times the usual", r)
	}
}

// TestPredictionsAreCalibrated counts how often the truth lies below the P90.
func TestPredictionsAreCalibrated(t *testing.T) {
	for _, noise := range []float64{0.05, 0.2, 0.6} {
		p := newTrainer(vector{0.03, 0.125, 0.0002, 0.003})
		p.noise = noise
		p.meanError(100, 1)
		below50, below90 := 0, 0
		for range 1000 {
			x := p.request()
			said := p.predict(x)
			upper := said * math.Exp(p.upper)
			p.first(x, 1)
			actual := said * math.Exp(float64(p.errors[(p.trained-1)%errorWindow]))
			if actual <= said {
				below50++
			}
			if actual <= upper {
				below90++
			}
		}
		if below50 < 400 || below50 > 600 || below90 < 860 || below90 > 940 {
			t.Errorf("noise %v: %d of 1000 below the median, %d below the P90", noise, below50, below90)
		}
	}
}

// TestPredictorIsBounded feeds any first tokens whatever.
func TestPredictorIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newTrainer(vector{})
		x := func() vector {
			return vector{
				1, rapid.Float64Range(0, 1e3).Draw(t, "kilo"),
				rapid.Float64Range(0, 1e4).Draw(t, "seqs"), rapid.Float64Range(0, 1e5).Draw(t, "pairs"),
			}
		}
		for range rapid.IntRange(0, 100).Draw(t, "first tokens") {
			in := x()
			said := clamp(p.predict(in), minTTFT.Seconds(), maxTTFT.Seconds())
			actual := rapid.Float64Range(minTTFT.Seconds(), 1e6).Draw(t, "actual")
			p.train(p.now, halfLife, in, said, rapid.Float64Range(0, 10).Draw(t, "fixed"), actual)
			p.pool.learn(p.now, p.coef)
			p.now = p.now.Add(time.Duration(rapid.Int64Range(-1e9, 1e12).Draw(t, "pause")))
			for i, c := range p.coef {
				if !(c >= lowest[i] && c <= highest[i]) {
					t.Fatalf("coefficient %d is %v", i, c)
				}
			}
			if s := p.speed(p.now, halfLife); !(s >= 1.0/17 && s <= 17) {
				t.Fatalf("speed %v", s)
			}
			if v := p.predict(x()); !(v >= 0) || math.IsInf(v, 0) {
				t.Fatalf("predicts %v", v)
			}
		}
	})
}

// TestFirstNoiseDoesNotCondemn gives one of two equal workers two answers that
// take five times as long, at the very start: what the other one takes keeps it
// from being believed.
func TestFirstNoiseDoesNotCondemn(t *testing.T) {
	of := newPool(DefaultConfig().Prior.vector())
	var a, b predictor
	a.start(of)
	b.start(of)
	truth := vector{0.07, 0.4, 0, 0}
	x := vector{1, 3, 0, 9}
	now := epoch
	answer := func(p *predictor, times float64) {
		now = now.Add(time.Second)
		p.relax(now, time.Minute)
		said := p.speed(now, time.Minute) * p.coef.dot(x)
		p.train(now, time.Minute, x, said, 0, times*truth.dot(x))
		of.learn(now, p.coef)
	}
	said := func(p *predictor) float64 {
		p.relax(now, time.Minute)
		return p.speed(now, time.Minute) * p.coef.dot(x) / truth.dot(x)
	}
	answer(&a, 1)
	answer(&b, 5)
	answer(&a, 1)
	answer(&b, 5)
	answer(&a, 1)
	if got := said(&b) / said(&a); got > 1.6 {
		t.Errorf("after two late answers the worker is predicted at %.2f times its equal, want at most 1.6", got)
	}
	for range 3 {
		answer(&a, 1)
		answer(&b, 1)
	}
	if got := said(&b); got > 1.25 {
		t.Errorf("after three answers in time it is predicted at %.2f times the truth, want at most 1.25", got)
	}
}

// TestTemper takes what the scatter explains for nothing and what it does not
// for nearly all of what it is.
func TestTemper(t *testing.T) {
	p := newTrainer(vector{0.03, 0.125, 0.0002, 0.003})
	p.noise = 0.3
	p.meanError(200, 1)
	for _, off := range []float64{0, 0.05, -0.05, 0.1} {
		if left := off + math.Log(p.temper(off)); math.Abs(left) > 1e-9 {
			t.Errorf("of %v, %v is believed, want nothing", off, left)
		}
	}
	for _, off := range []float64{1, -1, 2} {
		if left := off + math.Log(p.temper(off)); left/off < 0.9 || left/off > 1 {
			t.Errorf("of %v, %v is believed, want nearly all", off, left)
		}
	}
	last := math.Inf(-1)
	for off := -2.0; off <= 2; off += 0.01 {
		left := off + math.Log(p.temper(off))
		if left < last-1e-9 {
			t.Fatalf("at %v less is believed (%v) than of less (%v)", off, left, last)
		}
		last = left
	}
}

// TestScatterMakesNoFavourite has alike workers whose first tokens scatter widely,
// and one request at a time: none of them may get far more than its part.
func TestScatterMakesNoFavourite(t *testing.T) {
	for _, seed := range []uint64{1, 2, 3, 4} {
		cfg := DefaultConfig()
		cfg.Seed = seed
		f := NewFleet(cfg)
		ids := addWorkers(t, f, 2)
		rng := rand.New(rand.NewPCG(seed, 9))
		now, first := epoch, 0
		const requests = 400
		for i := range requests {
			r := pick(t, f, now, &Request{Tokens: prompt(uint64(i)+1, 1500)})
			if r.Worker().ID == ids[0] {
				first++
			}
			now = now.Add(seconds(0.4 * math.Exp(0.4*rng.NormFloat64())))
			r.FirstToken(now)
			now = now.Add(100 * time.Millisecond)
			r.Done(now, Completed)
		}
		if first < requests*9/20 || first > requests*11/20 {
			t.Errorf("seed %d: of %d requests one of two alike workers got %d", seed, requests, first)
		}
	}
}
