package engine

import (
	"crypto/sha256"
	"encoding/binary"
)

// Hash is the engine's name for a block: a digest over the block before it,
// its own tokens, the LoRA name and, in block 0, the cache salt. The chain's
// start value is fixed, so two workers give the same text the same hash, as two
// processes of the real engine do.
type Hash [sha256.Size]byte

// Low64 is the form in which the engine publishes hashes by default: the low
// 64 bits of the digest.
func (h Hash) Low64() uint64 { return binary.BigEndian.Uint64(h[len(h)-8:]) }

// hasher builds the hashes of one chain, block by block.
type hasher struct {
	lora, salt string
	buf        []byte
}

// next returns the hash of the block at position pos that follows parent.
// Lengths are part of the digest, so that no LoRA name and salt can be
// exchanged for each other.
func (h *hasher) next(parent Hash, pos int, tokens []uint32) Hash {
	b := append(h.buf[:0], parent[:]...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(tokens)))
	for _, t := range tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(h.lora)))
	b = append(b, h.lora...)
	if pos == 0 {
		b = append(b, h.salt...)
	}
	h.buf = b
	return sha256.Sum256(b)
}

// extend appends the hashes of all full blocks of tokens that hashes lacks.
func (h *hasher) extend(hashes []Hash, tokens []uint32, blockSize int) []Hash {
	for (len(hashes)+1)*blockSize <= len(tokens) {
		i := len(hashes)
		var parent Hash
		if i > 0 {
			parent = hashes[i-1]
		}
		hashes = append(hashes, h.next(parent, i, tokens[i*blockSize:(i+1)*blockSize]))
	}
	return hashes
}
