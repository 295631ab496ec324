package scoring

import "github.com/zeebo/xxh3"

// Key names a block of a prompt together with everything before it: two equal
// keys mean equal tokens from the start, for the same model, LoRA adapter and
// cache salt. Keys are made in this process and compared in this process only;
// they are never stored or sent.
//
// A Key is never zero.
type Key uint64

// maxBlockSize bounds the tokens of one block that an event may claim.
const maxBlockSize = 1 << 14

// Root is the key that the first block of a chain is hashed onto. Chains with
// another model, adapter or salt share no key. Each part seeds the next, so
// moving a byte from one to the other gives another root.
func Root(model, lora, salt string) Key {
	h := xxh3.HashString(model)
	h = xxh3.HashStringSeed(lora, h)
	return nonZero(xxh3.HashStringSeed(salt, h))
}

// AppendKeys appends the keys of the full blocks of tokens to dst and returns
// it. root is what Root gave, or the key of the block before tokens. A tail
// shorter than blockSize has no key.
func AppendKeys(dst []Key, root Key, tokens []uint32, blockSize int) []Key {
	if blockSize <= 0 {
		return dst
	}
	for len(tokens) >= blockSize {
		root = chain(root, tokens[:blockSize])
		dst = append(dst, root)
		tokens = tokens[blockSize:]
	}
	return dst
}

// chain hashes one block onto its parent.
func chain(parent Key, block []uint32) Key {
	return nonZero(xxh3.HashSeed(tokenBytes(block), uint64(parent)))
}

func nonZero(h uint64) Key {
	if h == 0 {
		return 1
	}
	return Key(h)
}
