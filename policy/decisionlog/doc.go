// Package decisionlog writes what policies decided as JSON lines: a decision
// record when the verdict stands, a shadow record when its rehearsal has ended,
// a settlement record when the response has ended (section 10 of the policy
// format; the records are those of package policy).
//
// What never reaches the file: prompts, completions, tool arguments and
// credentials. The records have no place for the first three; headers that carry
// credentials are taken out here whatever the configuration lets policies read.
// The identifiers that a client chooses, and its address, are keyed hashes
// unless the configuration says otherwise.
//
// A record is encoded by the goroutine that has it, so that nothing of a request
// is referred to once a call has returned, and the memory of what waits is known
// to the byte. One goroutine, [Log.Run], writes.
package decisionlog
