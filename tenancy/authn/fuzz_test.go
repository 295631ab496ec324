package authn

import (
	"bytes"
	"strings"
	"testing"
)

// No credential but the right ones identifies anybody, and what parses puts
// together again as it was.
func FuzzCredential(f *testing.F) {
	d, err := Load("t.yaml", []byte(sample()))
	if err != nil {
		f.Fatal(err)
	}
	right := "slk_ka1_" + secretA
	for _, s := range []string{right, "slk_kb2_" + secretB, "slk_kc3_c" + secretA[1:], "slk_zz9_" + secretA, "", "slk_", "slk__", "slk_ka1_" + secretA + "\n", "eyJ.e30."} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, credential []byte) {
		p, err := d.IdentifyKey(credential, noon)
		if (p == nil) == (err == nil) {
			t.Fatalf("principal %v and error %v", p, err)
		}
		if p != nil && string(credential) != right && string(credential) != "slk_kb2_"+secretB {
			t.Fatalf("%q identified as %s", credential, p.ID)
		}
		if err != nil && len(credential) > 12 && strings.Contains(err.Error(), string(credential)) {
			t.Fatal("the error shows the credential")
		}
		if id, secret, ok := parseCredential(credential); ok {
			if again := "slk_" + string(id) + "_" + string(secret); again != string(credential) {
				t.Fatalf("%q parsed as %q", credential, again)
			}
		}
	})
}

// Whatever a list of revoked credentials holds, the ids that stand alone in a line
// are on it.
func FuzzRevoked(f *testing.F) {
	f.Add([]byte("ka1\n# x\nkey:kb2 # y\njwt:a:b\n"), uint8(3))
	f.Add([]byte("{]\x00\xff\r\n\r"), uint8(0))
	f.Fuzz(func(t *testing.T, text []byte, at uint8) {
		lines := bytes.SplitAfter(text, []byte("\n"))
		n := int(at) % (len(lines) + 1)
		before := bytes.Join(lines[:n], nil)
		if len(before) > 0 && before[len(before)-1] != '\n' {
			before = append(before, '\n')
		}
		r := ParseRevoked(append(append(before, "kfuzz\n"...), bytes.Join(lines[n:], nil)...))
		if !r.Key("kfuzz") || r.Len() < 1 || r.Odd < 0 {
			t.Fatalf("%+v", r)
		}
	})
}

// A tenants file loads or fails with places, and adding a key to one that loads
// changes nothing else.
func FuzzTenantsFile(f *testing.F) {
	f.Add([]byte(sample()))
	f.Add([]byte("tenants:\n  - id: acme\n    keys: []\n"))
	f.Add([]byte("tenants:\n  - id: acme\n    team: |\n      x\n    # end\n"))
	f.Add([]byte("tenants: [ { id: acme } ]"))
	key, err := NewKey()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		before, err := Load("t.yaml", text)
		if err != nil {
			for line := range strings.Lines(err.Error()) {
				if !strings.HasPrefix(line, "t.yaml:") {
					t.Fatalf("a problem without its file: %q", line)
				}
			}
			return
		}
		for _, tenant := range before.Tenants() {
			edited, err := appendKey("t.yaml", text, tenant.ID, &key.Record)
			if err != nil {
				continue
			}
			after, err := Load("t.yaml", edited)
			if err != nil || !addsOnly(before, after, tenant.ID, &key.Record) {
				t.Fatalf("adding a key to %q changed more: %v\n%s", tenant.ID, err, edited)
			}
			if bytes.Count(edited, []byte("#")) < bytes.Count(text, []byte("#")) {
				t.Fatal("a comment was lost")
			}
		}
		for _, k := range before.Keys() {
			edited, got, err := revokeKey("t.yaml", text, k.ID)
			if err != nil {
				continue
			}
			if !got.Disabled || bytes.Count(edited, []byte("#")) < bytes.Count(text, []byte("#")) {
				t.Fatalf("revoking %q gave %+v\n%s", k.ID, got, edited)
			}
		}
	})
}
