package gateway

import (
	"maps"
	"math/big"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/tenancy"
)

// sharing is the work clock told twice: the same worker in fractions, with a
// loop over everybody at each step.
type sharing struct {
	gpus   int64
	at     time.Time
	shares map[int]*big.Rat
	busy   time.Duration
}

func (s *sharing) advance(now time.Time) {
	passed := now.Sub(s.at)
	if passed <= 0 {
		return
	}
	s.at = now
	if len(s.shares) == 0 {
		return
	}
	s.busy += passed * time.Duration(s.gpus)
	each := big.NewRat(int64(passed)*s.gpus, int64(len(s.shares)))
	for _, share := range s.shares {
		share.Add(share, each)
	}
}

// TestPropertySharesSumToBusyTime: however requests begin and end, and with
// whatever clocks they read a little late, the shares of a worker that is idle
// again sum to its busy time times its GPUs to the microsecond, none is negative,
// and each is what an equal division gives.
func TestPropertySharesSumToBusyTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newWorkClock()
		start := time.Unix(1_700_000_000, 0)
		now := start
		type request struct {
			id     int
			worker scoring.WorkerID
			work   work
		}
		var open []request
		models := make(map[scoring.WorkerID]*sharing)
		ended := make(map[string]time.Duration)
		events, most := 0, 0
		info := func(w scoring.WorkerID) scoring.WorkerInfo {
			return scoring.WorkerInfo{ID: w, Pool: string(rune('a' + w%2))}
		}
		end := func(at int, when time.Time) {
			r := open[at]
			open = slices.Delete(open, at, at+1)
			m := models[r.worker]
			m.advance(when)
			got := c.end(r.work, when)
			ended[info(r.worker).Pool] += got
			if got < 0 {
				t.Fatalf("a share of %s", got)
			}
			off := new(big.Rat).Sub(big.NewRat(int64(got), 1), m.shares[r.id])
			if off.Abs(off).Cmp(big.NewRat(int64(events+1)*int64(most+1)+1000, 1)) > 0 {
				t.Fatalf("request %d has %s, an equal division gives %s", r.id, got, m.shares[r.id].FloatString(3))
			}
			delete(m.shares, r.id)
		}
		for id := range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, 5_000_000_000).Draw(t, "pause")))
			read := now.Add(-time.Duration(rapid.Int64Range(0, 50).Draw(t, "late")))
			events++
			if len(open) > 0 && rapid.Bool().Draw(t, "end") {
				end(rapid.IntRange(0, len(open)-1).Draw(t, "which"), read)
				continue
			}
			w := scoring.WorkerID(rapid.IntRange(1, 3).Draw(t, "worker"))
			gpus := int(w) * 3
			m := models[w]
			if m == nil || len(m.shares) == 0 { // an idle worker's clock begins anew
				busy := time.Duration(0)
				if m != nil {
					busy = m.busy
				}
				m = &sharing{gpus: int64(gpus), at: read, shares: make(map[int]*big.Rat), busy: busy}
				models[w] = m
			}
			m.advance(read)
			m.shares[id] = new(big.Rat)
			open = append(open, request{id, w, c.begin(info(w), gpus, read)})
			most = max(most, len(open))
		}
		for len(open) > 0 {
			end(0, now)
		}
		want := make(map[string]time.Duration)
		for w, m := range models {
			want[info(w).Pool] += m.busy
		}
		got := c.total(now.Add(time.Hour))
		for pool, busy := range want {
			if ended[pool] != busy.Truncate(time.Microsecond) || got[pool] != busy {
				t.Fatalf("pool %s was busy for %d: the shares sum to %d, the clock says %d", pool, busy, ended[pool], got[pool])
			}
		}
		if len(c.workers) != 0 {
			t.Fatalf("the clocks of %d idle workers are left", len(c.workers))
		}
	})
}

func TestWorkClock(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(0, int64(ms)*1e6) }
	w := scoring.WorkerInfo{ID: 1, Pool: "p"}
	c := newWorkClock()
	a := c.begin(w, 2, at(0))
	b := c.begin(w, 2, at(100)) // a alone for 100 ms
	if got := c.total(at(200))["p"]; got != 400*time.Millisecond {
		t.Errorf("while two run, %s of two GPUs are busy, want 400ms", got)
	}
	if got := c.end(a, at(300)); got != 400*time.Millisecond {
		t.Errorf("a has %s, want 2 x (100 + 200/2) ms", got)
	}
	if got := c.end(b, at(350)); got != 300*time.Millisecond {
		t.Errorf("b has %s, want 2 x (200/2 + 50) ms", got)
	}
	if got := c.end(work{}, at(400)); got != 0 {
		t.Errorf("nothing that was begun has %s", got)
	}
	if got := c.total(at(1000))["p"]; got != 700*time.Millisecond {
		t.Errorf("%s of an idle worker are busy, want 700ms", got)
	}
	// A pool without a number has one GPU.
	d := c.begin(scoring.WorkerInfo{ID: 2, Pool: "q"}, 0, at(0))
	if got := c.end(d, at(5)); got != 5*time.Millisecond {
		t.Errorf("d has %s", got)
	}
}

func TestWorkClockIsSafe(t *testing.T) {
	c := newWorkClock()
	var mu sync.Mutex
	var sum time.Duration
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 300 {
				w := c.begin(scoring.WorkerInfo{ID: scoring.WorkerID(1 + i%2), Pool: "p"}, 1, time.Now())
				share := c.end(w, time.Now())
				mu.Lock()
				sum += share
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if got := c.total(time.Now())["p"]; got.Truncate(time.Microsecond) != sum {
		t.Errorf("the shares sum to %s, the workers were busy for %s", sum, got)
	}
}

// TestGPUTimeOfRows: the rows' GPU time sums to what the workers were busy, with
// attempts that failed, clients that left and workers that were lost, and is
// that of the pool's GPUs.
func TestGPUTimeOfRows(t *testing.T) {
	down, full := gatewaytest.CloseBeforeHead(gatewaytest.RST), gatewaytest.Fail(503)
	for _, c := range []struct {
		name     string
		first    gatewaytest.Behaviour
		body     string
		leave    bool
		attempts int
		outcome  tenancy.Outcome
	}{
		{"unary", gatewaytest.Chat("a"), chatBody, false, 1, tenancy.OutcomeCompleted},
		{"stream", gatewaytest.Chat("a", "b"), streamBody, false, 1, tenancy.OutcomeCompleted},
		{"retried", down, chatBody, false, 2, tenancy.OutcomeCompleted},
		{"full, then another", full, streamBody, false, 2, tenancy.OutcomeCompleted},
		{"lost in its stream", gatewaytest.DropAfter(gatewaytest.RST, gatewaytest.ContentEvent("a", "")), streamBody, false, 1, tenancy.OutcomeUpstreamError},
		{"client leaves", gatewaytest.StallAfter(gatewaytest.ContentEvent("a", "")), streamBody, true, 1, tenancy.OutcomeClientAborted},
	} {
		t.Run(c.name, func(t *testing.T) {
			one, two := gatewaytest.NewWorker(t, c.first), gatewaytest.NewWorker(t, gatewaytest.Chat("z"))
			r := newRig(t, []string{one.URL(), two.URL()}, withState(func(st *State) {
				pools := maps.Clone(st.Pools)
				pools["p"] = Pool{APIKey: pools["p"].APIKey, GPUs: 4}
				st.Pools = pools
			}))
			client := r.chat(c.body)
			if c.leave {
				client.Head()
				client.Leave(gatewaytest.RST)
			} else {
				client.Answer()
			}
			row := r.row()
			if row.Attempts != c.attempts || row.Outcome != c.outcome {
				t.Errorf("row %+v", row)
			}
			busy := r.g.GPUTime(time.Now())["p"]
			if row.GPUTime <= 0 || row.GPUTime != busy.Truncate(time.Microsecond) {
				t.Errorf("the row has %s of GPU time, the pool's GPUs were busy for %s", row.GPUTime, busy)
			}
			if most := 4 * row.Duration; row.GPUTime > most {
				t.Errorf("the row has %s of four GPUs, and lasted %s", row.GPUTime, row.Duration)
			}
		})
	}
}

// TestNoGPUTimeWithoutAWorker: what reached no worker has no share.
func TestNoGPUTimeWithoutAWorker(t *testing.T) {
	r := newRig(t, []string{"http://127.0.0.1:1"}) // nobody listens there
	resp, body := r.chat(chatBody).Answer()
	wantError(t, resp, body, 502, "upstream_error")
	if row := r.row(); row.GPUTime != 0 || row.Attempts != 1 {
		t.Errorf("row %+v", row)
	}
	if got := r.g.GPUTime(time.Now())["p"]; got != 0 {
		t.Errorf("the pool was busy for %s", got)
	}
}
