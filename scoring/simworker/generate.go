package simworker

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// maxBody bounds a request body. The engine has no limit of its own.
const maxBody = 64 << 20

// generation is one generating request at work.
type generation struct {
	w       *Worker
	p       *params
	id      string
	created int64
	fault   Fault
	call    *call
	choices []*choice
	// prompts is the number of prompts, promptTokens the tokens of each.
	promptTokens []int
	// opened is set once the role events of a chat's stream are out.
	opened bool
	// whole is set once the answer is written to its end.
	whole bool
	// prefillOnly is set where nothing is generated, such as for an embedding; the
	// token that ends the prefill counts as none.
	prefillOnly bool
}

// choice is one text of a generation.
type choice struct {
	index  int
	prompt int // which prompt
	detok  detokenizer
	stop   *stopper

	text       strings.Builder // whole text, kept for answers that are no stream
	tokens     []drawn         // its tokens, likewise, if logprobs were asked for
	offset     int             // length of the text so far
	generated  int
	cached     int
	done       bool
	finish     engine.Reason
	stopReason string
	callID     string // of the tool that it calls, once that is written
}

// delta is what a token adds to a choice.
type delta struct {
	text   string
	tokens []drawn // only if logprobs were asked for
	done   bool
}

// serveGenerate handles both generating routes of prompts and chats.
func (w *Worker) serveGenerate(rw http.ResponseWriter, r *http.Request, body []byte, chat bool) {
	fault, ok := w.takeFault(rw, r)
	if !ok {
		return
	}
	g, apiErr := w.newGeneration(r, body, chat)
	if apiErr != nil {
		writeError(rw, apiErr)
		return
	}
	g.fault = fault
	defer g.account(r)
	if g.p.stream {
		g.serveStream(r.Context(), rw)
	} else {
		g.serveWhole(r, rw)
	}
}

// takeFault takes the fault that is in store for the request, and is false if
// that has been its answer.
func (w *Worker) takeFault(rw http.ResponseWriter, r *http.Request) (Fault, bool) {
	fault, apiErr := w.nextFault(r)
	if apiErr != nil && r.Context().Err() == nil {
		writeError(rw, apiErr)
	}
	return fault, apiErr == nil
}

// nextFault takes the fault that is in store for the request. The error is the
// fault's answer.
func (w *Worker) nextFault(r *http.Request) (Fault, *apiError) {
	fault, replaced := w.faults.take()
	if fault.HangHeaders {
		if err := w.faults.hang(r.Context(), replaced); err != nil {
			return fault, asAPIError(err)
		}
	}
	if fault.Status != 0 {
		return fault, faultError(fault.Status)
	}
	return fault, nil
}

// account ends the generation, however far it came.
func (g *generation) account(r *http.Request) {
	g.w.core.abandon(g.call)
	if g.w.cfg.Account != nil {
		u := g.usage()
		g.w.cfg.Account(Account{RequestID: r.Header.Get("X-Request-Id"), Prompt: u.prompt, Cached: u.cached, Output: u.completion, Whole: g.whole})
	}
}

// newGeneration checks, tokenises and submits a request.
func (w *Worker) newGeneration(r *http.Request, body []byte, chat bool) (*generation, *apiError) {
	p, apiErr := parseParams(body, chat)
	if apiErr != nil {
		return nil, apiErr
	}
	var ok bool
	if p.model, p.lora, ok = w.resolveModel(p.model); !ok {
		return nil, errUnknownModel(p.model, w.served())
	}
	if rank := r.Header.Get("X-Data-Parallel-Rank"); rank != "" && rank != "0" {
		return nil, badRequest("data_parallel_rank", "data_parallel_rank %s is out of range [0, 1).", rank)
	}
	if apiErr := p.chooseTool(w.cfg.ToolCalls); apiErr != nil {
		return nil, apiErr
	}
	prompts, apiErr := w.encode(body, chat)
	if apiErr != nil {
		return nil, apiErr
	}
	if len(prompts)*p.n > maxSequences {
		return nil, tooManySequences(len(prompts), p.n)
	}
	if err := r.Context().Err(); err != nil { // nobody is there to answer
		return nil, asAPIError(err)
	}
	g := &generation{w: w, p: p, created: time.Now().Unix(), id: requestID(r, chat)}
	var reqs []engine.Request
	for i, prompt := range prompts {
		limit, apiErr := p.limit(len(prompt), w.cfg.MaxModelLen)
		if apiErr != nil {
			return nil, apiErr
		}
		g.promptTokens = append(g.promptTokens, len(prompt))
		for k := range p.n {
			reqs = append(reqs, p.request(prompt, k, limit))
			g.choices = append(g.choices, &choice{
				index: i*p.n + k, prompt: i,
				detok: detokenizer{tok: w.tok}, stop: newStopper(p.stops, p.includeStop),
			})
		}
	}
	call, err := w.core.submit(reqs, p.n)
	if err != nil {
		return nil, asAPIError(err)
	}
	g.call = call
	return g, nil
}

// maxSequences bounds what one call can have the engine do at once: each sequence takes
// some KiB here. The real engine has no bound on a list of prompts.
const maxSequences = 16 << 10

func tooManySequences(prompts, n int) *apiError {
	return badRequest("prompt", "%d prompts with %d choices each are more than the %d sequences that this simulated worker takes in one call.", prompts, n, maxSequences)
}

// countPrompts is how many prompts a body lists. What is no list of prompts counts as
// one; tokenising says what is wrong with it.
func countPrompts(body []byte) int {
	var req struct {
		Prompt json.RawMessage `json:"prompt"`
	}
	_ = json.Unmarshal(body, &req)
	list, ok := bytes.CutPrefix(bytes.TrimLeft(req.Prompt, " \t\r\n"), []byte("["))
	if list = bytes.TrimLeft(list, " \t\r\n"); !ok || len(list) == 0 || list[0] != '"' && list[0] != '[' {
		return 1
	}
	var prompts []json.RawMessage
	if json.Unmarshal(req.Prompt, &prompts) != nil {
		return 1
	}
	return len(prompts)
}

// encode returns the prompts of a body.
func (w *Worker) encode(body []byte, chat bool) ([][]uint32, *apiError) {
	var prompts [][]uint32
	var err error
	if chat {
		var prompt []uint32
		prompt, err = w.tok.EncodeChat(body)
		prompts = [][]uint32{prompt}
	} else {
		if n := countPrompts(body); n > maxSequences { // none of them is tokenised
			return nil, tooManySequences(n, 1)
		}
		prompts, err = w.tok.EncodeCompletion(body)
	}
	if err != nil {
		return nil, badRequest("", "%s", err.Error())
	}
	if len(prompts) == 0 {
		return nil, badRequest("prompt", "please provide at least one prompt")
	}
	for _, p := range prompts {
		if len(p) == 0 {
			return nil, badRequest("prompt", "The decoder prompt cannot be empty")
		}
	}
	return prompts, nil
}

// requestID forms the engine's id from the client's X-Request-Id, as the real
// one does, or from 64 random bits.
func requestID(r *http.Request, chat bool) string {
	prefix := "cmpl-"
	if chat {
		prefix = "chatcmpl-"
	}
	if id := r.Header.Get("X-Request-Id"); id != "" {
		return prefix + id
	}
	return prefix + randomHex(8)
}

// randomHex returns 2n hexadecimal digits.
func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

func asAPIError(err error) *apiError {
	if e, ok := errors.AsType[*apiError](err); ok {
		return e
	}
	return badRequest("", "%s", err.Error())
}

// feed gives one token to its choice. ok is false if the choice had ended: the
// token was drawn before the engine knew of a stop string.
func (g *generation) feed(a arrival) (c *choice, d delta, ok bool) {
	c = g.choices[a.choice]
	if c.done {
		return c, d, false
	}
	c.generated++
	piece := ""
	if !a.eos {
		piece = c.detok.add(a.token)
	}
	if a.finish != 0 {
		piece += c.detok.flush()
	}
	text, found := c.stop.add(piece)
	switch {
	case found != "":
		c.finish, c.stopReason = engine.Stop, found
		g.w.core.finish(g.call.ids[a.choice], engine.Stop)
	case a.finish != 0:
		text += c.stop.flush()
		c.finish = a.finish
	}
	c.cached = a.cached
	c.done = c.finish != 0
	if g.p.called != nil {
		text = g.p.called.argument(text, c.generated == 1, c.done)
	}
	d.text, d.done = text, c.done
	if g.p.logprobs && !a.eos {
		d.tokens = []drawn{{a.token, c.offset}}
	}
	c.offset += len(text)
	return c, d, true
}

// usage adds up all choices; a prompt counts once however many there are.
func (g *generation) usage() usage {
	var u usage
	for _, n := range g.promptTokens {
		u.prompt += n
	}
	cached := make([]int, len(g.promptTokens))
	for _, c := range g.choices {
		if !g.prefillOnly {
			u.completion += c.generated
		}
		// The first choice of a prompt is the one whose prefill was real.
		if c.index%g.p.n == 0 {
			cached[c.prompt] = c.cached
		}
	}
	for i, n := range cached {
		u.cached += n
		u.created += (g.promptTokens[i]/g.w.cfg.BlockSize)*g.w.cfg.BlockSize - n
	}
	u.created = max(0, u.created)
	return u
}

// allDone says whether every choice has ended.
func (g *generation) allDone() bool {
	for _, c := range g.choices {
		if !c.done {
			return false
		}
	}
	return true
}

// serveWhole answers when all texts are complete.
func (g *generation) serveWhole(r *http.Request, rw http.ResponseWriter) {
	if err := g.collect(r.Context()); err != nil {
		fail(rw, r, err)
		return
	}
	g.writeWhole(r, rw, g.appendWhole(nil))
}

// collect waits until all texts are complete.
func (g *generation) collect(ctx context.Context) error {
	var buf []arrival
	for !g.allDone() {
		got, err := g.call.take(ctx, buf)
		if err != nil {
			return err
		}
		for _, a := range got {
			c, d, _ := g.feed(a)
			c.text.WriteString(d.text)
			c.tokens = append(c.tokens, d.tokens...)
		}
		buf = got
	}
	return g.w.faults.wait(ctx, g.fault.FirstByteDelay)
}

// writeWhole writes an answer that is no stream.
func (g *generation) writeWhole(r *http.Request, rw http.ResponseWriter, body []byte) {
	g.w.addLoadHeader(rw, r)
	setJSON(rw, len(body))
	rw.WriteHeader(http.StatusOK)
	if g.fault.DropAfterEvents != 0 {
		if g.fault.DropAfterEvents > 0 {
			_, _ = rw.Write(body[:len(body)/2])
		}
		dropConnection(rw)
	}
	_, err := rw.Write(body)
	g.whole = err == nil
}

// fail answers an error, unless nobody is left to read it.
func fail(rw http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		writeError(rw, asAPIError(err))
	}
}

// readBody returns the request's body.
func readBody(rw http.ResponseWriter, r *http.Request) ([]byte, error) {
	return io.ReadAll(http.MaxBytesReader(rw, r.Body, maxBody))
}

// dropConnection closes the connection without finishing the response. It
// does not return: the panic is the way net/http offers to do this.
func dropConnection(rw http.ResponseWriter) {
	_ = http.NewResponseController(rw).Flush()
	panic(http.ErrAbortHandler)
}

// serveStream answers with an event for each token.
func (g *generation) serveStream(ctx context.Context, rw http.ResponseWriter) {
	s := &streamWriter{rw: rw, rc: http.NewResponseController(rw), fault: g.fault}
	s.start()
	if err := g.w.faults.wait(ctx, g.fault.FirstByteDelay); err != nil {
		s.fail(ctx, err)
		return
	}
	f := g.frames()
	var buf []arrival
	for !g.allDone() {
		got, err := g.call.take(ctx, buf)
		if err != nil {
			s.fail(ctx, err)
			return
		}
		g.relay(s, f, got)
		if s.flush() != nil {
			return
		}
		buf = got
	}
	if g.p.usage {
		s.event(f.usage(g.usage()))
	}
	s.done()
	g.whole = s.err == nil && !g.fault.NoDone
}

// relay writes the events of a batch of tokens: one for each, however many
// came together, so that a fault that counts events hits at the same token
// every time.
func (g *generation) relay(s *streamWriter, f *frames, got []arrival) {
	if g.p.chat && !g.opened {
		for _, c := range g.choices {
			s.event(f.role(c))
		}
		g.opened = true
	}
	for _, a := range got {
		if c, d, ok := g.feed(a); ok {
			s.event(f.chunk(c, d))
		}
	}
}
