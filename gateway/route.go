package gateway

import (
	"bytes"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/gateway/wire"
)

// route is one entry of the data listener's table. Everything later (policies,
// metrics, log, the path sent to a worker) uses these constants, never bytes
// of the client's target.
type route struct {
	template  string // the path, with {id} for a variable part
	operation string // request.operation of the policy format
	dialect   dialect
	allow     string // the Allow header
	get, post bool
	del       bool // takes DELETE
	open      bool // needs no credential
	handle    func(*Gateway, *fasthttp.RequestCtx, *exchange)

	// The rest is of routes whose body goes to a worker.
	op          wire.Operation
	codec       codec
	upstream    string // the path at the worker
	streams     bool   // the answer can be a stream
	generates   bool   // the answer holds output tokens
	billsTokens bool   // what it used is charged in tokens; else the request alone is
	// prepare runs once limits have been reserved and before a worker is picked. It
	// may change what is sent, or finish the request by a refusal; nil does nothing.
	prepare func(*exchange) *rejection
}

var (
	allRoutes = slices.Concat(openaiRoutes, storedRoutes, anthropicRoutes, metaRoutes)
	// routes is the exact part of the table, by path.
	routes = func() map[string]*route {
		m := make(map[string]*route)
		for _, r := range allRoutes {
			if !strings.Contains(r.template, "{") {
				m[r.template] = r
			}
		}
		return m
	}()
	modelPrefix = []byte("/v1/models/")
)

// findRoute matches the raw request target byte for byte up to its query, with
// no decoding, folding or clean-up: two views of one path are how a budget
// gets bypassed. It returns nil if there is no such route.
func findRoute(target []byte) (*route, dialect) {
	path := targetPath(target)
	if r := routes[string(path)]; r != nil {
		return r, r.dialect
	}
	if len(path) > len(modelPrefix) && bytes.HasPrefix(path, modelPrefix) {
		return routeModel, dialectOpenAI
	}
	if r := findStored(path); r != nil {
		return r, dialectOpenAI
	}
	if isAnthropicPath(path) {
		return nil, dialectAnthropic
	}
	return nil, dialectOpenAI
}

// targetPath is the raw path of a request target; of an absolute-form target
// the scheme, which has no case, and authority are passed over.
func targetPath(target []byte) []byte {
	for _, scheme := range []string{"http://", "https://"} {
		if len(target) > len(scheme) && bytes.EqualFold(target[:len(scheme)], []byte(scheme)) {
			rest := target[len(scheme):]
			i := bytes.IndexAny(rest, "/?")
			if i < 0 || rest[i] == '?' {
				return []byte("/")
			}
			target = rest[i:]
			break
		}
	}
	if i := bytes.IndexByte(target, '?'); i >= 0 {
		target = target[:i]
	}
	return target
}
