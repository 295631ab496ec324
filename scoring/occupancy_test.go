package scoring

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestOccupancyIsWhatRequestsHold compares the count with the distinct stretches
// of all requests, over any order of their coming and going.
func TestOccupancyIsWhatRequestsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{1, 16, 64, 256, 1000}).Draw(t, "block size")
		var o occupancy
		type request struct {
			keys   []Key
			prompt int
			claim  claim
		}
		var live []*request
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if len(live) > 0 && rapid.Bool().Draw(t, "leave") {
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				o.leave(&live[i].claim)
				o.leave(&live[i].claim) // a second time does nothing
				live = slices.Delete(live, i, i+1)
			} else {
				// One of two texts, up to some length: those that begin alike share.
				n := rapid.IntRange(0, 5000).Draw(t, "prompt")
				r := &request{prompt: n}
				if rapid.IntRange(0, 9).Draw(t, "known") > 0 {
					text := prompt(uint64(rapid.IntRange(1, 2).Draw(t, "text")), 5000)
					r.keys = AppendKeys(nil, Root("m", "", ""), text[:n], size)
				}
				o.enter(epoch, &r.claim, r.keys, size, n, 1)
				live = append(live, r)
			}
			want := 0
			seen := map[Key]bool{}
			step := stride(size)
			for _, r := range live {
				want += r.prompt
				for i := step - 1; i < len(r.keys); i += step {
					if seen[r.keys[i]] {
						want -= step * size
					}
					seen[r.keys[i]] = true
				}
			}
			if o.taken != want {
				t.Fatalf("%d tokens taken by %d requests, want %d", o.taken, len(live), want)
			}
		}
		for _, r := range live {
			o.leave(&r.claim)
		}
		if o.taken != 0 || len(o.used) != 0 {
			t.Fatalf("%d tokens and %d keys left", o.taken, len(o.used))
		}
	})
}

func TestOccupancyNeeds(t *testing.T) {
	var o occupancy
	text := prompt(1, 4096)
	keys := AppendKeys(nil, Root("m", "", ""), text, 16)
	if got := o.needs(keys, 16, 4100); got != 4100 {
		t.Errorf("alone it needs %d, want 4100", got)
	}
	o.enter(epoch, new(claim), keys[:64], 16, 1030, 1)
	if got := o.needs(keys, 16, 4100); got != 4100-1024 {
		t.Errorf("beside one that holds its first 1024 tokens it needs %d, want %d", got, 4100-1024)
	}
	if got := o.needs(nil, 1, 700); got != 700 {
		t.Errorf("with unknown tokens it needs %d, want 700", got)
	}
}

func TestOccupancyObserved(t *testing.T) {
	var o occupancy
	o.enter(epoch, new(claim), nil, 1, 1000, 1)
	o.observe(epoch, 3000, 0)
	for age, want := range map[time.Duration]float64{0: 3000, 5 * time.Second: 2000, 10 * time.Second: 1000, time.Hour: 1000} {
		if got := o.held(epoch.Add(age), 10*time.Second); got != want {
			t.Errorf("%v later %v tokens are held, want %v", age, got, want)
		}
	}
	o.observe(epoch, 10, 0)
	if got := o.held(epoch, time.Second); got != 1000 {
		t.Errorf("%v tokens are held although a late reading says less, want 1000", got)
	}
}

// TestFullCacheRepels has a worker with a cache of 4,000 tokens hold requests
// that leave no room: the next one waits there, and goes to a busier worker that
// has some.
func TestFullCacheRepels(t *testing.T) {
	f, ids := testFleet(t, 2)
	f.SetCapacity(ids[0], 16, 250)
	f.SetCapacity(ids[1], 16, 25_000)
	for i := range 2 {
		r := pick(t, f, epoch, &Request{Tokens: prompt(uint64(i), 1800), Exclude: ids[1:]})
		r.FirstToken(epoch)
	}
	for i := range 4 {
		r := pick(t, f, epoch, &Request{Tokens: prompt(uint64(10+i), 1800), Exclude: ids[:1]})
		r.FirstToken(epoch)
	}
	for i := range 5 {
		r := pick(t, f, epoch, &Request{Tokens: prompt(uint64(20+i), 600)})
		if r.Worker().ID != ids[1] {
			t.Error("a request goes to a worker that has no room for it")
		}
		r.Done(epoch, Completed)
	}
}

// TestNewPrefixesGoWhereThereIsRoom has one of two workers look 5 % faster all
// the time, as chance will have it: prompts that share nothing, one after the
// other, still fill both caches before they evict anything from one.
func TestNewPrefixesGoWhereThereIsRoom(t *testing.T) {
	f, ids := testFleet(t, 2)
	for _, id := range ids {
		f.SetCapacity(id, 2, 4000) // 8,000 tokens
	}
	now := epoch
	stored := map[WorkerID]int{}
	for i := range 7 {
		tokens := prompt(uint64(100+i), 2000)
		r := pick(t, f, now, &Request{Tokens: tokens})
		took := 300 * time.Millisecond
		if r.Worker().ID == ids[0] {
			took = 285 * time.Millisecond
		}
		r.FirstToken(now.Add(took))
		holds(f, r.Worker().ID, 0, tokens)
		stored[r.Worker().ID] += len(tokens)
		now = now.Add(time.Second)
		r.Done(now, Completed)
	}
	for id, n := range stored {
		if n > 8000 {
			t.Errorf("worker %d was sent %d tokens of new prompts, its cache holds 8,000: %v", id, n, stored)
		}
	}
}
