package gateway

import (
	"bytes"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/gateway/anthropic"
	"github.com/sluicegate/sluice/gateway/anthropic/translate"
	"github.com/sluicegate/sluice/gateway/wire"
)

// messagesCodec is the dialect with what it takes to find the tokens of its prompts.
type messagesCodec struct{ anthropic.Codec }

// TokenForm implements tokenFormer: the engine makes a chat of a messages body, and
// so does the gateway. Where it can't, the engine is going to refuse the body, or
// knows something of it that the gateway does not.
func (messagesCodec) TokenForm(body []byte, _ *wire.Request) (form []byte, ok bool) {
	form, err := translate.AppendChat(make([]byte, 0, len(body)+128), body, translate.ForTokens, nil)
	return form, err == nil
}

var (
	routeMessages = &route{
		template: "/v1/messages", operation: "messages", dialect: dialectAnthropic, allow: "OPTIONS, POST", post: true,
		op: wire.Messages, codec: messagesCodec{}, upstream: "/v1/messages",
		streams: true, generates: true, billsTokens: true, handle: (*Gateway).infer,
	}
	routeCountTokens = &route{
		template: "/v1/messages/count_tokens", operation: "count_tokens", dialect: dialectAnthropic, allow: "OPTIONS, POST", post: true,
		op: wire.CountTokens, codec: messagesCodec{}, upstream: "/v1/messages/count_tokens", handle: (*Gateway).infer,
	}

	// anthropicRoutes are those of the Messages API.
	anthropicRoutes = []*route{routeMessages, routeCountTokens}
)

// isAnthropicPath reports whether a path is of the Messages API, be there a route
// for it or not.
func isAnthropicPath(path []byte) bool {
	return bytes.Equal(path, []byte("/v1/messages")) || bytes.HasPrefix(path, []byte("/v1/messages/"))
}

// The headers in which clients of the Messages API say which of its forms they
// mean, and which features that are on trial.
const (
	versionHeader = "Anthropic-Version"
	betaHeader    = "Anthropic-Beta"
)

// dialectOf is whose answer a request gets: the path decides, and on the routes of
// models, which both APIs have, the header that clients of one of them always send.
func dialectOf(r *route, d dialect, h *fasthttp.RequestHeader) dialect {
	if (r == routeModels || r == routeModel) && len(h.PeekAll(versionHeader)) > 0 {
		return dialectAnthropic
	}
	return d
}

// apiHeaders are the values of the Messages API's headers that a worker gets.
type apiHeaders struct{ version, beta string }

// maxAPIHeader bounds each of them: no sane one comes near it.
const maxAPIHeader = 1 << 10

// messagesHeaders are those of a request on a route of the Messages API; any value
// goes through. On other routes there are none, whatever the client has sent.
func messagesHeaders(r *route, h *fasthttp.RequestHeader) apiHeaders {
	if r.dialect != dialectAnthropic {
		return apiHeaders{}
	}
	return apiHeaders{version: apiHeader(h, versionHeader), beta: apiHeader(h, betaHeader)}
}

// apiHeader is a header's value, repeats joined; empty if it is no printable ASCII
// or too long, since it becomes part of another header.
func apiHeader(h *fasthttp.RequestHeader, name string) string {
	value := bytes.Join(h.PeekAll(name), []byte(","))
	if len(value) > maxAPIHeader || bytes.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) {
		return ""
	}
	return string(value)
}
