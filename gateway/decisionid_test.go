package gateway

import (
	"regexp"
	"testing"
	"time"
)

// TestDecisionID holds ids to the layout of RFC 9562: the time of its example in
// appendix A.6, the version, the variant, and a rest that never repeats.
func TestDecisionID(t *testing.T) {
	form := regexp.MustCompile(`^017f22e2-79b0-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	now := time.UnixMilli(0x017F22E279B0)
	seen := make(map[string]bool)
	for range 1000 {
		id := newDecisionID(now)
		if !form.MatchString(id) || seen[id] {
			t.Fatalf("%s is no new UUID of version 7 at %v", id, now)
		}
		seen[id] = true
	}
	if a, b := newDecisionID(now), newDecisionID(now.Add(time.Millisecond)); a >= b {
		t.Errorf("%s is not before %s", a, b)
	}
}
