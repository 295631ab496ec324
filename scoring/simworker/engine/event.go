package engine

// EventKind says what a cache event reports.
type EventKind uint8

const (
	// Stored reports blocks that can be found by the prefix cache from now on.
	Stored EventKind = iota + 1
	// Removed reports one block that lost its content.
	Removed
	// Cleared reports that the whole prefix cache was emptied.
	Cleared
)

// Event is one change of the prefix cache, in the order it happened. Its
// slices alias memory of the engine that is never written again, so an Event
// may be kept and shared, but not changed.
type Event struct {
	Kind EventKind
	// Hashes are the blocks stored, in chain order, or the one block removed.
	Hashes []Hash
	// Parent is the block before Hashes[0]; nil at the root of a chain.
	Parent *Hash
	// Tokens holds the ids of all blocks stored, one after another.
	Tokens []uint32
	// First is the position of Hashes[0] in its chain. Only block 0 carries
	// the salt.
	First int
	// LoRA and Salt are those of the request that stored the blocks.
	LoRA, Salt string
}
