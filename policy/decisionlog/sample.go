package decisionlog

import (
	"math"

	"github.com/sluicegate/sluice/policy"
)

// sampler keeps a share of ids. The choice depends on the id alone, so every
// record of one decision has the same fate, on every replica and after every
// restart.
type sampler struct {
	all       bool
	threshold uint64
}

func newSampler(share float64) sampler {
	if share >= 1 {
		return sampler{all: true}
	}
	return sampler{threshold: uint64(math.Ldexp(share, 64))}
}

func (s sampler) keeps(id string) bool { return s.all || hashID(id) < s.threshold }

// hashID spreads ids evenly over 64 bits: FNV-1a, and the finaliser of
// SplitMix64 since FNV's upper bits are uneven on short texts.
func hashID(id string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * 1099511628211
	}
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// plain says that a decision may be left out by sampling.
func plain(d *policy.Decision) bool {
	return d.Allow && !d.LogInFull && len(d.Warnings)+len(d.WouldDeny)+len(d.Errors) == 0
}
