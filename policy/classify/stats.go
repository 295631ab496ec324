package classify

import (
	"maps"
	"sync"
)

// Stats are counters since New. Maps hold only what has been counted.
type Stats struct {
	// Scans counts calls of Scan by scan_status, also of requests without a body.
	Scans map[string]uint64
	// Bytes is the text scanned, after unescaping.
	Bytes uint64
	// Hits counts findings by label.
	Hits map[string]uint64
	// Unmapped counts findings of external detectors that no label is mapped to,
	// Failures their errors other than time-outs, and Timeouts those, by detector.
	Unmapped, Failures, Timeouts map[string]uint64
}

// Stats returns a copy of the counters.
func (c *Classifier) Stats() Stats { return c.stats.snapshot() }

// counters are Stats under a lock that is held for a few additions a scan.
type counters struct {
	mu sync.Mutex
	s  Stats // mu protects s and its maps
}

func (c *counters) scanned(st status, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	increase(&c.s.Scans, statusWords[st], 1)
	c.s.Bytes += uint64(bytes)
}

func (c *counters) found(hits map[string]int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for label, n := range hits {
		increase(&c.s.Hits, label, uint64(n))
	}
}

func (c *counters) unmapped(detector string, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	increase(&c.s.Unmapped, detector, uint64(n))
}

func (c *counters) failed(detector string, st status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if st == timeout {
		increase(&c.s.Timeouts, detector, 1)
	} else {
		increase(&c.s.Failures, detector, 1)
	}
}

func (c *counters) snapshot() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.s
	for _, m := range []*map[string]uint64{&out.Scans, &out.Hits, &out.Unmapped, &out.Failures, &out.Timeouts} {
		*m = maps.Clone(*m)
	}
	return out
}

func increase(m *map[string]uint64, key string, n uint64) {
	if *m == nil {
		*m = map[string]uint64{}
	}
	(*m)[key] += n
}
