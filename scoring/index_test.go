package scoring

import (
	"testing"

	"pgregory.net/rapid"
)

// TestMatchEqualsModel compares a look-up with a walk along the chain, column
// by column, for any contents of all tables, on both sides of 64 columns.
func TestMatchEqualsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := new(index)
		cols := rapid.SampledFrom([]int{1, 5, 64, 65, 130}).Draw(t, "columns")
		for range cols {
			x.newColumn()
		}
		keys := AppendKeys(nil, Root("m", "", ""), make([]uint32, rapid.IntRange(0, 12).Draw(t, "blocks")), 1)
		tables := []*table{&x.tiers[0], &x.tiers[1], &x.tiers[2], &x.soon}
		used := rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "tables")
		for col := range min(cols, 8) {
			// Spread over the words.
			col = col * (cols - 1) / 7
			for _, k := range keys {
				if rapid.IntRange(0, 9).Draw(t, "held") > 0 {
					tables[rapid.IntRange(0, used-1).Draw(t, "table")].set(k, col)
				}
			}
		}
		var w walk
		w.reset(len(x.taken))
		asked := map[int]bool{}
		for col := range cols {
			if rapid.IntRange(0, 3).Draw(t, "asked") > 0 {
				w.cols[col/64] |= 1 << (col % 64)
				asked[col] = true
			}
		}
		x.match(keys, &w)
		for col := range asked {
			if got, want := w.depths[col], x.naiveDepth(keys, col); got != want {
				t.Fatalf("column %d: %+v, want %+v", col, got, want)
			}
		}
	})
}

func (x *index) naiveDepth(keys []Key, col int) depth {
	var d depth
	proven := true
	for _, k := range keys {
		gpu, cpu, disk := x.tiers[0].has(k, col), x.tiers[1].has(k, col), x.tiers[2].has(k, col)
		if !x.holds(k, col) {
			break
		}
		if proven = proven && (gpu || cpu || disk); proven {
			d.real++
		}
		d.all++
		if !gpu && cpu {
			d.cpu++
		} else if !gpu && disk {
			d.disk++
		}
	}
	return d
}

func TestColumnsAreReused(t *testing.T) {
	x := new(index)
	for want := range 130 {
		if got := x.newColumn(); got != want {
			t.Fatalf("column %d, want %d", got, want)
		}
	}
	x.freeColumn(3)
	x.freeColumn(127)
	for _, want := range []int{3, 127, 130} {
		if got := x.newColumn(); got != want {
			t.Fatalf("column %d, want %d", got, want)
		}
	}
}
