package qos

import "time"

// unknownReturn is told to clients where nobody knows how long the queue takes.
const unknownReturn = 5 * time.Second

// Told is after what time the client of a refused request is told to come again, in
// whole seconds as HTTP has it. It is a booking for most reasons, and told as it is, however
// long: who comes earlier finds no room.
func (o *Outcome) Told() time.Duration {
	after := o.RetryAfter
	if after <= 0 && o.Reason != ReasonForecast && o.Reason != ReasonPreempted {
		after = unknownReturn
	}
	return max(time.Second, (after + time.Second - 1).Truncate(time.Second))
}
