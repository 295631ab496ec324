package authn

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

func record(t *testing.T) (Key, *Record) {
	t.Helper()
	k, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	k.Name = "night job: \"quoted\", #not a comment"
	k.Groups = []string{"batch", "a, b"}
	k.Scopes = []string{"chat"}
	k.Claims = map[string]any{"level": int64(3), "regions": []any{"eu"}}
	k.Created = noon
	k.Expires = noon.Add(time.Hour)
	return k, &k.Record
}

// Every layout is edited so that removing the added lines gives the old text.
func TestAppendKeepsEveryOtherByte(t *testing.T) {
	h := digest(secretA)
	layouts := map[string]string{
		"last of several keys": sample(),
		"comments around": "# top\ntenants: # all\n\n  # the first\n  - id: acme # here\n    keys:\n      # ours\n      - id: k1 # c\n        sha256: " + h +
			" # digest\n        # end of k1\n\n  # the next one\n  - id: b\n",
		"no keys":              "tenants:\n- id: acme\n  team: x\n\n# tail\n- id: b\n",
		"no keys, last":        "tenants:\n  - id: acme",
		"keys without a value": "tenants:\n  - id: acme\n    keys: # none yet\n    team: x\n",
		"dash at the key":      "tenants:\n  - id: acme\n    keys:\n    - id: k1\n      sha256: " + h + "\n    team: x\n",
		"keys not last":        "tenants:\n  - keys:\n      - sha256: " + h + "\n        id: k1\n    team: x\n    id: acme\n  - id: b\n",
		"flow items":           "tenants:\n  - id: acme\n    keys:\n      - { id: k1, sha256: " + h + " }\n",
		"carriage returns":     "tenants:\r\n  - id: acme\r\n    keys:\r\n      - id: k1\r\n        sha256: " + h + "\r\n",
		"multi-line text":      "tenants:\n  - id: acme\n    keys:\n      - id: k1\n        sha256: " + h + "\n        name: |-\n          one #1\n",
	}
	for name, text := range layouts {
		t.Run(name, func(t *testing.T) {
			key, rec := record(t)
			edited, err := appendKey("t.yaml", []byte(text), "acme", rec)
			if err != nil {
				t.Fatal(err)
			}
			d := load(t, string(edited))
			p, err := d.IdentifyKey([]byte(key.Reveal()), noon)
			if err != nil || p.Tenant.ID != "acme" || p.Subject != rec.Name {
				t.Fatalf("the new key gives %+v, %v in\n%s", p, err, edited)
			}
			var got *Record
			for _, k := range d.Keys() {
				if k.ID == rec.ID {
					got = &k.Record
				}
			}
			if !reflect.DeepEqual(got, rec) {
				t.Errorf("read back %+v, want %+v", got, rec)
			}
			if !keepsLines([]byte(text), edited) {
				t.Errorf("the rest of the file changed:\n%s\nbecame\n%s", text, edited)
			}
			if strings.Contains(text, "\r\n") && bytes.Count(edited, []byte("\n")) != bytes.Count(edited, []byte("\r\n")) {
				t.Error("line endings are mixed")
			}
		})
	}
}

// keepsLines reports whether after is before with one run of lines inserted.
func keepsLines(before, after []byte) bool {
	a, b := splitLines(before), splitLines(after)
	if n := len(a); n > 0 && !bytes.HasSuffix(a[n-1], []byte("\n")) {
		a[n-1] = append(bytes.Clone(a[n-1]), '\n')
	}
	i := 0
	for i < len(a) && bytes.Equal(a[i], b[i]) {
		i++
	}
	return bytes.Equal(bytes.Join(a[i:], nil), bytes.Join(b[len(b)-(len(a)-i):], nil))
}

func TestAppendReplacesAnEmptyList(t *testing.T) {
	_, rec := record(t)
	const text = "tenants:\n  - id: acme\n    keys: [] # none yet\n    team: x\n"
	given := []byte(text)
	edited, err := appendKey("t.yaml", given, "acme", rec)
	if err != nil {
		t.Fatal(err)
	}
	if string(given) != text {
		t.Errorf("the caller's text became\n%s", given)
	}
	if !strings.HasPrefix(string(edited), "tenants:\n  - id: acme\n    keys: # none yet\n      - id: \"") {
		t.Errorf("became\n%s", edited)
	}
}

func TestAppendRefuses(t *testing.T) {
	_, rec := record(t)
	h := digest(secretA)
	f := func(text, want string) {
		t.Helper()
		out, err := appendKey("t.yaml", []byte(text), "acme", rec)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("of\n%s\ngot %v\n%s", text, err, out)
		}
	}
	f("tenants:\n  - id: a\n  - id: b\n", `t.yaml has no tenant "acme"; its tenants are a, b`)
	f("tenants: []\n", "its tenants are none")
	f("tenants:\n  - idd: acme\n", "t.yaml:2:5: unknown key")
	f("tenants:\n  - { id: acme }\n", "paste the record by hand")
	f("tenants: [ { id: acme } ]\n", "paste the record by hand")
	f("tenants:\n  - id: acme\n    keys: [ { id: k1, sha256: "+h+" } ]\n", "paste the record by hand")
	f("tenants:\n  - id: acme\n    keys: [\n    ]\n", "paste the record by hand")
	f("tenants:\n  - id: acme\n    keys:\n      - { id: "+rec.ID+", sha256: "+h+" }\n", "this key id is used twice")
}

func TestAppendKeyReplacesTheFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "tenants.yaml")
	if err := os.WriteFile(path, []byte(sample()), 0o640); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link.yaml")
	if err := os.Symlink("tenants.yaml", link); err != nil {
		t.Fatal(err)
	}
	key, rec := record(t)
	if err := AppendKey(link, "nokeys", rec); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(link)
	if err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v %v", info, err)
	}
	info, err = os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v; want 0640", info.Mode(), err)
	}
	d, err := LoadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := d.IdentifyKey([]byte(key.Reveal()), noon); err != nil || p.Tenant.ID != "nokeys" {
		t.Errorf("%+v, %v", p, err)
	}
	if err := AppendKey(path, "nokeys", rec); err == nil {
		t.Error("the same key was added twice")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := AppendKey(filepath.Join(dir, "none.yaml"), "a", rec); err == nil {
		t.Error("a missing file was edited")
	}
}

func TestAppendKeyTakesTurns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenants.yaml")
	if err := os.WriteFile(path, []byte("tenants:\n  - id: a\n  - id: b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	const n = 12
	for i := range n {
		wg.Go(func() {
			k, err := NewKey()
			if err != nil {
				t.Error(err)
				return
			}
			if err := AppendKey(path, string("ab"[i%2]), &k.Record); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	d, err := LoadFile(path)
	if err != nil || len(d.Keys()) != n {
		t.Errorf("%d keys, %v; want %d", len(d.Keys()), err, n)
	}
}

func TestNewKey(t *testing.T) {
	seen := make(map[string]bool)
	for range 200 {
		k, err := NewKey()
		if err != nil {
			t.Fatal(err)
		}
		id, secret, ok := parseCredential([]byte(k.Reveal()))
		if !ok || string(id) != k.ID || digest(string(secret)) != k.SHA256 {
			t.Fatalf("key %v does not parse as itself", k)
		}
		if seen[k.ID] || seen[k.SHA256] {
			t.Fatal("a key came twice")
		}
		seen[k.ID], seen[k.SHA256] = true, true
	}
}

func TestKeyHidesItsSecret(t *testing.T) {
	k, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
		for _, v := range []any{k, &k, struct{ K Key }{k}} {
			if got := fmt.Sprintf(verb, v); strings.Contains(got, k.secret) {
				t.Errorf("%s of %T shows the secret", verb, v)
			}
		}
	}
	if got := k.LogValue().String(); strings.Contains(got, k.secret) || !strings.Contains(got, k.ID) {
		t.Errorf("LogValue %q", got)
	}
}
