package openai

import (
	"github.com/sluicegate/sluice/gateway/vllm"
	"github.com/sluicegate/sluice/gateway/wire"
)

// Codec is the dialect as the gateway uses it. It has no state.
type Codec struct{}

// Scan is [Scan].
func (Codec) Scan(req *wire.Request, op wire.Operation, body []byte) error {
	return Scan(req, op, body)
}

// AppendRewrite is [AppendRewrite].
func (Codec) AppendRewrite(dst, body []byte, req *wire.Request, m wire.Mutation) []byte {
	return AppendRewrite(dst, body, req, m)
}

// TokenForm is [TokenForm].
func (Codec) TokenForm(body []byte, req *wire.Request) (form []byte, ok bool) {
	return TokenForm(body, req)
}

// NewObserver returns what observes one stream of chat or completions.
func (Codec) NewObserver(wire.Operation) wire.Observer { return &observer{} }

// ReadUsage is [ReadUsage].
func (Codec) ReadUsage(op wire.Operation, body []byte) (wire.Usage, error) {
	return ReadUsage(op, body)
}

// MapWorkerError is [vllm.MapError].
func (Codec) MapWorkerError(status int, body []byte) wire.WorkerError {
	return vllm.MapError(status, body)
}

// AppendError is [AppendError]: the status and the id of the request stand in
// the header alone.
func (Codec) AppendError(dst []byte, e wire.ErrorBody, _ int, _ string) []byte {
	return AppendError(dst, e)
}

// AppendErrorEvent is [AppendErrorEvent].
func (Codec) AppendErrorEvent(dst []byte, e wire.ErrorBody, _ int, _ string, _ int64) []byte {
	return AppendErrorEvent(dst, e)
}

// observer is a Stream that remembers the worker's error.
type observer struct {
	Stream
	err    wire.WorkerError
	failed bool
}

// Observe implements wire.Observer. Events of chat and completions have no name.
func (o *observer) Observe(_, data []byte) wire.Flags {
	f := o.Stream.Observe(data)
	if f.Has(wire.StreamError) {
		o.err, o.failed = vllm.MapStreamError(data), true
	}
	return f
}

// NextSequence implements wire.Observer: these events are not numbered.
func (o *observer) NextSequence() int64 { return 0 }

// StreamError implements wire.Observer.
func (o *observer) StreamError() (wire.WorkerError, bool) { return o.err, o.failed }
