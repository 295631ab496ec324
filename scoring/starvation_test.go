package scoring

import (
	"math"
	"testing"
	"time"
)

// TestUnluckyPoolIsTriedAgain has the first request of a pool's only worker take
// a minute, as while an engine warms up. The other permitted pool then serves
// all; but not for ever.
func TestUnluckyPoolIsTriedAgain(t *testing.T) {
	f := NewFleet(DefaultConfig())
	var ids []WorkerID
	for _, name := range []string{"a", "b"} {
		id, err := f.Add(epoch, WorkerSpec{Name: name, Pool: name, Models: []string{"m"}})
		if err != nil {
			t.Fatal(err)
		}
		f.SetReady(epoch, id, true, "")
		ids = append(ids, id)
	}
	now := epoch
	serve := func(took time.Duration, exclude ...WorkerID) WorkerID {
		r := pick(t, f, now, &Request{Estimate: 500, Pools: []string{"a", "b"}, Exclude: exclude})
		now = now.Add(took)
		r.FirstToken(now)
		r.Done(now, Completed)
		return r.Worker().ID
	}
	serve(time.Minute, ids[1])
	began := now
	for serve(150*time.Millisecond) != ids[0] {
		now = now.Add(time.Second)
		if now.Sub(began) > 2*time.Hour {
			t.Fatal("two hours later the pool whose first request was slow has not been tried again")
		}
	}
	t.Logf("tried again after %v", now.Sub(began))
	// Once it has answered like the other, it gets its share.
	n := 0
	for range 200 {
		if serve(150*time.Millisecond) == ids[0] {
			n++
		}
		now = now.Add(time.Second)
	}
	if n < 50 || n > 150 {
		t.Errorf("then it gets %d of 200 requests", n)
	}
}

// TestWaitThatIsWrongTeachesNothing has an engine run more sequences at once
// than configured, so that the predicted wait for one to end never happens. The
// worker must not come to look faster than it is for that.
func TestWaitThatIsWrongTeachesNothing(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxSeqs = 4
	f := NewFleet(cfg)
	addWorkers(t, f, 1)
	now := epoch
	serve := func(seed uint64) (r *Reservation) {
		r = pick(t, f, now, &Request{Tokens: prompt(seed, 1000)})
		now = now.Add(155 * time.Millisecond)
		r.FirstToken(now)
		now = now.Add(time.Second)
		return r
	}
	for i := range 40 {
		serve(uint64(i)).Done(now, Completed)
	}
	usual := serve(1000)
	usual.Done(now, Completed)
	var held []*Reservation
	for i := range 60 {
		held = append(held, serve(uint64(2000+i)))
	}
	for _, r := range held {
		r.Done(now, Completed)
	}
	if got := serve(3000).Predicted(); got < usual.Predicted()/2 || got > 2*usual.Predicted() {
		t.Errorf("alone again, a request is predicted to take %v; before it was %v", got, usual.Predicted())
	}
}

// TestStuckRequestDoesNotCondemnTheWorker has one request without a first token
// for ten minutes, while others that were sent after it get theirs at once.
func TestStuckRequestDoesNotCondemnTheWorker(t *testing.T) {
	f, ids := testFleet(t, 2)
	now := epoch
	stuck := pick(t, f, now, &Request{Estimate: 1000, Exclude: ids[1:]})
	for range 600 {
		r := pick(t, f, now, &Request{Estimate: 1000, Exclude: ids[1:]})
		now = now.Add(200 * time.Millisecond)
		r.FirstToken(now)
		now = now.Add(800 * time.Millisecond)
		r.Done(now, Completed)
	}
	r := pick(t, f, now, &Request{Estimate: 1000, Exclude: ids[1:]})
	if r.Predicted() > 2*time.Second {
		t.Errorf("a worker that answers within 200 ms is predicted to take %v", r.Predicted())
	}
	r.Done(now, NotSent)
	stuck.Done(now, ClientGone)
}

// TestSpaceWaitCountsOthersRequests has the requests of other senders fill the
// cache: room comes when one of all ends, not one of ours.
func TestSpaceWaitCountsOthersRequests(t *testing.T) {
	f, ids := testFleet(t, 1)
	f.SetCapacity(ids[0], 16, 1000)
	predict := func(load Load) time.Duration {
		for range 2 {
			f.ObserveLoad(epoch, ids[0], load)
		}
		r := pick(t, f, epoch, &Request{Estimate: 400})
		defer r.Done(epoch, NotSent)
		return r.Predicted()
	}
	if some, full := predict(Load{Running: 50, KVUsage: 0.5}), predict(Load{Running: 50, KVUsage: 1}); full <= some || full > some+200*time.Millisecond {
		t.Errorf("with 50 requests of others it takes %v beside room and %v without, when one of them ends each 40 ms", some, full)
	}
}

// TestRanksMultiplyWhatThereIs has a worker of four ranks that sends no events
// say so in its metrics alone.
func TestRanksMultiplyWhatThereIs(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxSeqs = 8
	f := NewFleet(cfg)
	ids := addWorkers(t, f, 1)
	f.SetCapacity(ids[0], 16, 100)
	f.ObserveLoad(epoch, ids[0], Load{Ranks: 4})
	for range 20 {
		pick(t, f, epoch, &Request{Estimate: 200}).FirstToken(epoch)
	}
	if r := pick(t, f, epoch, &Request{Estimate: 200}); r.fixed != 0 {
		t.Errorf("it waits %v s for room or a sequence, of which there is enough on four ranks", r.fixed)
	}
}

// TestOthersWaitBeforeOurFirst has other senders fill a worker's queue before
// this process sent it anything: those requests weigh something all the same.
func TestOthersWaitBeforeOurFirst(t *testing.T) {
	f, ids := testFleet(t, 1)
	f.ObserveLoad(epoch, ids[0], Load{Waiting: 20})
	if r := pick(t, f, epoch, &Request{Estimate: 1000}); r.Predicted() < time.Second {
		t.Errorf("behind 20 requests of others it is predicted to take %v", r.Predicted())
	}
}

func TestOddCapacityAndLoad(t *testing.T) {
	for _, usage := range []float64{math.NaN(), -1} {
		f, ids := testFleet(t, 1)
		f.ObserveLoad(epoch, ids[0], Load{KVUsage: usage})
		if r := pick(t, f, epoch.Add(time.Minute), &Request{Estimate: 100}); r.fixed != 0 {
			t.Errorf("a minute after a KV usage of %v a request waits %v s", usage, r.fixed)
		}
	}
	f, ids := testFleet(t, 1)
	f.ObserveLoad(epoch, ids[0], Load{KVUsage: math.Inf(1)})
	for age, want := range map[time.Duration]float64{0: 1 << 17, time.Minute: 0} {
		if got := f.workers[0].held(epoch.Add(age), f.cfg.LoadStale); got != want {
			t.Errorf("%v after an infinite KV usage %v tokens are held, want %v", age, got, want)
		}
	}
	f, ids = testFleet(t, 1)
	f.SetCapacity(ids[0], 16, -1)
	for range 2 {
		if r := pick(t, f, epoch, &Request{Estimate: 100}); r.fixed != 0 {
			t.Errorf("with a capacity below zero a request waits %v s", r.fixed)
		}
	}
}

// TestPoolRemembersOvernight has a pool without a competitor be idle for a day:
// what it learned is not forgotten.
func TestPoolRemembersOvernight(t *testing.T) {
	f, _ := testFleet(t, 1)
	now := epoch
	var r *Reservation
	for i := range 200 {
		r = pick(t, f, now, &Request{Tokens: prompt(uint64(i), 1000)})
		now = now.Add(2 * time.Second)
		r.FirstToken(now)
		r.Done(now, Completed)
	}
	next := pick(t, f, now.Add(24*time.Hour), &Request{Tokens: prompt(1000, 1000)})
	if ratio := next.Predicted().Seconds() / r.Predicted().Seconds(); ratio < 0.8 || ratio > 1.25 {
		t.Errorf("a day later %v is predicted, before it was %v", next.Predicted(), r.Predicted())
	}
}

// TestSlotsAreWhatTheWorkerRuns has an engine say that it runs more sequences
// than configured: nothing waits for one of them to end.
func TestSlotsAreWhatTheWorkerRuns(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxSeqs = 8
	f := NewFleet(cfg)
	ids := addWorkers(t, f, 1)
	for range 20 {
		pick(t, f, epoch, &Request{Estimate: 200}).FirstToken(epoch)
	}
	if r := pick(t, f, epoch, &Request{Estimate: 200}); r.fixed == 0 {
		t.Error("behind 20 requests and with 8 sequences it waits for none")
	}
	f.ObserveLoad(epoch, ids[0], Load{Running: 30})
	f.ObserveLoad(epoch, ids[0], Load{Running: 3})
	if r := pick(t, f, epoch, &Request{Estimate: 200}); r.fixed != 0 {
		t.Errorf("it waits %v s for a sequence of a worker that ran 30 at once", r.fixed)
	}
}

// TestRanksWorkSideBySide has a queue on a worker of four ranks: a request waits
// for its own rank's share of it, and others are delayed by it there alone.
func TestRanksWorkSideBySide(t *testing.T) {
	predict := func(ranks int) (Prediction, time.Duration) {
		f, ids := testFleet(t, 1)
		f.ObserveLoad(epoch, ids[0], Load{Ranks: ranks})
		for range 12 {
			pick(t, f, epoch, &Request{Estimate: 1000})
		}
		r := pick(t, f, epoch, &Request{Estimate: 1000})
		if got := f.Snapshot(epoch)[0].Ahead; got != 13_000 {
			t.Errorf("%d tokens are in its queues, want 13000", got)
		}
		rec := f.Predictions()
		return rec[len(rec)-1].Candidates[0], r.Predicted()
	}
	one, _ := predict(0)
	four, total := predict(4)
	if one.Ahead != 12_000 || four.Ahead != 3000 {
		t.Errorf("%d tokens are ahead on one rank and %d on four, want 12000 and 3000", one.Ahead, four.Ahead)
	}
	if four.Delay > one.Delay/4 {
		t.Errorf("a delay of %v on four ranks, %v on one", four.Delay, one.Delay)
	}
	// When the head of the queue is overdue, that is time, whatever the ranks.
	f, ids := testFleet(t, 1)
	f.ObserveLoad(epoch, ids[0], Load{Ranks: 4})
	pick(t, f, epoch, &Request{Estimate: 1000})
	late := pick(t, f, epoch.Add(20*time.Second), &Request{Estimate: 1000}).Predicted()
	if late < 9*time.Second || late > 12*time.Second {
		t.Errorf("behind a request that is 20 s late it is predicted to take %v (%v when it is not)", late, total)
	}
}

// TestBaseIsNotLate has a far worker, whose base is most of each first token's
// time: a request that has been under way for less than that is not late.
func TestBaseIsNotLate(t *testing.T) {
	for _, tokens := range []int{0, 16} {
		cfg := DefaultConfig()
		cfg.Prior.Base = 400 * time.Millisecond
		f := NewFleet(cfg)
		addWorkers(t, f, 1)
		alone := pick(t, f, epoch, &Request{Estimate: tokens}).Predicted()
		if behind := pick(t, f, epoch.Add(390*time.Millisecond), &Request{Estimate: tokens}).Predicted(); behind > alone+5*time.Millisecond {
			t.Errorf("behind a request of %d tokens that is about to be answered %v is predicted, alone %v", tokens, behind, alone)
		}
	}
}

// TestRecordsSayWhatDecided adds up what a record says of each candidate: the
// pick has the least sum, also where the delay to others is bounded.
func TestRecordsSayWhatDecided(t *testing.T) {
	f, ids := testFleet(t, 2)
	shared := prompt(1, 2001)
	holds(f, ids[0], 0, shared)
	bounded := false
	for range 600 {
		pick(t, f, epoch, &Request{Tokens: shared})
		rec := f.Predictions()
		last := rec[len(rec)-1]
		var won, least time.Duration
		for i, c := range last.Candidates {
			cost := c.Total + c.Delay
			if i == 0 || cost < least {
				least = cost
			}
			if c.Worker == last.Winner {
				won = cost
			}
			bounded = bounded || c.Delay > 0 && c.Delay >= delayCap*c.Prefill-time.Microsecond
			if c.Delay > (delayCap+1)*c.Prefill+time.Microsecond {
				t.Fatalf("a delay of %v is counted for a prefill of %v", c.Delay, c.Prefill)
			}
		}
		if won > least+max(least/100, 500*time.Microsecond)+time.Microsecond {
			t.Fatalf("the winner costs %v by its record, another %v: %+v", won, least, last)
		}
	}
	if !bounded {
		t.Error("no delay was bounded, so the test shows nothing")
	}
}
