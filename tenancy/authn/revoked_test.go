package authn

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestParseRevoked(t *testing.T) {
	r := ParseRevoked([]byte("# all\n\nka1\n  kb2\t\r\nkc3 # 2026-03-10 lost\nkey:kd4\nslk_ke5_" + secretA + "\njwt:https://idp.example/#x:user 1 # left\nmtls:CN=a\n" +
		"KF6\nka1 kb2\njwt\nkg7#x\nkh8"))
	for _, id := range []string{"ka1", "kb2", "kc3", "kd4", "ke5", "jwt", "kh8"} {
		if !r.Key(id) || !r.Principal("key:"+id) {
			t.Errorf("%s is not revoked", id)
		}
	}
	for _, id := range []string{"jwt:https://idp.example/#x:user 1", "mtls:CN=a"} {
		if !r.Principal(id) {
			t.Errorf("%s is not revoked", id)
		}
	}
	for _, id := range []string{"kf6", "kg7", "all", ""} {
		if r.Key(id) || r.Principal(id) {
			t.Errorf("%q is revoked", id)
		}
	}
	if r.Len() != 9 || r.Odd != 3 || r.FirstOdd != 10 {
		t.Errorf("%d revoked, %d odd lines, the first is %d", r.Len(), r.Odd, r.FirstOdd)
	}
}

func TestRevoke(t *testing.T) {
	file := filepath.Join(t.TempDir(), "revoked")
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			if _, err := Revoke(file, "k"+string(rune('a'+i)), "why\nnot \x00", noon); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	added, err := Revoke(file, "ka", "again", noon)
	if err != nil || added {
		t.Errorf("once more: %v, %v", added, err)
	}
	text, err := os.ReadFile(file)
	if err != nil || strings.Count(string(text), "\n") != 9 || !strings.Contains(string(text), "ka # 2026-03-10T12:00:00Z why not\n") {
		t.Errorf("%v\n%s", err, text)
	}
	if r, err := LoadRevoked(file); err != nil || r.Len() != 8 || r.Odd != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if err := os.WriteFile(file, []byte("kx"), 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := Revoke(file, "ky", "", noon); err != nil {
		t.Fatal(err)
	}
	if text, err = os.ReadFile(file); err != nil || string(text) != "kx\nky # 2026-03-10T12:00:00Z\n" {
		t.Errorf("%v\n%s", err, text)
	}
	if _, err := Revoke(filepath.Join(file, "none", "revoked"), "ka", "", noon); err == nil {
		t.Error("a list in no folder")
	}
	for _, want := range []bool{true, false} {
		if added, err := Revoke(file, "jwt:https://idp.example:u 1", "", noon); err != nil || added != want {
			t.Errorf("a token's holder: %v, %v", added, err)
		}
	}
	if r, err := LoadRevoked(file); err != nil || !r.Principal("jwt:https://idp.example:u 1") {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := LoadRevoked(filepath.Join(t.TempDir(), "none")); err != nil || r.Len() != 0 {
		t.Errorf("no list: %+v, %v", r, err)
	}
}
