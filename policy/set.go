package policy

import (
	"context"
	"io/fs"
)

// Set is a compiled set of policies and bindings. It is immutable and safe for
// concurrent use.
type Set struct {
	cfg      Config
	revision string
	warnings []Warning
}

// Warning is something that loads but is worth a reviewer's look.
type Warning struct {
	Error
	// Kind is a stable word, such as unbound-policy.
	Kind string
}

// Load reads every *.yaml and *.yml file under the root of fsys and compiles
// the set. The error is a *LoadError that lists every fault; there is no
// partly loaded Set.
func Load(cfg Config, fsys fs.FS) (*Set, error) {
	return LoadFiles(cfg, fsys, nil)
}

// LoadFiles is Load for the named files of fsys.
func LoadFiles(cfg Config, fsys fs.FS, files []string) (*Set, error) {
	return nil, &LoadError{Errors: []Error{{Text: "no policy can be loaded yet"}}}
}

// Revision identifies the set: sha256: and the digest of its policies and
// bindings, the declared claims and the evaluator's version. Comments, layout
// and file names do not change it.
func (s *Set) Revision() string { return s.revision }

// Warnings are in the order of files and lines.
func (s *Set) Warnings() []Warning { return s.warnings }

// Decide judges one request by all enforced and warning bindings. It never
// returns nil and never panics for what a policy or a request contains: an
// error denies unless its policy says failurePolicy Ignore. ctx ends lazy work
// and loops early, which is an evaluation error.
func (s *Set) Decide(ctx context.Context, in *Input) *Decision {
	return &Decision{Status: 403, Reason: PolicyError, Message: "policy evaluation failed", Revision: s.revision}
}

// Shadow evaluates the bindings that only audit, on the same input, and adds
// their outcome to d: WouldDeny, Errors, Fired, ShadowAnnotations, Limits of
// mode Shadow (appended after the others, so indices stay valid) and Cost. It
// is meant to run once the response is under way and changes nothing that the
// client can see. It must be called on the Set that made d, at most once.
func (s *Set) Shadow(ctx context.Context, in *Input, d *Decision) {}
