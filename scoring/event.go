package scoring

// EventKind says what a cache event did to a worker's prefix cache.
type EventKind uint8

const (
	// BlockStored adds blocks to a worker's view.
	BlockStored EventKind = iota + 1
	// BlockRemoved takes blocks out of a worker's view.
	BlockRemoved
	// AllBlocksCleared empties the view of the rank that sent it.
	AllBlocksCleared
)

// EngineHash is the engine's own name for a block. It is opaque: valid only
// for the (worker, rank) that published it, never comparable across workers.
// Integer hashes are kept as their 8 big-endian bytes, byte hashes as they are.
type EngineHash string

// Tier is where a block lives. The device is the cheapest to read from.
type Tier uint8

const (
	// TierGPU is the device's own memory; an event without a medium means it.
	TierGPU Tier = iota
	// TierCPU is host memory.
	TierCPU
	// TierDisk is what the engine calls just storage (STORAGE).
	TierDisk
	// TierFile is a file system (FS). It costs what TierDisk does; a block may be
	// in one and not in the other.
	TierFile
	// TierObject is an object store (OBJ), as apart from the others as TierFile.
	TierObject
)

// Event is one cache event after its wire format was decoded and checked.
// The decoder has already dropped what cannot be a true prefix block (groups
// that are not full attention) and what cannot be aligned to tokens.
//
// Slices belong to the caller and are not retained by Fleet.
type Event struct {
	Kind EventKind
	// Hashes are the blocks stored or removed, in chain order for a store.
	Hashes []EngineHash
	// Parent is the block before Hashes[0]; empty means the chain's root.
	Parent EngineHash
	// Tokens holds BlockSize ids for each of Hashes (stores only). Empty for
	// offload events that repeat a known hash in another tier.
	Tokens []uint32
	// BlockSize is tokens a block, as the event says.
	BlockSize int
	// LoRA is the adapter's name, or empty.
	LoRA string
	// Salt is the cache salt of a chain's block 0, or empty. It is set only on
	// events without a Parent; children inherit it through their parent.
	Salt string
	// Usable is, for a store, the count of leading blocks before the first
	// one that carries keys a request can't reproduce (images, embeddings).
	// Blocks from there on must not be indexed. len(Hashes) means all are usable.
	Usable int
	// Tier is the block's medium.
	Tier Tier
	// Group is the engine's KV cache group.
	Group int
	// FullAttention says, of a store, that the engine named the group's kind,
	// and that it is one of full attention. The engine takes from its cache only
	// what all such groups hold.
	FullAttention bool
}
