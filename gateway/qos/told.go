package qos

import "time"

const (
	// unknownReturn is told to clients where nobody knows how long the queue takes.
	unknownReturn = 5 * time.Second
	// longestReturn is told at most to those who are refused for what is, not for what
	// is expected.
	longestReturn = time.Minute
)

// Told is after what time the client of a refused request is told to come again, in
// whole seconds as HTTP has it. Who is refused for what is expected is told just that,
// however long it is.
func (o *Outcome) Told() time.Duration {
	after := o.RetryAfter
	switch {
	case o.Reason == ReasonForecast || o.Reason == ReasonPreempted:
	case after <= 0:
		after = unknownReturn
	default:
		after = min(after, longestReturn)
	}
	return max(time.Second, (after + time.Second - 1).Truncate(time.Second))
}
