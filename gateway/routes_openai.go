package gateway

import (
	"github.com/sluicegate/sluice/gateway/openai"
	"github.com/sluicegate/sluice/gateway/wire"
)

var (
	routeChat = &route{
		template: "/v1/chat/completions", operation: "chat", allow: "OPTIONS, POST", post: true,
		op: wire.Chat, codec: openai.Codec{}, upstream: "/v1/chat/completions",
		streams: true, generates: true, billsTokens: true, handle: (*Gateway).infer,
	}
	routeCompletions = &route{
		template: "/v1/completions", operation: "completion", allow: "OPTIONS, POST", post: true,
		op: wire.Completion, codec: openai.Codec{}, upstream: "/v1/completions",
		streams: true, generates: true, billsTokens: true, handle: (*Gateway).infer,
	}

	openaiRoutes = []*route{routeChat, routeCompletions}
)
