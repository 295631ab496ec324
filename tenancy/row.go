package tenancy

import (
	"errors"
	"fmt"
	"slices"
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
	// FlagReasoningApart says that reasoning tokens are a meter of their own, at
	// Prices.Reasoning. In a row without it they were charged as output.
	FlagReasoningApart
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
	{FlagReasoningApart, "reasoning_apart"},
}

// Has reports whether all of the given flags are set.
func (f Flags) Has(g Flags) bool { return f&g == g }

// String lists the names of the set flags, comma-separated.
func (f Flags) String() string {
	if f == 0 {
		return ""
	}
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

	// Gateway is the name of the replica that served the request, Process one run
	// of it. The ledger fills them in.
	Gateway, Process string

	// Tenant and Team are the payer's, as configured when the request came.
	Tenant, Team string
	// Principal is the caller's unique id (Principal.ID) and PrincipalKind how it
	// was verified (Principal.Kind); KeyID the public part of its API key, or empty.
	Principal, PrincipalKind, KeyID string

	// Operation is chat, completion, responses, messages, embeddings, ...
	Operation string
	// Dialect is openai or anthropic.
	Dialect string
	// Model is the model after alias resolution; RequestedModel what the
	// client wrote, or where the configuration has no such name a digest of it.
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

	// GPUTime is the time of one GPU that the request's work is worth, kept to the
	// microsecond; 0 where none was measured.
	GPUTime time.Duration

	// Currency is the ISO 4217 code of the prices; empty if unpriced.
	Currency string
	// Prices are the unit prices of the list, before any discount.
	Prices Prices
	// Discount is what the payer is spared of every price, in millionths: 125000
	// are 12.5 per cent.
	Discount int64
	// Costs are what each meter cost. They are authoritative: a later change
	// of a price table or rounding rule does not change them.
	Costs Costs

	// Start is when the request was accepted (UTC; nanoseconds kept).
	Start time.Time
	// Queue is the time it waited for a turn.
	Queue time.Duration
	// TTFT is the time from Start to the first token; 0 if there was none.
	TTFT time.Duration
	// Duration is the time from Start to the end.
	Duration time.Duration

	// Charges are what the request was charged on limits whose period is a day or
	// a month, so that a gateway that starts knows what of a budget is used.
	Charges []Charge

	// Period is the first instant of the month that the row is booked in, in UTC:
	// the month of End, or, where that was closed before the row came, the first
	// later one that was not. The ledger decides it when it stores the row.
	Period time.Time
	// CorrectionOf is the ID of the row that this one corrects: its tokens and
	// costs are then what is to be added to that row's, and may be negative.
	CorrectionOf string
	// Reason and Author say why and by whom a row was corrected.
	Reason, Author string
}

// Charge is what one request took from a budget.
type Charge struct {
	// Counter identifies the limit's counter.
	Counter [16]byte
	// Unit and Window are those of the limit, as in cost and month.
	Unit, Window string
	// Period is the first instant of the day or month.
	Period time.Time
	// Amount is in the limit's unit.
	Amount int64
}

// Prices are micro-units of a currency: for a million tokens, or for a second of
// one GPU, which is a million microseconds.
type Prices struct {
	// Input is for input tokens not read from a cache.
	Input int64
	// CachedInput is for input tokens read from a cache.
	CachedInput int64
	// Output is for output tokens.
	Output int64
	// Reasoning is for reasoning tokens, which are then not charged as output; it
	// means nothing without FlagReasoningApart.
	Reasoning int64
	// GPUSecond is for a second of one GPU.
	GPUSecond int64
}

// Costs are micro-units of a currency by meter.
type Costs struct {
	Input, CachedInput, Output, Reasoning, GPU int64
}

// Total is the sum of the meters.
func (c Costs) Total() int64 { return c.Input + c.CachedInput + c.Output + c.Reasoning + c.GPU }

// Add returns the sums by meter.
func (c Costs) Add(d Costs) Costs {
	return Costs{c.Input + d.Input, c.CachedInput + d.CachedInput, c.Output + d.Output, c.Reasoning + d.Reasoning, c.GPU + d.GPU}
}

// Meter is one priced quantity of a row.
type Meter struct {
	// Name is one of the Meter constants.
	Name string
	// Quantity is a number of tokens, or of microseconds of one GPU.
	Quantity int64
	// Price is micro-units for a million of them; Cost is micro-units.
	Price, Cost int64
}

// Names of the meters.
const (
	MeterInput       = "input"
	MeterCachedInput = "cached_input"
	MeterOutput      = "output"
	MeterReasoning   = "reasoning"
	MeterGPU         = "gpu_seconds"
)

// End is when the request ended: the instant that decides its billing period,
// unless that is closed.
func (r *Row) End() time.Time { return r.Start.Add(r.Duration) }

// Late reports whether the row is booked in another month than that of its end.
func (r *Row) Late() bool { return !r.Period.IsZero() && !r.Period.Equal(Month(r.End())) }

// Month is the first instant, in UTC, of the month of an instant.
func Month(t time.Time) time.Time {
	t = t.UTC()
	return time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC)
}

// Meters splits the row into its priced quantities. Every token is in exactly
// one meter: input without the cached part, the cached part, output without
// reasoning, reasoning. In a row without FlagReasoningApart output has all of it.
func (r *Row) Meters() [5]Meter {
	var apart int64
	if r.Flags.Has(FlagReasoningApart) {
		apart = r.ReasoningTokens
	}
	return [5]Meter{
		{MeterInput, r.InputTokens - r.CachedTokens, r.Prices.Input, r.Costs.Input},
		{MeterCachedInput, r.CachedTokens, r.Prices.CachedInput, r.Costs.CachedInput},
		{MeterOutput, r.OutputTokens - apart, r.Prices.Output, r.Costs.Output},
		{MeterReasoning, apart, r.Prices.Reasoning, r.Costs.Reasoning},
		{MeterGPU, r.GPUTime.Microseconds(), r.Prices.GPUSecond, r.Costs.GPU},
	}
}

// Check reports the first thing that makes a row unfit for the ledger: a
// missing id, outcome or start, or numbers that contradict each other.
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
	case r.Discount < 0 || r.Discount > FullDiscount:
		return fmt.Errorf("row %s has a discount of %d millionths, should be 0 to %d", r.ID, r.Discount, FullDiscount)
	case r.Currency == "" && r.Costs != (Costs{}):
		return fmt.Errorf("row %s has a cost but no currency", r.ID)
	case slices.ContainsFunc(r.Charges, func(c Charge) bool { return strings.ContainsAny(c.Unit+c.Window, " /") }):
		return fmt.Errorf("row %s has a charge whose unit or window holds a space or a slash", r.ID)
	case r.CorrectionOf == r.ID:
		return fmt.Errorf("row %s corrects itself", r.ID)
	case r.CorrectionOf != "":
		return nil // differences have any sign
	}
	return r.checkAmounts()
}

// FullDiscount is the discount that makes everything free.
const FullDiscount = 1_000_000

func (r *Row) checkAmounts() error {
	switch {
	case r.InputTokens < 0 || r.CachedTokens < 0 || r.OutputTokens < 0 || r.ReasoningTokens < 0:
		return fmt.Errorf("row %s has a negative token count", r.ID)
	case r.GPUTime < 0:
		return fmt.Errorf("row %s has a negative GPU time", r.ID)
	case r.CachedTokens > r.InputTokens:
		return fmt.Errorf("row %s has more cached tokens (%d) than input tokens (%d)", r.ID, r.CachedTokens, r.InputTokens)
	case r.ReasoningTokens > r.OutputTokens:
		return fmt.Errorf("row %s has more reasoning tokens (%d) than output tokens (%d)", r.ID, r.ReasoningTokens, r.OutputTokens)
	case min(r.Costs.Input, r.Costs.CachedInput, r.Costs.Output, r.Costs.Reasoning, r.Costs.GPU) < 0:
		return fmt.Errorf("row %s has a negative cost", r.ID)
	}
	return nil
}

// Intent announces a request that is about to be sent to a worker, so that a
// start after a crash can name what was in flight.
type Intent struct {
	// ID is the row's ID-to-be.
	ID string
	// The rest are the row's fields of the same names, as known by now.
	RequestID, DecisionID, PolicyRevision         string
	Gateway, Process                              string
	Tenant, Team, Principal, PrincipalKind, KeyID string
	Operation, Dialect                            string
	Model, RequestedModel, Pool, Class            string
	Flags                                         Flags
	Start                                         time.Time
}

// Totals are sums over rows that share a currency.
type Totals struct {
	// Currency is empty for rows without a price.
	Currency string
	// Rows is how many rows were summed.
	Rows int64
	// Sums of the token fields of the same names.
	InputTokens, CachedTokens, OutputTokens, ReasoningTokens int64
	// ReasoningApart are the reasoning tokens that are a meter of their own.
	ReasoningApart int64
	// GPUTime is a sum of whole microseconds.
	GPUTime time.Duration
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
	if r.Flags.Has(FlagReasoningApart) {
		t.ReasoningApart += r.ReasoningTokens
	}
	t.GPUTime += r.GPUTime.Truncate(time.Microsecond)
	t.Costs = t.Costs.Add(r.Costs)
}
