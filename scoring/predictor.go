package scoring

import "time"

// Bounds of the learned coefficients and of a prediction. They are wide: a slow
// CPU and a fast accelerator both lie well inside.
const (
	minBase, maxBase       = 100 * time.Microsecond, 10 * time.Second
	minPerKilo, maxPerKilo = 500 * time.Microsecond, 20 * time.Second
	maxPerSeq              = 100 * time.Millisecond
	maxAttention           = time.Second
)
