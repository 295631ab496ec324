//go:build !linux

package policy

import "time"

// cpuTime returns the time that work takes, where the thread's own is not known.
func cpuTime(work func()) time.Duration {
	began := time.Now()
	work()
	return time.Since(began)
}
