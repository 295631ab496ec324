package authn

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// When a key was last used is in the side file a minute later, and at the end; the
// tenants file never changes for it.
func TestUsesAreNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := follow(t, twoTenants(), nil)
		v := f.view()
		file := f.tenants + ".used"
		time.Sleep(10 * time.Second)
		first := time.Now()
		f.want(v, keyA, "")
		f.want(v, "slk_kb2_"+secretA, "unknown") // a wrong secret is no use
		if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("noted at once: %v", err)
		}
		time.Sleep(noteEvery)
		synctest.Wait()
		u, err := LoadUses(file)
		if err != nil || len(u.Used) != 1 || !u.Used["ka1"].Equal(first.Truncate(time.Second)) {
			t.Errorf("%+v, %v; want ka1 at %v", u, err, first)
		}
		time.Sleep(2 * noteEvery)
		last := time.Now()
		f.want(v, keyA, "")
		f.stop()
		if u, err = LoadUses(file); err != nil || !u.Used["ka1"].Equal(last.Truncate(time.Second)) {
			t.Errorf("at the end %+v, %v; want ka1 at %v", u, err, last)
		}
		if text, err := os.ReadFile(f.tenants); err != nil || string(text) != twoTenants() {
			t.Errorf("the tenants file became %v\n%s", err, text)
		}
		// The next process goes on from there.
		again := follow(t, twoTenants(), func(c *LiveConfig) { c.Used = file })
		if got := again.uses["ka1"].last.Load(); got != last.Unix() {
			t.Errorf("the next process begins with %d, want %d", got, last.Unix())
		}
	})
}

func TestUsesInAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeStore{answer: Changes{Keys: []KeyInfo{storedKey("kd4", "acme", "d"+secretA[1:])}, Version: Version{"one", 1}}, usedErr: errors.New("down")}
		f := follow(t, twoTenants(), func(c *LiveConfig) { c.Store = s })
		at := time.Now()
		f.want(f.view(), "slk_kd4_d"+secretA[1:], "")
		time.Sleep(noteEvery)
		synctest.Wait()
		if st := f.Stats(time.Now()); !st.Failing[ofUses] || st.Failing[ofStore] {
			t.Errorf("%+v", st)
		}
		s.mu.Lock()
		s.used, s.usedErr = nil, nil
		s.mu.Unlock()
		time.Sleep(noteEvery)
		synctest.Wait()
		if len(s.used) != 1 || !s.used["kd4"].Equal(at.Truncate(time.Second)) || f.Stats(time.Now()).Failing[ofUses] {
			t.Errorf("noted %v, want kd4 at %v", s.used, at)
		}
	})
}

// Gateways that share a file lose nothing of each other's, and a later time stays.
func TestNoteUsesTogether(t *testing.T) {
	file := filepath.Join(t.TempDir(), "used")
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			at := map[string]time.Time{"same": noon.Add(time.Duration(i) * time.Minute), "own" + string(rune('a'+i)): noon}
			if err := NoteUses(file, at, noon); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	u, err := LoadUses(file)
	if err != nil || len(u.Used) != 9 || !u.Used["same"].Equal(noon.Add(7*time.Minute)) || !u.Since.Equal(noon) {
		t.Errorf("%+v, %v", u, err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	// A file that a crash has left in pieces is begun anew.
	if err := os.WriteFile(file, []byte(`{"used":{"same":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadUses(file); err == nil {
		t.Error("half a file was read")
	}
	if err := NoteUses(file, map[string]time.Time{"a": noon}, noon.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if u, err = LoadUses(file); err != nil || len(u.Used) != 1 || !u.Since.Equal(noon.Add(time.Hour)) {
		t.Errorf("%+v, %v", u, err)
	}
}

// A key that ends soon is warned of once, unless its successor is there.
func TestEndsAreWarnedOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		soon := time.Now().Add(10 * time.Minute).UTC().Format(time.RFC3339)
		text := "tenants:\n  - id: acme\n    keys:\n" +
			"      - { id: ka1, sha256: " + digest(secretA) + ", expires: " + soon + " }\n" +
			"      - { id: kb2, sha256: " + digest(secretB) + ", expires: " + soon + " }\n" +
			"      - { id: kc3, sha256: " + digest("c"+secretA[1:]) + ", rotatedFrom: kb2 }\n"
		f := follow(t, text, func(c *LiveConfig) { c.WarnBefore = 4 * time.Minute })
		time.Sleep(2 * time.Minute)
		if s := f.Stats(time.Now()); s.Active != 3 || s.Expiring != 0 {
			t.Errorf("before: %+v", s)
		}
		time.Sleep(6 * time.Minute)
		if s := f.Stats(time.Now()); s.Active != 1 || s.Expiring != 2 {
			t.Errorf("soon: %+v", s)
		}
		time.Sleep(3 * time.Minute)
		if s := f.Stats(time.Now()); s.Active != 1 || s.Expired != 2 {
			t.Errorf("after: %+v", s)
		}
		f.stop()
		if text := f.log.String(); strings.Count(text, "a key ends soon") != 1 || !strings.Contains(text, "key_id=ka1 tenant=acme") {
			t.Errorf("the log:\n%s", text)
		}
	})
}
