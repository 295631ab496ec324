package kvevents

import "github.com/sluicegate/sluice/scoring"

// fieldID names a field of an event, whatever form the event has.
type fieldID uint8

const (
	fieldUnused fieldID = iota
	fieldType
	fieldHashes
	fieldParent
	fieldTokens
	fieldBlockSize
	fieldLoRAID
	fieldMedium
	fieldLoRAName
	fieldExtraKeys
	fieldGroup
	fieldKind
)

// fieldOf returns the field with the given map key, fieldUnused for a key that
// means nothing here.
func fieldOf(key []byte) fieldID {
	switch string(key) {
	case "type":
		return fieldType
	case "block_hashes":
		return fieldHashes
	case "parent_block_hash":
		return fieldParent
	case "token_ids":
		return fieldTokens
	case "block_size":
		return fieldBlockSize
	case "lora_id":
		return fieldLoRAID
	case "medium":
		return fieldMedium
	case "lora_name":
		return fieldLoRAName
	case "extra_keys":
		return fieldExtraKeys
	case "group_idx":
		return fieldGroup
	case "kv_cache_spec_kind":
		return fieldKind
	}
	return fieldUnused
}

// fieldAt returns the field at position i after the tag of an array event.
func fieldAt(kind scoring.EventKind, i int) fieldID {
	var order []fieldID
	switch kind {
	case scoring.BlockStored:
		order = []fieldID{
			fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoRAID,
			fieldMedium, fieldLoRAName, fieldExtraKeys, fieldGroup, fieldKind,
		}
	case scoring.BlockRemoved:
		order = []fieldID{fieldHashes, fieldMedium, fieldGroup}
	}
	if i >= len(order) {
		return fieldUnused
	}
	return order[i]
}

// fields collects one event while its fields arrive in any order.
type fields struct {
	kind          scoring.EventKind
	hashes        []scoring.EngineHash
	hasHashes     bool
	parent        scoring.EngineHash
	tokens        []uint32
	blockSize     int
	loraID        int64
	hasLoRAID     bool
	lora          string
	tier          scoring.Tier
	unknownMedium bool
	extraKeys     int // offset of the value in the payload; 0 if absent
	group         int
	fullKind      bool
	partialKind   bool

	salt    string
	hasSalt bool
	usable  int
}

// finish turns the collected fields into an event, or says why it can't be.
func (b *Batch) finish(f *fields) (scoring.Event, error) {
	switch f.kind {
	case scoring.AllBlocksCleared:
		return scoring.Event{Kind: f.kind}, nil
	case scoring.BlockRemoved:
		if err := f.check(); err != nil {
			return scoring.Event{}, err
		}
		return scoring.Event{Kind: f.kind, Hashes: f.hashes, Tier: f.tier, Group: f.group}, nil
	case scoring.BlockStored:
		return b.finishStored(f)
	}
	return scoring.Event{}, errMalformed
}

func (b *Batch) finishStored(f *fields) (scoring.Event, error) {
	if f.partialKind {
		return scoring.Event{}, eventError(SkipKind)
	}
	if err := f.check(); err != nil {
		return scoring.Event{}, err
	}
	// Sparse groups list fewer hashes than their tokens fill. A store without
	// tokens repeats hashes that are known already, in another tier.
	if len(f.tokens) > 0 && len(f.tokens) != len(f.hashes)*f.blockSize {
		return scoring.Event{}, eventError(SkipSparse)
	}
	if err := b.readExtraKeys(f); err != nil {
		return scoring.Event{}, err
	}
	return scoring.Event{
		Kind:      f.kind,
		Hashes:    f.hashes,
		Parent:    f.parent,
		Tokens:    f.tokens,
		BlockSize: f.blockSize,
		LoRA:      f.lora,
		Salt:      f.salt,
		Usable:    f.usable,
		Tier:      f.tier,
		Group:     f.group,

		FullAttention: f.fullKind,
	}, nil
}

// check holds what stores and removals have in common.
func (f *fields) check() error {
	switch {
	case !f.hasHashes:
		return errMalformed
	case len(f.hashes) == 0:
		return eventError(SkipEmpty)
	case f.unknownMedium:
		return eventError(SkipMedium)
	}
	return nil
}
