package ratelimit

import "time"

// Config sizes a Limiter. The zero value means DefaultConfig.
type Config struct {
	// MaxCounters bounds the counters held at once. Beyond it a claim on a new
	// counter fails (Failure.Overflow) until idle ones can be forgotten.
	MaxCounters int
}

// Stats are totals since the limiter was made, and what it holds now.
type Stats struct {
	// Counters and OpenLeases are held now.
	Counters, OpenLeases int
	// Reserved, Refused, Settled and Cancelled count calls.
	Reserved, Refused, Settled, Cancelled uint64
	// Forgotten counts idle counters dropped; Overflows claims refused because
	// no more counters may be held.
	Forgotten, Overflows uint64
}

// Limiter holds counters in memory. It is safe for concurrent use.
type Limiter struct{}

// Lease is what one request holds of its limits until it ends. Exactly the
// first call of Settle or Cancel has an effect. Safe for concurrent use.
type Lease struct{}

// DefaultConfig allows a million counters, some 200 MB when all are in use.
func DefaultConfig() Config { return Config{MaxCounters: 1 << 20} }

// New returns an empty Limiter.
func New(cfg Config) *Limiter { return &Limiter{} }

// Reserve takes all claims, or none and says which did not fit. The claims are
// copied. An empty list succeeds. It panics on a claim that no policy can make
// (a negative limit or amount, an unusable window).
func (l *Limiter) Reserve(now time.Time, claims []Claim) (*Lease, []Failure) {
	panic("BUG: not reached")
}

// Settle replaces the estimates by what was used: amounts is parallel to the
// claims; a missing or negative amount charges the estimate. Slots are freed.
// A counter may go below zero. Only the first Settle or Cancel has an effect.
func (le *Lease) Settle(now time.Time, amounts []int64) { panic("BUG: not reached") }

// Cancel gives everything back; nothing is charged.
func (le *Lease) Cancel(now time.Time) { panic("BUG: not reached") }

// View is claim i's counter right after the reservation, this request's own
// amount taken.
func (le *Lease) View(i int) View { panic("BUG: not reached") }

// Peek shows the counters of the claims as they are, taking nothing. Amounts
// are ignored.
func (l *Limiter) Peek(now time.Time, claims []Claim) []View { panic("BUG: not reached") }

// Stats sums over all shards; it takes each shard's lock for a moment.
func (l *Limiter) Stats() Stats { panic("BUG: not reached") }
