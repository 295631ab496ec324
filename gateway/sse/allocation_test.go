//go:build !race

package sse

import "testing"

func TestScannerAllocatesNothing(t *testing.T) {
	var s Scanner
	read := []byte("data: {\"choices\":[]}\n\ndata: a\ndata: b\n\n: c\r\n\r\nevent: x\rdata: y\r\rdata: half")
	f := func() {
		s.Feed(read)
		for _, ok := s.Next(); ok; _, ok = s.Next() {
		}
		s.Feed([]byte("\n\n"))
		for _, ok := s.Next(); ok; _, ok = s.Next() {
		}
	}
	f()
	if n := testing.AllocsPerRun(100, f); n != 0 {
		t.Errorf("%v allocations for a read of known size, want 0", n)
	}
}
