//go:build race

package classify

// raceFactor divides the work of tests that the race detector slows down.
const raceFactor = 16
