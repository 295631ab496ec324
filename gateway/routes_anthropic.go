package gateway

import "bytes"

// anthropicRoutes are those of the Messages API.
var anthropicRoutes = []*route{}

// isAnthropicPath reports whether a path is of the Messages API, be there a route
// for it or not.
func isAnthropicPath(path []byte) bool {
	return bytes.Equal(path, []byte("/v1/messages")) || bytes.HasPrefix(path, []byte("/v1/messages/"))
}
