package gateway

import (
	"errors"
	"slices"

	"github.com/sluicegate/sluice/gateway/anthropic/translate"
	"github.com/sluicegate/sluice/gateway/openai"
	"github.com/sluicegate/sluice/gateway/wire"
)

// The workers' paths of what stands in for other operations.
const (
	chatPath     = "/v1/chat/completions"
	tokenizePath = "/tokenize"
)

// standIn is the operation of a worker that serves another one, which the worker does
// not have, by translation: chat for messages, and the count of a prompt's tokens for
// count_tokens. False is an operation without one.
func standIn(op wire.Operation) (wire.Operation, bool) {
	switch op {
	case wire.Messages:
		return wire.Chat, true
	case wire.CountTokens:
		return wire.Tokenize, true
	}
	return 0, false
}

// offeredInstead reports whether a pool that serves the model offers what stands in
// for the operation.
func (ex *exchange) offeredInstead() bool {
	op, ok := standIn(ex.route.op)
	return ok && ex.offered(op)
}

// widen adds the permitted pools whose workers serve the operation by translation. A
// request that has none stays with the others, and is refused for what it has none of
// if there are no others.
func (ex *exchange) widen() *rejection {
	op, ok := standIn(ex.route.op)
	if !ok || len(ex.pools) == len(ex.decision.Pools) {
		return nil
	}
	native := ex.pools
	either := slices.DeleteFunc(slices.Clone(ex.decision.Pools), func(name string) bool {
		return !slices.Contains(native, name) && !ex.servesInstead(name, op)
	})
	if len(either) == len(native) {
		return nil
	}
	if rej := ex.translate(); rej != nil {
		if len(native) > 0 {
			return nil
		}
		return rej
	}
	ex.native, ex.pools = native, either
	return nil
}

// servesInstead reports whether a pool offers an operation that stands in for the
// request's. A cache that is to be kept apart must be so on that one too.
func (ex *exchange) servesInstead(name string, op wire.Operation) bool {
	p := ex.st.Pools[name]
	if !ex.poolOffers(&p, name, op) {
		return false
	}
	return op != wire.Chat || ex.decision.CacheIsolation == isolationNone || p.Salted.Has(op)
}

// translation is a request in the form that workers without its route understand.
// It is made once for all attempts.
type translation struct {
	op       wire.Operation
	upstream string
	req      *wire.Request // what is in body; from requestPool
	body     []byte
	sent     []byte // body with what the decision changes, once an attempt needs it
	names    translate.Names
}

// translate makes the request's translation, or says why it has none.
func (ex *exchange) translate() *rejection {
	if ex.translation != nil {
		return nil
	}
	op, _ := standIn(ex.route.op)
	t := &translation{op: op, upstream: chatPath, req: acquireRequest()}
	purpose := translate.ForWorker
	if op == wire.Tokenize {
		t.upstream, purpose = tokenizePath, translate.ForCount
	}
	// The body is twice in memory while it is made, part by part.
	room := 2*len(ex.body) + translationRoom
	if err := ex.takeMemory(room); err != nil {
		return noMemory(err)
	}
	var err error
	if t.body, err = translate.AppendChat(make([]byte, 0, len(ex.body)+translationRoom), ex.body, purpose, &t.names); err == nil {
		err = openai.Codec{}.Scan(t.req, op, t.body)
		t.req.Stream = t.req.Stream && ex.route.streams
	}
	if err != nil {
		releaseRequest(t.req)
		return ex.untranslatable(t, err)
	}
	// From now on it is there as it is and as it is sent.
	if more := cap(t.body) + len(t.body) + rewriteRoom - room; more > 0 {
		if err := ex.takeMemory(more); err != nil {
			releaseRequest(t.req)
			return noMemory(err)
		}
	}
	ex.translation = t
	return nil
}

// translationRoom is how much longer than the body its translation may be before its
// buffer has to grow.
const translationRoom = 1 << 10

// untranslatable is the refusal of a request that has no translation, in the client's
// terms.
func (ex *exchange) untranslatable(t *translation, err error) *rejection {
	e, ok := errors.AsType[*wire.Error](err)
	if !ok {
		return internal(err)
	}
	body := e.Body()
	if t.body != nil {
		body = t.names.Error(body)
	}
	rej := invalid(body.Code, body.Param, body.Message)
	rej.status = e.Status
	return rej
}

// release gives back what the translation has taken; nil has nothing.
func (t *translation) release() {
	if t != nil {
		releaseRequest(t.req)
	}
}

// size is the memory that the translation takes; nil takes none.
func (t *translation) size() int {
	if t == nil {
		return 0
	}
	return len(t.body)
}

// recompose has the body made anew that is sent; nil has none.
func (t *translation) recompose() {
	if t != nil {
		t.sent = nil
	}
}

// releasePrompt drops what only another attempt would need; nil has nothing.
func (t *translation) releasePrompt() {
	if t != nil {
		t.body, t.sent = nil, nil
		t.req.Reset() // it is views of the body
	}
}

// speakTo sets the form in which the workers of a pool are spoken to, if there are two.
func (ex *exchange) speakTo(pool string) {
	if ex.translation == nil {
		return
	}
	if ex.translating = !slices.Contains(ex.native, pool); ex.translating {
		ex.codec, ex.upstream = openai.Codec{}, ex.translation.upstream
		// The tokens are those of the engine's own messages route, which may differ in
		// things that translation leaves out: the answer is no test of them.
		ex.tokens.Local = false
		return
	}
	ex.codec, ex.upstream = ex.route.codec, ex.route.upstream
}

// operation is what the present attempt asks of its worker.
func (ex *exchange) operation() wire.Operation {
	if ex.translating {
		return ex.translation.op
	}
	return ex.req.Operation
}

// outgoing is the body for the present attempt's worker.
func (ex *exchange) outgoing() []byte {
	if !ex.translating {
		return ex.sent
	}
	t := ex.translation
	if t.sent == nil {
		t.sent = ex.codec.AppendRewrite(make([]byte, 0, len(t.body)+192), t.body, t.req, ex.mutation)
	}
	return t.sent
}

// workersAPI are the headers of the client's API, for a worker that has it.
func (ex *exchange) workersAPI() apiHeaders {
	if ex.translating {
		return apiHeaders{}
	}
	return ex.api
}

// clientsTerms puts a worker's error into the terms of the body that the client sent.
func (ex *exchange) clientsTerms(e wire.ErrorBody) wire.ErrorBody {
	if ex.translating {
		return ex.translation.names.Error(e)
	}
	return e
}

// keepAnswer keeps a whole answer for the client, in the client's form.
func (ex *exchange) keepAnswer(r *answerReader, answer []byte, u wire.Usage) *failure {
	if ex.translating {
		if err := r.take(len(answer)); err != nil {
			return &failure{kind: failLocal, cause: err}
		}
		var err error
		if answer, err = ex.translateAnswer(answer, u); err != nil {
			return untranslated(err)
		}
	}
	ex.unary, ex.unaryUsage = answer, u
	return nil
}

// translateAnswer turns the answer to a translation into the client's.
func (ex *exchange) translateAnswer(answer []byte, u wire.Usage) ([]byte, error) {
	if ex.translation.op == wire.Tokenize {
		return translate.AppendCount(nil, answer)
	}
	// What the client is told is what it is charged.
	return translate.AppendMessage(make([]byte, 0, len(answer)), answer, translate.MessageID(ex.requestID), ex.finalCharge(u).usage)
}

// newTranslator is for the stream of the present attempt; nil if it goes through as it
// is.
func (ex *exchange) newTranslator() *translate.Translator {
	if !ex.translating {
		return nil
	}
	return translate.NewTranslator(translate.MessageID(ex.requestID), ex.g.cfg.EventBytes)
}

// pass appends an event of the worker's to what the client gets.
func (r *relay) pass(raw, data []byte) *failure {
	if r.translator == nil {
		r.out = append(r.ready(), raw...)
		return nil
	}
	u := r.ex.checkedUsage(r.stream.Usage())
	if !u.Known {
		u = wire.Usage{Input: int64(r.ex.inputTokens())} // what is charged if nobody ever says more
	}
	var err error
	if r.out, err = r.translator.AppendChunk(r.ready(), data, u); err != nil {
		return untranslated(err)
	}
	return nil
}

// endMark notes that the terminal mark has come, unless the answer can't be brought to
// an end.
func (r *relay) endMark(raw []byte) *failure {
	if r.translator == nil {
		r.done, r.mark = true, append(r.mark, raw...)
		return nil
	}
	// What the client is told is what it is charged.
	mark, err := r.translator.AppendEnd(r.mark, r.ex.finalCharge(r.stream.Usage()).usage)
	if err != nil {
		return untranslated(err)
	}
	r.done, r.mark = true, mark
	return nil
}

// untranslated is an answer that can't be put in the client's form. One that is only
// too large for that says nothing about its worker.
func untranslated(err error) *failure {
	if errors.Is(err, translate.ErrTooLarge) {
		return &failure{kind: failSize, cause: err}
	}
	return &failure{kind: failContent, cause: err}
}

// errMalformed ends a translated stream at an event that is no JSON: what it held
// can't be passed on, and the client would miss it without knowing.
var errMalformed = errors.New("the worker sent an event that is not JSON")
