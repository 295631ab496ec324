package policy

import (
	"maps"
	"time"
)

// RecordOptions are what a decision record needs from the caller.
type RecordOptions struct {
	DecisionID, RequestID, Gateway string
	// Time at which the verdict stood.
	Time time.Time
	// Waited is the time in the queue, of settlements.
	Waited time.Duration
	// Hash replaces request.user, request.session_id and request.source_ip by
	// keyed hashes that begin with "hmac:". Nil leaves nothing but that word, so
	// that a reader can tell a value that was withheld from none.
	Hash func(value string) string
}

// Record is the decision log's line for a verdict (section 10 of the format).
// It holds no prompt, completion, tool argument or credential; lazy variables
// are in it only if they were resolved. The schema grows by fields only.
type Record struct {
	Type        string            `json:"type"`
	DecisionID  string            `json:"decision_id"`
	RequestID   string            `json:"request_id,omitempty"`
	Timestamp   time.Time         `json:"timestamp"`
	Revision    string            `json:"revision"`
	Gateway     string            `json:"gateway,omitempty"`
	Input       RecordInput       `json:"input"`
	Verdict     string            `json:"verdict"`
	Status      int               `json:"status,omitempty"`
	Reason      Reason            `json:"reason,omitempty"`
	Rule        string            `json:"rule,omitempty"`
	Message     string            `json:"message,omitempty"`
	Denials     []RecordRule      `json:"denials"`
	Warnings    []RecordRule      `json:"warnings"`
	WouldDeny   []RecordRule      `json:"wouldDeny"`
	Errors      []RecordRule      `json:"errors"`
	Effects     []RecordEffect    `json:"effects"`
	Effective   RecordEffective   `json:"effective"`
	Limits      []RecordLimit     `json:"limits"`
	Annotations map[string]string `json:"annotations"`
	Cost        RecordCost        `json:"cost"`
	Lazy        RecordLazy        `json:"lazy"`
	DurationUS  int64             `json:"duration_us"`

	// Of a record that was read: the variables that it names, or nil for one that
	// was made here and names all; and the paths inside input that were masked or
	// erased, with dots.
	given  map[string]bool
	hidden []string
}

// RecordRule names a rule as one binding applied it. Kind is given for errors.
type RecordRule struct {
	Rule    string    `json:"rule"`
	Binding string    `json:"binding"`
	Kind    ErrorKind `json:"kind,omitempty"`
}

// RecordEffect is a fired effect; one that is not enforced was only computed.
type RecordEffect struct {
	Rule     string `json:"rule"`
	Binding  string `json:"binding"`
	Enforced bool   `json:"enforced"`
}

// RecordEffective is the combined outcome.
type RecordEffective struct {
	Pools          []string `json:"pools"`
	QoSClass       string   `json:"qos_class"`
	MaxTokens      *int64   `json:"max_tokens,omitempty"`
	N              int64    `json:"n"`
	CacheIsolation string   `json:"cache_isolation"`
	Labels         []string `json:"labels"`
}

// RecordLimit is a reserved limit. Its key is left out, since it can hold what
// the client has written. Warned is the highest of the limit's warnAt that is
// reached, in per cent. Charged and Available are known at settlement.
type RecordLimit struct {
	Rule      string `json:"rule"`
	Binding   string `json:"binding"`
	Enforced  bool   `json:"enforced"`
	Limit     int64  `json:"limit"`
	Reserved  int64  `json:"reserved"`
	Warned    int64  `json:"warned,omitempty"`
	Charged   *int64 `json:"charged,omitempty"`
	Available *int64 `json:"available,omitempty"`
}

// RecordCost is the CEL work.
type RecordCost struct {
	Units       int64 `json:"units"`
	ShadowUnits int64 `json:"shadow_units"`
	Expressions int   `json:"expressions"`
}

// RecordLazy is the lazy work, in microseconds.
type RecordLazy struct {
	ScanUS     int64 `json:"scan_us"`
	TokenizeUS int64 `json:"tokenize_us"`
}

// RecordInput holds the variables of section 2.
type RecordInput struct {
	Now       time.Time       `json:"now"`
	Request   RecordRequest   `json:"request"`
	Principal RecordPrincipal `json:"principal"`
	Tenant    RecordTenant    `json:"tenant"`
	Content   RecordContent   `json:"content"`
}

// RecordRequest holds request.*.
type RecordRequest struct {
	Operation           string            `json:"operation"`
	Dialect             string            `json:"dialect"`
	Method              string            `json:"method"`
	Path                string            `json:"path"`
	Model               string            `json:"model"`
	RequestedModel      string            `json:"requested_model"`
	ModelFamily         string            `json:"model_family"`
	Stream              bool              `json:"stream"`
	N                   int64             `json:"n"`
	Prompts             int64             `json:"prompts,omitempty"`
	MaxTokens           *int64            `json:"max_tokens,omitempty"`
	LearnedOutput       *int64            `json:"learned_output,omitempty"`
	InputTokensEstimate int64             `json:"input_tokens_estimate"`
	InputTokens         *int64            `json:"input_tokens,omitempty"`
	InputTokensExact    *bool             `json:"input_tokens_exact,omitempty"`
	BodyBytes           int64             `json:"body_bytes"`
	MessageCount        int64             `json:"message_count"`
	ImageCount          int64             `json:"image_count"`
	ToolNames           []string          `json:"tool_names"`
	Modalities          []string          `json:"modalities"`
	SessionID           string            `json:"session_id,omitempty"`
	User                string            `json:"user,omitempty"`
	Headers             map[string]string `json:"headers"`
	SourceIP            string            `json:"source_ip,omitempty"`
}

// RecordPrincipal holds principal.*.
type RecordPrincipal struct {
	Kind     string         `json:"kind"`
	ID       string         `json:"id"`
	Subject  string         `json:"subject"`
	Issuer   string         `json:"issuer"`
	Groups   []string       `json:"groups"`
	Scopes   []string       `json:"scopes"`
	KeyID    *string        `json:"key_id,omitempty"`
	SPIFFEID *string        `json:"spiffe_id,omitempty"`
	Claims   map[string]any `json:"claims"`
}

// RecordTenant holds tenant.*.
type RecordTenant struct {
	ID     string            `json:"id"`
	Team   string            `json:"team"`
	Tier   string            `json:"tier"`
	Labels map[string]string `json:"labels"`
}

// RecordContent holds content.*; all but the declared labels only after a scan.
type RecordContent struct {
	DeclaredLabels []string         `json:"declared_labels"`
	Labels         []string         `json:"labels,omitempty"`
	Findings       map[string]int64 `json:"findings,omitempty"`
	Detectors      []string         `json:"detectors,omitempty"`
	ScanStatus     string           `json:"scan_status,omitempty"`
}

// Record makes the line that is written when the verdict stands. It shares
// slices and maps with the decision and its input.
func (d *Decision) Record(in *Input, o RecordOptions) *Record {
	r := &Record{
		Type: "decision", DecisionID: o.DecisionID, RequestID: o.RequestID, Timestamp: o.Time.UTC(), Revision: d.Revision, Gateway: o.Gateway,
		Input:   d.recordInput(in, o.Hash),
		Verdict: "allow", Status: d.Status, Reason: d.Reason, Rule: d.Rule, Message: d.Message,
		Denials: recordRules(d.Denials), Warnings: recordRules(d.Warnings), WouldDeny: recordRules(d.WouldDeny), Errors: recordRules(d.Errors),
		Effects: recordEffects(d.Fired), Limits: d.recordLimits(nil, nil), Annotations: notNilMap(d.Annotations),
		Effective: RecordEffective{
			Pools: notNil(d.Pools), QoSClass: d.Class, MaxTokens: d.MaxTokens, N: d.N, CacheIsolation: d.CacheIsolation, Labels: notNil(d.Labels),
		},
		Cost:       RecordCost{Units: d.Cost.Units, ShadowUnits: d.Cost.ShadowUnits, Expressions: d.Cost.Expressions},
		Lazy:       RecordLazy{ScanUS: d.Cost.Scan.Microseconds(), TokenizeUS: d.Cost.Tokenize.Microseconds()},
		DurationUS: d.Cost.Duration.Microseconds(),
	}
	if !d.Allow {
		r.Verdict = "deny"
	}
	return r
}

func (d *Decision) recordInput(in *Input, hash func(string) string) RecordInput {
	if hash == nil {
		hash = func(string) string { return hashedPrefix }
	}
	hashed := func(s *string) string {
		if s == nil || *s == "" {
			return ""
		}
		return hash(*s)
	}
	q, p, t := &in.Request, &in.Principal, &in.Tenant
	out := RecordInput{
		Now: in.Now.UTC(),
		Request: RecordRequest{
			Operation: q.Operation, Dialect: q.Dialect, Method: q.Method, Path: q.Path,
			Model: q.Model, RequestedModel: q.RequestedModel, ModelFamily: q.ModelFamily, Stream: q.Stream, N: q.N, Prompts: q.Prompts, MaxTokens: q.MaxTokens,
			LearnedOutput: q.LearnedOutput, InputTokensEstimate: q.InputTokensEstimate, BodyBytes: q.BodyBytes, MessageCount: q.MessageCount, ImageCount: q.ImageCount,
			ToolNames: notNil(q.ToolNames), Modalities: notNil(q.Modalities), Headers: notNilMap(q.Headers),
			SessionID: hashed(q.SessionID), User: hashed(q.User), SourceIP: hashed(&q.SourceIP),
		},
		Principal: RecordPrincipal{
			Kind: p.Kind, ID: p.ID, Subject: p.Subject, Issuer: p.Issuer, Groups: notNil(p.Groups), Scopes: notNil(p.Scopes),
			KeyID: p.KeyID, SPIFFEID: p.SPIFFEID, Claims: map[string]any{},
		},
		Tenant:  RecordTenant{ID: t.ID, Team: t.Team, Tier: t.Tier, Labels: notNilMap(t.Labels)},
		Content: RecordContent{DeclaredLabels: notNil(in.DeclaredLabels)},
	}
	if d.e != nil {
		d.recordLazy(in, &out)
	}
	return out
}

// recordLazy adds what was resolved, and the claims that are declared.
func (d *Decision) recordLazy(in *Input, out *RecordInput) {
	for name := range d.e.set.cfg.Claims {
		out.Principal.Claims[name] = in.Principal.Claims[name] // null: declared, and not in the credential
	}
	if t := &d.e.tokens; t.done && t.err == nil {
		out.Request.InputTokens, out.Request.InputTokensExact = &t.n, &t.exact
	}
	if c := &d.e.scanned; c.done && c.err == nil {
		out.Content.Labels, out.Content.Findings = c.labels, c.content.Findings
		out.Content.Detectors, out.Content.ScanStatus = c.content.Detectors, c.content.ScanStatus
	}
}

// ShadowRecord is the line for shadow outcomes, which finish after the verdict.
type ShadowRecord struct {
	Type        string            `json:"type"`
	DecisionID  string            `json:"decision_id"`
	Timestamp   time.Time         `json:"timestamp"`
	WouldDeny   []RecordRule      `json:"wouldDeny"`
	Errors      []RecordRule      `json:"errors"`
	Effects     []RecordEffect    `json:"effects"`
	Annotations map[string]string `json:"annotations"`
	ShadowUnits int64             `json:"shadow_units"`
	// LeftOut: the rehearsal found no room, and what it would have said is not known.
	LeftOut bool `json:"left_out,omitempty"`
}

// SettlementRecord is the line for the end of a response.
type SettlementRecord struct {
	Type       string        `json:"type"`
	DecisionID string        `json:"decision_id"`
	Timestamp  time.Time     `json:"timestamp"`
	Outcome    string        `json:"outcome"`
	Pool       string        `json:"pool,omitempty"`
	QueueMS    int64         `json:"queue_ms,omitempty"`
	Usage      RecordUsage   `json:"usage"`
	Limits     []RecordLimit `json:"limits"`
}

// RecordUsage holds usage.* without the cost.
type RecordUsage struct {
	InputTokens       int64 `json:"input_tokens"`
	CachedInputTokens int64 `json:"cached_input_tokens"`
	OutputTokens      int64 `json:"output_tokens"`
	ReasoningTokens   int64 `json:"reasoning_tokens"`
	Complete          bool  `json:"complete"`
}

// Settlement makes the line that is written when the response has ended.
// outcome is completed, client_aborted, upstream_error or not_sent. charged and
// available are parallel to Limits; available may be nil.
func (d *Decision) Settlement(o RecordOptions, outcome, pool string, u Usage, charged, available []int64) *SettlementRecord {
	return &SettlementRecord{
		Type: "settlement", DecisionID: o.DecisionID, Timestamp: o.Time.UTC(), Outcome: outcome, Pool: pool,
		QueueMS: o.Waited.Milliseconds(), Usage: RecordUsage{u.InputTokens, u.CachedInputTokens, u.OutputTokens, u.ReasoningTokens, u.Complete},
		Limits: d.recordLimits(charged, available),
	}
}

func (d *Decision) recordLimits(charged, available []int64) []RecordLimit {
	out := make([]RecordLimit, len(d.Limits))
	for i := range d.Limits {
		l := &d.Limits[i]
		out[i] = RecordLimit{Rule: l.Rule, Binding: l.Binding, Enforced: l.Mode == Enforced, Limit: l.Limit, Reserved: l.Estimate, Warned: l.Warned}
		if i < len(charged) {
			out[i].Charged = &charged[i]
		}
		if i < len(available) {
			out[i].Available = &available[i]
		}
	}
	return out
}

func recordRules(refs []RuleRef) []RecordRule {
	out := make([]RecordRule, len(refs))
	for i, r := range refs {
		out[i] = RecordRule{Rule: r.Rule, Binding: r.Binding, Kind: r.ErrorKind}
	}
	return out
}

func recordEffects(refs []RuleRef) []RecordEffect {
	out := make([]RecordEffect, len(refs))
	for i, r := range refs {
		out[i] = RecordEffect{Rule: r.Rule, Binding: r.Binding, Enforced: r.Mode == Enforced}
	}
	return out
}

func notNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

func notNilMap(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return maps.Clone(m)
}
