package scoring

import (
	"maps"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func TestTableEqualsMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := new(table)
		type cell struct {
			key Key
			col int
		}
		want := map[cell]bool{}
		// Few keys in one shard, so that probes collide and slots die.
		key := rapid.Custom(func(t *rapid.T) Key {
			return Key(rapid.Uint64Range(1, 60).Draw(t, "key") * 0x9e3779b97f4a7c15 >> shardBits)
		})
		col := rapid.SampledFrom([]int{0, 1, 2, 63, 64, 200})
		for range rapid.SampledFrom([]int{10, 100, 400}).Draw(t, "steps") {
			at := cell{key.Draw(t, "key"), col.Draw(t, "col")}
			if rapid.Bool().Draw(t, "set") {
				if got := tab.set(at.key, at.col); got == want[at] {
					t.Fatalf("set(%v) = %v", at, got)
				}
				want[at] = true
			} else {
				if got := tab.clear(at.key, at.col); got != want[at] {
					t.Fatalf("clear(%v) = %v", at, got)
				}
				delete(want, at)
			}
		}
		keys := map[Key]bool{}
		for _, c := range []int{0, 1, 2, 63, 64, 200} {
			column := map[Key]bool{}
			for at := range want {
				keys[at.key] = true
				if at.col == c {
					column[at.key] = true
				}
			}
			if got := tab.contents(c); !maps.Equal(got, column) {
				t.Fatalf("column %d holds %v, want %v", c, got, column)
			}
		}
		if got := int(tab.keys.Load()); got != len(keys) {
			t.Fatalf("counts %d keys, want %d", got, len(keys))
		}
		for k := range keys {
			var got [4]uint64
			tab.union(k, got[:])
			for _, c := range []int{0, 1, 2, 63, 64, 200} {
				in := got[c/64]&(1<<(c%64)) != 0
				if in != want[cell{k, c}] || in != tab.has(k, c) {
					t.Fatalf("key %x column %d: union says %v, has %v", k, c, in, tab.has(k, c))
				}
			}
		}
	})
}

// TestTableReadWhileWritten holds readers to what a reader may see while other
// keys come and go around it: a key that stays is always found, a key that was
// never set never is.
func TestTableReadWhileWritten(t *testing.T) {
	tab := new(table)
	keys := AppendKeys(nil, Root("m", "", ""), make([]uint32, 4096), 1)
	stay, churn, never := keys[:512], keys[512:3584], keys[3584:]
	for _, k := range stay {
		tab.set(k, 7)
	}
	var writers, readers sync.WaitGroup
	stop := make(chan struct{})
	for col := range 2 {
		writers.Go(func() {
			for range 4 {
				for _, k := range churn {
					tab.set(k, 100*col)
				}
				for _, k := range churn {
					tab.clear(k, 100*col)
				}
			}
		})
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				for _, k := range stay {
					if !tab.has(k, 7) || tab.has(k, 0) {
						t.Error("a key that stays was lost, or another's columns seen")
						return
					}
				}
				for _, k := range never {
					if tab.has(k, 0) {
						t.Error("a key was seen that nobody set")
						return
					}
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
	if got := tab.keys.Load(); got != 512 {
		t.Errorf("%d keys left, want 512", got)
	}
}
