// Package replay judges the decisions of a log anew and says what another set of
// policies would change: which requests it would refuse or admit, and which
// pools, classes, caps, isolation and limits it would give to the others, by
// tenant and rule.
//
// Counters are not replayed: what a limit had left at the time is not known, so
// a refusal of a spent counter stays what it was as long as a limit of that name
// is still asked for. Nothing is guessed: where a set needs an input that the
// record lacks, masks or holds as a hash, the outcome is [Indeterminate].
package replay
