package engine

// noise draws token ids: a splitmix64 sequence (Steele, Lea, Flood, 2014)
// started from the engine's seed, the prompt and the choice, so that the same
// request gives the same text on every worker with the same seed.
type noise uint64

// newNoise returns the sequence for choice of prompt. requestSeed is the
// client's own seed, 0 for none.
func newNoise(seed, requestSeed uint64, prompt []uint32, choice int) noise {
	n := noise(seed)
	n.mix(requestSeed)
	for _, t := range prompt {
		n.mix(uint64(t))
	}
	n.mix(uint64(choice))
	return n
}

func (n *noise) mix(v uint64) {
	*n ^= noise(v)
	*n = noise(n.next())
}

func (n *noise) next() uint64 {
	*n += 0x9e3779b97f4a7c15
	z := uint64(*n)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below returns a number in [0, n). The bias is far below what noise needs.
func (n *noise) below(limit int) int { return int(n.next() % uint64(limit)) }

// unit returns a number in [0, 1).
func (n *noise) unit() float64 { return float64(n.next()>>11) / (1 << 53) }
