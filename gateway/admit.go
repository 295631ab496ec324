package gateway

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/gateway/coding"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy"
)

// maxRequestLine bounds the request line.
const maxRequestLine = 8 << 10

// checkRoute judges the framing, finds the route and judges the method. A nil
// route without a rejection means the request has been answered.
func (ex *exchange) checkRoute(ctx *fasthttp.RequestCtx) (*route, *rejection) {
	h := &ctx.Request.Header
	ex.method = methodName(h.Method())
	var rej *rejection
	if ex.announced, rej = framingFault(h); rej != nil {
		r, d := findRoute(h.RequestURI())
		ex.setDialect(&ctx.Response.Header, dialectOf(r, d, h))
		ex.g.parts.Meter.FramingRejected(rej.code)
		return nil, rej
	}
	target := h.RequestURI()
	if len(target) > maxRequestLine {
		return nil, uriTooLong()
	}
	if h.IsConnect() || len(target) == 0 || target[0] == '*' && !h.IsOptions() {
		rej := invalid("invalid_request", "", "the request target must be a path")
		rej.closeConn = true
		return nil, rej
	}
	if len(target) == 1 && target[0] == '*' {
		ex.answerOptions(ctx, "DELETE, GET, HEAD, OPTIONS, POST")
		return nil, nil
	}
	r, d := findRoute(target)
	ex.setDialect(&ctx.Response.Header, dialectOf(r, d, h))
	if r == nil {
		return nil, notFoundRoute()
	}
	ex.enterRoute(r)
	switch {
	case h.IsOptions():
		ex.g.cfg.CORS.preflight(ctx, r.allow)
		ex.answerOptions(ctx, r.allow)
		return nil, nil
	case r.get && (h.IsGet() || h.IsHead()), r.post && h.IsPost(), r.del && h.IsDelete():
		return r, nil
	}
	ctx.Response.Header.Set("Allow", r.allow)
	return nil, &rejection{
		status: fasthttp.StatusMethodNotAllowed, kind: "invalid_request_error", code: "method_not_allowed",
		message: "this route does not take that method; the Allow header lists those it takes",
	}
}

func (ex *exchange) answerOptions(ctx *fasthttp.RequestCtx, allow string) {
	ctx.Response.Header.Set("Allow", allow)
	ctx.Response.SetStatusCode(fasthttp.StatusNoContent)
	ex.finish(ending{outcome: tenancy.OutcomeCompleted, status: fasthttp.StatusNoContent})
}

// methodName is the method as a word of a fixed list, fit for a label.
func methodName(m []byte) string {
	for _, name := range [...]string{"POST", "GET", "HEAD", "OPTIONS", "DELETE", "PUT", "PATCH"} {
		if string(m) == name {
			return name
		}
	}
	return "other"
}

// checkMedia judges content type, coding and announced length before the body
// is read.
func (ex *exchange) checkMedia(ctx *fasthttp.RequestCtx) *rejection {
	var rej *rejection
	if ex.coding, rej = mediaFault(&ctx.Request.Header); rej != nil {
		return rej
	}
	if ex.announced > ex.g.cfg.BodyBytes {
		return ex.g.tooLarge()
	}
	return nil
}

// mediaFault returns a body's coding, or what is wrong with its type or coding.
func mediaFault(h *fasthttp.RequestHeader) (coding.Coding, *rejection) {
	media, params, _ := bytes.Cut(h.ContentType(), []byte(";"))
	if !bytes.EqualFold(bytes.TrimSpace(media), []byte("application/json")) || !utf8Charset(params) {
		return 0, badMedia("the body must be JSON in UTF-8: send Content-Type: application/json")
	}
	if repeated(h.RawHeaders(), "Content-Type") { // of which the library keeps the last
		return 0, badMedia("the request has more than one Content-Type: send it once")
	}
	lines := h.PeekAll("Content-Encoding")
	if len(lines) == 0 {
		return coding.Identity, nil
	}
	c, ok := coding.Parse(lines[0])
	if !ok || len(lines) > 1 {
		rej := badMedia("the body may be compressed once, with gzip or zstd: send it so, or without Content-Encoding")
		rej.coding = true
		return 0, rej
	}
	return c, nil
}

func badMedia(message string) *rejection {
	return &rejection{
		status: fasthttp.StatusUnsupportedMediaType, kind: "invalid_request_error", code: "unsupported_media_type",
		message: message, outcome: tenancy.OutcomeRejected,
	}
}

// repeated reports whether header lines hold a name more than once.
func repeated(raw []byte, name string) bool {
	n := 0
	for line := range bytes.Lines(raw) {
		if len(line) > len(name) && line[len(name)] == ':' && bytes.EqualFold(line[:len(name)], []byte(name)) {
			n++
		}
	}
	return n > 1
}

// utf8Charset reports whether media type parameters leave the text as UTF-8.
func utf8Charset(params []byte) bool {
	for p := range bytes.SplitSeq(params, []byte(";")) {
		name, value, _ := bytes.Cut(bytes.TrimSpace(p), []byte("="))
		if bytes.EqualFold(name, []byte("charset")) && !bytes.EqualFold(bytes.Trim(value, `"`), []byte("utf-8")) {
			return false
		}
	}
	return true
}

// scan looks through the body once and finds the model.
func (ex *exchange) scan(*fasthttp.RequestCtx) *rejection {
	ex.phase = tenancy.PhaseQueue
	ex.req = acquireRequest()
	ex.codec, ex.upstream = ex.route.codec, ex.route.upstream
	if err := ex.codec.Scan(ex.req, ex.route.op, ex.body); err != nil {
		var e *wire.Error
		if !errors.As(err, &e) {
			return internal(err)
		}
		rej := invalid(e.Code, e.Param, e.Message)
		rej.status = e.Status
		return rej
	}
	ex.req.Stream = ex.req.Stream && ex.route.streams
	if rej := ex.checkStored(); rej != nil {
		return rej
	}
	ex.requested = string(ex.req.Model)
	ex.model = ex.st.Models.find(ex.requested, ex.principal)
	if ex.model == nil {
		ex.requested = ex.st.Models.onRecord(ex.requested)
		return modelNotFound()
	}
	return ex.checkEndpoint()
}

// decide puts the request to the policies.
func (ex *exchange) decide(ctx *fasthttp.RequestCtx) *rejection {
	if rej := ex.mayDecide(); rej != nil {
		return rej
	}
	labels, rej := ex.declaredLabels(&ctx.Request.Header)
	if rej != nil {
		return rej
	}
	ex.fillInput(ctx, labels)
	if err := ex.input.Validate(); err != nil {
		rej := invalid("invalid_request", "", err.Error())
		var ie *policy.InputError
		if errors.As(err, &ie) && ie.Identity {
			rej.status, rej.kind, rej.code, rej.outcome = fasthttp.StatusForbidden, "permission_error", "policy_denied", tenancy.OutcomeDenied
		}
		return rej
	}
	ex.decision = ex.st.Policies.Decide(ex.ctx, &ex.input)
	ex.decisionID = newDecisionID(ex.start)
	if !ex.decision.Allow {
		ex.verdictStands()
		return ex.denied()
	}
	return nil
}

// fillInput sets what policies see of the request.
func (ex *exchange) fillInput(ctx *fasthttp.RequestCtx, labels []string) {
	p, t := ex.principal, ex.principal.Tenant
	in := &ex.input
	in.Now, in.DeclaredLabels, in.Lazy = ex.start, labels, (*lazyInput)(ex)
	in.Principal = policy.PrincipalInput{
		Kind: p.Kind, ID: p.ID, Subject: p.Subject, Issuer: p.Issuer,
		Groups: p.Groups, Scopes: p.Scopes, Claims: p.Claims,
	}
	if p.KeyID != "" {
		in.Principal.KeyID = &p.KeyID
	}
	if p.SPIFFEID != "" {
		in.Principal.SPIFFEID = &p.SPIFFEID
	}
	in.Tenant = policy.TenantInput{ID: t.ID, Team: t.Team, Tier: t.Tier, Labels: t.Labels}
	r := &in.Request
	r.Operation, r.Dialect, r.Method, r.Path = ex.route.operation, ex.dialect.String(), ex.method, ex.route.template
	r.Headers, r.SourceIP, r.N = ex.st.policyHeaders(&ctx.Request.Header), ex.g.sourceIP(ctx), 1
	if ex.model != nil {
		r.Model, r.ModelFamily, r.RequestedModel = ex.model.Name, ex.model.Family, ex.requested
	}
	q := ex.req
	if q == nil {
		return
	}
	r.Stream, r.N, r.MaxTokens, r.LearnedOutput = q.Stream, q.Choices(), q.MaxTokens, ex.expectOutput()
	r.Prompts = int64(q.PromptCount)
	r.InputTokensEstimate = int64(ex.estimate())
	r.BodyBytes, r.MessageCount, r.ImageCount = int64(len(ex.body)), int64(q.MessageCount), int64(q.ImageCount)
	r.Modalities = q.Modalities.AppendNames(nil)
	for _, name := range q.ToolNames {
		r.ToolNames = append(r.ToolNames, string(name))
	}
	if q.User != nil {
		user := string(q.User)
		r.User = &user
	}
	if s := ctx.Request.Header.Peek("X-Session-Id"); len(s) > 0 {
		session := string(s)
		r.SessionID = &session
	}
}

// estimate is the prompts' length in tokens where nobody has counted it, by the
// configured ratio.
func (ex *exchange) estimate() int {
	return ex.model.Estimate(ex.req, ex.model.BytesPerToken)
}

// inputTokens is the exact count of the prompts' tokens if there is one by now,
// else the estimate by the configured ratio: what limits and policies are told
// must not change with what other requests have taught.
func (ex *exchange) inputTokens() int {
	if ex.tokens.Exact {
		return ex.tokens.Count
	}
	return ex.estimate()
}

// bytesInToken is more than texts that mean anything have in a token of any
// vocabulary, on average.
const bytesInToken = 16

// worthTokenising reports whether a body is to be tokenised. A text that is far too
// long for the model is not worth it: it can take minutes and gigabytes, while
// requests of other tenants wait for their turn.
func worthTokenising(m *Model, req *wire.Request) bool {
	return m.ContextLength <= 0 || req.TextBytes/bytesInToken <= m.ContextLength
}

// tokenFormer is a codec of which some bodies need another form before their tokens
// can be found. It is false where nobody here knows the prompt that the engine makes.
type tokenFormer interface {
	TokenForm(body []byte, req *wire.Request) (form []byte, ok bool)
}

// hasTokenForm reports whether the bodies of an operation have another form to find their
// tokens in.
func hasTokenForm(op wire.Operation) bool {
	return op == wire.Responses || op == wire.Embeddings || op == wire.Messages || op == wire.CountTokens
}

// takePromptBody sets the body that the prompts' tokens are found in, of which a copy may
// have to be made. Where there is no memory for that the tokens are estimated.
func (ex *exchange) takePromptBody() {
	if ex.promptBody != nil {
		return // the second attempt
	}
	room := 0
	if hasTokenForm(ex.route.op) {
		// The form is as long as the body, and grows by doubling where it is longer.
		room = 2*len(ex.body) + translationRoom
		if ex.takeMemory(room) != nil {
			return
		}
	}
	if ex.promptBody = promptBody(ex.route.codec, ex.req, ex.body); room > 0 {
		ex.returnMemory(max(0, room-cap(ex.promptBody)))
	}
}

// promptBody is the body that the prompts' tokens are found in; nil if there is none.
func promptBody(c codec, req *wire.Request, body []byte) []byte {
	if req.ChatForm != nil {
		return req.ChatForm
	}
	if f, ok := c.(tokenFormer); ok {
		form, known := f.TokenForm(body, req)
		if !known {
			return nil
		}
		if form != nil {
			return form
		}
	}
	return body
}

// tokenise finds the prompts' token ids in this process, once, and once more if
// the first attempt had too little time.
func (ex *exchange) tokenise(ctx context.Context) {
	if ex.tokensTried && !ex.tokens.Late {
		return
	}
	ex.tokensTried = true
	if !worthTokenising(ex.model, ex.req) {
		return
	}
	if ex.takePromptBody(); ex.promptBody != nil {
		ex.tokens = ex.g.parts.Tokenizer.Local(ctx, ex.tokens.IDs[:0], ex.model, ex.req, ex.promptBody)
	}
}

// tokeniseIn completes what tokenise has found, now that the pools are known to
// which the prompt may go.
func (ex *exchange) tokeniseIn(ctx context.Context, pools []string) {
	ex.tokenise(ctx)
	t := ex.g.parts.Tokenizer
	switch {
	case ex.tokens.AskWorker:
		ex.tokens = t.Remote(ctx, ex.tokens.IDs[:0], ex.model, pools, ex.req, ex.promptBody)
	case ex.tokens.Local:
		t.Sample(ex.model, pools, ex.req, ex.promptBody)
	}
}

// lazyInput computes on first use what is too dear to compute for every
// request.
type lazyInput exchange

// InputTokens implements policy.Lazy.
func (l *lazyInput) InputTokens(ctx context.Context) (int64, bool, error) {
	ex := (*exchange)(l)
	if ex.req == nil {
		return 0, true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, ex.g.cfg.TokenBudget)
	defer cancel()
	ex.tokenise(ctx)
	return int64(ex.inputTokens()), ex.tokens.Exact, nil
}

// Content implements policy.Lazy.
func (l *lazyInput) Content(ctx context.Context) (policy.Content, error) {
	ex := (*exchange)(l)
	if ex.req == nil {
		return policy.Content{ScanStatus: "complete"}, nil
	}
	return ex.st.classify(ctx, ex.g.parts.Tokenizer, ex.route, ex.model, ex.body), nil
}

// classify scans a body as the client sent it.
func (st *State) classify(ctx context.Context, t Tokenizer, r *route, m *Model, body []byte) policy.Content {
	if st.Classifier == nil {
		return policy.Content{ScanStatus: "unavailable"}
	}
	return st.Classifier.Classify(ctx, &ClassifyRequest{
		Operation: r.operation, Body: body,
		Decode: func(ids []uint32) (string, bool) {
			// The worker refuses or cuts what the model has no room for. Such a scan is
			// partial, rather than as large as a hundred bytes for each id.
			if m.ContextLength > 0 && len(ids) > m.ContextLength {
				return "", false
			}
			return t.Decode(m, ids)
		},
	})
}

// denied turns a decision's denial into an answer.
func (ex *exchange) denied() *rejection {
	d := ex.decision
	rej := &rejection{
		status: d.Status, kind: "permission_error", code: "policy_denied", message: d.Message, outcome: tenancy.OutcomeDenied,
	}
	switch d.Reason {
	case policy.Invalid:
		rej.kind, rej.code = "invalid_request_error", "policy_invalid"
	case policy.ExceedsLimit:
		rej.kind, rej.code = "invalid_request_error", "request_exceeds_limit"
	case policy.RateLimited:
		rej.kind, rej.code, rej.outcome = ex.refusedUnit(), "rate_limit_exceeded", tenancy.OutcomeDenied
		rej.retryAfter = max(d.RetryAfter, time.Second)
	case policy.BudgetExhausted:
		rej.kind, rej.code, rej.outcome = "insufficient_quota", "insufficient_quota", tenancy.OutcomeDenied
		rej.retryAfter, rej.noRetry = d.RetryAfter, true
	case policy.LimitStoreUnavailable:
		rej.kind, rej.code, rej.outcome = "server_error", "unavailable", tenancy.OutcomeRejected
		rej.retryAfter = 5 * time.Second
	}
	return rej
}

// refusedUnit is the dimension of the limit that refused: OpenAI's error type.
func (ex *exchange) refusedUnit() string {
	for _, i := range ex.refused {
		l := &ex.limits[i]
		if l.Rule == ex.decision.Rule && inTokens(l.Unit) {
			return "tokens"
		}
	}
	return "requests"
}

// admitMetadata runs policies and limits for a route that reaches no worker.
func (ex *exchange) admitMetadata(ctx *fasthttp.RequestCtx) *rejection {
	ex.phase = tenancy.PhaseQueue
	if rej := ex.decide(ctx); rej != nil {
		return rej
	}
	return ex.reserve(ctx)
}

// setSluiceHeaders adds the headers that a tenant has opted into, and warnings.
func (ex *exchange) setSluiceHeaders(ctx *fasthttp.RequestCtx) {
	h := &ctx.Response.Header
	d := ex.decision
	if d == nil {
		return
	}
	for _, w := range d.WarningHeaders() {
		h.Add("Warning", w)
	}
	expose := ex.principal.Tenant.Expose
	if expose.Policy {
		value := d.Revision
		if !d.Allow && d.Rule != "" {
			value += " " + d.Rule
		}
		h.Set("x-sluice-policy", strings.TrimSpace(value))
	}
	if expose.Worker && ex.res != nil {
		h.Set("x-sluice-worker", ex.res.Worker().Name)
	}
	if expose.Overhead && ex.overhead > 0 {
		h.Set("x-sluice-overhead-us", itoa(ex.overhead.Microseconds()))
	}
}
