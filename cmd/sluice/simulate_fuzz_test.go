package main

import (
	"strings"
	"testing"
)

// FuzzSimulateRange reads arbitrary values of --fresh, --output and --turns: what
// is taken is a range, and what is not leaves the bounds as they were.
func FuzzSimulateRange(f *testing.F) {
	for _, s := range []string{"", "1", "16..600", "600..16", "..", "1..", "0", "-5..5", "1..99999999999999999999", "1..2..3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		lo, hi := 3, 4
		if err := readRange("fresh", s, &lo, &hi); err != nil || s == "" {
			if lo != 3 || hi != 4 {
				t.Fatalf("%q changed the bounds to %d and %d: %v", s, lo, hi, err)
			}
			return
		}
		if lo < 1 || hi < lo || hi > maxSimTokens {
			t.Fatalf("%q is taken for %d..%d", s, lo, hi)
		}
	})
}

// FuzzSimulateBuckets reads arbitrary values of --buckets.
func FuzzSimulateBuckets(f *testing.F) {
	for _, s := range []string{"50:2x3000", "50:2x3000,30:8x2000", ":x", "NaN:1x1", "Inf:1x1", "1:0x5", "1e9:1x1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		values := strings.Split(s, ",")
		buckets, err := readBuckets(values)
		if err != nil {
			return
		}
		if len(buckets) != len(values) {
			t.Fatalf("%q gives %d buckets", s, len(buckets))
		}
		for _, b := range buckets {
			if !(b.Weight > 0 && b.Weight <= 1e9) || b.Prefixes < 1 || b.Prefixes > maxSimRequests || b.Tokens < 1 || b.Tokens > maxSimTokens {
				t.Fatalf("%q gives %+v", s, b)
			}
		}
	})
}
