package kvevents

import (
	"time"

	"github.com/sluicegate/sluice/scoring"
)

// Options tune a Subscriber. A field that is zero takes its default.
type Options struct {
	// DialTimeout bounds connecting and the ZMTP handshake, 5 s by default.
	DialTimeout time.Duration
	// Backoff is the pause after the first failed connection, 100 ms by
	// default. It doubles up to BackoffMax (5 s), with jitter.
	Backoff, BackoffMax time.Duration
	// QueueBatches and QueueBytes bound the live batches held back during a
	// replay, and QueueBytes also the replayed ones not yet read: 10,000 and
	// 64 MiB by default.
	QueueBatches, QueueBytes int
	// ReplayIdle and ReplayMax bound the silence in a replay and its whole
	// length, 5 s and 60 s by default.
	ReplayIdle, ReplayMax time.Duration
	// ReplayAttempts is how many replays may fail, one after another, before
	// the view is dropped and kept incomplete, 8 by default. StableAfter (30 s)
	// without trouble starts the count anew.
	ReplayAttempts int
	StableAfter    time.Duration
	// StaleAfter is how long a view is kept while its publisher can't be
	// reached, 30 s by default.
	StaleAfter time.Duration
	// RejoinAfter is the pause before a view dropped for want of attempts is
	// asked for again as a whole, 30 s by default. It doubles up to 10 min.
	RejoinAfter time.Duration
	// ConfirmAfter is when a silent new connection is checked by one more
	// replay, 1 s by default.
	ConfirmAfter time.Duration
	// OnLost is called, from Run's goroutine, each time the live connection is
	// lost: often the first sign that a worker is gone. It must return at once.
	// nil if nobody is interested.
	OnLost func()
	// Now is the clock, time.Now by default.
	Now func() time.Time
}

// DefaultOptions returns the defaults.
func DefaultOptions() Options { return Options{}.withDefaults() }

func (o Options) withDefaults() Options {
	or := func(d *time.Duration, def time.Duration) {
		if *d <= 0 {
			*d = def
		}
	}
	or(&o.DialTimeout, 5*time.Second)
	or(&o.Backoff, 100*time.Millisecond)
	or(&o.BackoffMax, 5*time.Second)
	or(&o.ReplayIdle, 5*time.Second)
	or(&o.ReplayMax, time.Minute)
	or(&o.StableAfter, 30*time.Second)
	or(&o.StaleAfter, 30*time.Second)
	or(&o.RejoinAfter, 30*time.Second)
	or(&o.ConfirmAfter, time.Second)
	if o.QueueBatches <= 0 {
		o.QueueBatches = 10_000
	}
	if o.QueueBytes <= 0 {
		o.QueueBytes = 64 << 20
	}
	if o.ReplayAttempts <= 0 {
		o.ReplayAttempts = 8
	}
	if o.OnLost == nil {
		o.OnLost = func() {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

func (o Options) machine(replay bool) MachineConfig {
	return MachineConfig{
		Replay:     replay,
		QueueItems: o.QueueBatches,
		QueueBytes: o.QueueBytes,
		ReplayIdle: o.ReplayIdle,
		ReplayMax:  o.ReplayMax,
		Attempts:   o.ReplayAttempts,
		Stable:     o.StableAfter,
		Backoff:    o.Backoff,
		BackoffMax: o.BackoffMax,
		StaleAfter: o.StaleAfter,
		Confirm:    o.ConfirmAfter,
		Rejoin:     o.RejoinAfter,
		RejoinMax:  max(10*time.Minute, o.RejoinAfter),
	}
}

// Stats is what a Subscriber has seen and where it stands.
type Stats struct {
	// View is the state of the view, Connected whether the live stream is up,
	// and Since when that was last so or ceased to be.
	View      scoring.ViewState
	Connected bool
	Since     time.Time
	// Next is the sequence number expected next, Queued the number of live
	// batches held back.
	Next   uint64
	Queued int
	// LastBatch is when a batch was last applied; zero if never.
	LastBatch time.Time
	// Machine counts what the state machine did.
	Machine MachineStats
	// Events counts applied events, Skipped those that could not be used.
	Events  uint64
	Skipped SkipCounts
	// BadMessages counts messages that could not be taken apart (frames,
	// sequence number, size), BadBatches payloads that are no batch, and
	// OtherRank batches that name another rank than their source's.
	BadMessages, BadBatches, OtherRank uint64
	// Connects counts live connections made, ConnectErrors those that failed,
	// and Refused peers of a bound endpoint that may not connect.
	Connects, ConnectErrors, Refused uint64
	// Err is the last connection or replay error, empty if none since the last
	// success.
	Err string
}
