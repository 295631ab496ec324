package ledger

import (
	"fmt"
	"sync/atomic"
	"testing"
)

// BenchmarkRecord stores rows from many requests at once, each announced before,
// as the gateway does. rows/s is the figure of interest.
func BenchmarkRecord(b *testing.B) {
	l := open(b, tempPath(b), Options{})
	var n atomic.Int64
	b.SetParallelism(128)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			id := fmt.Sprint("request-", n.Add(1))
			if err := l.Begin(b.Context(), intent(id)); err != nil {
				b.Error(err)
			}
			if err := l.Record(b.Context(), fullRow(id)); err != nil {
				b.Error(err)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
	st := l.Stats()
	b.ReportMetric(float64(st.Rows)/float64(st.Batches), "rows/commit")
}

func BenchmarkBegin(b *testing.B) {
	j, err := newJournal(tempPath(b), false)
	if err != nil {
		b.Fatal(err)
	}
	defer j.close()
	in := intent("r")
	b.ReportAllocs()
	for b.Loop() {
		if err := j.begin(in); err != nil {
			b.Fatal(err)
		}
		j.end("r")
	}
}
