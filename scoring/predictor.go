package scoring

import (
	"math"
	"slices"
	"time"
)

// Bounds of the learned coefficients and of a prediction. They are wide: a slow
// CPU and a fast accelerator both lie well inside.
const (
	minBase, maxBase       = 100 * time.Microsecond, 10 * time.Second
	minPerKilo, maxPerKilo = 500 * time.Microsecond, 20 * time.Second
	maxPerSeq              = 100 * time.Millisecond
	maxAttention           = time.Second

	minTTFT, maxTTFT = 100 * time.Microsecond, 10 * time.Minute
)

const (
	terms = 4 // of the prediction: base, tokens, sequences, attention

	// remember is the weight that older first tokens keep at each new one: the
	// last 50 or so make up the coefficients.
	remember = 0.98
	// speedGain and speedClip bound how far one first token moves the speed
	// factor: 12 % of the error, and of no more than a factor of 2. A worker
	// that became three times slower is followed within 20 first tokens; one
	// odd first token moves the prediction by 8 % and is forgotten as fast.
	speedGain = 0.12
	speedClip = 0.7
	maxSpeed  = 2.8 // e^2.8 is 16
	// errorWindow is how many of a worker's last errors its quantiles are of.
	errorWindow = 64
	// settled is the number of first tokens after which the error quantiles are
	// the worker's own.
	settled = 16
	// unsettled is ln(actual/predicted) at the 90th percentile assumed before.
	unsettled = 0.7
	// poolWindow is over how many first tokens a pool's coefficients average.
	poolWindow = 64
)

// pull is how strongly each coefficient is drawn to where it started, in first
// tokens: a fraction for those that nearly every first token speaks of, more for
// those that few do.
var pull = [terms]float64{0.02, 0.02, 0.2, 0.2}

// vector holds one number per term of the prediction, coefficients in seconds.
type vector [terms]float64

func (v vector) dot(u vector) float64 {
	return v[0]*u[0] + v[1]*u[1] + v[2]*u[2] + v[3]*u[3]
}

var (
	lowest  = vector{minBase.Seconds(), minPerKilo.Seconds(), 0, 0}
	highest = vector{maxBase.Seconds(), maxPerKilo.Seconds(), maxPerSeq.Seconds(), maxAttention.Seconds()}
)

func (c Coefficients) vector() vector {
	return vector{c.Base.Seconds(), c.PerKilo.Seconds(), c.PerSeq.Seconds(), c.Attention.Seconds()}
}

func (v vector) coefficients() Coefficients {
	return Coefficients{seconds(v[0]), seconds(v[1]), seconds(v[2]), seconds(v[3])}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// predictor learns one worker's TTFT from its first tokens.
//
// The coefficients minimise the squared relative error over the remembered
// first tokens, plus a pull towards the prior, within fixed bounds (a ridge
// regression with forgetting). Relative, with the larger of prediction and
// truth as the measure, because a second is much for a cached prompt and little
// for a cold one, and because no single error can then exceed 1. On top, one
// factor follows the worker's momentary speed: it learns fast what concerns all
// terms alike.
type predictor struct {
	prior vector
	coef  vector
	// normal and moment are the sums that the coefficients are solved from:
	// weighted x*x' and x*y.
	normal [terms]vector
	moment vector

	logSpeed float64
	trained  int64
	// last is when logSpeed was true, faded when the sums were last relaxed.
	last, faded time.Time

	// errors are the last values of ln(actual/predicted), unordered.
	errors        [errorWindow]float32
	median, upper float64 // their 50th and 90th percentile, as used
}

// start makes p predict from prior alone.
func (p *predictor) start(prior vector) {
	p.prior, p.coef = prior, prior
	p.upper = unsettled
}

// speed is the factor on the coefficients as of now. What is not confirmed by
// new first tokens halves each half-life.
func (p *predictor) speed(now time.Time, halfLife time.Duration) float64 {
	if p.logSpeed == 0 {
		return 1
	}
	idle := max(0, now.Sub(p.last).Seconds()/halfLife.Seconds())
	return math.Exp(p.logSpeed * math.Exp2(-idle))
}

// rate is the tokens prefilled in a second at the given speed factor.
func (p *predictor) rate(speed float64) float64 { return 1000 / (p.coef[1] * speed) }

// relax lets what was learned give way to prior, the pool's coefficients, once
// for each half-life without a first token.
func (p *predictor) relax(now time.Time, halfLife time.Duration, prior vector) {
	if p.trained == 0 {
		p.prior, p.coef = prior, prior
		return
	}
	halves := now.Sub(p.faded) / halfLife
	if halves <= 0 {
		return
	}
	p.faded = p.faded.Add(halves * halfLife)
	f := math.Exp2(-float64(halves))
	for i := range p.normal {
		for j := range p.normal[i] {
			p.normal[i][j] *= f
		}
		p.moment[i] *= f
	}
	p.prior = prior
	p.solve()
}

// train learns from one first token: x is what the prediction was made from,
// predicted what it was before the median correction, fixed the part of it that
// is not learned here.
func (p *predictor) train(now time.Time, halfLife time.Duration, x vector, predicted, fixed, actual float64) {
	p.noteError(math.Log(actual / predicted))
	y := max(actual-fixed, minTTFT.Seconds())
	scale := max(y, p.coef.dot(x))
	w := 1 / (scale * scale)
	for i := range p.normal {
		for j := range p.normal[i] {
			p.normal[i][j] = remember*p.normal[i][j] + w*x[i]*x[j]
		}
		p.moment[i] = remember*p.moment[i] + w*x[i]*y
	}
	p.solve()

	was := math.Log(p.speed(now, halfLife))
	off := math.Log(y/p.coef.dot(x)) - was
	gain := max(speedGain, 1/float64(p.trained+2))
	p.logSpeed = clamp(was+gain*clamp(off, -speedClip, speedClip), -maxSpeed, maxSpeed)
	p.last, p.faded = now, now
	p.trained++
}

// solve finds the coefficients by coordinate descent from the last ones, which
// converges because the pull makes the problem strictly convex, and needs few
// rounds because one first token changes little.
func (p *predictor) solve() {
	for range 12 {
		for i := range p.coef {
			// The pull is relative to the prior's own size, or to a small
			// part of the permitted range where the prior is zero.
			unit := max(p.prior[i], highest[i]/1e4)
			k := pull[i] / (unit * unit)
			rest := p.moment[i] + k*p.prior[i]
			for j, c := range p.coef {
				if j != i {
					rest -= p.normal[i][j] * c
				}
			}
			p.coef[i] = clamp(rest/(p.normal[i][i]+k), lowest[i], highest[i])
		}
	}
}

// noteError keeps the error of one prediction and brings the quantiles up to
// date.
func (p *predictor) noteError(e float64) {
	p.errors[p.trained%errorWindow] = float32(e)
	n := int(min(p.trained+1, errorWindow))
	sorted := p.errors
	slices.Sort(sorted[:n])
	p.median, p.upper = float64(sorted[(n-1)/2]), float64(sorted[(n*9-1)/10])
	if n < settled {
		p.median = 0
		p.upper = max(p.upper, unsettled)
	}
	p.median = clamp(p.median, -speedClip, speedClip)
}

// clamp returns v within [lo, hi]; lo when v is not a number.
func clamp(v, lo, hi float64) float64 {
	if v > hi {
		return hi
	}
	if v >= lo {
		return v
	}
	return lo
}

// pool is what the workers of a pool have learned together: where a new one
// starts, and what an idle one returns to.
type pool struct {
	coef    vector
	trained int64
}

// learn moves the pool's coefficients towards a worker's.
func (p *pool) learn(coef vector, speed float64) {
	gain := max(1/float64(p.trained+1), 1.0/poolWindow)
	for i := range p.coef {
		p.coef[i] = clamp(p.coef[i]+gain*(coef[i]*speed-p.coef[i]), lowest[i], highest[i])
	}
	p.trained++
}
