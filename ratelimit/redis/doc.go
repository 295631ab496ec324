// Package redis keeps the counters of package ratelimit in Redis, shared by all
// replicas of a gateway. Its Limiter is used like ratelimit.Limiter and makes the
// same promises, over all replicas together; ratelimit/limitertest holds both to
// them.
//
// # Where a decision is made
//
// A replica leases a part of each counter that it uses: tokens, slots or money that
// the store has taken off the counter already. A request whose claims fit the leases
// is decided here, without the network. Another one costs one round trip, in which
// the store grants what all its claims lack, or nothing. Only a refusal that reports
// under way may have caused is asked about again, twice at most. What requests have
// used, and what they give back, is told to the store every FlushEvery.
//
// # What is promised
//
// While the store keeps its data, the replicas together admit no more than one
// limiter would: every leased token is counted as taken. For a bucket, open
// reservations and charges of any time t are within limit × (1 + t/window), overruns
// apart, t measured by the store's clock in milliseconds; calendar windows and slots
// are never exceeded. What replicas have leased, at most LeaseShare of a limit, may
// be refused to others meanwhile.
//
// A replica that dies has its leases given back after DeadAfter; what it had admitted
// from them and not told yet, at most its lease, may then be had once more. A store
// that loses its data has the counters begin anew, as low as any replica remembers
// them, and days and months as Restore has made known.
//
// # Time
//
// Only the store's clock counts. Times given to Reserve and its kin are not looked
// at; durations are measured by the monotonic clock of the process.
package redis
