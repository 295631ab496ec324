package gateway

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

// CORS says for which web pages a browser may call. The zero value is off: no answer
// has anything of it then.
type CORS struct {
	// Origins are the pages' origins, as browsers write them: https://app.example or
	// http://localhost:3000. There is no pattern and no "*".
	Origins []string
	// MaxAge is how long a browser may remember what a preflight has said.
	MaxAge time.Duration
}

// exposedHeaders are those of answers that pages may read, beside the few that they
// always may.
const exposedHeaders = "request-id, retry-after, warning, x-request-id, x-should-retry, " +
	"x-sluice-decision-id, x-sluice-overhead-us, x-sluice-policy, x-sluice-worker, " +
	"x-ratelimit-limit-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-requests, x-ratelimit-remaining-tokens, " +
	"x-ratelimit-reset-requests, x-ratelimit-reset-tokens, " +
	"anthropic-ratelimit-requests-limit, anthropic-ratelimit-requests-remaining, anthropic-ratelimit-requests-reset, " +
	"anthropic-ratelimit-tokens-limit, anthropic-ratelimit-tokens-remaining, anthropic-ratelimit-tokens-reset, " +
	"anthropic-ratelimit-input-tokens-limit, anthropic-ratelimit-input-tokens-remaining, anthropic-ratelimit-input-tokens-reset, " +
	"anthropic-ratelimit-output-tokens-limit, anthropic-ratelimit-output-tokens-remaining, anthropic-ratelimit-output-tokens-reset"

// maxPreflightHeaders bounds the list of headers that a preflight asks for.
const maxPreflightHeaders = 2 << 10

// allow says in an answer, whatever it is, whether the page that asked may read it.
// Credentials that browsers add by themselves are never asked for, since a page of
// somebody else could use those.
func (c *CORS) allow(ctx *fasthttp.RequestCtx) {
	if len(c.Origins) == 0 {
		return
	}
	h := &ctx.Response.Header
	h.Set("Vary", "Origin")
	if origin := c.origin(&ctx.Request.Header); origin != "" {
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Expose-Headers", exposedHeaders)
	}
}

// origin is the origin of a request if it is allowed, or empty.
func (c *CORS) origin(h *fasthttp.RequestHeader) string {
	if len(c.Origins) == 0 {
		return ""
	}
	values := h.PeekAll("Origin")
	if len(values) != 1 {
		return ""
	}
	if i := slices.Index(c.Origins, string(values[0])); i >= 0 {
		return c.Origins[i]
	}
	return ""
}

// preflight adds to the answer of OPTIONS what a browser wants to know before it
// sends a request for a page. It may name any header: what one means, and which
// credential counts, is judged with the request.
func (c *CORS) preflight(ctx *fasthttp.RequestCtx, allow string) {
	req := &ctx.Request.Header
	if c.origin(req) == "" || len(req.Peek("Access-Control-Request-Method")) == 0 {
		return
	}
	h := &ctx.Response.Header
	h.Set("Vary", "Origin, Access-Control-Request-Method, Access-Control-Request-Headers")
	h.Set("Access-Control-Allow-Methods", allow)
	if names := headerNames(bytes.Join(req.PeekAll("Access-Control-Request-Headers"), []byte(","))); names != "" {
		h.Set("Access-Control-Allow-Headers", names)
	}
	if seconds := int64(c.MaxAge / time.Second); seconds > 0 {
		h.Set("Access-Control-Max-Age", strconv.FormatInt(seconds, 10))
	}
}

// headerNames is a list of headers' names, empty if it holds anything else.
func headerNames(list []byte) string {
	if len(list) > maxPreflightHeaders {
		return ""
	}
	var names []string
	for name := range bytes.SplitSeq(list, []byte(",")) {
		name = bytes.Trim(name, " \t")
		if len(name) == 0 {
			continue
		}
		if bytes.ContainsFunc(name, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
		}) {
			return ""
		}
		names = append(names, string(name))
	}
	return strings.Join(names, ", ")
}
