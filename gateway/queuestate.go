package gateway

import (
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
)

// Reasons for which a request gets no worker beside those of the queue.
const (
	refusedMemory   = "memory"   // the gateway has no room for it to wait, or to be sent
	refusedLedger   = "ledger"   // the gateway can't account for it
	refusedInternal = "internal" // the gateway failed on it
)

// QueueReasons returns every reason that Summary.QueueRefused can give.
func QueueReasons() []string {
	list := []string{refusedMemory, refusedLedger, refusedInternal}
	for r := qos.ReasonNone + 1; r < qos.NumReasons; r++ {
		list = append(list, r.String())
	}
	return list
}

// Turns of requests that were not refused.
const (
	TurnPassed  = "passed"  // sent to a worker at once
	TurnGranted = "granted" // sent to a worker after a wait
	TurnLeft    = "left"    // the client has left before, or its credentials were taken back
)

// QueueTurns returns every turn that Summary.QueueTurn can be.
func QueueTurns() []string { return []string{TurnPassed, TurnGranted, TurnLeft} }

// QueueState is what the queue of requests holds and has done, for metrics and debug
// pages.
type QueueState struct {
	// Config is the one in force. It has no classes where a generation has taken the
	// queue away: what waits goes on, and nothing comes.
	Config qos.Config
	qos.Stats
	// Tenants is how many requests of each tenant wait, each request once.
	Tenants map[string]int
	// Flows are the tenants that wait, those with most work first, at most
	// MaxQueueFlows.
	Flows []qos.FlowStats
	// LateWakeups counts requests that got a worker only since the queue looks again
	// after a while: nothing had told of the room. It should stay 0.
	LateWakeups int64
	// Refused are the latest refusals, the last one first, at most MaxQueueRefusals.
	Refused []QueueRefusal
}

// How much of the queue a QueueState tells.
const (
	MaxQueueFlows    = 50
	MaxQueueRefusals = 100
)

// QueueRefusal is one request that the queue has refused.
type QueueRefusal struct {
	At                       time.Time
	RequestID, Tenant, Class string
	Reason                   qos.Reason
	// Pools are those that it could have gone to.
	Pools []string
	// Work is what it was expected to cost, in tokens.
	Work int64
	// Waited is how long it had waited, Forecast when its first token was predicted,
	// from its arrival, MaxWait the most that it may be, and RetryAfter what the client
	// was told.
	Waited, Forecast, MaxWait, RetryAfter time.Duration
}
