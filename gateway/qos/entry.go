package qos

import "time"

// ClassID names a class of a Queue. It is small, assigned once and never
// reused, so it stays valid when a Queue is configured anew; see [Queue.Class].
type ClassID int

// PoolID names a pool of a Queue, in the same way; see [Queue.Pool].
type PoolID int

// Entry is one request that waits. The caller fills in the exported fields,
// owns the memory, and must not change any of them from Admit or Again until
// its Outcome came or Leave has returned. After that it may be used again; what
// the queue keeps of its memory in it makes that cheap.
type Entry struct {
	Class  ClassID
	Tenant string
	// Key tells a request from the others of its tenant, and is the same when a
	// client sends it again after it was refused: a hash of what it sent. Who
	// comes when an Outcome's RetryAfter told it to is known by it. 0: not known.
	Key uint64
	// Weight is the tenant's: one of weight 2 gets twice what one of weight 1 gets.
	// 0 is 1; it is cut to 0.01..100.
	Weight float64
	// Pools are the pools that it may go to, each once, at most MaxPools.
	Pools []PoolID
	// Work is what it is expected to cost, in tokens of prefill: those of the prompt
	// that no worker is believed to have in its cache, and those of the answer,
	// each counted as the number of prefill tokens that take as long; at least 1.
	Work int64
	// Room is what it is expected to take of a worker's KV cache at its end, in
	// tokens: prompt and answer.
	Room int64
	// Own is how long its first token is expected to take on a worker that it need
	// not wait for.
	Own time.Duration
	// Arrived is when it came, Deadline when its first token is due (arrival
	// and target), Until when it is refused if it still waits (arrival and the
	// class's MaxWait).
	Arrived, Deadline, Until time.Time
	// Preemptible says so of this entry; that of its class holds in any case.
	Preemptible bool
	// Bytes is the memory that it holds while it waits.
	Bytes int64
	// Payload is the caller's.
	Payload any

	state entryState
}

// State is what became of an entry. Only Waiting changes, and once; after Again
// an entry waits again.
type State uint8

// States of an entry.
const (
	// Unknown: the queue never had it.
	Unknown State = iota
	// Waiting: it is in the queue.
	Waiting
	// Granted: a Placer has committed it.
	Granted
	// Refused: the queue has put it out; the Outcome says why.
	Refused
	// Left: the caller has taken it out.
	Left
)

func (s State) String() string {
	return [...]string{"unknown", "waiting", "granted", "refused", "left"}[s]
}

// Reason is why an entry was refused.
type Reason uint8

// Reasons of refusals.
const (
	// ReasonNone: it was not refused.
	ReasonNone Reason = iota
	// ReasonForecast: its first token was predicted beyond its class's MaxWait.
	ReasonForecast
	// ReasonFull: the queue, or its class's part, is full, with nobody to preempt.
	ReasonFull
	// ReasonTenantFull: its tenant holds as much of the queue as it may.
	ReasonTenantFull
	// ReasonPreempted: it was taken out for a more urgent one, or for one of its class
	// whose tenant has less waiting.
	ReasonPreempted
	// ReasonWaited: it has waited until Entry.Until.
	ReasonWaited
	// ReasonNoWorker: there is none that could take it; see [Queue.Strand].
	ReasonNoWorker
	// ReasonDraining: the caller lets nobody wait any more; see [Queue.Drain].
	ReasonDraining
	// NumReasons is the number of reasons.
	NumReasons
)

func (r Reason) String() string {
	return [...]string{"", "forecast", "full", "tenant_full", "preempted", "waited", "no_worker", "draining"}[r]
}

// Outcome is what became of an entry.
type Outcome struct {
	Entry *Entry
	// State is Granted or Refused.
	State State
	// Reason is why it was refused.
	Reason Reason
	// RetryAfter is when a refused one can come again with a fair chance, from
	// now; 0 where nothing is known.
	RetryAfter time.Duration
	// Pool is where a granted one went, and Work what it was charged there.
	Pool PoolID
	Work int64
	// Waited is the time in the queue, since Admit or the last Again.
	Waited time.Duration
	// Forecast is the time to first token from arrival that was predicted at
	// Admit; 0 if nobody waited then.
	Forecast time.Duration
}
