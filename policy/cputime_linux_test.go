package policy

import (
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

// cpuTime returns the CPU time that work takes on this thread: what other
// processes do meanwhile does not count.
func cpuTime(work func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime()
	work()
	return threadTime() - began
}

func threadTime() time.Duration {
	const threadCPUClock = 3 // CLOCK_THREAD_CPUTIME_ID
	var ts syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, threadCPUClock, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		panic("BUG: cannot read the thread's clock: " + errno.Error())
	}
	return time.Duration(ts.Nano())
}
