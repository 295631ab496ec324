//go:build cgo && !notokenizers

package tokenize

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Tokenizer computes token ids in this process, with the tokenizer and the chat
// template of one model. It is safe for concurrent use.
type Tokenizer struct {
	memo    *memo
	now     func() time.Time
	gate    *Gate
	encoded atomic.Uint64
	// How long rendering a body and encoding a text take.
	rendering, encoding *pace

	// mu keeps Close from freeing native under a call: calls hold it for reading.
	mu     sync.RWMutex
	native *native // nil after Close
}

// Load reads a model's files from a folder: tokenizer.json, and where they exist
// tokenizer_config.json, special_tokens_map.json and chat_template.jinja. A model
// without a chat template serves completions only. The caller closes the result.
func Load(dir string, opts Options) (*Tokenizer, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot load tokenizer: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("cannot load tokenizer: %s is no folder; name the one that holds tokenizer.json", dir)
	}
	t, err := LoadFS(os.DirFS(dir), opts)
	if err != nil {
		return nil, fmt.Errorf("%w (in %s)", err, dir)
	}
	return t, nil
}

// LoadFS is Load for files at the root of fsys.
func LoadFS(fsys fs.FS, opts Options) (*Tokenizer, error) {
	tokenizer, settings, err := readModel(fsys, opts)
	if err != nil {
		return nil, fmt.Errorf("cannot load tokenizer: %w", err)
	}
	n, err := newNative(tokenizer, settings)
	if err != nil {
		return nil, fmt.Errorf("cannot load tokenizer: %w", err)
	}
	t := &Tokenizer{native: n, now: opts.Now, rendering: newPace(16<<20, 1<<20), encoding: newPace(1<<20, 64<<10)}
	if t.now == nil {
		t.now = time.Now
	}
	if t.gate = opts.Gate; t.gate == nil {
		t.gate = NewGate(0)
	}
	switch {
	case opts.CacheBytes == 0:
		t.memo = newMemo(256 << 20)
	case opts.CacheBytes > 0:
		t.memo = newMemo(opts.CacheBytes)
	}
	return t, nil
}

// Append adds the prompts of body, the client's whole JSON body, to dst. Prompts
// that are token ids are taken over as they are. Of a conversation with an image,
// or another part that is no text, the ids before the first one are added, and
// dst.Beginning is set. It waits for a place at the gate if there is much to
// encode. What can't be encoded before ctx's deadline, by what texts have taken so
// far, is not begun. On an error dst is as before.
//
// Errors: *RenderError when the template rejects the conversation, ErrInvalid
// for a body that is no request of its kind, ErrUnsupported for one whose ids
// cannot be computed exactly here, ErrClosed, and the context's error if ctx ends
// on the way or leaves too little time. None of them quotes the body, except for the template's own words
// in a RenderError.
func (t *Tokenizer) Append(ctx context.Context, dst *Prompts, kind Kind, body []byte) error {
	ids, ends := len(dst.IDs), len(dst.Ends)
	if err := t.append(ctx, dst, kind, body); err != nil {
		dst.IDs, dst.Ends, dst.Beginning = dst.IDs[:ids], dst.Ends[:ends], false
		return fmt.Errorf("cannot tokenise: %w", err)
	}
	return nil
}

func (t *Tokenizer) append(ctx context.Context, dst *Prompts, kind Kind, body []byte) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if err := t.rendering.within(ctx, len(body)); err != nil {
		return err
	}
	began := time.Now()
	p, err := t.plan(kind, body)
	if err != nil {
		return err
	}
	t.rendering.took(len(body), time.Since(began))
	defer p.free()
	frame := p.cut && p.addSpecial
	work := encoding{t: t, ctx: ctx, plan: &p}
	defer work.done()
	for i, prompt := range p.prompts {
		if prompt.ofIDs() {
			dst.IDs = append(dst.IDs, p.ids[prompt.start:prompt.end]...)
			dst.end()
			continue
		}
		if frame {
			dst.IDs = append(dst.IDs, t.native.before...)
		}
		for j := prompt.start; j < prompt.end; j++ {
			if dst.IDs, err = work.appendPiece(dst.IDs, i, int(j)); err != nil {
				return err
			}
		}
		if dst.Beginning = prompt.isBeginning(); frame && !dst.Beginning {
			dst.IDs = append(dst.IDs, t.native.after...)
		}
		dst.end()
	}
	return nil
}

// encoding is the encoding of one plan.
type encoding struct {
	t    *Tokenizer
	ctx  context.Context
	plan *plan
	// asked is set once it is known how much there is to encode, held while it
	// has a place at the gate.
	asked, held bool
}

// appendPiece appends the ids of a piece of a prompt, both by index.
func (e *encoding) appendPiece(dst []uint32, prompt, i int) ([]uint32, error) {
	piece := &e.plan.pieces[i]
	if piece.special != 0 {
		return append(dst, uint32(piece.id)), nil
	}
	text, framed := e.plan.textOf(i), e.plan.framed()
	ids, ok := e.t.memo.get(text, framed)
	if !ok && !e.asked {
		if err := e.enter(prompt, i); err != nil {
			return dst, err
		}
		// While this one waited, a request with the same text may have finished it.
		ids, ok = e.t.memo.peek(text, framed)
	}
	if !ok {
		err := e.t.encoding.within(e.ctx, len(text))
		if err == nil {
			ids, err = e.t.encode(text, framed)
		}
		if err != nil {
			return dst, err
		}
	}
	return append(dst, ids...), nil
}

// enter waits for a place if what is left to encode, from a piece on, is much.
func (e *encoding) enter(prompt, i int) error {
	e.asked = true
	n := 0
	for _, p := range e.plan.prompts[prompt:] {
		for j := max(int(p.start), i); !p.ofIDs() && j < int(p.end); j++ {
			if e.plan.pieces[j].special != 0 {
				continue
			}
			text := e.plan.textOf(j)
			if _, ok := e.t.memo.peek(text, e.plan.framed()); !ok {
				n += len(text)
			}
		}
	}
	if err := e.t.encoding.within(e.ctx, n); err != nil || n < shortText {
		return err
	}
	if err := e.t.gate.acquire(e.ctx, n); err != nil {
		return err
	}
	e.held = true
	return e.t.encoding.within(e.ctx, n) // the wait has taken its time
}

// done gives the place back.
func (e *encoding) done() {
	if e.held {
		e.t.gate.release()
	}
}

// Explain is Append for a reader: it returns the rendered prompts and how they
// were cut and encoded. The errors are those of Append.
func (t *Tokenizer) Explain(kind Kind, body []byte) (Explanation, error) {
	e, err := t.explain(kind, body)
	if err != nil {
		return Explanation{}, fmt.Errorf("cannot tokenise: %w", err)
	}
	return e, nil
}

func (t *Tokenizer) explain(kind Kind, body []byte) (Explanation, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	p, err := t.plan(kind, body)
	if err != nil {
		return Explanation{}, err
	}
	defer p.free()
	var e Explanation
	for _, prompt := range p.prompts {
		var out ExplainedPrompt
		if prompt.ofIDs() {
			ids := append([]uint32(nil), p.ids[prompt.start:prompt.end]...)
			out.Segments = []Segment{{IDs: ids}}
			e.Prompts = append(e.Prompts, out)
			continue
		}
		out.frame(p.cut && p.addSpecial, t.native.before)
		for _, piece := range p.pieces[prompt.start:prompt.end] {
			text := string([]byte(p.text[piece.start : piece.start+piece.len]))
			s := Segment{Text: text, Special: piece.special != 0}
			if s.Special {
				s.IDs = []uint32{uint32(piece.id)}
			} else if s.IDs, s.Cached = t.memo.get(text, p.framed()); !s.Cached {
				if s.IDs, err = t.encode(text, p.framed()); err != nil {
					return Explanation{}, err
				}
			}
			s.IDs = append([]uint32(nil), s.IDs...)
			out.Text += text
			out.Segments = append(out.Segments, s)
		}
		out.Beginning = prompt.isBeginning()
		out.frame(p.cut && p.addSpecial && !out.Beginning, t.native.after)
		e.Prompts = append(e.Prompts, out)
	}
	return e, nil
}

// frame adds the ids that the tokenizer puts at one end, each as a segment.
func (p *ExplainedPrompt) frame(wanted bool, ids []uint32) {
	if !wanted {
		return
	}
	for _, id := range ids {
		p.Segments = append(p.Segments, Segment{IDs: []uint32{id}, Special: true})
	}
}

// plan renders and cuts a body. It requires that mu is held for reading.
func (t *Tokenizer) plan(kind Kind, body []byte) (plan, error) {
	if kind != Chat && kind != Completion {
		panic("BUG: tokenize: unknown kind of request")
	}
	if t.native == nil {
		return plan{}, ErrClosed
	}
	return t.native.plan(kind, body, t.now())
}

// encode computes and remembers the ids of a text; the caller must not change
// them. The text is not kept. framed asks for the tokenizer's own special tokens
// around it.
func (t *Tokenizer) encode(text string, framed bool) ([]uint32, error) {
	began := time.Now()
	ids, err := t.native.encode(text, framed)
	if err != nil {
		return nil, err
	}
	t.encoding.took(len(text), time.Since(began))
	t.encoded.Add(uint64(len(text)))
	t.memo.put(text, framed, ids)
	return ids, nil
}

// Decode returns the text of ids, without special tokens when skipSpecial is
// set. Ids that the model does not know are left out. It returns the empty text
// after Close.
func (t *Tokenizer) Decode(ids []uint32, skipSpecial bool) string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.native == nil {
		return ""
	}
	text, err := t.native.decode(ids, skipSpecial)
	if err != nil {
		return ""
	}
	return text
}

// Stats returns what was counted since Load.
func (t *Tokenizer) Stats() Stats {
	st := Stats{EncodedBytes: t.encoded.Load()}
	t.memo.addStats(&st)
	return st
}

// Whole tells why this model's texts are encoded as a whole, which makes every
// turn of a conversation cost as much as the conversation. It is empty for a
// model whose texts are cut at special tokens and remembered piece by piece.
func (t *Tokenizer) Whole() string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.native == nil {
		return ""
	}
	return t.native.wholeBecause
}

// Close waits for running calls and gives the model's memory back. Later calls
// return ErrClosed.
func (t *Tokenizer) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.native == nil {
		return errors.New("cannot close tokenizer twice")
	}
	t.native.free()
	t.native = nil
	return nil
}
