package keystore

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy/authn"
	"github.com/sluicegate/sluice/tenancy/ledger/ledgertest"
)

var (
	theServer   *ledgertest.Server
	startServer sync.Once
)

func TestMain(m *testing.M) {
	code := m.Run()
	if theServer != nil {
		theServer.Stop()
	}
	os.Exit(code)
}

// postgresServer is shared by the tests of this package, which run one after
// the other.
func postgresServer(t *testing.T) *ledgertest.Server {
	t.Helper()
	var err error
	startServer.Do(func() { theServer, err = ledgertest.New() })
	if errors.Is(err, ledgertest.ErrNotInstalled) {
		startServer = sync.Once{}
		if !ledgertest.Required() {
			t.Skip(err)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if theServer == nil {
		t.Fatal("the server did not start")
	}
	if err := theServer.Start(); err != nil {
		t.Fatal(err)
	}
	return theServer
}

// stores runs a test on both databases. open opens the same database each time.
func stores(t *testing.T, test func(t *testing.T, open func() *Store)) {
	run := func(name string, opener func(t *testing.T) func() (*Store, error)) {
		t.Run(name, func(t *testing.T) {
			again := opener(t)
			test(t, func() *Store {
				t.Helper()
				s, err := again()
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = s.Close() })
				return s
			})
		})
	}
	run("SQLite", func(t *testing.T) func() (*Store, error) {
		path := filepath.Join(t.TempDir(), "keys #1%.db")
		return func() (*Store, error) { return Open(t.Context(), path) }
	})
	run("PostgreSQL", func(t *testing.T) func() (*Store, error) {
		dsn, err := postgresServer(t).Database()
		if err != nil {
			t.Fatal(err)
		}
		return func() (*Store, error) { return OpenPostgres(t.Context(), dsn) }
	})
}

var noon = time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)

// newRecord is a record with something in every field.
func newRecord(t *testing.T) *authn.Record {
	t.Helper()
	k, err := authn.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	k.Name, k.Groups, k.Scopes = "ci: \"of\" search, ü", []string{"a, b", "c"}, []string{"chat"}
	k.Models, k.Operations = []string{"qwen-*"}, []string{"chat", "models"}
	k.Claims = map[string]any{"level": int64(1<<62 + 1), "ratio": 3.0, "small": 1e-9, "admin": false, "regions": []any{"eu", int64(1), 2.0, true}}
	k.Created, k.Expires = noon, noon.Add(time.Hour)
	return &k.Record
}

func create(t *testing.T, s *Store, tenant string) *authn.Record {
	t.Helper()
	rec := newRecord(t)
	if err := s.Create(t.Context(), tenant, rec); err != nil {
		t.Fatal(err)
	}
	return rec
}

// follow asks for what has changed, as a gateway does.
type follow struct {
	s       *Store
	version authn.Version
	keys    map[string]authn.KeyInfo
}

func (f *follow) ask(t *testing.T) (got authn.Changes) {
	t.Helper()
	got, err := f.s.Changes(t.Context(), f.version)
	if err != nil {
		t.Fatal(err)
	}
	if got.All || f.keys == nil {
		f.keys = make(map[string]authn.KeyInfo)
	}
	for _, k := range got.Keys {
		f.keys[k.ID] = k
	}
	f.version = got.Version
	return got
}

func TestKeysLive(t *testing.T) {
	stores(t, func(t *testing.T, open func() *Store) {
		s, other := open(), open()
		f := &follow{s: other}
		if got := f.ask(t); !got.All || len(got.Keys) != 0 {
			t.Errorf("of nothing: %+v", got)
		}
		rec, second := create(t, s, "acme"), create(t, s, "globex")
		if got := f.ask(t); got.All || len(got.Keys) != 2 || !reflect.DeepEqual(f.keys[rec.ID], authn.KeyInfo{Tenant: "acme", Record: *rec}) {
			t.Errorf("after two keys: %+v\nwant %+v", got, rec)
		}
		if got := f.ask(t); len(got.Keys) != 0 {
			t.Errorf("nothing has changed: %+v", got)
		}
		k, err := s.Revoke(t.Context(), rec.ID, "ops", "lost", noon)
		if err != nil || k.Tenant != "acme" || !k.Disabled || !k.Revoked.Equal(noon) {
			t.Fatalf("%+v, %v", k, err)
		}
		if got := f.ask(t); len(got.Keys) != 1 || !f.keys[rec.ID].Disabled || f.keys[second.ID].Disabled {
			t.Errorf("after a revocation: %+v", got)
		}
		if k, err = s.Revoke(t.Context(), rec.ID, "ops", "again", noon.Add(time.Hour)); !errors.Is(err, ErrRevoked) || k.Reason != "lost" {
			t.Errorf("revoked twice: %+v, %v", k, err)
		}
		if _, err = s.Revoke(t.Context(), "none", "", "", noon); !errors.Is(err, authn.ErrNoKey) {
			t.Errorf("revoked a key that is not there: %v", err)
		}
		if got := f.ask(t); len(got.Keys) != 0 {
			t.Errorf("refused changes were seen: %+v", got)
		}
		if got, err := s.Changes(t.Context(), authn.Version{}); err != nil || !got.All || len(got.Keys) != 2 {
			t.Errorf("all: %+v, %v", got, err)
		}
		if got, err := s.Changes(t.Context(), authn.Version{Epoch: f.version.Epoch, Seq: f.version.Seq + 5}); err != nil || !got.All || len(got.Keys) != 2 {
			t.Errorf("of a later state: %+v, %v", got, err)
		}
		if got, err := s.Changes(t.Context(), authn.Version{Epoch: "another", Seq: f.version.Seq}); err != nil || !got.All || len(got.Keys) != 2 {
			t.Errorf("of another database: %+v, %v", got, err)
		}
	})
}

func TestRotate(t *testing.T) {
	stores(t, func(t *testing.T, open func() *Store) {
		s := open()
		f := &follow{s: open()}
		rec, next := create(t, s, "acme"), newRecord(t)
		f.ask(t)
		next.RotatedFrom = rec.ID
		end := noon.Add(time.Minute)
		old, err := s.Rotate(t.Context(), rec.ID, end, func(old *authn.KeyInfo) (*authn.Record, error) {
			if !reflect.DeepEqual(old, &authn.KeyInfo{Tenant: "acme", Record: *rec}) {
				t.Errorf("the old key is %+v", old)
			}
			return next, nil
		})
		if err != nil || !old.Expires.Equal(end) {
			t.Fatalf("%+v, %v", old, err)
		}
		if got := f.ask(t); len(got.Keys) != 2 || !f.keys[rec.ID].Expires.Equal(end) || !reflect.DeepEqual(f.keys[next.ID].Record, *next) {
			t.Errorf("%+v", got)
		}
		no := errors.New("no")
		if _, err := s.Rotate(t.Context(), rec.ID, end, func(*authn.KeyInfo) (*authn.Record, error) { return nil, no }); !errors.Is(err, no) {
			t.Errorf("got %v", err)
		}
		if _, err := s.Rotate(t.Context(), "none", end, nil); !errors.Is(err, authn.ErrNoKey) {
			t.Errorf("got %v", err)
		}
		// The same secret twice is no rotation: nothing of it holds.
		if _, err := s.Rotate(t.Context(), rec.ID, noon, func(*authn.KeyInfo) (*authn.Record, error) { return next, nil }); err == nil {
			t.Error("a key was added twice")
		} else if strings.Contains(err.Error(), next.SHA256) {
			t.Errorf("the error shows the digest: %v", err)
		}
		if got := f.ask(t); len(got.Keys) != 0 {
			t.Errorf("refused changes were seen: %+v", got)
		}
		// A key that ends before stays as it is.
		third := newRecord(t)
		if old, err = s.Rotate(t.Context(), rec.ID, end.Add(time.Hour), func(*authn.KeyInfo) (*authn.Record, error) { return third, nil }); err != nil || !old.Expires.Equal(end) {
			t.Errorf("%+v, %v", old, err)
		}
	})
}

func TestImport(t *testing.T) {
	stores(t, func(t *testing.T, open func() *Store) {
		s := open()
		f := &follow{s: open()}
		there := create(t, s, "acme")
		if _, err := s.Revoke(t.Context(), there.ID, "", "", noon); err != nil {
			t.Fatal(err)
		}
		f.ask(t)
		more := []authn.KeyInfo{{Tenant: "acme", Record: *there}, {Tenant: "globex", Record: *newRecord(t)}, {Tenant: "acme", Record: *newRecord(t)}}
		added, err := s.Import(t.Context(), more)
		if err != nil || !reflect.DeepEqual(added, []string{more[1].ID, more[2].ID}) {
			t.Fatalf("%v, %v", added, err)
		}
		if got := f.ask(t); len(got.Keys) != 2 || !f.keys[there.ID].Disabled || !reflect.DeepEqual(f.keys[more[1].ID], more[1]) {
			t.Errorf("%+v", got)
		}
		if added, err = s.Import(t.Context(), more); err != nil || len(added) > 0 {
			t.Errorf("once more: %v, %v", added, err)
		}
		// Two ids with one secret: nothing of it holds.
		twice := []authn.KeyInfo{{Tenant: "acme", Record: *newRecord(t)}, {Tenant: "acme", Record: *there}}
		twice[1].ID = "other"
		if _, err := s.Import(t.Context(), twice); err == nil || !strings.Contains(err.Error(), "key other") || strings.Contains(err.Error(), there.SHA256) {
			t.Errorf("one secret for two keys: %v", err)
		}
		if got := f.ask(t); len(got.Keys) != 0 {
			t.Errorf("a refused import was seen: %+v", got)
		}
	})
}

func TestUsed(t *testing.T) {
	stores(t, func(t *testing.T, open func() *Store) {
		s, other := open(), open()
		f := &follow{s: s}
		a, b := create(t, s, "acme"), create(t, s, "globex")
		f.ask(t)
		var all sync.WaitGroup
		for i, s := range []*Store{s, other} {
			for j := range 5 {
				all.Go(func() {
					at := noon.Add(time.Duration(2*j+i) * time.Minute)
					if err := s.Used(t.Context(), map[string]time.Time{a.ID: at, b.ID: at, "gone": at}); err != nil {
						t.Error(err)
					}
				})
			}
		}
		all.Wait()
		keys, since, err := s.Keys(t.Context())
		if err != nil || len(keys) != 2 || time.Since(since) > time.Hour {
			t.Fatalf("%+v, %v, %v", keys, since, err)
		}
		for _, k := range keys {
			if !k.Used.Equal(noon.Add(9 * time.Minute)) {
				t.Errorf("%s was used at %v", k.ID, k.Used)
			}
		}
		if got := f.ask(t); len(got.Keys) != 0 {
			t.Errorf("use is a change: %+v", got)
		}
	})
}

// However many change keys at once, a reader that asks for what is new misses
// nothing.
func TestChangesMissNothing(t *testing.T) {
	stores(t, func(t *testing.T, open func() *Store) {
		const writers, each = 4, 10
		f := &follow{s: open()}
		var all sync.WaitGroup
		for range writers {
			s := open()
			all.Go(func() {
				for range each {
					rec := newRecord(t)
					err := s.Create(t.Context(), "acme", rec)
					if err == nil {
						_, err = s.Revoke(t.Context(), rec.ID, "", "", noon)
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		done := make(chan struct{})
		go func() { all.Wait(); close(done) }()
		for ended := false; !ended; {
			select {
			case <-done:
				ended = true
			default:
			}
			f.ask(t)
		}
		if len(f.keys) != writers*each {
			t.Errorf("saw %d keys of %d", len(f.keys), writers*each)
		}
		for id, k := range f.keys {
			if !k.Disabled {
				t.Errorf("%s: its revocation was missed", id)
			}
		}
	})
}

// A key whose grants can't be read is refused, and no other one is.
func TestUnreadableGrants(t *testing.T) {
	stores(t, func(t *testing.T, open func() *Store) {
		s := open()
		bad, good := create(t, s, "acme"), create(t, s, "acme")
		for _, text := range []string{"{", `{"regions":["eu"]}`, `{"claims":{"a":{}}}`, `{} {}`, `{"claims":{"a":1e999}}`} {
			if _, err := s.db.ExecContext(t.Context(), s.sql("UPDATE sluice_keys SET grants = ? WHERE id = ?"), text, bad.ID); err != nil {
				t.Fatal(err)
			}
			got, err := s.Changes(t.Context(), authn.Version{})
			if err != nil || len(got.Keys) != 2 {
				t.Fatalf("%+v, %v", got, err)
			}
			for _, k := range got.Keys {
				if k.Disabled != (k.ID == bad.ID) || k.ID == good.ID && !reflect.DeepEqual(k.Record, *good) {
					t.Errorf("with %s: %+v", text, k)
				}
			}
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "text")
	if err := os.WriteFile(file, []byte(strings.Repeat("no database ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), file); err == nil || !strings.Contains(err.Error(), "is no SQLite database") {
		t.Errorf("a text: %v", err)
	}
	if _, err := Open(t.Context(), filepath.Join(dir, "none", "keys.db")); err == nil {
		t.Error("a file in no folder was opened")
	}
	s, err := Open(t.Context(), filepath.Join(dir, "keys.db"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "keys.db"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, err := s.db.ExecContext(t.Context(), "INSERT INTO sluice_key_migrations (version) VALUES (99)"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), filepath.Join(dir, "keys.db")); err == nil || !strings.Contains(err.Error(), "use a newer program") {
		t.Errorf("a later schema: %v", err)
	}
	const secret = "hunter2"
	if err := CheckPostgres("postgres://u:" + secret + "@h:x/d"); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("a bad connection string: %v", err)
	}
	if err := CheckPostgres("postgres://u:" + secret + "@h:5432/d?pool_max_conns=4"); err != nil {
		t.Error(err)
	}
	_, err = OpenPostgres(t.Context(), "postgres://u:"+secret+"@127.0.0.1:1/d?connect_timeout=1")
	if err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("no server: %v", err)
	}
}

// A foreign database is left as it is.
func TestOpenLeavesOthersAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "other.db")
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.ExecContext(t.Context(), "PRAGMA application_id = 7"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), path); err == nil || !strings.Contains(err.Error(), "something else") {
		t.Errorf("got %v", err)
	}
}

// Gateways that start at once make one schema.
func TestOpenAtOnce(t *testing.T) {
	dsn, err := postgresServer(t).Database()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "keys.db")
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			open := func() (*Store, error) { return Open(t.Context(), path) }
			if i%2 == 0 {
				open = func() (*Store, error) { return OpenPostgres(t.Context(), dsn) }
			}
			s, err := open()
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := s.Changes(t.Context(), authn.Version{}); err != nil {
				t.Error(err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// A server that goes and comes back is asked again.
func TestServerComesBack(t *testing.T) {
	server := postgresServer(t)
	dsn, err := server.Database()
	if err != nil {
		t.Fatal(err)
	}
	s, err := OpenPostgres(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	rec := create(t, s, "acme")
	server.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := s.Changes(ctx, authn.Version{}); err == nil {
		t.Error("a dead server answers")
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	var got authn.Changes
	for range 10 { // the pool finds one dead connection after the other
		if got, err = s.Changes(t.Context(), authn.Version{}); err == nil {
			break
		}
	}
	if err != nil || len(got.Keys) != 1 || got.Keys[0].ID != rec.ID {
		t.Errorf("%+v, %v", got, err)
	}
}
