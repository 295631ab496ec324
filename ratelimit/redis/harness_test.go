package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/ratelimit"
	"github.com/sluicegate/sluice/ratelimit/redis/redistest"
)

var (
	common     *redistest.Server
	commonErr  error
	commonOnce sync.Once
	prefixes   atomic.Int64
)

func TestMain(m *testing.M) {
	code := m.Run()
	if common != nil {
		common.Stop()
	}
	os.Exit(code)
}

// need1 ends the test at an error. A machine without Redis skips it, unless the tests were started as CI does, with
// SLUICE_TEST_SERVICES=required.
func need1[T any](t testing.TB, v T, err error) T {
	t.Helper()
	if errors.Is(err, redistest.ErrNotInstalled) && !redistest.Required() {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// shared is the server of all tests that do it no harm.
func shared(t testing.TB) *redistest.Server {
	t.Helper()
	commonOnce.Do(func() { common, commonErr = redistest.New() })
	return need1(t, common, commonErr)
}

// own is a server of this test alone.
func own(t testing.TB, options ...string) *redistest.Server {
	t.Helper()
	s, err := redistest.New(options...)
	need1(t, s, err)
	t.Cleanup(s.Stop)
	return s
}

// world is a store and the replicas that share it. Unless it is real, time stands
// still there but for advance.
type world struct {
	t      testing.TB
	server *redistest.Server
	cfg    Config
	real   bool
	wrap   func(conn) conn // nil: as they are

	clock string // key of the time at the store, in microseconds
	now   atomic.Int64
}

func newWorld(t testing.TB, server *redistest.Server) *world {
	w := &world{t: t, server: server, cfg: DefaultConfig()}
	w.cfg.Addresses = []string{server.Socket()}
	w.cfg.Prefix = fmt.Sprint("t", os.Getpid(), "-", prefixes.Add(1))
	w.cfg.Timeout = 2 * time.Second // two cores that others use too
	w.clock = w.cfg.Prefix + "clock"
	w.set(time.Date(2026, 3, 14, 12, 0, 0, 0, time.UTC))
	return w
}

// set sets the store's clock.
func (w *world) set(at time.Time) {
	w.t.Helper()
	if _, err := w.server.Do("SET", w.clock, strconv.FormatInt(at.UnixMicro(), 10)); err != nil {
		w.t.Fatal(err)
	}
}

// advance lets time pass everywhere.
func (w *world) advance(d time.Duration) {
	w.t.Helper()
	text, err := w.server.Do("INCRBY", w.clock, strconv.FormatInt(d.Microseconds(), 10))
	if err != nil {
		w.t.Fatal(text, err)
	}
	w.now.Add(int64(d))
}

// replica is a limiter that runs until the test ends, or is stopped.
type replica struct {
	*Limiter
	stop func() // gives back what it has leased
	kill func() // does not
}

func (w *world) replica(options ...func(*Limiter)) *replica {
	w.t.Helper()
	r := w.start(options...)
	w.wait(func() bool { return r.Stats().State == StateUp })
	return r
}

// start starts a replica and does not wait for the store.
func (w *world) start(options ...func(*Limiter)) *replica {
	w.t.Helper()
	l, err := New(w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	text := scriptText
	if !w.real {
		text = strings.Replace(text, "redis.call('TIME')", "{'0', redis.call('GET', '"+w.clock+"')}", 1)
		l.mono = w.now.Load
	}
	l.dial = func(_ context.Context, cfg *Config) (conn, error) {
		c, err := dialScript(cfg, text)
		if err == nil && w.wrap != nil {
			c = w.wrap(c)
		}
		return c, err
	}
	for _, o := range options {
		o(l)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = l.Run(ctx)
	}()
	r := &replica{Limiter: l}
	r.stop = func() { cancel(); <-done }
	r.kill = func() { l.session.Store(nil); r.stop() }
	w.t.Cleanup(r.stop)
	return r
}

// wait polls for something that happens by itself.
func (w *world) wait(what func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); !what(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatal("it does not happen")
		}
	}
}

// told waits until the replica has nothing left to tell.
func (r *replica) told(w *world) {
	w.t.Helper()
	w.wait(func() bool {
		r.kick()
		for i := range r.shards {
			s := &r.shards[i]
			s.mu.Lock()
			for _, c := range s.list {
				if c.taken|c.spent|c.beyond|c.back|c.force != 0 || len(c.settles) > 0 || c.flight != nil {
					s.mu.Unlock()
					return false
				}
			}
			s.mu.Unlock()
		}
		return true
	})
}

var background = context.Background()

func (r *replica) reserve(claims ...ratelimit.Claim) (ratelimit.Reservation, []ratelimit.Failure) {
	return r.Reserve(background, time.Time{}, claims)
}

func bucket(name string, window time.Duration, limit, amount int64) ratelimit.Claim {
	return ratelimit.Claim{Counter: name, Unit: ratelimit.UnitTokens, Window: ratelimit.Window{Duration: window}, Limit: limit, Amount: amount}
}

func month(name string, limit, amount int64) ratelimit.Claim {
	return ratelimit.Claim{Counter: name, Unit: ratelimit.UnitCost, Window: ratelimit.Window{Calendar: ratelimit.CalendarMonth}, Limit: limit, Amount: amount}
}

func day(name string, limit, amount int64) ratelimit.Claim {
	return ratelimit.Claim{Counter: name, Unit: ratelimit.UnitCost, Window: ratelimit.Window{Calendar: ratelimit.CalendarDay}, Limit: limit, Amount: amount}
}

func slot(name string, limit int64) ratelimit.Claim {
	return ratelimit.Claim{Counter: name, Unit: ratelimit.UnitConcurrency, Limit: limit, Amount: 1}
}

// must reserves.
func (w *world) must(r *replica, claims ...ratelimit.Claim) ratelimit.Reservation {
	w.t.Helper()
	res, failures := r.reserve(claims...)
	if len(failures) > 0 {
		w.t.Fatalf("refused: %+v", failures)
	}
	return res
}

// refused wants a refusal because of what is used up.
func (w *world) refused(r *replica, claims ...ratelimit.Claim) []ratelimit.Failure {
	w.t.Helper()
	_, failures := r.reserve(claims...)
	if len(failures) == 0 {
		w.t.Fatal("reserved what does not fit")
	}
	for _, f := range failures {
		if f.Store != "" {
			w.t.Fatalf("the store failed: %+v", f)
		}
	}
	return failures
}

// left finds out, by halves, how much of a claim's counter can be had.
func (w *world) left(r *replica, c ratelimit.Claim) int64 {
	w.t.Helper()
	low, high := int64(-1), c.Limit+1
	for high-low > 1 {
		c.Amount = (low + high) / 2
		res, failures := r.reserve(c)
		if len(failures) == 0 {
			low = c.Amount
			res.Cancel(time.Time{})
			continue
		}
		if failures[0].Store != "" {
			w.t.Fatalf("the store failed: %+v", failures)
		}
		high = c.Amount
		if low < 0 && high == 0 {
			return failures[0].Available
		}
		w.now.Add(refusedFor) // ask anew
	}
	return low
}

// faulty loses questions and answers.
type faulty struct {
	conn
	mu   sync.Mutex
	rng  *rand.Rand
	off  bool
	late sync.WaitGroup
}

var errFault = errors.New("fault")

func (f *faulty) eval(ctx context.Context, keys, args []string) (string, error) {
	n := f.fate(args[0])
	switch {
	case n < 10: // the question is lost
		return "", errFault
	case n < 20: // the answer is lost
		_, _ = f.conn.eval(ctx, keys, args)
		return "", errFault
	case n < 30: // the question comes late
		go func() {
			defer f.late.Done()
			time.Sleep(time.Duration(n) * time.Millisecond)
			_, _ = f.conn.eval(context.Background(), keys, args)
		}()
		return "", errFault
	}
	return f.conn.eval(ctx, keys, args)
}

// fate draws what becomes of a question: below 10 it is lost, below 20 its answer is,
// below 30 it comes late.
func (f *faulty) fate(op string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.off || op == "join" || op == "leave" {
		return 100
	}
	n := f.rng.IntN(100)
	if n >= 20 && n < 30 {
		f.late.Add(1)
	}
	return n
}

// heal ends the faults, and waits for what is late.
func (f *faulty) heal() {
	f.mu.Lock()
	f.off = true
	f.mu.Unlock()
	f.late.Wait()
}

func (f *faulty) close() {
	f.heal()
	f.conn.close()
}
