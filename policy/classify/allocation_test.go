//go:build !race

package classify

import (
	"context"
	"strings"
	"testing"
)

// TestAllocations holds the memory that a scan takes: what it returns, whatever
// the size of the body.
func TestAllocations(t *testing.T) {
	c := mustNew(t, each())
	small := message("nothing to see")
	escaped := message(strings.Repeat("line\nafter line \"quoted\" é\n", 8000))
	parts := `{"messages":[` + strings.Repeat(`{"content":[{"type":"text","text":"a\nb"},{"type":"text","text":"c"}]},`, 500) + `{}]}`
	for name, test := range map[string]struct {
		body string
		most float64
	}{
		"small":   {small, 4},
		"escaped": {escaped, 4},
		"parts":   {parts, 4},
		"found":   {message("a@example.com 4111111111111111"), 12},
	} {
		r := &Request{Body: []byte(test.body)}
		c.Scan(context.Background(), r) // makes the scratch
		if got := testing.AllocsPerRun(50, func() { c.Scan(context.Background(), r) }); got > test.most {
			t.Errorf("%s: %v allocations, want at most %v", name, got, test.most)
		}
	}
}
