package qos

import "math/bits"

// tally counts entries by the power of two above their work.
type tally struct {
	n   [64]int32
	has uint64 // which of n are not 0
}

func (s *tally) add(work int64) {
	i := bits.Len64(uint64(work))
	s.n[i]++
	s.has |= 1 << i
}

func (s *tally) remove(work int64) {
	i := bits.Len64(uint64(work))
	if s.n[i]--; s.n[i] == 0 {
		s.has &^= 1 << i
	}
}

// most is the power of two above the largest work; 0 if there is none.
func (s *tally) most() uint64 {
	if s.has == 0 {
		return 0
	}
	return 1 << (bits.Len64(s.has) - 1)
}
