package scoring

import (
	"testing"
	"time"
)

// TestOfferHolds has the worker that holds a prompt busy: the request waits for it
// within no bound, leaves no load behind, and is given to it within a larger one.
func TestOfferHolds(t *testing.T) {
	f, ids := testFleet(t, 2)
	shared := prompt(1, 40_000)
	holds(f, ids[0], 0, shared)
	cold := prompt(2, 6000)
	first, err := f.Pick(epoch, &Request{Model: "m", Pools: []string{"p"}, Tokens: cold, Only: ids[0]})
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Prepare(epoch, &Request{Model: "m", Pools: []string{"p"}, Tokens: shared})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	r, why, err := f.Offer(epoch, p, Terms{Bound: 100 * time.Millisecond})
	if r != nil || err != nil {
		t.Fatalf("an offer within 100 ms is taken: %v, %v", r, err)
	}
	if why.Best != ids[0] || why.Wait < 500*time.Millisecond || why.TTFT < why.Wait {
		t.Errorf("refused with %+v, want worker %d and a wait of some 0.75 s", why, ids[0])
	}
	if n := f.Stats().InFlight; n != 1 {
		t.Errorf("%d requests in flight after a refusal, want 1", n)
	}
	if wait, _ := f.Wait(epoch, "p", "m", 0); wait != 0 {
		t.Errorf("the wait is %v beside an idle worker", wait)
	}
	first.Done(epoch, Completed)
	if r, _, err = f.Offer(epoch, p, Terms{}); r == nil || err != nil || r.Worker().ID != ids[0] {
		t.Fatalf("the idle worker does not take the offer: %v, %v", r, err)
	}
	r.Done(epoch, Completed)
}
