package tenancy

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Outcome is how a request ended. The zero value is not an outcome.
type Outcome string

// Outcomes of a request.
const (
	// OutcomeCompleted means: the client received a whole answer.
	OutcomeCompleted Outcome = "completed"
	// OutcomeDenied means: refused by identity, policy or a limit; no worker was called.
	OutcomeDenied Outcome = "denied"
	// OutcomeRejected means: the request could not be served: malformed, no worker,
	// queue full, shutting down; nothing was generated.
	OutcomeRejected Outcome = "rejected"
	// OutcomeClientAborted means: the client left before its answer was whole.
	OutcomeClientAborted Outcome = "client_aborted"
	// OutcomeUpstreamError means: the worker failed, timed out or broke protocol.
	OutcomeUpstreamError Outcome = "upstream_error"
	// OutcomeLost means: the gateway died while the request was in flight. Such a
	// row is written at the next start and charges nothing.
	OutcomeLost Outcome = "lost"
)

// Phase is how far a request had come when it ended.
type Phase string

// Phases of a request, in order.
const (
	PhaseRead     Phase = "read"     // before a decision
	PhaseQueue    Phase = "queue"    // admitted, waiting for a turn or a worker
	PhasePrefill  Phase = "prefill"  // sent to a worker, no token yet
	PhaseStream   Phase = "stream"   // between the first and the last event
	PhaseResponse Phase = "response" // not streaming: sent to a worker, answer not whole
	PhaseDone     Phase = "done"     // the answer was whole
)

// Flags qualify the numbers of a row.
type Flags uint32

const (
	// FlagEstimated says that token counts are the gateway's own, not the worker's.
	FlagEstimated Flags = 1 << iota
	// FlagCachedUnknown says that the worker did not report how many input
	// tokens came from its cache, so all input is priced in full.
	FlagCachedUnknown
	// FlagAborted says that the client left before the end.
	FlagAborted
	// FlagOutputUnknown says that output was generated but not counted.
	FlagOutputUnknown
	// FlagUnpriced says that the model has no price at the request's start, so the
	// costs are zero for want of a price.
	FlagUnpriced
	// FlagRecovered says that the row was written at a later start of the gateway.
	FlagRecovered
	// FlagStream says that the client asked for a stream.
	FlagStream
	// FlagPreemptible says that a policy allowed the request to be preempted.
	FlagPreemptible
)

var flagNames = []struct {
	flag Flags
	name string
}{
	{FlagEstimated, "estimated"},
	{FlagCachedUnknown, "cached_unknown"},
	{FlagAborted, "aborted"},
	{FlagOutputUnknown, "output_unknown"},
	{FlagUnpriced, "unpriced"},
	{FlagRecovered, "recovered"},
	{FlagStream, "stream"},
	{FlagPreemptible, "preemptible"},
}

// Has reports whether all of the given flags are set.
func (f Flags) Has(g Flags) bool { return f&g == g }

// String lists the names of the set flags, comma-separated.
func (f Flags) String() string {
	var names []string
	for _, n := range flagNames {
		if f.Has(n.flag) {
			names = append(names, n.name)
			f &^= n.flag
		}
	}
	if f != 0 {
		names = append(names, fmt.Sprintf("%#x", uint32(f)))
	}
	return strings.Join(names, ",")
}

// Row is one request in the ledger: exactly one row per request, whatever its
// end. All amounts are integers; money is in micro-units (millionths) of
// Currency. Texts come from configuration or are checked identifiers: a row
// never holds prompt text, a header or a credential.
type Row struct {
	// ID is the gateway's own id of the request and the ledger's idempotency
	// key. It must be unique over all time and never chosen by a client:
	// a second row with the same ID is not stored.
	ID string
	// RequestID is the id the client saw (x-request-id). Clients may choose it,
	// so it may repeat.
	RequestID string
	// DecisionID names the decision log's record, or is empty.
	DecisionID string
	// PolicyRevision is the digest of the policy set that judged the request.
	PolicyRevision string
	// PolicyRule is the rule (policy/name) that refused it, or empty.
	PolicyRule string

	// Tenant and Team are the payer's, as configured when the request came.
	Tenant, Team string
	// Principal is the caller's unique id (Principal.ID); KeyID the public part
	// of its API key, or empty.
	Principal, KeyID string

	// Operation is chat, completion, responses, messages, embeddings, ...
	Operation string
	// Dialect is openai or anthropic.
	Dialect string
	// Model is the model after alias resolution; RequestedModel what the
	// client wrote, bounded and checked by the gateway.
	Model, RequestedModel string
	// Pool and Worker served the last attempt; empty if none was sent.
	Pool, Worker string
	// Class is the QoS class the policies gave.
	Class string
	// Labels are the content labels that policies added, sorted.
	Labels []string

	// Status is the HTTP status of the answer, 499 for a client that left,
	// 0 for a lost request.
	Status int
	// ErrorCode is the public error code of a failed request, or empty.
	ErrorCode string
	// Outcome, Phase and Flags say how the request ended.
	Outcome Outcome
	Phase   Phase
	Flags   Flags
	// Attempts counts requests sent to workers; 0 if none was.
	Attempts int

	// InputTokens includes cached tokens, whatever the dialect says.
	InputTokens int64
	// CachedTokens are the input tokens read from the worker's cache;
	// 0 when unknown (FlagCachedUnknown).
	CachedTokens int64
	// OutputTokens includes reasoning tokens.
	OutputTokens int64
	// ReasoningTokens are part of OutputTokens.
	ReasoningTokens int64

	// Currency is the ISO 4217 code of the prices; empty if unpriced.
	Currency string
	// Prices are the unit prices the request was charged at.
	Prices Prices
	// Costs are what each meter cost. They are authoritative: a later change
	// of a price table or rounding rule does not change them.
	Costs Costs

	// Start is when the request was accepted (UTC; nanoseconds kept).
	Start time.Time
	// Queue is the time it waited for a turn.
	Queue time.Duration
	// TTFT is the time from Start to the first token; 0 if there was none.
	TTFT time.Duration
	// Duration is the time from Start to the end. End() decides the billing
	// period.
	Duration time.Duration
}

// Prices are micro-units of a currency per million tokens.
type Prices struct {
	// Input is for input tokens not read from a cache.
	Input int64
	// CachedInput is for input tokens read from a cache.
	CachedInput int64
	// Output is for output tokens, reasoning included.
	Output int64
}

// Costs are micro-units of a currency by meter.
type Costs struct {
	Input, CachedInput, Output int64
}

// Total is the sum of the meters.
func (c Costs) Total() int64 { return c.Input + c.CachedInput + c.Output }

// Meter is one priced quantity of a row.
type Meter struct {
	// Name is MeterInput, MeterCachedInput or MeterOutput.
	Name string
	// Tokens is the quantity.
	Tokens int64
	// Price is micro-units per million tokens; Cost is micro-units.
	Price, Cost int64
}

// Names of the meters.
const (
	MeterInput       = "input"
	MeterCachedInput = "cached_input"
	MeterOutput      = "output"
)

// End is when the request ended: the instant that decides its billing period.
func (r *Row) End() time.Time { return r.Start.Add(r.Duration) }

// Meters splits the row into its priced quantities. Every token is in exactly
// one meter: input without the cached part, the cached part, output.
func (r *Row) Meters() [3]Meter {
	return [3]Meter{
		{MeterInput, r.InputTokens - r.CachedTokens, r.Prices.Input, r.Costs.Input},
		{MeterCachedInput, r.CachedTokens, r.Prices.CachedInput, r.Costs.CachedInput},
		{MeterOutput, r.OutputTokens, r.Prices.Output, r.Costs.Output},
	}
}

// Check reports the first thing that makes a row unfit for the ledger: a
// missing id, tenant, outcome or start, or numbers that contradict each other.
// A failure is a bug of the caller, not of a client.
func (r *Row) Check() error {
	switch {
	case r.ID == "":
		return errors.New("row has no id")
	case r.Outcome == "":
		return fmt.Errorf("row %s has no outcome", r.ID)
	case r.Start.IsZero():
		return fmt.Errorf("row %s has no start time", r.ID)
	case r.Duration < 0 || r.Queue < 0 || r.TTFT < 0:
		return fmt.Errorf("row %s has a negative duration", r.ID)
	case r.InputTokens < 0 || r.CachedTokens < 0 || r.OutputTokens < 0 || r.ReasoningTokens < 0:
		return fmt.Errorf("row %s has a negative token count", r.ID)
	case r.CachedTokens > r.InputTokens:
		return fmt.Errorf("row %s has more cached tokens (%d) than input tokens (%d)", r.ID, r.CachedTokens, r.InputTokens)
	case r.ReasoningTokens > r.OutputTokens:
		return fmt.Errorf("row %s has more reasoning tokens (%d) than output tokens (%d)", r.ID, r.ReasoningTokens, r.OutputTokens)
	case r.Costs.Input < 0 || r.Costs.CachedInput < 0 || r.Costs.Output < 0:
		return fmt.Errorf("row %s has a negative cost", r.ID)
	case r.Currency == "" && r.Costs != (Costs{}):
		return fmt.Errorf("row %s has a cost but no currency", r.ID)
	}
	return nil
}

// Intent announces a request that is about to be sent to a worker, so that a
// start after a crash can name what was in flight.
type Intent struct {
	// ID is the row's ID-to-be.
	ID string
	// The rest are the row's fields of the same names, as known by now.
	RequestID, DecisionID, PolicyRevision string
	Tenant, Team, Principal, KeyID        string
	Operation, Dialect                    string
	Model, RequestedModel, Pool, Class    string
	Flags                                 Flags
	Start                                 time.Time
}

// Totals are sums over rows that share a currency.
type Totals struct {
	// Currency is empty for rows without a price.
	Currency string
	// Rows is how many rows were summed.
	Rows int64
	// Sums of the token fields of the same names.
	InputTokens, CachedTokens, OutputTokens, ReasoningTokens int64
	// Costs are the summed meters.
	Costs Costs
}

// Add sums one more row. The row's currency must be t's.
func (t *Totals) Add(r *Row) {
	t.Rows++
	t.InputTokens += r.InputTokens
	t.CachedTokens += r.CachedTokens
	t.OutputTokens += r.OutputTokens
	t.ReasoningTokens += r.ReasoningTokens
	t.Costs.Input += r.Costs.Input
	t.Costs.CachedInput += r.Costs.CachedInput
	t.Costs.Output += r.Costs.Output
}
