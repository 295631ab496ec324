package redis

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/ratelimit"
)

// failed wants a refusal because of the store.
func (w *world) failed(r *replica, claims ...ratelimit.Claim) ratelimit.StoreState {
	w.t.Helper()
	_, failures := r.reserve(claims...)
	if len(failures) == 0 {
		w.t.Fatal("reserved without the store")
	}
	for _, f := range failures {
		if f.Store == "" {
			w.t.Fatalf("a counter is said to be used up: %+v", f)
		}
		if f.Wait != time.Second || f.Available != 0 || f.View.Remaining != 0 {
			w.t.Errorf("%+v, want a wait of a second and nothing available", f)
		}
	}
	return failures[0].Store
}

// heard waits until the store has heard of the replica at the present time.
func (w *world) heard(r *replica) {
	w.t.Helper()
	w.wait(func() bool { r.kick(); return r.session.Load() != nil && r.heardAt.Load() >= w.now.Load() })
}

// gate is a connection that can be cut.
type gate struct {
	conn
	cut   *atomic.Bool
	delay *atomic.Int64 // of each answer
}

func (g gate) eval(ctx context.Context, keys, args []string) (string, error) {
	if g.cut.Load() {
		return "", errFault
	}
	text, err := g.conn.eval(ctx, keys, args)
	if d := time.Duration(g.delay.Load()); d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	return text, err
}

// gated is a replica that can be cut off.
func (w *world) gated() (*replica, gate) {
	g := gate{cut: new(atomic.Bool), delay: new(atomic.Int64)}
	w.wrap = func(c conn) conn { g := g; g.conn = c; return g }
	defer func() { w.wrap = nil }()
	return w.replica(), g
}

func TestStoreThatIsNotThere(t *testing.T) {
	server := own(t)
	w := newWorld(t, server)
	server.Kill()
	r := w.start()
	if got := w.failed(r, month("m", 100, 1)); got != ratelimit.StoreDown {
		t.Errorf("%q, want that it is down", got)
	}
	if !r.Charge(background, time.Time{}, month("m", 100, 30)) {
		t.Error("what was used without the store is not kept")
	}
	w.wait(func() bool { st := r.Stats(); return st.State == StateDown && st.Error != "" && !st.Since.IsZero() })
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	w.set(time.Date(2026, 3, 14, 12, 0, 0, 0, time.UTC))
	w.wait(func() bool { return r.Stats().State == StateUp })
	if got := w.left(r, month("m", 100, 0)); got != 70 {
		t.Errorf("%d are left, want 70: what was used without the store is owed", got)
	}
	if st := r.Stats(); st.Error != "" || !st.Since.IsZero() {
		t.Errorf("%+v, want no error", st)
	}
}

func TestStoreDiesAndComesBackEmpty(t *testing.T) {
	server := own(t)
	w := newWorld(t, server)
	a, b := w.replica(), w.replica()
	held := w.must(a, month("m", 1000, 400), slot("s", 3), bucket("b", time.Hour, 1000, 400))
	w.must(b, month("m", 1000, 100), slot("s", 3)).Settle(time.Time{}, []int64{70})
	a.told(w)
	b.told(w)
	b.heard(w)
	server.Kill()
	w.wait(func() bool { a.kick(); b.kick(); return a.Stats().State == StateDown && b.Stats().State == StateDown })
	w.failed(a, month("other", 1000, 400), slot("t", 3))
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	w.set(time.Date(2026, 3, 14, 12, 0, 0, 0, time.UTC))
	w.wait(func() bool {
		return a.Stats().State == StateUp && b.Stats().State == StateUp && a.Stats().Losses > 0 && b.Stats().Losses > 0
	})
	a.told(w)
	b.told(w)
	// What was leased before is lost with the old store: at most the share, and what
	// the first replica had before it knew of the second.
	lease := int64(1000 * w.cfg.LeaseShare * 3 / 2)
	if got := w.left(b, month("m", 1000, 0)); got > 530 || got < 530-lease {
		t.Errorf("%d are left of the month, want 530 or a lease less", got)
	}
	if got := w.left(b, bucket("b", time.Hour, 1000, 0)); got > 600 || got < 600-lease {
		t.Errorf("%d are left of the bucket, want 600 or a lease less", got)
	}
	w.must(b, slot("s", 3))
	w.must(b, slot("s", 3))
	w.refused(b, slot("s", 3))
	held.Settle(time.Time{}, []int64{450, 1, 450})
	a.told(w)
	if got := w.left(b, month("m", 1000, 0)); got > 480 || got < 480-lease {
		t.Errorf("%d are left of the month, want 480 or a lease less", got)
	}
	w.wait(func() bool {
		a.kick()
		_, f := b.reserve(slot("s", 3))
		w.now.Add(refusedFor)
		return len(f) == 0
	})
}

// returned waits until the replica has nothing leased that it does not use.
func (r *replica) returned(w *world) {
	w.t.Helper()
	w.wait(func() bool {
		r.kick()
		w.now.Add(int64(idleAfter))
		for i := range r.shards {
			s := &r.shards[i]
			s.mu.Lock()
			for _, c := range s.list {
				if c.free > 0 {
					s.mu.Unlock()
					return false
				}
			}
			s.mu.Unlock()
		}
		return true
	})
	r.told(w)
}

// heard is told's little sister: the replica's view is of now.
func (r *replica) heard(w *world) { w.heard(r) }

func TestFlushedStore(t *testing.T) {
	server := own(t)
	w := newWorld(t, server)
	r := w.replica()
	w.must(r, month("m", 1000, 400)).Settle(time.Time{}, nil)
	r.told(w)
	if _, err := server.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	w.set(time.Date(2026, 3, 14, 12, 0, 0, 0, time.UTC))
	w.wait(func() bool {
		r.kick()
		w.now.Add(int64(heartbeat))
		return r.Stats().Losses == 1 && r.Stats().State == StateUp
	})
	r.told(w)
	if got := w.left(r, month("m", 1000, 0)); got > 600 || got < 475 {
		t.Errorf("%d are left, want 600 or a lease less", got)
	}
}

// TestRecordedUse has nobody remember a month but whoever keeps the record.
func TestRecordedUse(t *testing.T) {
	w := newWorld(t, shared(t))
	a, b := w.replica(), w.replica()
	for _, r := range []*replica{a, b} {
		var used []ratelimit.Used
		for _, c := range []ratelimit.Claim{month("m", 1000, 0), day("d", 1000, 0)} {
			start := ratelimit.PeriodStart(c.Window.Calendar, time.Date(2026, 3, 14, 12, 0, 0, 0, time.UTC))
			used = append(used, ratelimit.Used{Counter: c.ID(), Period: start, Amount: 500}, ratelimit.Used{Counter: c.ID(), Period: start, Amount: 100},
				ratelimit.Used{Counter: c.ID(), Period: start.AddDate(0, -1, 0), Amount: 300})
		}
		r.Restore(used)
	}
	for _, c := range []ratelimit.Claim{month("m", 1000, 10), day("d", 1000, 10)} {
		w.must(a, c).Settle(time.Time{}, nil)
		a.told(w)
		a.returned(w)
		c.Amount = 0
		if got := w.left(a, c); got != 390 {
			t.Errorf("%d are left, want 400 as the record says, less what was used since", got)
		}
		a.returned(w)
		if got := w.left(b, c); got != 390 {
			t.Errorf("another replica has %d left, want 390", got)
		}
		b.returned(w)
	}
}

func TestFlushedScripts(t *testing.T) {
	w := newWorld(t, own(t))
	r := w.replica()
	for i := range 3 {
		if _, err := w.server.Do("SCRIPT", "FLUSH"); err != nil {
			t.Fatal(err)
		}
		w.must(r, month("m", 1000, 300+int64(i)))
	}
}

// TestStoreGoesBack: a store that comes back with what it had saved some time ago has
// forgotten what it has granted since.
func TestStoreGoesBack(t *testing.T) {
	server := own(t)
	w := newWorld(t, server)
	a, b := w.replica(), w.replica()
	w.must(a, month("m", 1000, 100)).Settle(time.Time{}, nil)
	a.told(w)
	if _, err := server.Do("SAVE"); err != nil {
		t.Fatal(err)
	}
	w.must(a, month("m", 1000, 500)).Settle(time.Time{}, nil)
	w.must(b, slot("s", 1))
	a.told(w)
	server.Kill()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	w.wait(func() bool { a.kick(); return a.Stats().Losses == 1 && a.Stats().State == StateUp })
	a.told(w)
	if got := w.left(a, month("m", 1000, 0)); got > 400 || got < 275 {
		t.Errorf("%d are left, want 400 or a lease less", got)
	}
	w.wait(func() bool {
		b.kick()
		w.now.Add(int64(heartbeat))
		return b.Stats().Losses == 1 && b.Stats().State == StateUp
	})
	b.told(w)
	w.refused(a, slot("s", 1))
}

func TestSilentStore(t *testing.T) {
	server := own(t)
	w := newWorld(t, server)
	w.cfg.Timeout = 20 * time.Millisecond // far below the time-out of reports
	r := w.replica()
	server.Pause()
	waited := 0
	states := map[ratelimit.StoreState]int{}
	for range 50 {
		began := time.Now()
		states[w.failed(r, month("m", 1000, 900))]++
		if time.Since(began) >= w.cfg.Timeout {
			waited++
		}
	}
	if waited > 15 { // a few do, and some seem to on a busy machine
		t.Errorf("%d of 50 requests waited for a store that does not answer", waited)
	}
	if states[ratelimit.StoreSlow] == 0 {
		t.Errorf("%v, want that some waited in vain", states)
	}
	w.wait(func() bool { return r.Stats().State == StateDown })
	server.Resume()
	w.wait(func() bool { return r.Stats().State == StateUp })
	r.told(w)
	r.stop() // it has too little patience to be asked
	w.cfg.Timeout = 2 * time.Second
	if got := w.left(w.replica(), month("m", 1000, 0)); got != 1000 {
		t.Errorf("%d are left, want 1000: whoever got no answer got nothing", got)
	}
}

func TestSlowStore(t *testing.T) {
	w := newWorld(t, shared(t))
	w.cfg.Timeout = 500 * time.Millisecond
	r, g := w.gated()
	w.must(r, month("m", 1_000_000, 10)).Settle(time.Time{}, nil)
	g.delay.Store(int64(2 * w.cfg.Timeout))
	w.wait(func() bool { _, _ = r.reserve(month("n", 1000, 900)); return r.Stats().State == StateSlow })
	if got := w.failed(r, month("n", 1000, 900)); got != ratelimit.StoreSlow {
		t.Errorf("%q, want that it is slow", got)
	}
	w.must(r, month("m", 1_000_000, 10)).Settle(time.Time{}, nil) // of the lease
	g.delay.Store(0)
	w.wait(func() bool { return r.Stats().State == StateUp })
	r.told(w)
	if got := w.left(r, month("n", 1000, 0)); got != 1000 {
		t.Errorf("%d are left, want 1000", got)
	}
}

// TestLeaseOutlivesTheStoreForAWhile: what is leased is paid for.
func TestLeaseOutlivesTheStoreForAWhile(t *testing.T) {
	w := newWorld(t, shared(t))
	r, g := w.gated()
	w.must(r, month("m", 1_000_000, 10)).Settle(time.Time{}, nil)
	r.told(w)
	w.heard(r)
	g.cut.Store(true)
	const steps = 6
	for range steps {
		w.must(r, month("m", 1_000_000, 2)).Settle(time.Time{}, nil)
		w.now.Add(int64(w.cfg.LeaseFor) / steps)
	}
	w.now.Add(int64(steps))
	w.failed(r, month("m", 1_000_000, 2))
	g.cut.Store(false)
	w.wait(func() bool { return r.Stats().State == StateUp })
	r.told(w)
	if got, want := w.left(r, month("m", 1_000_000, 0)), int64(1_000_000-10-2*steps); got != want {
		t.Errorf("%d are left, want %d", got, want)
	}
}

func TestDeadReplica(t *testing.T) {
	w := newWorld(t, shared(t))
	dead, r := w.replica(), w.replica()
	w.must(dead, month("m", 1000, 400), slot("s", 1), bucket("b", 24*time.Hour, 1000, 400))
	dead.told(w)
	dead.kill()
	for range 14 {
		w.advance(time.Minute)
		w.heard(r)
	}
	w.refused(r, slot("s", 1))
	for range 2 {
		w.advance(time.Minute)
		w.heard(r)
	}
	w.must(r, slot("s", 1))
	if got := w.left(r, month("m", 1000, 0)); got != 600 {
		t.Errorf("%d are left of the month, want 600: the reservation is settled at its estimate", got)
	}
	refilled := int64(1000 * 16 / (24 * 60))
	if got := w.left(r, bucket("b", 24*time.Hour, 1000, 0)); got < 600+refilled || got > 601+refilled {
		t.Errorf("%d are left of the bucket, want %d: the reservation is settled at its estimate", got, 600+refilled)
	}
}

// TestReplicaThatWasGivenUp comes back with requests in flight.
func TestReplicaThatWasGivenUp(t *testing.T) {
	w := newWorld(t, shared(t))
	lost, g := w.gated()
	r := w.replica()
	held := w.must(lost, month("m", 1000, 400), slot("s", 2))
	lost.told(w)
	g.cut.Store(true)
	for range 16 {
		w.advance(time.Minute)
		w.heard(r)
	}
	w.must(r, slot("s", 2)) // freed of those that are in flight
	g.cut.Store(false)
	w.wait(func() bool { return lost.Stats().State == StateUp && lost.Stats().Losses == 1 })
	lost.told(w)
	w.refused(r, slot("s", 2)) // the other slot is taken again
	held.Settle(time.Time{}, []int64{500})
	lost.told(w)
	if got := w.left(r, month("m", 1000, 0)); got != 500 {
		t.Errorf("%d are left of the month, want 500", got)
	}
	w.wait(func() bool {
		lost.kick()
		w.now.Add(refusedFor)
		_, f := r.reserve(slot("s", 2))
		return len(f) == 0
	})
}

// jump sets the store's clock and waits until the replicas have followed. Many steps
// forward make them dead for a moment.
func (w *world) jump(at time.Time, rs ...*replica) {
	w.t.Helper()
	w.set(at)
	w.now.Add(int64(heartbeat))
	for _, r := range rs {
		w.heard(r)
	}
}

func TestClockOfTheStoreSteps(t *testing.T) {
	w := newWorld(t, shared(t))
	r := w.replica()
	w.must(r, bucket("b", time.Minute, 600, 600), month("m", 100, 100)).Settle(time.Time{}, nil)
	r.told(w)
	w.jump(time.Date(2026, 3, 14, 2, 0, 0, 0, time.UTC), r) // ten hours back
	w.refused(r, bucket("b", time.Minute, 600, 1))
	w.advance(30 * time.Second)
	if got := w.left(r, bucket("b", time.Minute, 600, 0)); got != 300 {
		t.Errorf("%d are left half a minute after a step back, want 300", got)
	}
	w.jump(time.Date(2026, 2, 27, 2, 0, 0, 0, time.UTC), r) // into another month
	w.refused(r, month("m", 100, 1))
	w.jump(time.Date(2026, 3, 14, 12, 0, 0, 0, time.UTC), r)
	w.refused(r, month("m", 100, 1))
}

func TestMonthEnds(t *testing.T) {
	w := newWorld(t, shared(t))
	w.cfg.LeaseShare = 1e-6 // nothing of the one replica's is in the other's way
	a, b := w.replica(), w.replica()
	for _, last := range []time.Time{
		time.Date(2027, 12, 31, 23, 59, 59, 0, time.UTC), time.Date(2028, 2, 29, 23, 59, 59, 0, time.UTC),
		time.Date(2029, 2, 28, 23, 59, 59, 0, time.UTC), time.Date(2029, 4, 30, 23, 59, 59, 0, time.UTC),
	} {
		name := last.Format("m2006-01-02")
		w.jump(last, a, b)
		held := w.must(a, month(name, 1000, 600))
		w.must(b, month(name, 1000, 400)).Settle(time.Time{}, nil)
		f := w.refused(b, month(name, 1000, 1))
		if f[0].Wait != time.Second {
			t.Errorf("%s: a wait of %v, want until the month ends", name, f[0].Wait)
		}
		w.advance(time.Second)
		if got := w.left(b, month(name, 1000, 0)); got != 1000 {
			t.Errorf("%s: %d are left of the new month, want 1000", name, got)
		}
		b.returned(w)
		held.Settle(time.Time{}, []int64{650})
		a.told(w)
		if got := w.left(b, month(name, 1000, 0)); got != 950 {
			t.Errorf("%s: %d are left, want 950: what is beyond the old month's reservation counts in the new", name, got)
		}
	}
}

func TestPasswords(t *testing.T) {
	const secret = "MARKED-correct-horse"
	server := own(t, "--requirepass", secret)
	cfg := DefaultConfig()
	cfg.Addresses, cfg.Timeout = []string{server.Socket()}, 2*time.Second
	var password atomic.Pointer[string]
	wrong := "MARKED-wrong"
	password.Store(&wrong)
	cfg.Password = func() (string, error) { return *password.Load(), nil }
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(background)
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	w := &world{t: t}
	w.wait(func() bool { return l.Stats().Error != "" })
	if text := l.Stats().Error; strings.Contains(text, "MARKED") || !strings.Contains(text, "WRONGPASS") {
		t.Errorf("error %q, want one about the password, without it", text)
	}
	right := secret
	password.Store(&right)
	w.wait(func() bool { return l.Stats().State == StateUp })
	if _, failures := l.Reserve(background, time.Time{}, []ratelimit.Claim{month("m", 10, 1)}); len(failures) > 0 {
		t.Errorf("refused: %+v", failures)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
