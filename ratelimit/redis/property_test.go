package redis

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicegate/sluice/ratelimit"
)

// TestPropertyBucketPromise holds three replicas to the promise, in steps of a clock
// that they do not have: whatever they reserve, use, settle and report in whichever
// order, open reservations and charges of any time t are within
// limit × (1 + t/window), overruns apart.
func TestPropertyBucketPromise(t *testing.T) {
	w := newWorld(t, shared(t))
	w.cfg.LeaseShare, w.cfg.FlushEvery = 0.6, time.Second // reports come when the test says
	w.cfg.LeaseFor, w.cfg.DeadAfter = 12*time.Hour, 24*time.Hour
	rs := []*replica{w.replica(), w.replica(), w.replica()}
	began := w.now.Load()
	runs := 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		limit := rapid.Int64Range(1, 200).Draw(t, "limit")
		window := time.Duration(rapid.IntRange(1, 60).Draw(t, "window")) * time.Second
		claim := bucket(itoa(int64(runs)), window, limit, 0)
		type held struct {
			res ratelimit.Reservation
			use int
		}
		var open []held
		var uses []use
		for range rapid.IntRange(5, 40).Draw(t, "steps") {
			now := time.Duration(w.now.Load() - began)
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				w.advance(time.Duration(rapid.IntRange(1, 1000*60).Draw(t, "pass")) * time.Millisecond)
			case 1:
				rs[rapid.IntRange(0, 2).Draw(t, "reporter")].told(w)
			case 2:
				if len(open) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				u := &uses[open[i].use]
				u.charge = rapid.Int64Range(0, u.amount).Draw(t, "charge")
				u.ended = now
				open[i].res.Settle(time.Time{}, []int64{u.charge})
				open = slices.Delete(open, i, i+1)
			default:
				claim.Amount = rapid.Int64Range(0, limit).Draw(t, "amount")
				res, failures := rs[rapid.IntRange(0, 2).Draw(t, "replica")].reserve(claim)
				if len(failures) == 0 {
					open = append(open, held{res, len(uses)})
					uses = append(uses, use{before: now, after: now, amount: claim.Amount, charge: claim.Amount, ended: 1 << 62})
				}
			}
		}
		for _, h := range open {
			h.res.Cancel(time.Time{})
		}
		slices.SortStableFunc(uses, func(a, b use) int { return cmp.Compare(a.before, b.before) })
		if worst := excess(uses, limit, window); worst > 1 {
			t.Fatalf("%.2f more than the promise: %+v", worst, uses)
		}
	})
}

// FuzzAnswers gives answers of a store that is something else, or broken.
func FuzzAnswers(f *testing.F) {
	for _, s := range []string{
		"ok 1 7 10 90 0 0 0", "no 2 8 0 -5 1500 0 20526", "epoch", "gone", "late", "", "ok", "ok 1", "ok 1 2 3 4 5 6 7 8",
		"ok  1 7 10 90 0 0 0", "ok 1 7 ten 90 0 0 0", "ok 1 7 99999999999999999999 0 0 0 0", "no 1 1 0 0 -1 0 0", "WRONG\r\n",
	} {
		f.Add(s)
	}
	l, err := New(Config{
		Addresses: []string{"/nowhere"}, Prefix: "p", Timeout: time.Second, FlushEvery: time.Second, LeaseShare: 0.1, LeaseFor: time.Second,
		DeadAfter: time.Minute, MaxCounters: 64,
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p := plan{limiter: l, needs: []need{{counter: &counter{}, total: 1, lack: 1}}}
		granted, err := p.read(text)
		if err != nil {
			if granted && strings.HasPrefix(text, "no") {
				t.Error("a refusal that grants")
			}
			return
		}
		if fields := strings.Split(text, " "); len(fields) != 8 || granted != (fields[0] == "ok") {
			t.Errorf("%q was taken for an answer", text)
		}
		if a := p.needs[0].answer; a.wait < 0 {
			t.Errorf("%q makes a wait of %v", text, a.wait)
		}
	})
}
