package decisionlog

import (
	"bytes"
	"testing"

	"github.com/sluicegate/sluice/policy"
)

// BenchmarkDecided is what a request pays for its record: one that is kept, one
// that is edited, and one that sampling leaves out. The baseline is the copy of
// as many bytes.
func BenchmarkDecided(b *testing.B) {
	set, in := testSet(b), testInput("m")
	run := func(name string, change func(c *Config), d *policy.Decision) {
		b.Run(name, func(b *testing.B) {
			l := testLog(b, change)
			defer l.Close()
			w := &writer{l: l}
			b.ReportAllocs()
			for b.Loop() {
				l.Decided("0197c2d4-7a10-7cc3-9a53-1f0a9b6f2e11", "r-1", testTime, in, d)
				if l.queue.holds(1, 1<<20) {
					w.lines, w.counts = l.queue.take(w.lines)
					w.finish()
				}
			}
		})
	}
	d := set.Decide(b.Context(), in)
	run("kept", nil, d)
	run("kept, masked", func(c *Config) { c.Mask = []string{"/input/request/headers", "/input/principal/id"} }, d)
	allowed := *d
	run("held for a rehearsal", leftOut, &allowed)
	plain := policy.Decision{Allow: true} // of a set that rehearses nothing
	run("left out", leftOut, &plain)
	b.Run("baseline: copy of a record", func(b *testing.B) {
		record := recordLine("id", 1500)
		var dst bytes.Buffer
		for b.Loop() {
			dst.Reset()
			dst.Write(record)
		}
	})
}

// BenchmarkWriter is how fast one goroutine brings records to the file. The
// baseline is one write of as many bytes.
func BenchmarkWriter(b *testing.B) {
	const batch = 1000
	record := recordLine("id", 1500)
	b.Run("records", func(b *testing.B) {
		l := testLog(b, func(c *Config) { c.Compress, c.MaxFiles = false, 1 })
		defer l.Close()
		w := &writer{l: l, rotated: make(chan struct{}, 1)}
		b.SetBytes(batch * int64(len(record)))
		for b.Loop() {
			for range batch {
				l.queue.put(decisionKind, record)
			}
			w.lines, w.counts = l.queue.take(w.lines)
			if !w.attempt() {
				b.Fatal(w.failure)
			}
			if err := l.tidyOnce(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("baseline: one write", func(b *testing.B) {
		l := testLog(b, nil)
		defer l.Close()
		lines := bytes.Repeat(record, batch)
		b.SetBytes(int64(len(lines)))
		for b.Loop() {
			if _, err := l.file.f.Write(lines); err != nil {
				b.Fatal(err)
			}
			if err := l.file.f.Truncate(0); err != nil {
				b.Fatal(err)
			}
		}
	})
}
