package scoring

import "unsafe"

// tokenBytes views tokens as bytes in the machine's own order. Keys never leave
// the process, so the order does not matter as long as it is always the same.
func tokenBytes(tokens []uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), 4*len(tokens))
}
