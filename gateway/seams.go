package gateway

import (
	"context"
	"time"

	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/ratelimit"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/tenancy"
)

// Decider judges requests. Decide never returns nil and denies on an error.
type Decider interface {
	Decide(ctx context.Context, in *policy.Input) *policy.Decision
	Revision() string
}

// Limiter reserves what a decision asks for, all or nothing. It may wait for a
// store that processes share, within a bound of its own.
type Limiter interface {
	Reserve(ctx context.Context, now time.Time, claims []ratelimit.Claim) (ratelimit.Reservation, []ratelimit.Failure)
	// Charge takes the claim's amount whether or not it fits, for a request that
	// was let in without a reservation. It reports false if it can't.
	Charge(ctx context.Context, now time.Time, claim ratelimit.Claim) bool
}

// Router chooses a worker and counts the load it adds. Every reservation must
// be finished by exactly one Done.
type Router interface {
	Pick(now time.Time, req *scoring.Request) (*scoring.Reservation, error)
	// Prepare and Offer are Pick for a request that may have to wait.
	Prepare(now time.Time, req *scoring.Request) (*scoring.Prepared, error)
	Offer(now time.Time, p *scoring.Prepared, terms scoring.Terms) (*scoring.Reservation, scoring.Refusal, error)
	// Wait is the least wait at a worker of a pool.
	Wait(now time.Time, pool, model string, bound time.Duration) (wait time.Duration, look time.Time)
	// Serves says whether a worker is ready that may take the request: the error is that
	// of a Prepare.
	Serves(req *scoring.Request) error
	// OnRoom has fn told of pools that may have room again. fn doesn't block, and calls
	// nothing of the Router's.
	OnRoom(fn func(pool string))
	// Saturated is told of a worker that had no room for a request.
	Saturated(now time.Time, id scoring.WorkerID)
}

// Tokens is what a Tokenizer found out about the prompts of a body.
type Tokens struct {
	// IDs are those that decide the routing, appended to what was given: the
	// longest prompt of several, or the beginning of a prompt that goes on with
	// something without known ids, such as an image. There may be none.
	IDs []uint32
	// Count is the length of all prompts together: the engine's own if Exact is
	// set, else an estimate; 0 if there isn't even one.
	Count int
	Exact bool
	// Local says that they were computed in this process, so that what the answer
	// reports is worth comparing with.
	Local bool
	// AskWorker says that a worker may know what was not found here.
	AskWorker bool
	// Late says that the context left too little time to find them.
	Late bool
}

// Tokenizer turns a request body into the token ids that the engine will see.
// Local and Remote append to dst and never fail: a request is not refused because
// its tokens can't be had, it goes on with an estimate. req is what the scan found
// in body. Their memory serves other requests later, so nothing may refer to it
// once a method has returned.
//
// A prompt must not leave the process before policies have said where it may go:
// Local asks nobody, and Remote and Sample reach workers of the given pools only.
// Pools are those of the decision; with none, nobody is asked.
type Tokenizer interface {
	// Local finds what can be found in this process. It gives up, and says Late,
	// when ctx ends, and doesn't begin what can't be ended by ctx's deadline.
	Local(ctx context.Context, dst []uint32, model *Model, req *wire.Request, body []byte) Tokens
	// Remote asks a worker. It is worth calling where Local says AskWorker.
	Remote(ctx context.Context, dst []uint32, model *Model, pools []string, req *wire.Request, body []byte) Tokens
	// Sample may have the ids of a request that Local has found compared with a
	// worker's. It copies what it keeps and never waits.
	Sample(model *Model, pools []string, req *wire.Request, body []byte)
	// Decode returns the text of token ids, for those who scan it; false if the
	// model has no tokenizer here.
	Decode(model *Model, ids []uint32) (text string, ok bool)
}

// ClassifyRequest is a body to be scanned.
type ClassifyRequest struct {
	// Operation is request.operation of the policy format.
	Operation string
	// Body is the body as the client sent it.
	Body []byte
	// Decode gives the text of a prompt of token ids; false if it can't be had.
	Decode func(ids []uint32) (text string, ok bool)
}

// Classifier finds content labels in a body. It never fails: what went wrong
// is in ScanStatus, which policies see. Nothing may refer to the body once
// Classify has returned. It is safe for concurrent use.
type Classifier interface {
	Classify(ctx context.Context, r *ClassifyRequest) policy.Content
}

// Decisions is the decision log. Its methods never wait for the disk, and are
// safe for concurrent use. id is the decision's, which stands in the answer and
// in the ledger too.
type Decisions interface {
	// Ready is false while the log must not lose a record and has no room for one:
	// requests are refused then.
	Ready() bool
	// Decided notes a verdict. It reports whether the record is kept, or left out
	// by the sampling. It copies what it keeps: in and d may change afterwards, but
	// for the principal's and the tenant's lists and maps, which never do.
	Decided(id, requestID string, at time.Time, in *policy.Input, d *policy.Decision) (kept bool)
	// Rehearsed notes what the bindings that only audit make of a request whose
	// decision was kept.
	Rehearsed(id string, at time.Time, o policy.RehearsalOutcome)
	// Settled notes the end of a request whose decision was kept. outcome is
	// completed, client_aborted, upstream_error or not_sent. waited is the time in the
	// queue. charged and available are parallel to d.Limits; either may be nil.
	Settled(id string, at time.Time, outcome, pool string, waited time.Duration, u policy.Usage, d *policy.Decision, charged, available []int64)
}

// Ledger keeps one row a request.
type Ledger interface {
	// Begin notes that a request is about to reach a worker, so that a crash
	// can't lose it. It refuses one whose row could not be made durable.
	Begin(ctx context.Context, in *tenancy.Intent) error
	// Record returns when the row is durable. Where ctx ends before, the error is
	// tenancy.ErrPending: the ledger has taken the row and goes on.
	Record(ctx context.Context, row *tenancy.Row) error
	// RecordLater takes the row of a request that reached no worker, and makes it
	// durable in its own time.
	RecordLater(ctx context.Context, row *tenancy.Row) error
}

// HandingLedger is a Ledger whose Record comes in two halves, so that there is
// something else to be done while the disk is at work.
type HandingLedger interface {
	Ledger
	// Hand takes a row, which it copies. What it returns must be called, once, and
	// returns what Record would have.
	Hand(ctx context.Context, row *tenancy.Row) (durable func() error)
}

// Pricer fills in a row's prices and costs from its model, tokens and end.
type Pricer interface {
	Price(row *tenancy.Row)
}

// Meter is told of every request once, when it has ended but for the disk, and of refusals
// that came before there was a request. It must not block or retain.
type Meter interface {
	Observe(s *Summary)
	// Unrecorded is told of a request, after Observe, whose row could not be recorded.
	Unrecorded()
	FramingRejected(reason string)
	// HandshakeFailed is told of each TLS connection that ended before TLS was
	// spoken on it, with one of HandshakeReasons.
	HandshakeFailed(reason string)
	AuthFailed(reason string)
	// LabelIgnored is told of labels that a caller has declared who is not trusted
	// to.
	LabelIgnored()
	// Rehearsed is told what bindings that only audit make of a tenant's request,
	// and of what their charges died of, if anything. RehearsalSkipped is told of
	// each that was left out for want of room.
	Rehearsed(tenant string, o policy.RehearsalOutcome)
	RehearsalSkipped()
	// LimitReached is told once when the use of a limit's counter comes up to one of
	// its thresholds, in per cent.
	LimitReached(l *policy.Limit, percent int64)
	// StoreFailed is told of each limit whose counter could not be had, and of what
	// was done: Deny, Allow or Local.
	StoreFailed(state ratelimit.StoreState, how string)
	// Reserved is told of the tokens that a request has reserved; release is
	// called once, when they are settled.
	Reserved(tenant, model string, tokens int64) (release func())
}

// Health is told how workers behaved, as seen by requests.
type Health interface {
	// ReportFailure is told of a worker's fault as a request of the principal saw it.
	// The error never quotes the worker.
	ReportFailure(id scoring.WorkerID, f scoring.Fault, principal string, err error)
	ReportSuccess(id scoring.WorkerID)
}

// Summary is what is measured of one request. Neither it nor anything it
// refers to may be changed or kept.
type Summary struct {
	// Row is the request's ledger row, also of requests that have none in the
	// ledger: those without a known caller, and health checks.
	Row *tenancy.Row
	// Route is the template, Method a word of a fixed list.
	Route, Method string
	// Billable is false for routes that need no credential.
	Billable bool
	// Phase is how far the request had come when it ended.
	Phase     tenancy.Phase
	BodyBytes int
	// Overhead is the time in the gateway before the first attempt was written;
	// zero if there was none.
	Overhead time.Duration
	// UpstreamTTFT is the time from the last attempt to the first token, and
	// PerOutputToken the mean time of each token after it; zero if not measured.
	UpstreamTTFT, PerOutputToken time.Duration
	// Predicted is the scorer's forecast of UpstreamTTFT.
	Predicted time.Duration
	Attempts  []Attempt
	// RetryDenied says that the last failure stood although another worker could have
	// been tried, because too many of the pool's requests had been sent on.
	RetryDenied bool
	// Malformed counts events of the stream that were no JSON. StreamError is
	// the code of the error event that ended it, or empty.
	Malformed   int
	StreamError string
	// Decision is nil if no policy was asked; Refused are the limits that could
	// not be reserved.
	Decision *policy.Decision
	Refused  []*policy.Limit
	// Tokenised says that the prompts' tokens were asked for, Tokens what came;
	// their ids are gone by now, RoutedTokens is how many there were.
	Tokenised    bool
	Tokens       Tokens
	RoutedTokens int
	// TextBytes is the text in the prompts, in bytes; PlainText says that they
	// hold nothing else.
	TextBytes int
	PlainText bool
	// Queued says that the request came as far as asking for a worker, whether it had
	// to wait or not, or there is a queue or not. QueueWait is how long it waited, all
	// its turns together.
	Queued    bool
	QueueWait time.Duration
	// QueueForecast is the time from its arrival to its first token that was predicted
	// when it came to the queue; zero if nobody waited then.
	QueueForecast time.Duration
	// One of the two is set if Queued is: QueueTurn is how it came to its first worker,
	// or that it has left, of QueueTurns; QueueRefused why it got none, of QueueReasons.
	QueueTurn, QueueRefused string
	// TTFTTarget is the time to first token, from its arrival, that its policies or
	// its class promise.
	TTFTTarget time.Duration
	// FirstToken is the time from its arrival, when its body was there, to its first
	// token: as the client got it of a stream, as far as it can be inferred of an
	// answer in one piece; zero if there was none or nobody knows.
	FirstToken time.Duration
}

// Attempt is one request sent, or meant to be sent, to one worker.
type Attempt struct {
	Pool, Worker string
	Status       int // 0 if the worker gave none
	Reason       string
}
