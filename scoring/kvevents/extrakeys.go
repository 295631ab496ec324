package kvevents

import (
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// readExtraKeys reads what the engine hashed into the blocks besides their
// tokens, and sets f.salt and f.usable.
//
// The value is nil, or a list with one entry a block: nil or a list of keys.
// Nothing in it says what a key is, so that is inferred: the adapter's name
// stands in every block and equals lora_name; the cache salt is a string in
// the block at position 0 only; anything else (image ids with their offsets,
// digests of prompt embeddings) can't be computed from a request, so blocks
// from there on are not usable.
func (b *Batch) readExtraKeys(f *fields) error {
	f.usable = len(f.hashes)
	if f.hasLoRAID && f.loraID != 0 && f.lora == "" {
		// An adapter without a name: no request can be matched to it, and as
		// blocks of the base model they would be wrong.
		f.usable = 0
	}
	if f.extraKeys == 0 {
		return nil
	}
	end := b.offset()
	b.seek(f.extraKeys)
	defer b.seek(end)
	n, ok, err := b.listLen(MaxHashes)
	if err != nil || !ok || n == 0 {
		return err
	}
	// Blocks that the list doesn't reach are of unknown content.
	f.usable = min(f.usable, n)
	for i := range min(n, len(f.hashes)) {
		known, err := b.blockKeys(f, i)
		if err != nil {
			return err
		}
		if !known {
			f.usable = min(f.usable, i)
		}
	}
	return nil
}

// blockKeys reads the keys of block i and reports whether all are known ones.
func (b *Batch) blockKeys(f *fields, i int) (known bool, err error) {
	c, err := b.peek()
	if err != nil {
		return false, err
	}
	if c == msgpcode.Nil {
		return true, b.skipValue()
	}
	if !isArray(c) {
		return false, b.skipValue()
	}
	n, err := b.arrayLen()
	if err != nil {
		return false, err
	}
	known = true
	lora := false // the adapter's key of this block was seen
	for range n {
		c, err := b.peek()
		if err != nil {
			return false, err
		}
		switch {
		case isStr(c):
			key, _, err := b.text(MaxNameBytes)
			if err != nil {
				return false, err
			}
			switch {
			case !lora && f.lora != "" && string(key) == f.lora:
				lora = true
			case i == 0 && f.parent == "" && !f.hasSalt && len(key) > 0:
				f.salt, f.hasSalt = string(key), true
			default:
				known = false
			}
		case isInt(c):
			id, err := b.dec.DecodeInt64()
			if err != nil {
				return false, err
			}
			if lora || !f.hasLoRAID || id != f.loraID {
				known = false
			}
			lora = true
		default:
			known = known && c == msgpcode.Nil
			if err := b.skipValue(); err != nil {
				return false, err
			}
		}
	}
	return known, nil
}
