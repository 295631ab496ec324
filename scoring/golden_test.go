//go:build amd64 && !race

package scoring

import (
	"encoding/binary"
	"hash/fnv"
	"testing"
	"time"
)

// TestPicksAsEver holds every pick of some simulations, with what was predicted for
// it, to what it was when the figures of the design notes were measured. A change
// that is meant to choose differently has to measure again, and then replaces the
// sums. Other processors round some sums of products differently, so it is amd64's.
func TestPicksAsEver(t *testing.T) {
	by := func(s Strategy) func(*Config) { return func(c *Config) { c.Strategy = s } }
	full := func(s *simulation) {
		for _, e := range s.engines {
			e.blockSize, e.blocks, e.slots = 32, 512, 8
			s.fleet.SetCapacity(e.id, 32, 512)
		}
	}
	loads := func(s *simulation) {
		for i := range 200 {
			s.after(time.Duration(i)*time.Second/4, func() {
				s.fleet.ObserveLoad(s.now, s.engines[i%len(s.engines)].id,
					Load{Running: i % 70, Waiting: i % 11, KVUsage: float64(i%10) / 10})
			})
		}
	}
	for _, c := range []struct {
		name    string
		cfg     func(*Config)
		workers int
		set     func(*simulation)
		load    func(*simulation)
		want    uint64
	}{
		{"prefixes", by(StrategyTTFT), 3, ordinary, func(s *simulation) { s.sharedPrefixes(600, 20, 24, 3000, 64) }, 0xcb300b8e208b9e9b},
		{"prefixes, a queue", by(StrategyTTFT), 3, ordinary, func(s *simulation) { s.sharedPrefixes(600, 40, 24, 3000, 64) }, 0x9b0d866e2c641edf},
		{"one prefix", by(StrategyTTFT), 3, ordinary, func(s *simulation) { s.sharedPrefixes(600, 80, 1, 3000, 200) }, 0x7efec66cd9c06541},
		{"independent", by(StrategyTTFT), 3, ordinary, func(s *simulation) { s.sharedPrefixes(300, 14, 1, 0, 1500) }, 0x33c4a3fa979275e3},
		{"caches and sequences taken", by(StrategyTTFT), 4, full, func(s *simulation) { s.mixedPrefixes(800, 9, 4) }, 0x1f91d703a70c53f6},
		{"work of others", by(StrategyTTFT), 3, loads, func(s *simulation) { s.sharedPrefixes(400, 12, 24, 2000, 200) }, 0xa5da39b82335713d},
		{"one is slow", by(StrategyTTFT), 4, func(s *simulation) { s.engines[2].slow = 4 }, func(s *simulation) { s.sharedPrefixes(300, 12, 1, 0, 1500) }, 0x39be16b25ef69268},
		{"by chance", by(StrategyRandom), 3, ordinary, func(s *simulation) { s.sharedPrefixes(200, 10, 24, 1000, 64) }, 0xdc844c7375c69232},
		{"in turn", by(StrategyRoundRobin), 3, ordinary, func(s *simulation) { s.sharedPrefixes(200, 10, 24, 1000, 64) }, 0x9ba6fb5b398a7fb8},
		{"fewest in flight", by(StrategyLeastLoaded), 3, ordinary, func(s *simulation) { s.sharedPrefixes(200, 10, 24, 1000, 64) }, 0x25e69dc34d64b5e0},
		{"by the prefix", by(StrategyPrefixOnly), 3, ordinary, func(s *simulation) { s.sharedPrefixes(200, 10, 24, 1000, 64) }, 0x41aab4fec2a0f8ac},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Seed = 11
			c.cfg(&cfg)
			s := newSimulation(cfg, c.workers)
			c.set(s)
			c.load(s)
			s.run()
			sum := fnv.New64a()
			for _, r := range s.all {
				var b [32]byte
				binary.LittleEndian.PutUint64(b[:], uint64(r.res.Worker().ID))
				binary.LittleEndian.PutUint64(b[8:], uint64(r.res.Predicted()))
				binary.LittleEndian.PutUint64(b[16:], uint64(r.res.Cached()))
				binary.LittleEndian.PutUint64(b[24:], uint64(r.ttft))
				sum.Write(b[:])
			}
			if got := sum.Sum64(); got != c.want {
				t.Errorf("the picks sum to %#016x, want %#016x", got, c.want)
			}
		})
	}
}
