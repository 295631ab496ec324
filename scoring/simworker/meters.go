package simworker

import (
	"math"
	"time"

	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// histogram counts observations in buckets with fixed upper bounds.
type histogram struct {
	bounds []float64
	counts []uint64 // one more than bounds: the last is +Inf
	sum    float64
}

func newHistogram(bounds []float64) *histogram {
	return &histogram{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

func (h *histogram) observe(v float64) {
	i := 0
	for i < len(h.bounds) && v > h.bounds[i] {
		i++
	}
	h.counts[i]++
	h.sum += v
}

func (h *histogram) seconds(d time.Duration) { h.observe(max(0, d.Seconds())) }

// clone returns a copy that stays as it is.
func (h *histogram) clone() *histogram {
	c := *h
	c.counts = append([]uint64(nil), h.counts...)
	return &c
}

// Bounds of the engine's histograms.
var (
	tokenBounds     = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000}
	iterationBounds = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
	choiceBounds    = []float64{1, 2, 5, 10, 20}
	firstBounds     = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	nextBounds      = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	phaseBounds     = []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	preemptBounds   = []float64{1, 2, 3, 4, 5, 10, 20}
)

// meters holds the worker's histograms. The core's lock protects them.
type meters struct {
	promptTokens, generationTokens, iterationTokens *histogram
	maxGeneration, paramN, paramMaxTokens           *histogram
	firstToken, nextToken, perOutputToken           *histogram
	endToEnd, queue, inference, prefill, decode     *histogram
	preemptions, computedTokens                     *histogram
}

func newMeters() *meters {
	return &meters{
		promptTokens: newHistogram(tokenBounds), generationTokens: newHistogram(tokenBounds),
		iterationTokens: newHistogram(iterationBounds),
		maxGeneration:   newHistogram(tokenBounds), paramN: newHistogram(choiceBounds), paramMaxTokens: newHistogram(tokenBounds),
		firstToken: newHistogram(firstBounds), nextToken: newHistogram(nextBounds), perOutputToken: newHistogram(nextBounds),
		endToEnd: newHistogram(phaseBounds), queue: newHistogram(phaseBounds), inference: newHistogram(phaseBounds),
		prefill: newHistogram(phaseBounds), decode: newHistogram(phaseBounds),
		preemptions: newHistogram(preemptBounds), computedTokens: newHistogram(tokenBounds),
	}
}

func (m *meters) step(s engine.Step) { m.iterationTokens.observe(float64(s.Prefill + s.Decode)) }

func (m *meters) token(out engine.Output) {
	if out.First {
		m.firstToken.seconds(out.Wait)
	} else {
		m.nextToken.seconds(out.Wait)
	}
	if out.Summary != nil {
		m.finished(out.Summary)
	}
}

// finished records a request that ended, whatever the reason. Phases that it
// did not reach count as zero.
func (m *meters) finished(s *engine.Summary) {
	m.promptTokens.observe(float64(s.Prompt))
	m.generationTokens.observe(float64(s.Generated))
	m.maxGeneration.observe(float64(s.Generated))
	m.paramMaxTokens.observe(float64(s.MaxTokens))
	m.preemptions.observe(float64(s.Preemptions))
	m.endToEnd.seconds(s.Ended.Sub(s.Arrived))
	m.queue.seconds(between(s.Arrived, s.Scheduled))
	m.inference.seconds(between(s.Scheduled, s.LastToken))
	m.prefill.seconds(between(s.Scheduled, s.FirstToken))
	m.decode.seconds(between(s.FirstToken, s.LastToken))
	perToken := 0.0
	if s.Generated > 1 {
		perToken = between(s.FirstToken, s.LastToken).Seconds() / float64(s.Generated-1)
	}
	m.perOutputToken.observe(math.Max(0, perToken))
	m.computedTokens.observe(float64(s.Prompt - s.Cached))
}

// between returns the time from a to b, 0 if either did not happen.
func between(a, b time.Time) time.Duration {
	if a.IsZero() || b.IsZero() {
		return 0
	}
	return b.Sub(a)
}
