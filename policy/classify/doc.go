// Package classify finds content labels in request bodies: which built-in,
// custom and external detectors found something, how often, and how far the scan
// came. It implements section 11 of the policy format; docs/0015-labels.md says
// why it works as it does and what it was measured at.
//
// A scan goes through a body once. The walker (walk.go) hands every string of
// the JSON text, object keys included, to the detectors, without knowing the
// dialect: a field that nobody has heard of is scanned like any other. Text is
// unescaped, freed of zero-width characters and NFKC-normalised where it isn't
// plain ASCII (fold.go). The built-in detectors (detect.go and a file for each)
// use no regular expressions: a table of byte classes finds the few places that
// are worth a look, and checksums decide.
//
// No text leaves the package except to external detectors. Findings are labels
// and counts.
package classify
