package authn

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// fakeStore answers as its fields say.
type fakeStore struct {
	mu      sync.Mutex
	answer  Changes
	err     error
	asked   []Version
	used    map[string]time.Time
	usedErr error
}

func (s *fakeStore) Changes(_ context.Context, since Version) (Changes, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, since)
	if s.err != nil {
		return Changes{}, s.err
	}
	if since == s.answer.Version {
		return Changes{Version: since}, nil
	}
	a := s.answer
	a.All = a.All || since == Version{}
	return a, nil
}

func (s *fakeStore) Used(_ context.Context, at map[string]time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = at
	return s.usedErr
}

func (s *fakeStore) set(a Changes, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer, s.err = a, err
}

func storedKey(id, tenant, secret string) KeyInfo {
	return KeyInfo{Tenant: tenant, Record: Record{ID: id, SHA256: digest(secret)}}
}

// Keys in a database come, change and go within the promise. While it can't be
// asked they work for as long as is allowed, and nobody is told apart by that who
// has no key.
func TestLiveFollowsItsStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{}
		s.set(Changes{Keys: []KeyInfo{storedKey("kd4", "acme", "d"+secretA[1:]), storedKey("kb2", "acme", "e"+secretA[1:])}, Version: Version{"one", 7}}, nil)
		f := follow(t, twoTenants(), func(c *LiveConfig) { c.Store, c.MaxStale = s, 10*time.Second })
		v := f.view()
		keyD := "slk_kd4_d" + secretA[1:]
		f.want(v, keyD, "")
		f.want(v, keyA, "")                    // of the file
		f.want(v, keyB, tenancy.AuthUnknown)   // the database has another key of that id
		f.want(v, "slk_kb2_e"+secretA[1:], "") // this one
		f.want(v, "slk_kd4_"+secretB, tenancy.AuthUnknown)

		gone := storedKey("kd4", "acme", "d"+secretA[1:])
		gone.Disabled = true
		s.set(Changes{Keys: []KeyInfo{gone}, Version: Version{"one", 8}}, nil)
		time.Sleep(promise)
		synctest.Wait()
		f.want(v, keyD, tenancy.AuthRevoked)
		f.want(v, "slk_kb2_e"+secretA[1:], "")

		f.write("tenants.yaml", strings.Replace(twoTenants(), "id: kb2\n", "id: kb2\n        disabled: true\n", 1))
		time.Sleep(promise)
		synctest.Wait()
		f.want(v, "slk_kb2_e"+secretA[1:], tenancy.AuthRevoked) // by the file, although the database's counts
		f.write("tenants.yaml", twoTenants())
		time.Sleep(promise)
		synctest.Wait()
		f.want(v, "slk_kb2_e"+secretA[1:], "")

		s.set(Changes{}, errors.New("down"))
		time.Sleep(9 * time.Second)
		f.want(v, "slk_kb2_e"+secretA[1:], "")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		f.want(v, "slk_kb2_e"+secretA[1:], tenancy.AuthKeysDown)
		f.want(v, "slk_kb2_"+secretA, tenancy.AuthUnknown)
		f.want(v, keyD, tenancy.AuthRevoked)
		f.want(v, keyA, "")
		if st := f.Stats(time.Now()); !st.Failing[ofStore] || st.Stale < 10*time.Second || st.Failures[ofStore] < 10 {
			t.Errorf("%+v", st)
		}
		if _, err := Revoke(f.tenants+".revoked", "kb2", "", time.Now()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(promise)
		synctest.Wait()
		f.want(v, "slk_kb2_e"+secretA[1:], tenancy.AuthRevoked)

		// Another database: what the first one had is gone.
		s.set(Changes{Keys: []KeyInfo{storedKey("kf5", "nobody", "f"+secretA[1:]), {Record: Record{ID: "BAD"}}}, Version: Version{"two", 1}, All: true}, nil)
		time.Sleep(promise)
		synctest.Wait()
		f.want(v, keyD, tenancy.AuthUnknown)
		f.want(v, "slk_kf5_f"+secretA[1:], tenancy.AuthUnmapped)
		if st := f.Stats(time.Now()); st.Failing[ofStore] || st.Stale > promise {
			t.Errorf("%+v", st)
		}
		f.stop()
		if text := f.log.String(); strings.Count(text, "cannot follow the keys") != 1 || !strings.Contains(text, "a key in the database can't be used") {
			t.Errorf("the log:\n%s", text)
		}
	})
}

// What was read of the whole database does not undo what was found new meanwhile.
func TestReadingTheStoreWholeUndoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowStore{}
		s.set(Changes{Keys: []KeyInfo{storedKey("kd4", "acme", "d"+secretA[1:])}, Version: Version{"one", 1}}, nil)
		f := follow(t, twoTenants(), func(c *LiveConfig) { c.Store = s })
		v := f.view()
		keyD := "slk_kd4_d" + secretA[1:]
		time.Sleep(askAllEvery + time.Second) // the database is being read whole
		gone := storedKey("kd4", "acme", "d"+secretA[1:])
		gone.Disabled = true
		s.set(Changes{Keys: []KeyInfo{gone}, Version: Version{"one", 2}}, nil)
		for range 2 * int(slowness/promise) {
			time.Sleep(promise)
			synctest.Wait()
			f.want(v, keyD, tenancy.AuthRevoked)
		}
	})
}

// slowness is what a slowStore takes to be read whole.
const slowness = 10 * time.Second

// slowStore says what it held when it was asked.
type slowStore struct{ fakeStore }

func (s *slowStore) Changes(ctx context.Context, since Version) (Changes, error) {
	got, err := s.fakeStore.Changes(ctx, since)
	if since == (Version{}) {
		time.Sleep(slowness)
	}
	return got, err
}

// What was read earlier does not undo what was read of the whole database meanwhile,
// which would last for as long as the database then fails.
func TestALateAnswerUndoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alive, gone := storedKey("kd4", "acme", "d"+secretA[1:]), storedKey("kd4", "acme", "d"+secretA[1:])
		gone.Disabled = true
		s := &lateStore{late: Version{"one", 1}}
		s.set(Changes{Keys: []KeyInfo{alive}, Version: Version{"one", 1}}, nil)
		f := follow(t, twoTenants(), func(c *LiveConfig) { c.Store = s })
		v := f.view()
		keyD := "slk_kd4_d" + secretA[1:]
		time.Sleep(askAllEvery - time.Second)
		s.set(Changes{Keys: []KeyInfo{alive}, Version: Version{"one", 2}}, nil)
		time.Sleep(promise) // this is on its way, slowly
		s.set(Changes{Keys: []KeyInfo{gone}, Version: Version{"one", 3}}, nil)
		time.Sleep(time.Second)
		synctest.Wait()
		f.want(v, keyD, tenancy.AuthRevoked)
		s.set(Changes{}, errors.New("down"))
		time.Sleep(2 * slowness)
		synctest.Wait()
		f.want(v, keyD, tenancy.AuthRevoked)
	})
}

// lateStore takes its time to tell what is new after a version.
type lateStore struct {
	fakeStore
	late Version
}

func (s *lateStore) Changes(ctx context.Context, since Version) (Changes, error) {
	got, err := s.fakeStore.Changes(ctx, since)
	if since == s.late && got.Version != since {
		time.Sleep(slowness)
	}
	return got, err
}

// A database is read whole from time to time, in case it was put back to an
// earlier state and has gone on from there.
func TestLiveReadsTheStoreWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{answer: Changes{Version: Version{"one", 1}}}
		f := follow(t, twoTenants(), func(c *LiveConfig) { c.Store = s })
		time.Sleep(11 * time.Minute)
		f.stop()
		whole := 0
		for _, v := range s.asked {
			if v == (Version{}) {
				whole++
			}
		}
		if whole != 3 || len(s.asked) < 11*60*4 {
			t.Errorf("asked %d times in eleven minutes, %d times for all", len(s.asked), whole)
		}
	})
}
