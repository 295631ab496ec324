package openai

import (
	"github.com/sluicegate/sluice/gateway/jsonscan"
	"github.com/sluicegate/sluice/gateway/wire"
)

// AppendError appends the body of an error answer to dst.
func AppendError(dst []byte, e wire.ErrorBody) []byte {
	dst = append(dst, `{"error":{"message":`...)
	dst = jsonscan.AppendQuoted(dst, e.Message)
	dst = append(dst, `,"type":`...)
	dst = jsonscan.AppendQuoted(dst, e.Type)
	dst = append(dst, `,"param":`...)
	dst = jsonscan.AppendQuotedOrNull(dst, e.Param)
	dst = append(dst, `,"code":`...)
	dst = jsonscan.AppendQuotedOrNull(dst, e.Code)
	return append(dst, `}}`...)
}

// AppendErrorEvent appends the event that reports an error once a stream of
// chat or completions has begun. No [DONE] may follow it: with one, or with no
// event at all, clients take the answer for complete.
func AppendErrorEvent(dst []byte, e wire.ErrorBody) []byte {
	dst = append(dst, "data: "...)
	dst = AppendError(dst, e) // It has no line ends: they are escaped.
	return append(dst, "\n\n"...)
}
