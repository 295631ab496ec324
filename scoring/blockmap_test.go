package scoring

import (
	"testing"

	"pgregory.net/rapid"
)

func TestBlockMapEqualsMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m blockMap
		want := map[uint64]blockSlot{}
		// Hashes are small integers or spread ones; both must do.
		spread := rapid.SampledFrom([]uint64{1, 0x9e3779b97f4a7c15, 1 << 40}).Draw(t, "spread")
		for range rapid.SampledFrom([]int{10, 100, 500}).Draw(t, "steps") {
			h := rapid.Uint64Range(0, 100).Draw(t, "hash") * spread
			if _, ok := want[h]; ok && rapid.Bool().Draw(t, "remove") {
				m.remove(h)
				delete(want, h)
				continue
			}
			k := Key(rapid.Uint64().Draw(t, "key"))
			m.put(h, k, 1<<TierCPU)
			want[h] = blockSlot{h, k}
		}
		if m.n != len(want) {
			t.Fatalf("counts %d, want %d", m.n, len(want))
		}
		for n := range uint64(101) {
			h := n * spread
			k, s, ok := m.lookup(h)
			w, there := want[h]
			if ok != there || k != w.key || ok != (s == 1<<TierCPU) {
				t.Fatalf("lookup(%d) = %d, %b, %v; want %d, %v", h, k, s, ok, w.key, there)
			}
		}
	})
}

func TestFoldHash(t *testing.T) {
	f := func(h EngineHash, want uint64) {
		t.Helper()
		if got := foldHash(h); got != want {
			t.Errorf("foldHash(%x) = %x, want %x", string(h), got, want)
		}
	}
	f(intHash(1<<63+5), 1<<63+5)
	f(intHash(0), 0)
	seen := map[uint64]bool{}
	for _, h := range []EngineHash{"", "a", "seven b", "nine byte", "0123456789abcdef0123456789abcdef"} {
		if n := foldHash(h); seen[n] {
			t.Errorf("foldHash(%q) collides", h)
		} else {
			seen[n] = true
		}
	}
}
