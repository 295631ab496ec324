package authn

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// promise is the time in which a change of a source holds, as Live's comment says.
const promise = 500 * time.Millisecond

// following is a Live that runs, its files, and a view of the tenants it began with.
type following struct {
	*testing.T
	*Live
	dir     string
	tenants string // file
	log     *bytes.Buffer
	stop    func()
}

// follow starts a Live in a bubble of synctest. The log is to be read when it has stopped.
func follow(t *testing.T, text string, change func(*LiveConfig)) *following {
	t.Helper()
	f := &following{T: t, dir: t.TempDir(), log: new(bytes.Buffer)}
	f.tenants = filepath.Join(f.dir, "tenants.yaml")
	f.write("tenants.yaml", text)
	cfg := LiveConfig{
		Files: Files{f.tenants, f.tenants + ".revoked", f.tenants + ".used"}, Watch: true,
		Log: slog.New(slog.NewTextHandler(f.log, nil)),
	}
	if change != nil {
		change(&cfg)
	}
	d, err := LoadFile(f.tenants)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if f.Live, err = NewLive(ctx, cfg, d); err != nil {
		t.Fatal(err)
	}
	var ran sync.WaitGroup
	ran.Go(func() {
		if err := f.Live.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	f.stop = sync.OnceFunc(func() { cancel(); ran.Wait() })
	t.Cleanup(f.stop)
	return f
}

func (f *following) write(name, text string) {
	f.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o600); err != nil {
		f.Fatal(err)
	}
}

// view is of the tenants that the file has now.
func (f *following) view() *View {
	f.Helper()
	d, err := LoadFile(f.tenants)
	if err != nil {
		f.Fatal(err)
	}
	return f.Live.View(d)
}

// reasonOf is the word of an error of identification, empty for none.
func reasonOf(err error) string {
	if e, ok := errors.AsType[*tenancy.AuthError](err); ok {
		return e.AuthReason()
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

func (f *following) want(v *View, credential, reason string) {
	f.Helper()
	p, err := v.IdentifyKey([]byte(credential), time.Now())
	if got := reasonOf(err); got != reason {
		f.Errorf("%.8s… is refused for %q, want %q", credential, got, reason)
	}
	if (p == nil) != (err != nil) {
		f.Errorf("principal %v and error %v", p, err)
	}
}

// two tenants with a key each, and another key.
func twoTenants() string {
	return "tenants:\n  - id: acme\n    tier: gold\n    keys:\n      - id: ka1\n        sha256: " + digest(secretA) +
		"\n      - id: kc3\n        sha256: " + digest("c"+secretA[1:]) + "\n  - id: globex\n    keys:\n      - id: kb2\n        sha256: " + digest(secretB) + "\n"
}

const (
	keyA = "slk_ka1_" + secretA
	keyB = "slk_kb2_" + secretB
	keyC = "slk_kc3_c" + "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
)

// Whatever says that a key no longer works, it is refused within the promise, and
// the other keys are not. Then the opposite holds as soon.
func TestLiveFollowsItsFiles(t *testing.T) {
	for name, c := range map[string]struct {
		change func(f *following)
		reason string
	}{
		"revoked in the file": {func(f *following) {
			if _, err := RevokeKey(f.tenants, "ka1"); err != nil {
				f.Fatal(err)
			}
		}, tenancy.AuthRevoked},
		"on the list": {func(f *following) {
			if added, err := Revoke(f.tenants+".revoked", "ka1", "lost", time.Now()); err != nil || !added {
				f.Fatal(added, err)
			}
		}, tenancy.AuthRevoked},
		"written in place": {func(f *following) {
			f.write("tenants.yaml", strings.Replace(twoTenants(), "id: ka1\n", "id: ka1\n        disabled: true\n", 1))
		}, tenancy.AuthRevoked},
		"expired": {func(f *following) {
			f.write("tenants.yaml", strings.Replace(twoTenants(), "id: ka1\n", "id: ka1\n        expires: 1999-01-01\n", 1))
		}, tenancy.AuthExpired},
		"taken out": {func(f *following) {
			f.write("tenants.yaml", strings.Replace(twoTenants(), "ka1", "zz1", 1))
		}, tenancy.AuthUnknown},
		"another secret": {func(f *following) {
			f.write("tenants.yaml", strings.Replace(twoTenants(), digest(secretA), digest("d"+secretA[1:]), 1))
		}, tenancy.AuthUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := follow(t, twoTenants(), nil)
				v := f.view()
				f.want(v, keyA, "")
				time.Sleep(time.Minute)
				c.change(f)
				time.Sleep(promise)
				synctest.Wait()
				f.want(v, keyA, c.reason)
				f.want(v, keyB, "")
				f.want(v, keyC, "")
				f.write("tenants.yaml", twoTenants())
				if err := os.Remove(f.tenants + ".revoked"); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
				time.Sleep(promise)
				synctest.Wait()
				f.want(v, keyA, "")
			})
		})
	}
}

// A tenants file with a fault leaves in force what it said before, and keeps no
// key from being revoked by the list.
func TestLiveBesideAFaultyFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := follow(t, twoTenants(), nil)
		v := f.view()
		for _, bad := range []string{"tenants:\n  - idd: x\n", "", "tenants:\n  - id: [\n"} {
			f.write("tenants.yaml", bad)
			time.Sleep(promise)
			synctest.Wait()
			f.want(v, keyA, "")
			if s := f.Stats(time.Now()); !s.Failing[ofTenants] || s.Failing[ofRevoked] || s.Active != 3 {
				t.Errorf("of %q: %+v", bad, s)
			}
		}
		if _, err := Revoke(f.tenants+".revoked", "ka1", "", time.Now()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(promise)
		synctest.Wait()
		f.want(v, keyA, tenancy.AuthRevoked)
		f.write("tenants.yaml", twoTenants())
		time.Sleep(promise)
		synctest.Wait()
		if s := f.Stats(time.Now()); s.Failing[ofTenants] || s.Failures[ofTenants] != 3 || s.Active != 2 || s.Revoked != 1 {
			t.Errorf("mended: %+v", s)
		}
		f.stop()
		if n := strings.Count(f.log.String(), "cannot follow the keys"); n != 3 {
			t.Errorf("%d complaints, want one for each fault:\n%s", n, f.log)
		}
	})
}

// A list that can't be read revokes whom it revoked, and one that says nonsense
// revokes whom it can.
func TestLiveBesideAFaultyList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := follow(t, twoTenants(), nil)
		v := f.view()
		f.write("tenants.yaml.revoked", "kA1\n{ not: an id }\n\x00\xff\n  ka1   # twice\nslk_kc3_"+secretB+"\n")
		time.Sleep(promise)
		synctest.Wait()
		f.want(v, keyA, tenancy.AuthRevoked)
		f.want(v, keyC, tenancy.AuthRevoked)
		f.want(v, keyB, "")
		if err := os.Remove(f.tenants + ".revoked"); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(f.tenants+".revoked", 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(promise)
		synctest.Wait()
		f.want(v, keyA, tenancy.AuthRevoked)
		if s := f.Stats(time.Now()); !s.Failing[ofRevoked] {
			t.Errorf("%+v", s)
		}
		f.stop()
		if text := f.log.String(); !strings.Contains(text, "lines=3 first=1") || strings.Contains(text, secretB) {
			t.Errorf("the log:\n%s", text)
		}
	})
}

// A file that is being written is not believed before it has come to rest, even
// if what is there of it could be.
func TestLiveWaitsForWriters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := follow(t, twoTenants(), nil)
		v := f.view()
		time.Sleep(lookEvery / 2)
		whole := twoTenants() + "  - id: more\n"
		for n := range 3 {
			f.write("tenants.yaml", whole[:len("tenants:\n  - id: acme\n    tier: gold\n")-n])
			time.Sleep(lookEvery)
			synctest.Wait()
			f.want(v, keyA, "")
		}
		f.write("tenants.yaml", whole)
		time.Sleep(promise)
		synctest.Wait()
		f.want(v, keyA, "")
		if got := f.snap.Load().file.Tenant("more"); got == nil {
			t.Error("the whole file was not taken in")
		}
	})
}

// What a tenant is belongs to a generation; whether it is disabled does not.
func TestViewHasItsGenerationsTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := follow(t, twoTenants(), nil)
		old := f.view()
		text := strings.Replace(twoTenants(), "gold", "silver", 1)
		text = strings.Replace(text, "id: globex\n", "id: globex\n    disabled: true\n", 1)
		text += "  - id: more\n    keys:\n      - { id: kd4, sha256: " + digest("d"+secretA[1:]) + ", models: [\"qwen-*\"], operations: [chat] }\n"
		f.write("tenants.yaml", text)
		time.Sleep(promise)
		synctest.Wait()
		fresh := f.view()
		tier := func(v *View, credential string) (tier string, disabled bool) {
			t.Helper()
			p, err := v.IdentifyKey([]byte(credential), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if again, _ := v.IdentifyKey([]byte(credential), time.Now()); again != p {
				t.Error("the principal is not shared")
			}
			return p.Tenant.Tier, p.Tenant.Disabled
		}
		if was, _ := tier(old, keyA); was != "gold" {
			t.Errorf("the old generation has tier %s", was)
		}
		if is, _ := tier(fresh, keyA); is != "silver" {
			t.Errorf("the new generation has tier %s", is)
		}
		for _, v := range []*View{old, fresh, old} {
			if _, disabled := tier(v, keyB); !disabled {
				t.Error("a disabled tenant is not")
			}
		}
		keyD := "slk_kd4_d" + secretA[1:]
		f.want(old, keyD, tenancy.AuthUnmapped)
		p, err := fresh.IdentifyKey([]byte(keyD), time.Now())
		if err != nil || !p.Scope.Allows("qwen-3", "chat") || p.Scope.Allows("llama", "chat") || p.Scope.Allows("qwen-3", "completion") {
			t.Errorf("%+v, %v", p, err)
		}
		f.write("tenants.yaml", twoTenants())
		time.Sleep(promise)
		synctest.Wait()
		if _, disabled := tier(fresh, keyB); disabled {
			t.Error("a tenant that works again does not")
		}
	})
}

// A generation that was loaded before a key was revoked does not bring it back,
// and one whose file can't be read any more comes into force all the same.
func TestAdoptBringsNoKeyBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := follow(t, twoTenants(), func(c *LiveConfig) { c.Watch = false })
		v := f.view()
		before, err := LoadFile(f.tenants)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := RevokeKey(f.tenants, "ka1"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		f.want(v, keyA, "") // the file is not watched
		files := f.cfg.Files
		f.Adopt(files, before)
		f.want(v, keyA, tenancy.AuthRevoked)
		f.Adopt(files, before)
		f.want(v, keyA, tenancy.AuthRevoked)
		// Other files, of which one goes at once and another has a list beside it.
		f.write("other.yaml", twoTenants())
		f.write("other.revoked", "kb2\n")
		files.Tenants, files.Revoked = filepath.Join(f.dir, "other.yaml"), filepath.Join(f.dir, "other.revoked")
		d, err := LoadFile(files.Tenants)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(files.Tenants); err != nil {
			t.Fatal(err)
		}
		f.Adopt(files, d)
		v = f.Live.View(d)
		f.want(v, keyA, "")
		f.want(v, keyB, tenancy.AuthRevoked)
		f.write("other.revoked", "")
		time.Sleep(promise)
		synctest.Wait()
		f.want(v, keyB, "")
	})
}

func TestNewLiveNeedsItsSources(t *testing.T) {
	dir := t.TempDir()
	d := load(t, twoTenants())
	if err := os.Mkdir(filepath.Join(dir, "list"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := NewLive(t.Context(), LiveConfig{Files: Files{Revoked: filepath.Join(dir, "list")}}, d); err == nil || !strings.Contains(err.Error(), "cannot read the list of revoked keys") {
		t.Errorf("a list that can't be read: %v", err)
	}
	s := &fakeStore{err: errors.New("no route to it")}
	if _, err := NewLive(t.Context(), LiveConfig{Files: Files{Revoked: filepath.Join(dir, "none")}, Store: s}, d); err == nil || !strings.Contains(err.Error(), "no route to it") {
		t.Errorf("a database that does not answer: %v", err)
	}
}

func TestViewDoesNotAllocate(t *testing.T) {
	dir := t.TempDir()
	d := load(t, sample())
	l, err := NewLive(t.Context(), LiveConfig{Files: Files{Revoked: filepath.Join(dir, "list")}, Store: &fakeStore{}, MaxStale: time.Hour}, d)
	if err != nil {
		t.Fatal(err)
	}
	v := l.View(d)
	for _, credential := range []string{"slk_ka1_" + secretA, "slk_zz9_" + secretA, "nonsense"} {
		raw := []byte(credential)
		if got := testing.AllocsPerRun(100, func() { _, _ = v.IdentifyKey(raw, noon) }); got != 0 {
			t.Errorf("%v allocations", got)
		}
	}
}

// Keys are used, revoked and loaded at once.
func TestLiveIsSafe(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "tenants.yaml")
	if err := os.WriteFile(file, []byte(twoTenants()), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := LoadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewLive(t.Context(), LiveConfig{Files: Files{file, file + ".revoked", file + ".used"}, Watch: true}, d)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _ = l.Run(ctx) })
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				v := l.View(d)
				for range 100 {
					if _, err := v.IdentifyKey([]byte(keyB), time.Now()); err != nil {
						t.Error(err)
						return
					}
				}
				l.Stats(time.Now())
			}
		})
	}
	for i := range 30 {
		text := twoTenants()
		if i%2 == 0 {
			text += "  - id: more\n"
		}
		next, err := Load("t.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		l.mu.Lock()
		l.adoptLocked(next)
		l.mu.Unlock()
		l.noteUses(ctx)
	}
	cancel()
	all.Wait()
}
