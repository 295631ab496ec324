package scoring

import (
	"slices"
	"testing"
)

func TestAppendKeys(t *testing.T) {
	root := Root("m", "", "")
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7}
	keys := AppendKeys(nil, root, tokens, 2)
	if len(keys) != 3 {
		t.Fatalf("7 tokens in blocks of 2 give %d keys, want 3", len(keys))
	}
	if got := AppendKeys(slices.Clone(keys[:1]), keys[0], tokens[2:], 2); !slices.Equal(got, keys) {
		t.Errorf("going on from the first key gives %v, want %v", got, keys)
	}
	if got := AppendKeys(nil, root, tokens, 0); got != nil {
		t.Errorf("blocks of 0 tokens give %v", got)
	}
	if got := AppendKeys(nil, root, tokens, 8); got != nil {
		t.Errorf("a prompt shorter than a block gives %v", got)
	}
	tokens[0] = 9
	for i, k := range AppendKeys(nil, root, tokens, 2) {
		if k == keys[i] {
			t.Errorf("key %d does not depend on the first token", i)
		}
	}
}

// TestKeysApart holds chains apart that only look alike.
func TestKeysApart(t *testing.T) {
	seen := map[Key]string{}
	add := func(k Key, what string) {
		t.Helper()
		if was, ok := seen[k]; ok {
			t.Errorf("%s has the key of %s", what, was)
		}
		seen[k] = what
	}
	for _, r := range [][3]string{
		{"", "", ""}, {"m", "", ""}, {"", "m", ""}, {"", "", "m"}, {"m", "m", ""},
		{"mm", "", ""}, {"", "mm", ""}, {"m", "", "m"}, {"", "m", "m"},
	} {
		add(Root(r[0], r[1], r[2]), "root of "+r[0]+"|"+r[1]+"|"+r[2])
	}
	root := Root("m", "", "")
	add(AppendKeys(nil, root, []uint32{1, 2}, 2)[0], "1 2")
	add(AppendKeys(nil, root, []uint32{2, 1}, 2)[0], "2 1")
	add(AppendKeys(nil, root, []uint32{1, 2, 0}, 3)[0], "1 2 0")
	add(AppendKeys(nil, root, []uint32{1}, 1)[0], "1")
	add(AppendKeys(nil, root, []uint32{0x10002}, 1)[0], "65538")
	for i, k := range AppendKeys(nil, root, make([]uint32, 1000), 1) {
		add(k, "zeros, block "+string(rune('0'+i%10)))
	}
}

// TestKeysOfLongBlocks covers the sizes at which the hash changes its method.
func TestKeysOfLongBlocks(t *testing.T) {
	for _, size := range []int{1, 4, 16, 32, 33, 60, 61, 64, 128, 1024} {
		tokens := make([]uint32, 2*size)
		a := AppendKeys(nil, Root("m", "", ""), tokens, size)
		b := AppendKeys(nil, Root("m", "", "s"), tokens, size)
		tokens[2*size-1] = 1
		c := AppendKeys(nil, Root("m", "", ""), tokens, size)
		if a[0] == b[0] || a[1] == b[1] || a[0] != c[0] || a[1] == c[1] {
			t.Errorf("blocks of %d: %x, salted %x, last token changed %x", size, a, b, c)
		}
	}
}
