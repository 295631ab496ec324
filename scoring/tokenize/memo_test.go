//go:build cgo && !notokenizers

package tokenize

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestMemoKeepsItsBound(t *testing.T) {
	const limit = 64 << 10
	m := newMemo(limit)
	for i := range 5000 {
		text := fmt.Sprint("text ", i, strings.Repeat("x", i%300))
		m.put(text, i%2 == 0, []uint32{uint32(i), uint32(i + 1)})
		if ids, ok := m.get(text, i%2 == 0); !ok || !slices.Equal(ids, []uint32{uint32(i), uint32(i + 1)}) {
			t.Fatalf("entry %d: got %v, %v", i, ids, ok)
		}
		if _, ok := m.get(text, i%2 != 0); ok {
			t.Fatalf("entry %d: framed and unframed ids are confused", i)
		}
		var st Stats
		m.addStats(&st)
		if st.CacheBytes > limit || st.CacheBytes < 0 {
			t.Fatalf("entry %d: %d bytes of %d", i, st.CacheBytes, limit)
		}
	}
	checkMemo(t, m)
}

// checkMemo checks what holds between the parts of a shard.
func checkMemo(t *testing.T, m *memo) {
	t.Helper()
	for i := range m.shards {
		s := &m.shards[i]
		var bytes int64
		for slot, e := range s.ring {
			if e.slot != slot || s.byKey[e.key] != e {
				t.Errorf("entry %d is not where it should be", slot)
			}
			bytes += e.size()
		}
		if bytes != s.bytes || len(s.byKey) != len(s.ring) {
			t.Errorf("%d bytes in %d entries are counted as %d in %d", bytes, len(s.ring), s.bytes, len(s.byKey))
		}
	}
}

// TestMemoKeepsWhatIsUsed: an entry in use survives a stream of others.
func TestMemoKeepsWhatIsUsed(t *testing.T) {
	m := newMemo(32 << 10)
	m.put("system prompt", false, []uint32{1})
	for i := range 1000 {
		m.put(fmt.Sprint("other ", i), false, []uint32{2})
		if _, ok := m.get("system prompt", false); !ok {
			t.Fatalf("lost after %d others", i)
		}
	}
	var st Stats
	m.addStats(&st)
	if st.Evictions == 0 {
		t.Error("nothing was dropped, the test proves nothing")
	}
}

func TestMemoLeavesOutWhatIsTooLong(t *testing.T) {
	m := newMemo(10 << 10)
	m.put("a", false, []uint32{1})
	m.put(strings.Repeat("long ", 4000), false, []uint32{2})
	if _, ok := m.get(strings.Repeat("long ", 4000), false); ok {
		t.Error("an entry beyond the bound was kept")
	}
	if _, ok := m.get("a", false); !ok {
		t.Error("the long text drove out the short one")
	}
}

func TestMemoReplacesTheSameText(t *testing.T) {
	m := newMemo(10 << 10)
	for range 500 {
		m.put("a", false, []uint32{1})
	}
	var st Stats
	m.addStats(&st)
	if st.CacheEntries != 1 || st.Evictions != 0 {
		t.Errorf("stats %+v, want one entry", st)
	}
}

func TestNoMemo(t *testing.T) {
	var m *memo
	m.put("a", false, []uint32{1})
	if _, ok := m.get("a", false); ok {
		t.Error("no memo remembers")
	}
	tok := demo(t, Options{CacheBytes: -1})
	var p Prompts
	for range 2 {
		if err := tok.Append(t.Context(), &p, Completion, []byte(`{"prompt":"a b c"}`)); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(p.At(0), p.At(1)) {
		t.Errorf("got %v, then %v", p.At(0), p.At(1))
	}
}

func TestMemoIsSharedSafely(t *testing.T) {
	m := newMemo(40 << 10)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 2000 {
				text := fmt.Sprint("text ", (i*7+w)%300)
				if ids, ok := m.get(text, false); ok && ids[0] != uint32(len(text)) {
					t.Errorf("%q has the ids of another text", text)
				}
				m.put(text, false, []uint32{uint32(len(text))})
			}
		})
	}
	wg.Wait()
	checkMemo(t, m)
}
