package oidc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/authn"
	"github.com/sluicegate/sluice/tenancy/authn/oidc/oidctest"
)

// source is a provider's keys in a test's own time.
type source struct {
	mu      sync.Mutex
	set     []byte
	err     error
	takes   time.Duration
	maxAge  time.Duration
	fetches int
}

func (s *source) fetch(ctx context.Context) ([]byte, time.Duration, error) {
	s.mu.Lock()
	s.fetches++
	set, err, takes, age := s.set, s.err, s.takes, s.maxAge
	s.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	return set, age, err
}

func (s *source) publish(err error, signers ...*oidctest.Signer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.set = err, oidctest.Set(signers...)
}

func (s *source) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fetches
}

// follow runs a key set for as long as the test does.
func follow(t *testing.T, s *source) *KeySet {
	t.Helper()
	k := NewKeySet(s.fetch, DefaultTiming(), slog.New(slog.DiscardHandler))
	run(t, k)
	return k
}

// run runs a key set until the test ends.
func run(t *testing.T, k *KeySet) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- k.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	synctest.Wait()
}

func ask(t *testing.T, k *KeySet, kid string) error {
	t.Helper()
	_, err := k.find(t.Context(), &kid, "ES256")
	return err
}

// TestOneFetchForAnUnknownKey, however many requests carry it, and no other
// before the cooldown has passed.
func TestOneFetchForAnUnknownKey(t *testing.T) {
	signer := oidctest.NewSigner(t, "ES256", "a")
	synctest.Test(t, func(t *testing.T) {
		src := &source{set: oidctest.Set(signer), takes: 100 * time.Millisecond}
		k := follow(t, src)
		time.Sleep(time.Minute)
		before := src.count()
		var wg sync.WaitGroup
		var unknown atomic.Int64
		for range 10_000 {
			wg.Go(func() {
				kid := "b"
				if _, err := k.find(t.Context(), &kid, "ES256"); errors.Is(err, errKeyUnknown) {
					unknown.Add(1)
				}
			})
		}
		wg.Wait()
		if n := src.count() - before; n != 1 || unknown.Load() != 10_000 {
			t.Errorf("10,000 requests with one unknown key made %d fetches; %d were refused for it", n, unknown.Load())
		}
		// As many with an id each: what is remembered of them has a bound.
		time.Sleep(time.Minute)
		before = src.count()
		for i := range 10_000 {
			wg.Go(func() { _, _ = k.find(t.Context(), new(fmt.Sprintf("f%d", i)), "ES256") })
		}
		wg.Wait()
		k.mu.Lock()
		missed := len(k.missed)
		k.mu.Unlock()
		if n := src.count() - before; n != 1 || missed > maxMissed {
			t.Errorf("10,000 unknown keys made %d fetches, and %d are remembered", n, missed)
		}
		// Others that nobody knows, in the cooldown.
		for i := range 1000 {
			if err := ask(t, k, fmt.Sprintf("k%d", i)); !errors.Is(err, errKeyUnknown) {
				t.Fatal(err)
			}
		}
		if n := src.count() - before; n != 1 {
			t.Errorf("%d fetches within the cooldown", n)
		}
		// A hundred seconds of a flood of new ids: one fetch each ten seconds.
		began := time.Now()
		for i := 0; time.Since(began) < 100*time.Second; i++ {
			_ = ask(t, k, fmt.Sprintf("x%d", i))
			time.Sleep(20 * time.Millisecond)
		}
		if n := src.count() - before; n > 12 {
			t.Errorf("a flood of unknown ids made %d fetches in 100 s", n)
		}
	})
}

// TestAnUnknownKeyAsksEverLess: a client that goes on with a token that nobody
// can verify does not make a fetch each ten seconds for ever.
func TestAnUnknownKeyAsksEverLess(t *testing.T) {
	signer := oidctest.NewSigner(t, "ES256", "a")
	synctest.Test(t, func(t *testing.T) {
		src := &source{set: oidctest.Set(signer)}
		k := follow(t, src)
		time.Sleep(time.Second)
		before := src.count()
		for began := time.Now(); time.Since(began) < 14*time.Minute; time.Sleep(time.Second) {
			_ = ask(t, k, "b")
		}
		// At 0, 10, 30, 70, 150, 310, 610 s.
		if n := src.count() - before; n < 5 || n > 8 {
			t.Errorf("an unknown id made %d fetches in 14 minutes", n)
		}
		if len(k.missed) != 1 {
			t.Errorf("%d ids are remembered", len(k.missed))
		}
	})
}

// TestRotation: the first token of a new key is good, and so are those of the
// old one for as long as it is published.
func TestRotation(t *testing.T) {
	a, b := oidctest.NewSigner(t, "ES256", "a"), oidctest.NewSigner(t, "ES256", "b")
	synctest.Test(t, func(t *testing.T) {
		src := &source{set: oidctest.Set(a), takes: 50 * time.Millisecond}
		k := follow(t, src)
		time.Sleep(time.Minute)
		version := k.Version()
		src.publish(nil, b, a)
		var wg sync.WaitGroup
		for i := range 200 {
			kid := "a"
			if i%2 == 0 {
				kid = "b"
			}
			wg.Go(func() {
				if err := ask(t, k, kid); err != nil {
					t.Errorf("key %s: %v", kid, err)
				}
			})
		}
		wg.Wait()
		if n := src.count(); n != 2 || k.Version() == version {
			t.Errorf("%d fetches, version %d after %d", n, k.Version(), version)
		}
		// The old one goes with the next refresh.
		src.publish(nil, b)
		time.Sleep(16 * time.Minute)
		if err := ask(t, k, "a"); !errors.Is(err, errKeyUnknown) {
			t.Errorf("a key that was withdrawn: %v", err)
		}
		if err := ask(t, k, "b"); err != nil {
			t.Errorf("the key of today: %v", err)
		}
	})
}

// TestRotationUnderOneName: an issuer that names none of its keys, or all of them
// alike, is followed, too, and bad signatures ask for no more fetches than unknown
// keys do.
func TestRotationUnderOneName(t *testing.T) {
	for _, kid := range []string{"", "default"} {
		a, b, stranger := oidctest.NewSigner(t, "ES256", kid), oidctest.NewSigner(t, "ES256", kid), oidctest.NewSigner(t, "ES256", kid)
		synctest.Test(t, func(t *testing.T) {
			src := &source{set: oidctest.Set(a), takes: 50 * time.Millisecond}
			k := follow(t, src)
			v := verifier(t, k)
			verify := func(s *oidctest.Signer) string {
				_, err := v.Verify(t.Context(), []byte(s.Token(oidctest.Claims(issuerName, time.Now()))), time.Now())
				return reason(err)
			}
			time.Sleep(time.Minute)
			if got := verify(a); got != "ok" || src.count() != 1 {
				t.Errorf("before: %s, %d fetches", got, src.count())
			}
			src.publish(nil, b)
			if got := verify(b); got != "ok" || src.count() != 2 {
				t.Errorf("the first token by the new key: %s, %d fetches", got, src.count())
			}
			if got := verify(a); got != tenancy.AuthSignature {
				t.Errorf("the old key: %s", got)
			}
			before := src.count()
			for began := time.Now(); time.Since(began) < 10*time.Minute; time.Sleep(time.Second) {
				if got := verify(stranger); got != tenancy.AuthSignature {
					t.Fatalf("a stranger's: %s", got)
				}
			}
			if n := src.count() - before; n > 7 {
				t.Errorf("bad signatures made %d fetches in ten minutes", n)
			}
			if got := verify(b); got != "ok" {
				t.Errorf("after a flood of bad signatures: %s", got)
			}
		})
	}
}

// TestProviderDown: keys that are known stay in force for days, new ones are
// refused at once, and the provider is asked ever less often, until it is back.
func TestProviderDown(t *testing.T) {
	a, b := oidctest.NewSigner(t, "ES256", "a"), oidctest.NewSigner(t, "ES256", "b")
	synctest.Test(t, func(t *testing.T) {
		src := &source{set: oidctest.Set(a)}
		k := follow(t, src)
		time.Sleep(time.Minute)
		src.publish(errors.New("down"), b)
		before := src.count()
		for began := time.Now(); time.Since(began) < 48*time.Hour; time.Sleep(time.Minute) {
			if err := ask(t, k, "a"); err != nil {
				t.Fatalf("a known key after %v: %v", time.Since(began), err)
			}
			if err := ask(t, k, "b"); !errors.Is(err, errKeysDown) {
				t.Fatalf("a new key after %v: %v", time.Since(began), err)
			}
		}
		if n := src.count() - before; n < 500 || n > 700 {
			t.Errorf("%d fetches in two days; about one in five minutes is meant", n)
		}
		if s := k.Stats(); !s.Failing || s.Keys != 1 || s.Bad == 0 {
			t.Errorf("%+v", s)
		}
		src.publish(nil, b)
		time.Sleep(5 * time.Minute)
		if err := ask(t, k, "b"); err != nil || k.Stats().Failing {
			t.Errorf("after the provider came back: %v, %+v", err, k.Stats())
		}
	})
}

// TestStartWithoutAProvider: nothing waits for it, and it is found within a
// second or two of coming up.
func TestStartWithoutAProvider(t *testing.T) {
	a := oidctest.NewSigner(t, "ES256", "a")
	synctest.Test(t, func(t *testing.T) {
		src := &source{err: errors.New("down")}
		k := follow(t, src)
		began := time.Now()
		if err := ask(t, k, "a"); !errors.Is(err, errKeysDown) || time.Since(began) > 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		src.publish(nil, a)
		time.Sleep(time.Second)
		if err := ask(t, k, "a"); err != nil {
			t.Errorf("after the provider came up: %v", err)
		}
	})
}

// TestWithdrawnKeys: tokens that were verified lately are not good any more once
// their key is gone, and those of other keys are.
func TestWithdrawnKeys(t *testing.T) {
	a, b := oidctest.NewSigner(t, "ES256", "a"), oidctest.NewSigner(t, "ES256", "b")
	synctest.Test(t, func(t *testing.T) {
		src := &source{set: oidctest.Set(a, b), maxAge: time.Minute}
		k := follow(t, src)
		tokens := NewTokens(verifier(t, k), map[string]authn.Mapper{issuerName: grantAll{&tenancy.Tenant{ID: "acme"}}})
		time.Sleep(50 * time.Second)
		ofA, ofB := []byte(a.Token(oidctest.Claims(issuerName, time.Now()))), []byte(b.Token(oidctest.Claims(issuerName, time.Now())))
		use := func(token []byte) string {
			_, err := tokens.Authenticate(t.Context(), &tenancy.Credentials{Bearer: token}, time.Now())
			return reason(err)
		}
		if x, y := use(ofA), use(ofB); x != "ok" || y != "ok" || tokens.Remembered() != 2 {
			t.Errorf("%s, %s, %d remembered", x, y, tokens.Remembered())
		}
		src.publish(nil, b)
		time.Sleep(15 * time.Second)
		if x, y := use(ofA), use(ofB); x != tenancy.AuthKeyUnknown || y != "ok" {
			t.Errorf("after the key was withdrawn: %s, and by the other %s", x, y)
		}
	})
}

// TestKeptKeys: a set that begins with the keys of an earlier one serves by them
// until others come, and hands on what comes.
func TestKeptKeys(t *testing.T) {
	a, b := oidctest.NewSigner(t, "ES256", "a"), oidctest.NewSigner(t, "ES256", "b")
	synctest.Test(t, func(t *testing.T) {
		src := &source{err: errors.New("down")}
		var stored [][]byte
		k := NewKeySet(src.fetch, DefaultTiming(), slog.New(slog.DiscardHandler))
		if err := k.Keep(oidctest.Set(a), func(jwks []byte) { stored = append(stored, jwks) }); err != nil {
			t.Fatal(err)
		}
		run(t, k)
		if err := ask(t, k, "a"); err != nil {
			t.Errorf("a key that was kept: %v", err)
		}
		if err := ask(t, k, "b"); !errors.Is(err, errKeysDown) {
			t.Errorf("another: %v", err)
		}
		src.publish(nil, b)
		time.Sleep(time.Hour)
		if err := ask(t, k, "b"); err != nil {
			t.Errorf("the key that came: %v", err)
		}
		if err := ask(t, k, "a"); !errors.Is(err, errKeyUnknown) {
			t.Errorf("the key of old: %v", err)
		}
		if len(stored) != 1 || !bytes.Equal(stored[0], oidctest.Set(b)) {
			t.Errorf("stored %d times: %s", len(stored), stored)
		}
		if err := NewKeySet(src.fetch, DefaultTiming(), slog.New(slog.DiscardHandler)).Keep([]byte("x"), nil); err == nil {
			t.Error("nonsense was taken for keys")
		}
	})
}

// TestFirstRequestsWait for the fetch that the start began.
func TestFirstRequestsWait(t *testing.T) {
	a := oidctest.NewSigner(t, "ES256", "a")
	synctest.Test(t, func(t *testing.T) {
		src := &source{set: oidctest.Set(a), takes: time.Second}
		k := follow(t, src)
		if err := ask(t, k, "a"); err != nil {
			t.Error(err)
		}
		if n := src.count(); n != 1 {
			t.Errorf("%d fetches", n)
		}
	})
}

// TestSlowProvider: a request waits two seconds at most, and no longer than its
// client does.
func TestSlowProvider(t *testing.T) {
	a := oidctest.NewSigner(t, "ES256", "a")
	synctest.Test(t, func(t *testing.T) {
		src := &source{set: oidctest.Set(a)}
		k := follow(t, src)
		time.Sleep(time.Minute)
		src.mu.Lock()
		src.takes = time.Hour
		src.mu.Unlock()
		began := time.Now()
		if err := ask(t, k, "b"); !errors.Is(err, errKeysLate) || time.Since(began) != 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		kid := "c"
		if _, err := k.find(ctx, &kid, "ES256"); reason(err) != tenancy.AuthCancelled {
			t.Errorf("a client that left: %v", err)
		}
		if err := ask(t, k, "a"); err != nil {
			t.Errorf("a known key meanwhile: %v", err)
		}
		time.Sleep(time.Minute)
		if s := k.Stats(); !s.Failing {
			t.Errorf("a fetch without end: %+v", s)
		}
	})
}

// TestBadSetsReplaceNothing.
func TestBadSetsReplaceNothing(t *testing.T) {
	a := oidctest.NewSigner(t, "ES256", "a")
	for _, set := range []string{`{"keys":[]}`, `<html>maintenance</html>`, ``, `{"keys":[{"kty":"oct","k":"AAAA"}]}`, `[]`} {
		synctest.Test(t, func(t *testing.T) {
			src := &source{set: oidctest.Set(a)}
			k := follow(t, src)
			src.mu.Lock()
			src.set = []byte(set)
			src.mu.Unlock()
			time.Sleep(time.Hour)
			if err := ask(t, k, "a"); err != nil || !k.Stats().Failing {
				t.Errorf("%q: %v, %+v", set, err, k.Stats())
			}
		})
	}
}

// TestCacheControl: a provider may want its keys fetched sooner, within reason.
func TestCacheControl(t *testing.T) {
	a := oidctest.NewSigner(t, "ES256", "a")
	for _, c := range []struct {
		age         time.Duration
		least, most int
	}{{0, 4, 5}, {5 * time.Minute, 12, 14}, {time.Second, 59, 68}, {24 * time.Hour, 4, 5}} {
		synctest.Test(t, func(t *testing.T) {
			src := &source{set: oidctest.Set(a), maxAge: c.age}
			follow(t, src)
			time.Sleep(time.Hour)
			if n := src.count() - 1; n < c.least || n > c.most {
				t.Errorf("max-age %v: %d fetches in an hour, want %d to %d", c.age, n, c.least, c.most)
			}
		})
	}
}

// TestKeysForSomethingElse ask for no fetch: the key is there.
func TestKeysForSomethingElse(t *testing.T) {
	rsa, ec := oidctest.NewSigner(t, "RS256", "r"), oidctest.NewSigner(t, "ES256", "e")
	synctest.Test(t, func(t *testing.T) {
		src := &source{set: oidctest.Set(rsa, ec)}
		k := follow(t, src)
		time.Sleep(time.Minute)
		before := src.count()
		if err := ask(t, k, "r"); !errors.Is(err, errKeyUnknown) {
			t.Error(err)
		}
		if _, err := k.find(t.Context(), nil, "EdDSA"); !errors.Is(err, errKeyUnknown) {
			t.Error(err)
		}
		if src.count() != before {
			t.Error("the provider was asked")
		}
	})
}
