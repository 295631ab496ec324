// Package anthropic is the Anthropic wire dialect of the gateway: the errors of
// the Messages API.
//
// Nothing in this package logs.
package anthropic
