package openai

type scanState struct{}

func (s scanState) reset() scanState { return s }

// Scan reads a request body of op into req, in one pass.
func Scan(req *Request, op Operation, body []byte) error { panic("BUG: Scan is not there yet") }

// AppendRewrite appends body with m applied to dst.
func (r *Request) AppendRewrite(dst, body []byte, m Mutation) []byte {
	panic("BUG: AppendRewrite is not there yet")
}

// ReadUsage returns the usage of an answer that is not a stream.
func ReadUsage(body []byte) (Usage, error) { panic("BUG: ReadUsage is not there yet") }

// Check returns u, or usage that is not known if it cannot be true for an
// answer of a model with a context of contextLen tokens (0: unknown) to a
// request for that many choices, over all its prompts.
func (u Usage) Check(contextLen, choices int64) Usage { panic("BUG: Check is not there yet") }

// Stream observes the events of one stream.
type Stream struct{}

// Reset makes the Stream ready for another answer.
func (s *Stream) Reset() {}

// Observe looks at the data of the next event.
func (s *Stream) Observe(data []byte) Flags { panic("BUG: Observe is not there yet") }

// Usage returns the last known usage.
func (s *Stream) Usage() Usage { panic("BUG: Usage is not there yet") }

// Complete tells whether the usage chunk has come, so that Usage is final.
func (s *Stream) Complete() bool { panic("BUG: Complete is not there yet") }

// Seen returns all flags seen so far.
func (s *Stream) Seen() Flags { panic("BUG: Seen is not there yet") }

// ContentDeltas counts the non-empty pieces of output, which stand in for
// output tokens where no usage came.
func (s *Stream) ContentDeltas() int64 { panic("BUG: ContentDeltas is not there yet") }

// MapWorkerError rebuilds a worker's error answer.
func MapWorkerError(status int, body []byte) WorkerError {
	panic("BUG: MapWorkerError is not there yet")
}

// MapStreamError rebuilds an error that a worker sent inside a stream, given
// the data of its event.
func MapStreamError(data []byte) WorkerError { panic("BUG: MapStreamError is not there yet") }

// AppendError appends the body of an error answer to dst.
func AppendError(dst []byte, e ErrorBody) []byte { panic("BUG: AppendError is not there yet") }

// AppendErrorEvent appends the event that reports an error after the answer
// has begun, for chat and completions. No [DONE] may follow it.
func AppendErrorEvent(dst []byte, e ErrorBody) []byte {
	panic("BUG: AppendErrorEvent is not there yet")
}

// AppendModels appends the models list to dst, sorted by id.
func AppendModels(dst []byte, models []Model) []byte { panic("BUG: AppendModels is not there yet") }

// AppendModel appends the answer for one model to dst.
func AppendModel(dst []byte, m Model) []byte { panic("BUG: AppendModel is not there yet") }
