package authn

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

// Each layout with what revoking and ending its key k1 makes of it, by lines.
func TestEditKeepsEveryOtherByte(t *testing.T) {
	h := digest(secretA)
	for name, c := range map[string]struct{ text, revoked, ended string }{
		"block": {
			"tenants: # all\n  - id: a\n    keys:\n      # ours\n      - id: k1 # c\n        sha256: H # d\n        # end\n      - id: k2\n        sha256: I\n",
			"+        disabled: true", "+        expires: \"2026-03-10T12:00:00Z\"",
		},
		"values": {
			"tenants:\n  - id: a\n    keys:\n      - id: k1\n        disabled: false # not yet\n        expires: 2027-01-01   # later\n        sha256: H\n",
			"~        disabled: true # not yet", "~        expires: \"2026-03-10T12:00:00Z\"   # later",
		},
		"quoted": {
			"tenants:\n  - id: a\n    keys:\n      - id: 'k1'\n        sha256: H\n        expires: '2027-01-01'\n",
			"+        disabled: true", "~        expires: \"2026-03-10T12:00:00Z\"",
		},
		"flow": {
			"tenants:\n  - id: a\n    keys:\n      - { id: k1, sha256: H } # ü\n      - { id: k2, sha256: I }\n",
			"~      - { id: k1, sha256: H, disabled: true } # ü", "~      - { id: k1, sha256: H, expires: \"2026-03-10T12:00:00Z\" } # ü",
		},
		"flow with the value": {
			"tenants:\n  - id: a\n    keys: [{name: ü, disabled: false, expires: 2027-01-01, id: k1, sha256: H}]\n",
			"~    keys: [{name: ü, disabled: true, expires: 2027-01-01, id: k1, sha256: H}]",
			"~    keys: [{name: ü, disabled: false, expires: \"2026-03-10T12:00:00Z\", id: k1, sha256: H}]",
		},
		"carriage returns": {
			"tenants:\r\n  - id: a\r\n    keys:\r\n    - id: k1\r\n      sha256: H\r\n    team: x\r\n",
			"+      disabled: true\r", "+      expires: \"2026-03-10T12:00:00Z\"\r",
		},
		"no line break at the end": {
			"tenants:\n  - id: a\n    keys:\n      - id: k1\n        sha256: H",
			"+        disabled: true", "+        expires: \"2026-03-10T12:00:00Z\"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.NewReplacer("H", h, "I", digest(secretB)).Replace(c.text)
			edited, k, err := revokeKey("t.yaml", []byte(text), "k1")
			if err != nil || !k.Disabled || k.Tenant != "a" {
				t.Fatalf("%+v, %v", k, err)
			}
			if got := changed(text, string(edited)); got != strings.ReplaceAll(c.revoked, "H", h) {
				t.Errorf("revoked: %q", got)
			}
			if again, _, err := revokeKey("t.yaml", edited, "k1"); err != nil || string(again) != string(edited) {
				t.Errorf("once more: %v\n%s", err, again)
			}
			edited, err = setField([]byte(text), "k1", "expires", string(yamlValue(noon.Format(time.RFC3339Nano))))
			if err != nil {
				t.Fatal(err)
			}
			if got := changed(text, string(edited)); got != strings.ReplaceAll(c.ended, "H", h) {
				t.Errorf("ended: %q", got)
			}
		})
	}
}

// changed is the one line that was added (+) or changed (~).
func changed(before, after string) string {
	if !strings.HasSuffix(before, "\n") {
		before += "\n"
	}
	a, b := strings.Split(before, "\n"), strings.Split(after, "\n")
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	switch {
	case i < len(b) && reflect.DeepEqual(a[i:], b[i+1:]):
		return "+" + b[i]
	case i < len(a) && i < len(b) && reflect.DeepEqual(a[i+1:], b[i+1:]):
		return "~" + b[i]
	}
	return "more: " + after
}

func TestEditRefuses(t *testing.T) {
	h := digest(secretA)
	f := func(text, want string) {
		t.Helper()
		given := []byte(text)
		if out, _, err := revokeKey("t.yaml", given, "k1"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("of\n%s\ngot %v\n%s", text, err, out)
		}
		if string(given) != text {
			t.Errorf("the caller's text became\n%s", given)
		}
	}
	f("tenants:\n  - id: a\n", "there is no such key in t.yaml")
	f("tenants:\n  - idd: a\n", "t.yaml:2:5: unknown key")
	f("tenants:\n  - id: a\n    keys:\n      - { id: k1, sha256: "+h+", }\n", "by hand")
	f("tenants:\n  - id: a\n    keys:\n      - id: k1\n        sha256: "+h+"\n        disabled:\n          false\n        name: |\n          x\n", "")
	if _, _, err := revokeKey("t.yaml", []byte("tenants:\n  - id: a\n"), "k1"); !errors.Is(err, ErrNoKey) {
		t.Errorf("got %v", err)
	}
}

func TestRotateKey(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "tenants.yaml")
	if err := os.WriteFile(file, []byte(sample()), 0o640); err != nil {
		t.Fatal(err)
	}
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	end := noon.Add(time.Hour)
	old, err := RotateKey(file, "ka1", end, func(old *KeyInfo) (*Record, error) {
		key.Groups, key.Scopes, key.Claims, key.Models, key.Operations = old.Groups, old.Scopes, old.Claims, []string{"qwen-*"}, []string{"chat", "models"}
		key.RotatedFrom = old.ID
		return &key.Record, nil
	})
	if err != nil || !old.Expires.Equal(end) {
		t.Fatalf("%+v, %v", old, err)
	}
	d, err := LoadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{"slk_ka1_" + secretA, key.Reveal()} {
		if _, err := d.IdentifyKey([]byte(c), end.Add(-1)); err != nil {
			t.Errorf("during the overlap: %v", err)
		}
	}
	if _, err := d.IdentifyKey([]byte("slk_ka1_"+secretA), end); !errors.Is(err, ErrExpired) {
		t.Errorf("after the overlap: %v", err)
	}
	var got Record
	for _, k := range d.Keys() {
		if k.ID == key.ID {
			got = k.Record
		}
	}
	if !reflect.DeepEqual(got, key.Record) {
		t.Errorf("read back %+v, want %+v", got, key.Record)
	}
	// A key that ends before stays as it is, and a refusal changes nothing.
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	no := errors.New("no")
	if _, err := RotateKey(file, "ka1", end, func(*KeyInfo) (*Record, error) { return nil, no }); !errors.Is(err, no) {
		t.Errorf("got %v", err)
	}
	if after, err := os.ReadFile(file); err != nil || string(after) != string(before) {
		t.Errorf("a refusal changed the file: %v", err)
	}
	another, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	old, err = RotateKey(file, "ka1", end.Add(time.Hour), func(*KeyInfo) (*Record, error) { return &another.Record, nil })
	if err != nil || !old.Expires.Equal(end) {
		t.Errorf("%+v, %v", old, err)
	}
	if _, err := RotateKey(file, "none", end, nil); !errors.Is(err, ErrNoKey) {
		t.Errorf("got %v", err)
	}
}

// Keys are added, revoked and rotated at once, and every change is there.
func TestEditsTakeTurns(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tenants.yaml")
	text := "tenants:\n  - id: a\n    keys:\n"
	ids := []string{"k0", "k1", "k2", "k3", "k4", "k5"}
	for _, id := range ids {
		text += "      - { id: " + id + ", sha256: " + digest(id) + " }\n"
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i, id := range ids {
		all.Go(func() {
			if _, err := RevokeKey(file, id); err != nil {
				t.Error(err)
			}
			key, err := NewKey()
			if err == nil && i%2 == 0 {
				err = AppendKey(file, "a", &key.Record)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	d, err := LoadFile(file)
	if err != nil || len(d.Keys()) != 9 {
		t.Fatalf("%d keys, %v", len(d.Keys()), err)
	}
	for _, k := range d.Keys() {
		if k.Disabled != strings.HasPrefix(k.ID, "k") && len(k.ID) == 2 {
			t.Errorf("%s: disabled %v", k.ID, k.Disabled)
		}
	}
}
