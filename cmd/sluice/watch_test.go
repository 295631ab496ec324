package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// write writes files under dir, with the folders they need.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// mountConfigMap lays out files as Kubernetes mounts a ConfigMap: in a folder of its own with a hidden name,
// a link ..data to it, and a link for each file. turn replaces the whole content at once.
func mountConfigMap(t *testing.T, dir string, files map[string]string) (turn func(files map[string]string)) {
	t.Helper()
	generation := 0
	turn = func(files map[string]string) {
		t.Helper()
		old, _ := os.Readlink(filepath.Join(dir, "..data"))
		generation++
		fresh := "..2026_01_01_00_00_0" + string(rune('0'+generation))
		write(t, filepath.Join(dir, fresh), files)
		link(t, fresh, filepath.Join(dir, "..data_tmp"))
		rename(t, filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))
		for name := range files {
			first, _, _ := strings.Cut(name, "/")
			if _, err := os.Lstat(filepath.Join(dir, first)); err != nil {
				link(t, filepath.Join("..data", first), filepath.Join(dir, first))
			}
		}
		if old != "" {
			if err := os.RemoveAll(filepath.Join(dir, old)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	turn(files)
	return turn
}

// The fingerprint changes with what the gateway would load, and with nothing else.
func TestFingerprint(t *testing.T) {
	type world struct {
		dir string
		src sources
	}
	for _, c := range []struct {
		name    string
		change  func(t *testing.T, w world)
		differs bool
	}{
		{"nothing", func(*testing.T, world) {}, false},
		{"a policy", func(t *testing.T, w world) { write(t, w.dir, map[string]string{"policies/a.yaml": "other"}) }, true},
		{"a policy below", func(t *testing.T, w world) { write(t, w.dir, map[string]string{"policies/team/b.yml": "other"}) }, true},
		{"the same content", func(t *testing.T, w world) { write(t, w.dir, map[string]string{"policies/a.yaml": "a"}) }, false},
		{"one more", func(t *testing.T, w world) { write(t, w.dir, map[string]string{"policies/new/c.yaml": ""}) }, true},
		{"one less", func(t *testing.T, w world) { mustRemove(t, filepath.Join(w.dir, "policies/a.yaml")) }, true},
		{"another name", func(t *testing.T, w world) {
			rename(t, filepath.Join(w.dir, "policies/a.yaml"), filepath.Join(w.dir, "policies/z.yaml"))
		}, true},
		{"contents swapped", func(t *testing.T, w world) {
			write(t, w.dir, map[string]string{"policies/a.yaml": "b", "policies/team/b.yml": "a"})
		}, true},
		{"a file that is no policy", func(t *testing.T, w world) { write(t, w.dir, map[string]string{"policies/readme.md": "x"}) }, false},
		{"an editor's hidden file", func(t *testing.T, w world) { write(t, w.dir, map[string]string{"policies/.a.yaml": "x"}) }, false},
		{"a hidden folder", func(t *testing.T, w world) { write(t, w.dir, map[string]string{"policies/..2026/a.yaml": "x"}) }, false},
		{"a policy in a linked folder", func(t *testing.T, w world) { write(t, w.dir, map[string]string{"mounted/c.yaml": "other"}) }, true},
		{"a link to a folder", func(t *testing.T, w world) { link(t, "../mounted", filepath.Join(w.dir, "policies/more")) }, true},
		{"a link in a linked folder", func(t *testing.T, w world) { link(t, "../policies", filepath.Join(w.dir, "mounted/round")) }, true},
		{"the tenants", func(t *testing.T, w world) { write(t, w.dir, map[string]string{"tenants.yaml": "x"}) }, true},
		{"the ledger beside them", func(t *testing.T, w world) { write(t, w.dir, map[string]string{"sluice.db-wal": "x"}) }, false},
		{"the tenants gone", func(t *testing.T, w world) { mustRemove(t, filepath.Join(w.dir, "tenants.yaml")) }, true},
		{"the policies gone", func(t *testing.T, w world) {
			rename(t, filepath.Join(w.dir, "policies"), filepath.Join(w.dir, "elsewhere"))
		}, true},
		{"a link to the same", func(t *testing.T, w world) {
			rename(t, filepath.Join(w.dir, "policies"), filepath.Join(w.dir, "elsewhere"))
			link(t, "elsewhere", filepath.Join(w.dir, "policies"))
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := world{dir: t.TempDir()}
			write(t, w.dir, map[string]string{"policies/a.yaml": "a", "policies/team/b.yml": "b", "mounted/c.yaml": "c", "tenants.yaml": "t"})
			link(t, "../mounted", filepath.Join(w.dir, "policies/linked"))
			w.src = sources{files: []string{filepath.Join(w.dir, "tenants.yaml")}, folders: []string{filepath.Join(w.dir, "policies")}}
			before := w.src.fingerprint()
			c.change(t, w)
			if differs := w.src.fingerprint() != before; differs != c.differs {
				t.Errorf("differs: %v, want %v", differs, c.differs)
			}
		})
	}
}

func mustRemove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// A change is acted on once it has stayed the same from one look to the next, or when it never does.
func TestSettling(t *testing.T) {
	a, b, c := fingerprint{1}, fingerprint{2}, fingerprint{3}
	type step struct {
		is    fingerprint
		after time.Duration
		waits bool
		acts  bool
	}
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"nothing changes", []step{{a, 0, false, false}, {a, time.Second, false, false}}},
		{"a change", []step{{b, 0, true, false}, {b, settle, false, true}}},
		{"still being written", []step{{b, 0, true, false}, {c, settle, true, false}, {c, settle, false, true}}},
		{"back again", []step{{b, 0, true, false}, {a, settle, false, false}, {b, settle, true, false}}},
		{"never the same", []step{{b, 0, true, false}, {c, settleMost / 2, true, false}, {b, settleMost / 2, false, true}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := settling{told: a}
			now := time.Unix(1000, 0)
			for i, st := range tc.steps {
				now = now.Add(st.after)
				wait, act := s.look(st.is, now)
				if wait > 0 != st.waits || act != st.acts {
					t.Errorf("look %d: waits %v, acts %v", i, wait, act)
				}
			}
		})
	}
}

// Of the events near the sources those count that may be about them.
func TestFolderWatchConcerns(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"etc/tenants.yaml": "t", "policies/team/a.yaml": "a", "real/prices.yaml": "p"})
	link(t, "../real/prices.yaml", filepath.Join(dir, "etc/prices.yaml"))
	w := newFolderWatch(slog.New(slog.DiscardHandler))
	defer w.Close()
	w.follow(sources{
		files:   []string{filepath.Join(dir, "etc/tenants.yaml"), filepath.Join(dir, "etc/prices.yaml")},
		folders: []string{filepath.Join(dir, "policies")},
	})
	for _, folder := range []string{"etc", "policies", "policies/team", "real", "."} {
		if !w.watched[filepath.Join(dir, folder)] {
			t.Errorf("%s is not watched, only %v", folder, w.watched)
		}
	}
	for name, want := range map[string]bool{
		"etc/tenants.yaml": true, "etc/..data": true, "etc/sluice.db-wal": false, "etc/.tenants.yaml.swp": false,
		"real/prices.yaml": true, "real/other.yaml": false,
		"policies/new.yaml": true, "policies/team/a.yaml": true, "policies/subfolder": true, "policies/.a.yaml": false,
		"policies": true, "policies2": false,
	} {
		if got := w.concerns(filepath.Join(dir, name)); got != want {
			t.Errorf("%s concerns: %v, want %v", name, got, want)
		}
	}
}
