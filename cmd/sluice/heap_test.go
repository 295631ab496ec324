package main

import (
	"context"
	"runtime"
	"runtime/debug"
	rtmetrics "runtime/metrics"
	"testing"
	"time"
)

func TestHeapPercent(t *testing.T) {
	for _, c := range []struct {
		live uint64
		want int
	}{
		{0, 2000},
		{1 << 20, 2000},
		{8 << 20, 700},
		{32 << 20, 100},
		{40 << 20, 60},
		{64 << 20, 50},
		{4 << 30, 50},
	} {
		if got := heapPercent(c.live); got != c.want {
			t.Errorf("with %d bytes in use %d %%, want %d %%", c.live, got, c.want)
		}
	}
}

// What is kept decides how far the heap may grow, from one collection to the next.
func TestHeapRoom(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- newHeapRoom().Run(ctx) }()
	kept := make([]byte, 256<<20) // more than the tests keep otherwise
	collectUntil(t, "with much in use", func(percent uint64) bool { return percent == heapGrowth })
	runtime.KeepAlive(kept) // and no longer
	collectUntil(t, "with less in use", func(percent uint64) bool { return percent > heapGrowth })
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := heapGOGC(); got != 100 {
		t.Errorf("GOGC is %d after the end, want 100", got)
	}
}

// An operator's own GOGC is let be.
func TestHeapRoomOfOperator(t *testing.T) {
	t.Setenv("GOGC", "150")
	before := debug.SetGCPercent(150)
	defer debug.SetGCPercent(before)
	if err := newHeapRoom().Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := heapGOGC(); got != 150 {
		t.Errorf("GOGC is %d, want 150", got)
	}
}

func heapGOGC() uint64 {
	s := []rtmetrics.Sample{{Name: "/gc/gogc:percent"}}
	rtmetrics.Read(s)
	return s[0].Value.Uint64()
}

func collectUntil(t *testing.T, when string, reached func(percent uint64) bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !reached(heapGOGC()); {
		if time.Now().After(limit) {
			t.Fatalf("%s GOGC stays %d", when, heapGOGC())
		}
		runtime.GC()
	}
}
