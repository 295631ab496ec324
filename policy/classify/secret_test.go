package classify

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestSecrets makes secrets of every shape, and texts that only nearly are such.
func TestSecrets(t *testing.T) {
	c := mustNew(t, each())
	m := maker{rand.New(rand.NewPCG(1, 2))}
	f := func(text string, want int64) {
		t.Helper()
		if got := scanText(c, text).Findings[Secret]; got != want {
			t.Errorf("%q has %d secrets, want %d", text, got, want)
		}
	}
	for _, e := range secretTable {
		s := e.secretShape
		for range 20 {
			made := m.secret(s, 0)
			f(made, 1)
			f("KEY='"+made+"'\n", 1)
			f("key="+made+". Then", 1)
			f("a "+made+" b "+m.secret(s, 0), 2)
			f("x"+made, 0)
			f("7"+made, 0)
			if s.most == s.least {
				f(m.secret(s, 1), 0)
			}
			f(made[:len(made)-1], 0)
			prefix := len(made) - s.least
			f(made[:prefix]+strings.Repeat(made[prefix:prefix+1], s.least), 0)
		}
	}
	f("aws_secret_access_key = "+m.value("aws-secret"), 1)
	f(`"AWS_SECRET_ACCESS_KEY": "`+m.value("aws-secret")+`"`, 1)
	f("aws_secret_access_key = "+m.value("aws-secret")[1:], 0)
	f("aws_secret_access_key = "+m.value("aws-secret")+"x", 0)
	f("other_key = "+m.value("aws-secret"), 0)
	f("sk-"+strings.Repeat("kebab-case-", 5)+"1", 0)
	f("_ - A . = / _", 0)
	f("AKIA", 0)
}

// TestPrivateKeys takes keys as programs write them, and mentions of such.
func TestPrivateKeys(t *testing.T) {
	c := mustNew(t, each())
	f := func(text string, want int64) {
		t.Helper()
		if got := scanText(c, text).Findings[PrivateKey]; got != want {
			t.Errorf("%q has %d keys, want %d", text, got, want)
		}
	}
	_, ed, err := ed25519.GenerateKey(crand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []any{ed, ec} {
		der, err := x509.MarshalPKCS8PrivateKey(k)
		if err != nil {
			t.Fatal(err)
		}
		text := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
		f(text, 1)
		f(text+text, 2)
		f(strings.ReplaceAll(text, "\n", "\r\n"), 1)
		f(strings.ReplaceAll(text, "\n", " "), 1)
		f(strings.ReplaceAll(text, "\n", "\n    "), 1)
		f(strings.ReplaceAll(text, "\n", `\n`), 1)
		f(strings.ReplaceAll(text, "\n", "\\n\" +\n\""), 1)
		f("> "+strings.ReplaceAll(text, "\n", "\n> "), 1)
		f(strings.ReplaceAll(text, "PRIVATE", "PUBLIC"), 0)
	}
	m := maker{rand.New(rand.NewPCG(3, 4))}
	body := "\n" + m.from(digitChars+lowerChars+upperChars+"+/", 64) + "\n"
	for _, label := range []string{"RSA PRIVATE KEY", "EC PRIVATE KEY", "DSA PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "OPENSSH PRIVATE KEY", "PGP PRIVATE KEY BLOCK"} {
		f("-----BEGIN "+label+"-----"+body, 1)
	}
	f("---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nComment: x"+body, 1)
	f("-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0123456789ABCDEF\n"+body, 1)
	f("-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: 1\nComment: of the team\n"+body, 1)
	f("PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nComment: x\nPublic-Lines: 2"+body+"Private-Lines: 1"+body, 1)
	f("PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nComment: x\nPublic-Lines: 2"+body, 0)
	f("PuTTY-User-Key-File is a format", 0)
	f("-----BEGIN PRIVATE KEY-----", 0)
	f("-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----"+body, 0)
	f("-----BEGIN PRIVATE KEY-----\n"+strings.Repeat("A", 64), 0)
	f("-----BEGIN PRIVATE KEY-----\nyour key here\n-----BEGIN CERTIFICATE-----"+body, 0)
	f("-----BEGIN CERTIFICATE-----"+body, 0)
	f("---- a rule ---- -----BEGIN", 0)
}
