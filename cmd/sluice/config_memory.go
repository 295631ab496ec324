package main

import "github.com/sluicegate/sluice/gateway"

const (
	// bodiesInMemory is how many of the largest bodies must fit into the memory of all: a request takes twice
	// its body's size, and a tenant can have half.
	bodiesInMemory = 4
	// defaultMemory is for a process whose memory has no limit.
	defaultMemory = 1 * GiB
)

// memory is the bound on what all bodies in flight take together.
func (c *LimitsConfig) memory(l osLimits) ByteSize {
	if c.MemoryBytes > 0 {
		return c.MemoryBytes
	}
	n := defaultMemory
	if l.memory > 0 {
		n = ByteSize(l.memory / memoryShare)
	}
	return max(n, bodiesInMemory*c.BodyBytes)
}

// memory checks the bound against the bodies that have to fit into it, and against the process's memory.
func (v *validator) memory() {
	l, have := &v.cfg.Limits, readOSLimits()
	if l.MemoryBytes != 0 && (l.MemoryBytes < bodiesInMemory*l.BodyBytes || l.MemoryBytes > 1024*GiB) {
		v.errorf("limits.memoryBytes", "is %s, should be between %s, four times limits.bodyBytes, and %s; a request takes twice its body's size, and one tenant can have half of this",
			l.MemoryBytes, bodiesInMemory*l.BodyBytes, 1024*GiB)
	}
	if n := l.memory(have); have.memory > 0 && n > ByteSize(have.memory/2) {
		v.warnf("limits.memoryBytes", "bodies may take %s, which is more than half of the %s that this process may have; lower limits.bodyBytes or this, or give it more", n, ByteSize(have.memory))
	}
}

// boundMemory sets the bound on what bodies take.
func boundMemory(gc *gateway.Config, c *LimitsConfig, l osLimits) {
	gc.MemoryBytes = int64(c.memory(l))
}
