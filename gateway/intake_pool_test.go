package gateway

import (
	"bytes"
	"sync"
	"testing"
)

// TestIntakeKeepsItsBytes: what has come on one connection stays its own while its
// buffer is exchanged for a larger one and others take theirs. The race detector
// sees what rarely shows.
func TestIntakeKeepsItsBytes(t *testing.T) {
	var all sync.WaitGroup
	for id := range 8 {
		all.Go(func() {
			want := bytes.Repeat([]byte{byte(id)}, smallIntake)
			for range 2000 {
				var in intake
				in.reserve(smallIntake)
				in.w = copy(in.buf, want)
				in.reserve(2 * smallIntake)
				if !bytes.Equal(in.bytes(), want) {
					t.Errorf("connection %d has bytes of another", id)
					return
				}
				in.drop()
			}
		})
	}
	all.Wait()
}
