package authn

import (
	"fmt"
	"strings"
	"testing"
)

// The time that a tenants file takes to be read bounds how soon what it says holds.
func BenchmarkLoad10000Keys(b *testing.B) {
	var text strings.Builder
	text.WriteString("tenants:\n  - id: a\n    keys:\n")
	for i := range 10_000 {
		fmt.Fprintf(&text, "      - id: k%d\n        sha256: %s\n        groups: [devs]\n", i, digest(fmt.Sprint(i)))
	}
	for b.Loop() {
		if _, err := Load("t.yaml", []byte(text.String())); err != nil {
			b.Fatal(err)
		}
	}
}
