package policy

import (
	"context"
	"time"
)

// Input is one request as expressions see it (section 2 of the format). The
// caller owns it and must leave it and everything it refers to unchanged until
// [Decision.Charges] has been called or the decision is dropped: charges and
// shadow bindings read it again.
type Input struct {
	Request   RequestInput
	Principal PrincipalInput
	Tenant    TenantInput
	// Now is the request's one instant; expressions see it in UTC.
	Now time.Time
	// DeclaredLabels are the content labels known without a scan.
	DeclaredLabels []string
	// Lazy computes what is too dear to compute for each request. Nil makes
	// every read of a lazy variable an evaluation error.
	Lazy Lazy
	// Absent names variables of section 2 whose value is not known; reading one
	// is an evaluation error. For tests and records that hold a part of a
	// request; nil in a gateway.
	Absent map[string]bool
	// Observer is told of reads and outcomes. For tests and explanations; nil in
	// a gateway.
	Observer Observer
}

// RequestInput holds the variables request.*.
type RequestInput struct {
	Operation, Dialect, Method, Path   string
	Model, RequestedModel, ModelFamily string
	Stream                             bool
	// N is the larger of n and best_of, 1 when neither was given.
	N int64
	// Prompts is how many prompts are answered, each with N choices of their own;
	// 0 counts as 1. No expression sees it: what a request may generate at most
	// is multiplied by it.
	Prompts int64
	// MaxTokens is nil when the client gave none.
	MaxTokens *int64
	// LearnedOutput is how many tokens an answer to such a request tends to have,
	// nil where that is not known. No expression sees it: it stands in for the cap
	// where output is estimated and the client has given no MaxTokens, and never
	// raises it.
	LearnedOutput                                            *int64
	InputTokensEstimate, BodyBytes, MessageCount, ImageCount int64
	ToolNames, Modalities                                    []string
	SessionID, User                                          *string
	// Headers has lower-case names, of the configured allowlist only.
	Headers  map[string]string
	SourceIP string
}

// PrincipalInput holds the variables principal.*.
type PrincipalInput struct {
	Kind, ID, Subject, Issuer string
	Groups, Scopes            []string
	KeyID, SPIFFEID           *string
	// Claims holds the values of declared claims; others are ignored. A value of
	// another type than the declared one is an evaluation error when read.
	Claims map[string]any
}

// TenantInput holds the variables tenant.*.
type TenantInput struct {
	ID, Team, Tier string
	Labels         map[string]string
}

// Lazy computes the lazy variables of one request. Each method is called at
// most once for a request, from the goroutine that decides; the result is kept.
// The evaluation clock stands still during a call, so an implementation brings
// its own time budget.
type Lazy interface {
	// InputTokens counts the prompt. exact is false for an estimate.
	InputTokens(ctx context.Context) (n int64, exact bool, err error)
	// Content scans the body.
	Content(ctx context.Context) (Content, error)
}

// Content is the outcome of a content scan.
type Content struct {
	// Labels found; declared ones are added by the reader.
	Labels []string
	// Findings are hits for each label.
	Findings map[string]int64
	// Detectors that ran.
	Detectors []string
	// ScanStatus is complete, partial, timeout or unavailable.
	ScanStatus string
}

// Usage is what one response consumed, whatever the dialect.
type Usage struct {
	// InputTokens includes CachedInputTokens; OutputTokens includes ReasoningTokens.
	InputTokens, CachedInputTokens, OutputTokens, ReasoningTokens int64
	// Cost in micro-units, by the price table.
	Cost int64
	// Complete is false where the counts are the gateway's own.
	Complete bool
}

// InputError says that a request exceeds a size maximum of section 2.
type InputError struct {
	// Variable is the full name, such as request.headers.
	Variable string
	// Identity says that the value comes from the credential, so that the
	// refusal is a 403 and not a 400.
	Identity bool
	// Problem names the maximum, never the value.
	Problem string
}

// Error names the variable and its maximum, never its value.
func (e *InputError) Error() string { return e.Variable + ": " + e.Problem }
