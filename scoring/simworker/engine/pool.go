package engine

import "slices"

// pool is the block pool with its prefix cache. Every block is either held by
// at least one running request or on the free list. A free block keeps its
// content, and can be found by its hash, until it is handed out again.
//
// The free list is taken from at the front. Blocks with content go to its end,
// last block of a chain first, so that the least recently used chain loses its
// leaf first; blocks without content go to the front and are used up before
// anything is evicted. Both are visible in the recorded events.
type pool struct {
	blocks []block
	front  int32 // first free block, or none
	back   int32
	free   int
	cached names // first of the blocks with each content
	named  int   // blocks with content
	events []Event
}

const none = -1

type block struct {
	hash       Hash
	hasHash    bool
	refs       int32
	prev, next int32 // free list
	twin       int32 // next block with the same content
}

// newPool returns a pool of n usable blocks, all free and without content.
func newPool(n int) *pool {
	p := &pool{blocks: make([]block, n), front: none, back: none, cached: newNames(n)}
	for i := range p.blocks {
		p.blocks[i].twin = none
		p.pushBack(int32(i))
	}
	return p
}

// held returns how many blocks running requests hold.
func (p *pool) held() int { return len(p.blocks) - p.free }

func (p *pool) pushBack(i int32) {
	b := &p.blocks[i]
	b.prev, b.next = p.back, none
	if p.back == none {
		p.front = i
	} else {
		p.blocks[p.back].next = i
	}
	p.back = i
	p.free++
}

func (p *pool) pushFront(i int32) {
	b := &p.blocks[i]
	b.prev, b.next = none, p.front
	if p.front == none {
		p.back = i
	} else {
		p.blocks[p.front].prev = i
	}
	p.front = i
	p.free++
}

func (p *pool) unlink(i int32) {
	b := &p.blocks[i]
	if b.prev == none {
		p.front = b.next
	} else {
		p.blocks[b.prev].next = b.next
	}
	if b.next == none {
		p.back = b.prev
	} else {
		p.blocks[b.next].prev = b.prev
	}
	p.free--
}

// lookup appends to dst the blocks that hold the leading hashes, stopping at
// the first miss. They are not taken.
func (p *pool) lookup(dst []int32, hashes []Hash) []int32 {
	for i := range hashes {
		slot, ok := p.cached.find(p.blocks, &hashes[i])
		if !ok {
			break
		}
		dst = append(dst, p.cached.slots[slot])
	}
	return dst
}

// freeAmong returns how many of blocks are on the free list.
func (p *pool) freeAmong(blocks []int32) int {
	n := 0
	for _, b := range blocks {
		if p.blocks[b].refs == 0 {
			n++
		}
	}
	return n
}

// take adds a reference to each of blocks.
func (p *pool) take(blocks []int32) {
	for _, i := range blocks {
		if p.blocks[i].refs == 0 {
			p.unlink(i)
		}
		p.blocks[i].refs++
	}
}

// alloc appends n blocks without content to dst, evicting what is in them. The
// caller has checked that n are free.
func (p *pool) alloc(dst []int32, n int) []int32 {
	for range n {
		i := p.front
		if i == none {
			panic("BUG: block pool is empty although enough blocks were counted as free")
		}
		p.unlink(i)
		p.evict(i)
		p.blocks[i].refs = 1
		dst = append(dst, i)
	}
	return dst
}

// evict takes the content out of block i, if it has any, and reports it.
func (p *pool) evict(i int32) {
	b := &p.blocks[i]
	if !b.hasHash {
		return
	}
	slot, ok := p.cached.find(p.blocks, &b.hash)
	if !ok {
		panic("BUG: a block has content that cannot be found")
	}
	if head := p.cached.slots[slot]; head == i {
		if b.twin == none {
			p.cached.remove(p.blocks, slot)
		} else {
			p.cached.slots[slot] = b.twin
		}
	} else {
		for p.blocks[head].twin != i {
			head = p.blocks[head].twin
		}
		p.blocks[head].twin = b.twin
	}
	p.named--
	p.events = append(p.events, Event{Kind: Removed, Hashes: []Hash{b.hash}})
	b.hasHash, b.twin = false, none
}

// store gives blocks[from:to] of a chain their content and reports it as one
// event. Two blocks may hold the same content; each is reported.
func (p *pool) store(blocks []int32, hashes []Hash, from, to int) {
	for k := from; k < to; k++ {
		i := blocks[k]
		b := &p.blocks[i]
		if b.hasHash {
			panic("BUG: block is given content twice")
		}
		b.hash, b.hasHash, b.twin = hashes[k], true, none
		p.named++
		slot, ok := p.cached.find(p.blocks, &b.hash)
		if !ok {
			p.cached.slots[slot] = i
			continue
		}
		head := p.cached.slots[slot]
		b.twin, p.blocks[head].twin = p.blocks[head].twin, i
	}
}

// release drops one reference from each of blocks, last block first.
func (p *pool) release(blocks []int32) {
	for _, i := range slices.Backward(blocks) {
		b := &p.blocks[i]
		b.refs--
		switch {
		case b.refs > 0:
		case b.refs < 0:
			panic("BUG: block is released more often than taken")
		case b.hasHash:
			p.pushBack(i)
		default:
			p.pushFront(i)
		}
	}
}

// reset empties the prefix cache if no block is held, and reports it. It says
// whether it did.
func (p *pool) reset() bool {
	if p.held() > 0 {
		return false
	}
	for i := range p.blocks {
		p.blocks[i].hasHash, p.blocks[i].twin = false, none
	}
	p.cached.clear()
	p.named = 0
	p.events = append(p.events, Event{Kind: Cleared})
	return true
}

// takeEvents returns the events since the last call.
func (p *pool) takeEvents() []Event {
	ev := p.events
	p.events = nil
	return ev
}
