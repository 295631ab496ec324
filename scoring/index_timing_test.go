//go:build !race

package scoring

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"
)

// The benchmarks' prompts have blocks of 16 tokens; worker i of n holds the
// first (i+1)/n of the prompt, and 10,000 blocks of its own.
const ownBlocks = 10000

func forEachSize(b *testing.B, f func(b *testing.B, workers int, tokens []uint32)) {
	for _, workers := range []int{4, 32, 64, 256} {
		for _, n := range []int{512, 8192, 65536} {
			b.Run(fmt.Sprintf("workers=%d/tokens=%d", workers, n), func(b *testing.B) {
				f(b, workers, prompt(1, n))
			})
		}
	}
}

// BenchmarkLookUp finds how far each worker matches a hashed prompt.
func BenchmarkLookUp(b *testing.B) {
	forEachSize(b, func(b *testing.B, workers int, tokens []uint32) {
		keys := AppendKeys(nil, Root("m", "", ""), tokens, 16)
		x, w := benchIndex(workers, keys, ownBlocks)
		b.ReportAllocs()
		for b.Loop() {
			x.match(keys, w)
		}
	})
}

// BenchmarkLookUpWhileWritten is the same with another goroutine that stores
// and removes blocks all the time.
func BenchmarkLookUpWhileWritten(b *testing.B) {
	forEachSize(b, func(b *testing.B, workers int, tokens []uint32) {
		keys := AppendKeys(nil, Root("m", "", ""), tokens, 16)
		x, w := benchIndex(workers, keys, ownBlocks)
		churn := AppendKeys(nil, Root("other", "", ""), prompt(2, 1<<16), 1)
		stop := make(chan struct{})
		var writer sync.WaitGroup
		writer.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				x.tiers[TierGPU].set(churn[i%len(churn)], i%workers)
				x.tiers[TierGPU].clear(churn[(i+len(churn)/2)%len(churn)], i%workers)
			}
		})
		b.ReportAllocs()
		for b.Loop() {
			x.match(keys, w)
		}
		close(stop)
		writer.Wait()
	})
}

// BenchmarkKeys hashes a prompt.
func BenchmarkKeys(b *testing.B) {
	for _, n := range []int{512, 8192, 65536} {
		b.Run(fmt.Sprintf("tokens=%d", n), func(b *testing.B) {
			tokens := prompt(1, n)
			var keys []Key
			b.ReportAllocs()
			for b.Loop() {
				keys = AppendKeys(keys[:0], Root("m", "", ""), tokens, 16)
			}
		})
	}
}

// benchFleet returns a fleet of which worker i of n holds the first (i+1)/n of the
// prompt.
func benchFleet(b *testing.B, workers int, tokens []uint32) *Fleet {
	f := NewFleet(DefaultConfig())
	var hashes []EngineHash
	for i := range len(tokens) / 16 {
		hashes = append(hashes, intHash(uint64(i)))
	}
	for i := range workers {
		id, err := f.Add(epoch, WorkerSpec{Name: fmt.Sprint(i), Pool: "p", Models: []string{"m"}})
		if err != nil {
			b.Fatal(err)
		}
		f.SetReady(epoch, id, true, "")
		f.SetView(id, 0, ViewLive)
		n := len(hashes) * (i + 1) / workers
		f.ApplyEvents(epoch, id, 0, []Event{{
			Kind: BlockStored, Hashes: hashes[:n], Tokens: tokens[:16*n], BlockSize: 16, Usable: n,
		}})
	}
	return f
}

// BenchmarkPick is a whole pick with its reports: hashing, look-up, prediction
// for every worker, load, speculative entry.
func BenchmarkPick(b *testing.B) {
	forEachSize(b, func(b *testing.B, workers int, tokens []uint32) {
		f := benchFleet(b, workers, tokens)
		req := &Request{Model: "m", Pools: []string{"p"}, Tokens: tokens}
		now := epoch
		b.ReportAllocs()
		for b.Loop() {
			r, err := f.Pick(now, req)
			if err != nil {
				b.Fatal(err)
			}
			now = now.Add(10 * time.Millisecond)
			r.FirstToken(now)
			r.Done(now, Completed)
		}
	})
}

// busyFleet is benchFleet with more work at each worker than any bound permits, and
// something learned of each.
func busyFleet(b *testing.B, workers int, tokens []uint32) *Fleet {
	f := benchFleet(b, workers, tokens)
	for _, w := range f.workers {
		r, err := f.Pick(epoch.Add(-time.Second), &Request{Model: "m", Pools: []string{"p"}, Estimate: 1000, Only: w.id})
		if err != nil {
			b.Fatal(err)
		}
		r.FirstToken(epoch)
		for range 4 {
			if _, err := f.Pick(epoch, &Request{Model: "m", Pools: []string{"p"}, Estimate: 1 << 20, Only: w.id}); err != nil {
				b.Fatal(err)
			}
		}
	}
	return f
}

// BenchmarkOfferRefused offers a request that waits once more, in vain. Its keys are
// there; the look-up is done anew, since caches change meanwhile.
func BenchmarkOfferRefused(b *testing.B) {
	forEachSize(b, func(b *testing.B, workers int, tokens []uint32) {
		f := busyFleet(b, workers, tokens)
		p, err := f.Prepare(epoch, &Request{Model: "m", Pools: []string{"p"}, Tokens: tokens})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			if r, _, err := f.Offer(epoch, p, Terms{Bound: time.Second, Keep: Keep{Requests: 1, Tokens: 1000}}); r != nil || err != nil {
				b.Fatal(r, err)
			}
		}
	})
}

// BenchmarkPickBusy is what a pick takes among the same workers, to compare with a
// refused offer.
func BenchmarkPickBusy(b *testing.B) {
	forEachSize(b, func(b *testing.B, workers int, tokens []uint32) {
		f := busyFleet(b, workers, tokens)
		req := &Request{Model: "m", Pools: []string{"p"}, Tokens: tokens}
		b.ReportAllocs()
		for b.Loop() {
			r, err := f.Pick(epoch, req)
			if err != nil {
				b.Fatal(err)
			}
			r.Done(epoch, NotSent)
		}
	})
}

// BenchmarkWait asks for the least wait of a pool whose workers are all busy.
func BenchmarkWait(b *testing.B) {
	for _, workers := range []int{4, 64, 256} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			f := busyFleet(b, workers, prompt(1, 512))
			b.ReportAllocs()
			for b.Loop() {
				if wait, _ := f.Wait(epoch, "p", "", time.Second); wait < time.Second {
					b.Fatal(wait)
				}
			}
		})
	}
}

// BenchmarkApplyEvents stores a step's worth of blocks (64) of a growing prompt
// and removes as many old ones: a full cache at work. Time is per block stored
// and removed.
func BenchmarkApplyEvents(b *testing.B) {
	v := testView(0)
	tokens := prompt(1, 64*16)
	events := func(i int) []Event {
		hashes, old := make([]EngineHash, 64), make([]EngineHash, 64)
		for j := range hashes {
			hashes[j] = intHash(uint64(i*64 + j))
			old[j] = intHash(uint64((i-500)*64 + j))
		}
		tokens[0] = uint32(i)
		return []Event{
			{Kind: BlockRemoved, Hashes: old},
			{Kind: BlockStored, Hashes: hashes, Tokens: tokens, BlockSize: 16, Usable: 64},
		}
	}
	for i := range 500 {
		v.apply(events(i))
	}
	n := 500
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		evs := events(n)
		n++
		b.StartTimer()
		v.apply(evs)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/block")
}

// TestIndexMemory measures the memory of 2^20 blocks held by one worker each,
// of 64: what the index's tables and the views' maps take together.
func TestIndexMemory(t *testing.T) {
	const workers, each = 64, 1 << 14
	heap := func() uint64 {
		runtime.GC()
		runtime.GC() // what pools held goes with the second
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	f, ids := testFleet(t, workers)
	tokens := make([]uint32, 2*each)
	hashes := make([]EngineHash, each)
	before := heap()
	for i, id := range ids {
		for j := range hashes {
			hashes[j] = intHash(uint64(i*each+j) * 0x9e3779b97f4a7c15)
		}
		tokens[0] = uint32(i)
		f.ApplyEvents(epoch, id, 0, []Event{stored("", hashes, tokens...)})
	}
	perBlock := float64(heap()-before) / (workers * each)
	st := f.Stats()
	if st.Blocks != workers*each || st.Keys != workers*each {
		t.Fatalf("%d blocks, %d keys", st.Blocks, st.Keys)
	}
	t.Logf("%.1f heap bytes a block; tables and maps say %.1f", perBlock, float64(st.Bytes)/float64(st.Blocks))
	if tables := float64(st.Bytes) / float64(st.Blocks); perBlock > 48 || tables > 48 {
		t.Errorf("%.1f heap bytes a block, %.1f by the tables' own count; want at most 48", perBlock, tables)
	}
}

// BenchmarkOfferFull offers a request among workers whose caches have no room for what
// their 256 running answers will grow to; one of them changes before each offer. Without
// a bound the same is what a pick takes.
func BenchmarkOfferFull(b *testing.B) {
	for _, bound := range []time.Duration{time.Second, Unbounded} {
		b.Run(fmt.Sprintf("bounded=%t", bound != Unbounded), func(b *testing.B) {
			tokens := prompt(1, 512)
			f := benchFleet(b, 64, tokens)
			var last []*Reservation
			for _, w := range f.workers {
				f.SetCapacity(w.id, 16, 7000)
				for i := range 256 {
					r, err := f.Pick(epoch, &Request{Model: "m", Pools: []string{"p"}, Estimate: 300, Output: 100 + 3*i, Only: w.id})
					if err != nil {
						b.Fatal(err)
					}
					if r.FirstToken(epoch); i == 255 {
						last = append(last, r)
					}
				}
			}
			req := &Request{Model: "m", Pools: []string{"p"}, Tokens: tokens, Output: 300}
			p, err := f.Prepare(epoch, req)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				f.mu.Lock()
				w := last[i%len(last)].worker
				w.drop(&last[i%len(last)].holds)
				w.put(&last[i%len(last)].holds)
				f.mu.Unlock()
				r, _, err := f.Offer(epoch, p, Terms{Bound: bound})
				if err != nil || (r == nil) != (bound != Unbounded) {
					b.Fatal(r, err)
				}
				if r != nil {
					r.Done(epoch, NotSent)
				}
			}
		})
	}
}
