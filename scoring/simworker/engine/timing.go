package engine

import (
	"fmt"
	"time"
)

// Timing is the cost model of a scheduler step. All parts add up:
//
//	Step + PrefillToken x prefill tokens + DecodeSeq x decoding sequences
//	     + Context x thousand tokens of cached context read by decoding sequences
//	     + Attention x million (prefill token, earlier token) pairs
//
// and the sum varies by up to Jitter, up or down.
type Timing struct {
	// Step is paid by every step: reading the weights once, launching.
	Step time.Duration
	// PrefillToken is the compute of one prompt token.
	PrefillToken time.Duration
	// DecodeSeq is what one more decoding sequence adds to a step.
	DecodeSeq time.Duration
	// Context is reading 1,000 tokens of KV cache.
	Context time.Duration
	// Attention is 1,000,000 pairs of a prefill token with a token before it.
	Attention time.Duration
	// Jitter is a fraction between 0 and 1.
	Jitter float64
}

// DefaultTiming returns constants derived from the data sheet of a 48 GB GPU
// (864 GB/s, 733 TFLOP/s dense in 8 bits) and a 27B model in 8 bits; the
// derivation is in docs/0006-simulated-worker.md. They are an estimate, not a
// measurement.
func DefaultTiming() Timing {
	return Timing{
		Step:         32 * time.Millisecond,
		PrefillToken: 165 * time.Microsecond,
		DecodeSeq:    50 * time.Microsecond,
		Context:      300 * time.Microsecond,
		Attention:    9 * time.Millisecond,
	}
}

// Validate reports a negative part or a jitter outside [0, 1).
func (t Timing) Validate() error {
	for _, p := range []struct {
		name string
		v    time.Duration
	}{
		{"Step", t.Step}, {"PrefillToken", t.PrefillToken}, {"DecodeSeq", t.DecodeSeq},
		{"Context", t.Context}, {"Attention", t.Attention},
	} {
		if p.v < 0 {
			return fmt.Errorf("timing: %s is %v; it must not be negative", p.name, p.v)
		}
	}
	if !(t.Jitter >= 0 && t.Jitter < 1) {
		return fmt.Errorf("timing: Jitter is %v; it must be at least 0 and below 1", t.Jitter)
	}
	return nil
}

// load is the work of one step, in the units of Timing.
type load struct {
	prefill int   // prompt tokens computed
	decode  int   // sequences that produce one more token after their prompt
	context int64 // cached tokens read by those
	pairs   int64 // (prefill token, earlier token) pairs
}

// duration returns the cost of l without jitter.
func (t Timing) duration(l load) time.Duration {
	d := float64(t.Step) +
		float64(t.PrefillToken)*float64(l.prefill) +
		float64(t.DecodeSeq)*float64(l.decode) +
		float64(t.Context)*float64(l.context)/1e3 +
		float64(t.Attention)*float64(l.pairs)/1e6
	return time.Duration(d)
}
