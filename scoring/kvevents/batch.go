package kvevents

import (
	"bytes"

	"github.com/sluicegate/sluice/scoring"
	"github.com/vmihailenco/msgpack/v5"
)

// SkipReason says why an event, or the rest of a batch, was not used.
type SkipReason uint8

const (
	// SkipUnknown is an event whose tag names no known event.
	SkipUnknown SkipReason = iota
	// SkipMalformed is an event with a missing or mistyped field.
	SkipMalformed
	// SkipLimit is an event or batch over one of the Max constants.
	SkipLimit
	// SkipKind is a store in a group that keeps only part of a prefix
	// (sliding window, mamba, chunked, encoder, cross attention).
	SkipKind
	// SkipSparse is a store whose tokens can't be aligned to its hashes.
	SkipSparse
	// SkipMedium is an event about a medium that has no Tier.
	SkipMedium
	// SkipEmpty is a store or removal of no block.
	SkipEmpty
	// SkipTruncated counts payloads that end in the middle of an event. The
	// events before that point are kept.
	SkipTruncated

	// NumSkipReasons is the number of reasons.
	NumSkipReasons
)

// String returns the reason as a metric label value.
func (r SkipReason) String() string {
	switch r {
	case SkipUnknown:
		return "unknown"
	case SkipMalformed:
		return "malformed"
	case SkipLimit:
		return "limit"
	case SkipKind:
		return "kind"
	case SkipSparse:
		return "sparse"
	case SkipMedium:
		return "medium"
	case SkipEmpty:
		return "empty"
	case SkipTruncated:
		return "truncated"
	}
	return "other"
}

// SkipCounts counts skipped events by reason; index it with a SkipReason.
type SkipCounts [NumSkipReasons]uint64

// Total returns the sum over all reasons.
func (c *SkipCounts) Total() uint64 {
	var n uint64
	for _, v := range c {
		n += v
	}
	return n
}

// Add adds o to c.
func (c *SkipCounts) Add(o *SkipCounts) {
	for i, v := range o {
		c[i] += v
	}
}

// Batch is one decoded event batch. The zero value is ready for Decode.
//
// A Batch owns the memory that its events point into: everything in Events is
// valid until the next Decode into the same Batch, except strings (hashes,
// names), which are independent copies. Reusing a Batch is what makes decoding
// cheap. It is not safe for concurrent use.
type Batch struct {
	// TS is the publisher's wall clock in seconds when it made the batch.
	TS float64
	// Rank is the data-parallel rank the batch claims to come from, valid if
	// HasRank. Publishers send 0, nil or nothing when there is one rank only,
	// so the rank of a view comes from the Source, not from here.
	Rank    int
	HasRank bool
	// Events are the usable events in the order they were sent. The order
	// matters: removals come before the stores that caused them.
	Events []scoring.Event
	// Skipped counts what was not usable.
	Skipped SkipCounts

	hashes []scoring.EngineHash
	tokens []uint32
	dec    *msgpack.Decoder
	r      bytes.Reader
	p      []byte
}

// keepScratch bounds the scratch a reused Batch holds on to, in elements, so
// that one giant batch does not stay in memory for ever.
const keepScratch = 1 << 16

func (b *Batch) reset(payload []byte) {
	b.TS, b.Rank, b.HasRank = 0, 0, false
	b.Skipped = SkipCounts{}
	clear(b.Events) // drops the strings
	b.Events = b.Events[:0]
	clear(b.hashes)
	b.hashes = b.hashes[:0]
	b.tokens = b.tokens[:0]
	if cap(b.Events) > keepScratch/16 {
		b.Events = nil
	}
	if cap(b.hashes) > keepScratch {
		b.hashes = nil
	}
	if cap(b.tokens) > keepScratch {
		b.tokens = nil
	}
	b.p = payload
	b.r.Reset(payload)
	if b.dec == nil {
		b.dec = msgpack.NewDecoder(&b.r)
		return
	}
	b.dec.Reset(&b.r)
}

// skip counts one event that is not used.
func (b *Batch) skip(reason SkipReason) { b.Skipped[reason]++ }
