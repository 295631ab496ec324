package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// drawRoom is the most generated tokens for which room is made at once.
const drawRoom = 512

// Prepared is a request with all that an engine derives from its tokens: made
// once by [Config.Prepare], it can be added to any number of engines of the
// same configuration, which share its memory. It is never written to.
type Prepared struct {
	req       Request
	tokens    []uint32
	hashes    []Hash
	noise     noise
	blockSize int
	seed      uint64
}

// Prepare derives what an engine of this configuration needs to know of a
// request. It fails as [Engine.Add] does.
func (c *Config) Prepare(r Request) (*Prepared, error) { return c.prepare(r, 0) }

// prepare leaves room for that many tokens after the prompt.
func (c *Config) prepare(r Request, room int) (*Prepared, error) {
	switch {
	case len(r.Prompt) == 0:
		return nil, errors.New("engine: empty prompt")
	case len(r.Prompt) >= c.MaxModelLen:
		return nil, fmt.Errorf("engine: prompt of %d tokens leaves no room below MaxModelLen %d", len(r.Prompt), c.MaxModelLen)
	case r.MaxTokens < 1:
		return nil, fmt.Errorf("engine: MaxTokens is %d; it must be at least 1", r.MaxTokens)
	}
	p := &Prepared{
		req: r, blockSize: c.BlockSize, seed: c.Seed,
		tokens: append(make([]uint32, 0, len(r.Prompt)+room), r.Prompt...),
		noise:  newNoise(c.Seed, r.Seed, r.Prompt, r.Choice),
	}
	p.req.Prompt = slices.Clip(p.tokens)
	h := hasher{lora: r.LoRA, salt: r.Salt}
	p.hashes = slices.Clip(h.extend(make([]Hash, 0, len(p.tokens)/c.BlockSize), p.tokens, c.BlockSize))
	return p, nil
}

// Prompt returns the prompt's tokens. They must not be changed.
func (p *Prepared) Prompt() []uint32 { return p.req.Prompt }

// AddPrepared queues a request that was prepared for this configuration. It
// fails if it does not fit, or if the block size or the seed was another one.
func (e *Engine) AddPrepared(now time.Time, p *Prepared) (ID, error) {
	if err := e.accepts(p); err != nil {
		return 0, err
	}
	return e.queue(now, p, p.req.Prompt), nil
}

// accepts says why p cannot be added, nil if it can.
func (e *Engine) accepts(p *Prepared) error {
	if p.blockSize != e.cfg.BlockSize || p.seed != e.cfg.Seed {
		return fmt.Errorf("engine: request was prepared for BlockSize %d and Seed %d, the engine has %d and %d",
			p.blockSize, p.seed, e.cfg.BlockSize, e.cfg.Seed)
	}
	if len(p.tokens) >= e.cfg.MaxModelLen {
		return fmt.Errorf("engine: prompt of %d tokens leaves no room below MaxModelLen %d", len(p.tokens), e.cfg.MaxModelLen)
	}
	return nil
}
