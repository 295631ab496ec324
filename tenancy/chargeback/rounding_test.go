package chargeback

import (
	"fmt"
	"math"
	"math/big"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicegate/sluice/tenancy"
)

// TestRounding: a meter's cost is what the table says that policies go by too.
func TestRounding(t *testing.T) {
	text, err := os.ReadFile("testdata/rounding.txt")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var quantity, price, discount, want int64
		if _, err := fmt.Sscan(line, &quantity, &price, &discount, &want); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		rows++
		if got := Cost(quantity, price, discount); got != want {
			t.Errorf("%d at %d less %d: %d, want %d", quantity, price, discount, got, want)
		}
	}
	if rows < 20 {
		t.Errorf("%d rows of the table were looked at", rows)
	}
}

func TestCostRoundsHalfUp(t *testing.T) {
	f := func(quantity, price, discount, want int64) {
		t.Helper()
		if got := Cost(quantity, price, discount); got != want {
			t.Errorf("%d at %d less %d: %d, want %d", quantity, price, discount, got, want)
		}
	}
	f(0, 150_000, 0, 0)
	f(1, 150_000, 0, 0)
	f(3, 150_000, 0, 0)
	f(4, 150_000, 0, 1)
	f(1, 499_999, 0, 0)
	f(1, 500_000, 0, 1)
	f(1, 500_000, 1, 0)
	f(1, 1_499_999, 0, 1)
	f(3, 500_000, 0, 2)
	f(1_000_000, 150_000, 0, 150_000)
	f(1_000_000, 150_000, 1_000_000, 0)
	f(1_000_000, 150_000, 125_000, 131_250)
	f(1<<40, maxPrice, 0, 1<<40*1_000_000)
	f(math.MaxInt64, maxPrice, 0, math.MaxInt64)
	f(math.MaxInt64, 1_000_001, 0, math.MaxInt64)
	f(math.MaxInt64, 1_000_000, 0, math.MaxInt64)
	f(-5, 1_000_000, 0, 0)
}

func TestPropertyCostIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		quantity := rapid.Int64Range(0, math.MaxInt64).Draw(t, "quantity")
		price := rapid.Int64Range(0, math.MaxInt64).Draw(t, "price")
		discount := rapid.Int64Range(0, tenancy.FullDiscount).Draw(t, "discount")
		want := new(big.Int).Mul(big.NewInt(quantity), big.NewInt(price))
		want.Mul(want, big.NewInt(tenancy.FullDiscount-discount))
		whole := big.NewInt(1_000_000_000_000)
		want.Add(want, new(big.Int).Rsh(whole, 1)).Div(want, whole)
		if !want.IsInt64() {
			want.SetInt64(math.MaxInt64)
		}
		if got := Cost(quantity, price, discount); got != want.Int64() {
			t.Fatalf("%d × %d less %d: %d, want %s", quantity, price, discount, got, want)
		}
	})
}
