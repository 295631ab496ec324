package ledger

import (
	"fmt"
	"sync/atomic"
	"testing"
)

// BenchmarkRecord stores rows from many requests at once, each announced before,
// as the gateway does. rows/s is the figure of interest.
func BenchmarkRecord(b *testing.B) {
	b.Run("sqlite", func(b *testing.B) { benchmarkRecord(b, mustOpen(b, tempPath(b), Options{})) })
	b.Run("sqlite/synced intents", func(b *testing.B) {
		benchmarkRecord(b, mustOpen(b, tempPath(b), Options{SyncIntents: true}))
	})
	b.Run("postgres", func(b *testing.B) {
		dsn := database(b)
		benchmarkRecord(b, mustOpenPostgres(b, tempPath(b), dsn, Options{}))
	})
}

func benchmarkRecord(b *testing.B, l *Ledger) {
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
	st := l.Stats()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric(float64(st.Rows)/float64(st.Batches), "rows/commit")
	b.ReportMetric(float64(st.Spooled), "spooled")
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
