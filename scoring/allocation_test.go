//go:build !race

package scoring

import (
	"testing"
	"time"
)

// benchIndex returns an index of workers' views that all hold a prefix of the
// prompt and each a cache of blocks of their own besides.
func benchIndex(workers int, keys []Key, own int) (*index, *walk) {
	x, w := new(index), new(walk)
	for i := range workers {
		col := x.newColumn()
		// Worker i holds the first (i+1)/workers of the prompt.
		for _, k := range keys[:len(keys)*(i+1)/workers] {
			x.tiers[TierGPU].set(k, col)
		}
		for j := range own {
			x.tiers[TierGPU].set(nonZero(uint64(i*own+j+1)*0x9e3779b97f4a7c15), col)
		}
	}
	w.reset(len(x.taken))
	for col := range workers {
		w.cols[col/64] |= 1 << (col % 64)
	}
	return x, w
}

func TestLookUpAllocatesNothing(t *testing.T) {
	for _, workers := range []int{4, 64, 256} {
		tokens := prompt(1, 512*16)
		keys := AppendKeys(nil, Root("m", "", ""), tokens, 16)
		x, w := benchIndex(workers, keys, 100)
		x.soon.set(keys[0], 0)
		x.tiers[TierCPU].set(keys[0], 0)
		n := testing.AllocsPerRun(100, func() {
			keys = AppendKeys(keys[:0], Root("m", "lora", "salt"), tokens, 16)
			keys = AppendKeys(keys[:0], Root("m", "", ""), tokens, 16)
			w.reset(len(x.taken))
			for col := range workers {
				w.cols[col/64] |= 1 << (col % 64)
			}
			x.match(keys, w)
		})
		if n != 0 {
			t.Errorf("%d workers: a look-up allocates %v times", workers, n)
		}
		if got := w.depths[workers-1].all; got != 512 {
			t.Fatalf("%d workers: the last one matches %d blocks, want 512", workers, got)
		}
	}
}

// TestPickAllocatesLittle allows the reservation and the keys it holds, once the
// ring of predictions has been around.
func TestPickAllocatesLittle(t *testing.T) {
	f, ids := testFleet(t, 64)
	tokens := prompt(1, 8192)
	for _, id := range ids {
		holds(f, id, 0, tokens)
	}
	req := &Request{Model: "m", Pools: []string{"p"}, Tokens: tokens}
	now := epoch
	once := func() {
		r, err := f.Pick(now, req)
		if err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Millisecond)
		r.FirstToken(now)
		r.Done(now, Completed)
	}
	for range f.cfg.Predictions {
		once()
	}
	n := testing.AllocsPerRun(1000, once)
	if n > 2 {
		t.Errorf("a pick and its reports allocate %v times, want at most 2", n)
	}
}
