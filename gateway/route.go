package gateway

import (
	"bytes"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/gateway/openai"
)

// dialect is whose error bodies and header names a client expects. It follows
// from the path called and from nothing else.
type dialect uint8

const (
	dialectOpenAI dialect = iota
	dialectAnthropic
)

func (d dialect) String() string {
	if d == dialectAnthropic {
		return "anthropic"
	}
	return "openai"
}

// route is one entry of the data listener's table. Everything later (policies,
// metrics, log, the path sent to a worker) uses these constants, never bytes
// of the client's target.
type route struct {
	template  string // the path, with {id} for a variable part
	operation string // request.operation of the policy format
	allow     string // the Allow header
	get, post bool
	op        openai.Operation
	open      bool // needs no credential
	handle    func(*Gateway, *fasthttp.RequestCtx, *exchange)
}

var (
	routeChat = &route{
		template: "/v1/chat/completions", operation: "chat", allow: "OPTIONS, POST", post: true,
		op: openai.Chat, handle: (*Gateway).infer,
	}
	routeCompletions = &route{
		template: "/v1/completions", operation: "completion", allow: "OPTIONS, POST", post: true,
		op: openai.Completion, handle: (*Gateway).infer,
	}
	routeModels = &route{
		template: "/v1/models", operation: "models", allow: "GET, HEAD, OPTIONS", get: true,
		handle: (*Gateway).listModels,
	}
	routeModel = &route{
		template: "/v1/models/{id}", operation: "models", allow: "GET, HEAD, OPTIONS", get: true,
		handle: (*Gateway).getModel,
	}
	routeHealthz = &route{
		template: "/healthz", allow: "GET, HEAD, OPTIONS", get: true, open: true,
		handle: (*Gateway).healthz,
	}
	routeReadyz = &route{
		template: "/readyz", allow: "GET, HEAD, OPTIONS", get: true, open: true,
		handle: (*Gateway).readyz,
	}
	// routeNone stands in metrics and logs for a path that is no route.
	routeNone = &route{template: "none"}

	allRoutes = []*route{routeChat, routeCompletions, routeModels, routeModel, routeHealthz, routeReadyz}
	// routes is the exact part of the table, by path.
	routes = func() map[string]*route {
		m := make(map[string]*route)
		for _, r := range allRoutes {
			if r != routeModel {
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
		return r, dialectOpenAI
	}
	if len(path) > len(modelPrefix) && bytes.HasPrefix(path, modelPrefix) {
		return routeModel, dialectOpenAI
	}
	if bytes.Equal(path, []byte("/v1/messages")) || bytes.HasPrefix(path, []byte("/v1/messages/")) {
		return nil, dialectAnthropic
	}
	return nil, dialectOpenAI
}

// targetPath is the raw path of a request target; of an absolute-form target
// the scheme and authority are passed over.
func targetPath(target []byte) []byte {
	for _, scheme := range []string{"http://", "https://"} {
		if len(target) > len(scheme) && string(target[:len(scheme)]) == scheme {
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
