package classify

import (
	"runtime"
	"syscall"
	"testing"
	"time"
)

// cpuTime is what this thread has run so far. Unlike the clock it does not count
// what other programs on the machine take.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	const thread = 1 // RUSAGE_THREAD, which package syscall does not name
	var u syscall.Rusage
	if err := syscall.Getrusage(thread, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// timed runs the loop of a benchmark and adds the throughput by CPU time.
func timed(b *testing.B, bytes int, f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b.SetBytes(int64(bytes))
	b.ReportAllocs()
	start := cpuTime(b)
	for b.Loop() {
		f()
	}
	if used := cpuTime(b) - start; used > 0 {
		b.ReportMetric(float64(bytes)*float64(b.N)/1e6/used.Seconds(), "cpu-MB/s")
	}
}
