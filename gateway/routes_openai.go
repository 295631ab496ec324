package gateway

import (
	"github.com/sluicegate/sluice/gateway/openai"
	"github.com/sluicegate/sluice/gateway/wire"
)

var (
	routeChat = &route{
		template: "/v1/chat/completions", operation: "chat", allow: "OPTIONS, POST", post: true,
		op: wire.Chat, codec: openai.Codec{}, upstream: chatPath,
		streams: true, generates: true, billsTokens: true, handle: (*Gateway).infer,
	}
	routeCompletions = &route{
		template: "/v1/completions", operation: "completion", allow: "OPTIONS, POST", post: true,
		op: wire.Completion, codec: openai.Codec{}, upstream: "/v1/completions",
		streams: true, generates: true, billsTokens: true, handle: (*Gateway).infer,
	}
	routeEmbeddings = &route{
		template: "/v1/embeddings", operation: "embeddings", allow: "OPTIONS, POST", post: true,
		op: wire.Embeddings, codec: openai.Codec{}, upstream: "/v1/embeddings",
		billsTokens: true, handle: (*Gateway).infer,
	}
	routeResponses = &route{
		template: "/v1/responses", operation: "responses", allow: "OPTIONS, POST", post: true,
		op: wire.Responses, codec: openai.ResponsesCodec{}, upstream: "/v1/responses",
		streams: true, generates: true, billsTokens: true, handle: (*Gateway).infer,
	}
	routeTokenize = &route{
		template: "/tokenize", operation: "tokenize", allow: "OPTIONS, POST", post: true,
		op: wire.Tokenize, codec: openai.Codec{}, upstream: tokenizePath, handle: (*Gateway).infer,
	}
	routeDetokenize = &route{
		template: "/detokenize", operation: "detokenize", allow: "OPTIONS, POST", post: true,
		op: wire.Detokenize, codec: openai.Codec{}, upstream: "/detokenize", handle: (*Gateway).infer,
	}

	openaiRoutes = []*route{routeChat, routeCompletions, routeEmbeddings, routeResponses, routeTokenize, routeDetokenize}
)
