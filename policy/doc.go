// Package policy compiles admission policies written in CEL into an immutable
// Set and decides requests with it.
//
// A Set is loaded whole from a directory of YAML documents (format
// sluice/v1alpha1) or not at all. [Set.Decide] judges one request by its
// metadata, its caller's identity and the labels of its content; the package
// knows no HTTP, sees no prompt text and keeps no counters. What a decision
// asks for (pools, caps, limits, labels) leaves as plain values, which the
// caller carries out.
//
// Four properties hold everywhere, and the code is arranged around them:
//
//   - fail closed: an error denies unless the policy says failurePolicy Ignore;
//   - no order: no result depends on file, document or evaluation order;
//   - only tighten: another policy can refuse, narrow, lower or demote, and the
//     ways up are listed by [Set.Warnings];
//   - no echo: text written by the client never comes back in a message.
//
// A request passes through these calls:
//
//	d := set.Decide(ctx, in)       // verdict, effects, limits to reserve
//	d.RefuseLimits(failures)       // when a reservation failed
//	r := d.Rehearsal()             // what bindings that only audit need
//	r.Run(ctx, lazy)               // beside the answer, once that is under way
//	amounts := d.Charges(usage)    // what each limit is charged, when the answer has ended
package policy
