package kvevents

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluicegate/sluice/scoring"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// Bounds of what is decoded. They are far above what an engine sends in one
// scheduler step; their purpose is that no announced length decides how much
// memory is taken.
const (
	// MaxPayload is the largest payload, in bytes.
	MaxPayload = 16 << 20
	// MaxEvents is the most events of one batch.
	MaxEvents = 1 << 16
	// MaxHashes is the most blocks of one event.
	MaxHashes = 1 << 16
	// MaxTokens is the most token ids of one event.
	MaxTokens = 1 << 21
	// MaxHashBytes is the longest byte hash.
	MaxHashBytes = 256
	// MaxNameBytes is the longest LoRA name, cache salt or medium.
	MaxNameBytes = 4 << 10
	// MaxBlockSize is the largest block, in tokens.
	MaxBlockSize = 1 << 16
	// MaxRank is the largest data-parallel rank.
	MaxRank = 1 << 16
)

// ErrBatch is wrapped by the errors of Decode: the payload is not an event
// batch, and nothing in it could be used.
var ErrBatch = errors.New("not an event batch")

// eventError marks an event as unusable for a reason; the decoder skips it.
type eventError SkipReason

func (e eventError) Error() string { return "event skipped: " + SkipReason(e).String() }

const (
	errMalformed = eventError(SkipMalformed)
	errLimit     = eventError(SkipLimit)
)

// Decode reads one msgpack event batch, [ts, events, rank?, …], into b.
//
// Events may be maps or arrays, even mixed; nil, absent and unknown fields,
// unknown tags and extra elements are accepted. An event that can't be used is
// skipped and counted in b.Skipped. A payload that ends early yields the
// events before its end. The error is not nil only if the payload is no batch
// at all, and then wraps ErrBatch; it never holds payload content.
//
// payload is not retained: b.Events holds copies.
func Decode(payload []byte, b *Batch) error {
	b.reset(payload)
	defer func() { b.p = nil }()
	if len(payload) == 0 {
		return fmt.Errorf("%w: the payload is empty", ErrBatch)
	}
	if len(payload) > MaxPayload {
		return fmt.Errorf("%w: the payload has %d bytes, over the limit of %d", ErrBatch, len(payload), MaxPayload)
	}
	n, err := b.arrayLen()
	if err != nil || n < 2 {
		return fmt.Errorf("%w: want an array of at least [ts, events]", ErrBatch)
	}
	if b.TS, err = b.number(); err != nil {
		return fmt.Errorf("%w: the timestamp is no number", ErrBatch)
	}
	events, err := b.arrayLen()
	if err != nil {
		return fmt.Errorf("%w: the events are no array", ErrBatch)
	}
	if !b.events(events) {
		return nil
	}
	if n > 2 {
		b.rank()
	}
	return nil
}

// events decodes n events. It reports whether the payload can be read on.
func (b *Batch) events(n int) bool {
	for i := range n {
		if i == MaxEvents {
			// No more than can be there, whatever the header announces.
			b.Skipped[SkipLimit] += uint64(min(n-i, b.r.Len()))
			return false
		}
		start := b.offset()
		hashes, tokens := len(b.hashes), len(b.tokens)
		err := b.event()
		if err == nil {
			continue
		}
		b.hashes, b.tokens = b.hashes[:hashes], b.tokens[:tokens]
		reason := SkipMalformed
		if e, ok := errors.AsType[eventError](err); ok {
			reason = SkipReason(e)
		}
		// The event's extent is known only by walking it again from its start.
		b.seek(start)
		if b.skipValue() != nil {
			b.skip(SkipTruncated)
			return false
		}
		b.skip(reason)
	}
	return true
}

// rank reads the optional third element; what can't be a rank is ignored.
func (b *Batch) rank() {
	c, err := b.peek()
	if err != nil || !isInt(c) {
		return
	}
	v, err := b.dec.DecodeInt64()
	if err != nil || v < 0 || v > MaxRank {
		return
	}
	b.Rank, b.HasRank = int(v), true
}

// event decodes one event of either form and appends it to b.Events.
func (b *Batch) event() error {
	c, err := b.peek()
	if err != nil {
		return err
	}
	var f fields
	switch {
	case isMap(c):
		err = b.mapEvent(&f)
	case isArray(c):
		err = b.arrayEvent(&f)
	default:
		return errMalformed
	}
	if err != nil {
		return err
	}
	ev, err := b.finish(&f)
	if err != nil {
		return err
	}
	b.Events = append(b.Events, ev)
	return nil
}

func (b *Batch) mapEvent(f *fields) error {
	n, err := b.dec.DecodeMapLen()
	if err != nil {
		return err
	}
	for range n {
		key, ok, err := b.text(MaxNameBytes)
		if err != nil {
			return err
		}
		if !ok {
			return errMalformed
		}
		if err := b.field(f, fieldOf(key)); err != nil {
			return err
		}
	}
	return nil
}

// arrayEvent decodes [tag, fields…], where trailing fields may be missing.
func (b *Batch) arrayEvent(f *fields) error {
	n, err := b.arrayLen()
	if err != nil {
		return err
	}
	if n == 0 {
		return errMalformed
	}
	if err := b.field(f, fieldType); err != nil {
		return err
	}
	for i := range n - 1 {
		if err := b.field(f, fieldAt(f.kind, i)); err != nil {
			return err
		}
	}
	return nil
}

// field decodes the value of one known field.
func (b *Batch) field(f *fields, id fieldID) (err error) {
	if f.kind == scoring.AllBlocksCleared {
		// It has no fields, and must not fail for one that is added.
		return b.skipValue()
	}
	switch id {
	case fieldType:
		err = b.tag(f)
	case fieldHashes:
		err = b.hashList(f)
	case fieldParent:
		f.parent, err = b.optHash()
	case fieldTokens:
		err = b.tokenList(f)
	case fieldBlockSize:
		f.blockSize, err = b.optInt(MaxBlockSize)
	case fieldLoRAID:
		err = b.loraID(f)
	case fieldMedium:
		err = b.medium(f)
	case fieldLoRAName:
		f.lora, err = b.optString()
	case fieldExtraKeys:
		// Read when everything else is known: what a key means depends on
		// fields that may follow it.
		f.extraKeys = b.offset()
		err = b.skipValue()
	case fieldGroup:
		f.group, err = b.optInt(MaxRank)
	case fieldKind:
		err = b.specKind(f)
	default:
		err = b.skipValue()
	}
	return err
}

func (b *Batch) tag(f *fields) error {
	tag, ok, err := b.text(MaxNameBytes)
	if err != nil {
		return err
	}
	if !ok {
		return errMalformed
	}
	switch string(tag) {
	case "BlockStored":
		f.kind = scoring.BlockStored
	case "BlockRemoved":
		f.kind = scoring.BlockRemoved
	case "AllBlocksCleared":
		f.kind = scoring.AllBlocksCleared
	default:
		return eventError(SkipUnknown)
	}
	return nil
}

func (b *Batch) hashList(f *fields) error {
	n, ok, err := b.listLen(MaxHashes)
	if err != nil || !ok {
		return err
	}
	start := len(b.hashes)
	for range n {
		h, err := b.hash()
		if err != nil {
			return err
		}
		b.hashes = append(b.hashes, h)
	}
	f.hashes = b.hashes[start:len(b.hashes):len(b.hashes)]
	f.hasHashes = true
	return nil
}

func (b *Batch) tokenList(f *fields) error {
	n, ok, err := b.listLen(MaxTokens)
	if err != nil || !ok || n == 0 {
		return err
	}
	start := len(b.tokens)
	for range n {
		v, err := b.token()
		if err != nil {
			return err
		}
		b.tokens = append(b.tokens, v)
	}
	f.tokens = b.tokens[start:len(b.tokens):len(b.tokens)]
	return nil
}

func (b *Batch) loraID(f *fields) error {
	c, err := b.peek()
	if err != nil {
		return err
	}
	if c == msgpcode.Nil {
		return b.skipValue()
	}
	if !isInt(c) {
		return errMalformed
	}
	f.loraID, err = b.dec.DecodeInt64()
	f.hasLoRAID = true
	return err
}

// medium maps the engine's names for where a block lives to a tier. Connectors
// write them in lower case, too.
func (b *Batch) medium(f *fields) error {
	m, ok, err := b.text(MaxNameBytes)
	if err != nil || !ok {
		return err
	}
	f.unknownMedium = false
	switch strings.ToUpper(string(m[:min(len(m), 16)])) {
	case "GPU":
		f.tier = scoring.TierGPU
	case "CPU":
		f.tier = scoring.TierCPU
	case "STORAGE", "DISK":
		f.tier = scoring.TierDisk
	case "FS":
		f.tier = scoring.TierFile
	case "OBJ":
		f.tier = scoring.TierObject
	default:
		f.unknownMedium = true
	}
	return nil
}

func (b *Batch) specKind(f *fields) error {
	k, ok, err := b.text(MaxNameBytes)
	if err != nil || !ok {
		return err
	}
	switch string(k) {
	case "full_attention", "mla_attention", "sink_full_attention":
		f.fullKind = true
	default:
		f.partialKind = true
	}
	return nil
}
