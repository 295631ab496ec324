package proxyid

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"math/big"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/authn"
	"github.com/sluicegate/sluice/tenancy/authn/mtls"
	"github.com/sluicegate/sluice/tenancy/authn/oidc"
	"github.com/sluicegate/sluice/tenancy/authn/oidc/oidctest"
)

var noon = time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)

type mapper struct{}

func (mapper) Map(_ context.Context, v *authn.Verified) (*tenancy.Principal, error) {
	return &tenancy.Principal{Kind: v.Kind, ID: v.ID, ExpiresAt: v.Expires, Claims: v.Claims, Tenant: &tenancy.Tenant{ID: "acme"}}, nil
}

func reason(err error) string {
	if e, ok := errors.AsType[*tenancy.AuthError](err); ok {
		return e.Reason
	}
	if err != nil {
		return err.Error()
	}
	return "ok"
}

// selfSigned is the certificate of a proxy, which is its own authority.
func selfSigned(t *testing.T, cn string, until time.Time) (*x509.Certificate, *mtls.Authorities) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: cn}, NotBefore: noon.Add(-time.Hour), NotAfter: until, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a, err := mtls.ParseAuthorities(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	if err != nil {
		t.Fatal(err)
	}
	return cert, a
}

func matcher(t *testing.T, cn string) *mtls.Matcher {
	t.Helper()
	m, err := mtls.NewMatcher(mtls.Match{CommonName: cn})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestProxies(t *testing.T) {
	signer, stranger := oidctest.NewSigner(t, "EdDSA", "edge-1"), oidctest.NewSigner(t, "EdDSA", "edge-1")
	keys, err := oidc.FixedKeys(oidctest.Set(signer))
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := oidc.NewVerifier([]oidc.Issuer{{Name: "edge", Audiences: []string{"sluice"}, Algorithms: []string{"EdDSA"}, MaxLife: time.Minute, Keys: keys}})
	if err != nil {
		t.Fatal(err)
	}
	cert, authorities := selfSigned(t, "proxy", noon.Add(time.Hour))
	otherCert, otherAuthorities := selfSigned(t, "proxy", noon.Add(time.Hour))
	_ = otherAuthorities
	client, _ := selfSigned(t, "client", noon.Add(time.Hour))
	nets := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	var ignored atomic.Uint64
	x, err := New([]Proxy{
		{Issuer: "edge", Networks: nets, Verifier: verifier, Mapper: mapper{}},
		{Issuer: "mesh", Networks: []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16")}, Certificate: matcher(t, "proxy"), Authorities: authorities, Mapper: mapper{}},
	}, &ignored)
	if err != nil {
		t.Fatal(err)
	}
	in, mesh, out := netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("192.168.1.1"), netip.MustParseAddr("203.0.113.1")
	signed := func(s *oidctest.Signer, change func(map[string]any)) []byte {
		claims := oidctest.Claims("edge", noon)
		claims["exp"] = noon.Unix() + 60
		if change != nil {
			change(claims)
		}
		return []byte(s.Token(claims))
	}
	plain := func(text string) []byte { return []byte(base64.RawURLEncoding.EncodeToString([]byte(text))) }
	chain := []*x509.Certificate{cert}
	for _, c := range []struct {
		name    string
		creds   tenancy.Credentials
		at      time.Time
		want    string
		ignored bool
	}{
		{"signed", tenancy.Credentials{Peer: in, Proxy: signed(signer, nil)}, noon, "ok jwt:edge:u1", false},
		{"signed, from elsewhere", tenancy.Credentials{Peer: out, Proxy: signed(signer, nil)}, noon, "ok", true},
		{"nothing", tenancy.Credentials{Peer: in}, noon, "ok", false},
		{"repeated", tenancy.Credentials{Peer: in, Proxy: []byte{}}, noon, "proxy", false},
		{"repeated, from elsewhere", tenancy.Credentials{Peer: out, Proxy: []byte{}}, noon, "ok", true},
		{"signed by another", tenancy.Credentials{Peer: in, Proxy: signed(stranger, nil)}, noon, "signature", false},
		{"of another issuer", tenancy.Credentials{Peer: in, Proxy: signed(signer, func(c map[string]any) { c["iss"] = "mesh" })}, noon, "issuer", false},
		{"for another", tenancy.Credentials{Peer: in, Proxy: signed(signer, func(c map[string]any) { c["aud"] = "other" })}, noon, "audience", false},
		{"good for too long", tenancy.Credentials{Peer: in, Proxy: signed(signer, func(c map[string]any) { c["exp"] = noon.Unix() + 61 })}, noon, "claims", false},
		{"old", tenancy.Credentials{Peer: in, Proxy: signed(signer, nil)}, noon.Add(time.Minute), "expired", false},
		{"unsigned where it must be", tenancy.Credentials{Peer: in, Proxy: plain(`{"sub":"u1"}`)}, noon, "proxy", false},
		{"too long", tenancy.Credentials{Peer: in, Proxy: []byte(strings.Repeat("a", oidc.MaxTokenBytes+1))}, noon, "proxy", false},
		{"over a certificate", tenancy.Credentials{Peer: mesh, Chain: chain, Proxy: plain(`{"sub":"u2","org":"acme"}`)}, noon, "ok jwt:mesh:u2", false},
		{"over none", tenancy.Credentials{Peer: mesh, Proxy: plain(`{"sub":"u2"}`)}, noon, "ok", true},
		{"over a client's certificate", tenancy.Credentials{Peer: mesh, Chain: []*x509.Certificate{client}, Proxy: plain(`{"sub":"u2"}`)}, noon, "ok", true},
		{"over one of that name by another authority", tenancy.Credentials{Peer: mesh, Chain: []*x509.Certificate{otherCert}, Proxy: plain(`{"sub":"u2"}`)}, noon, "certificate", false},
		{"over one that has ended", tenancy.Credentials{Peer: mesh, Chain: chain, Proxy: plain(`{"sub":"u3"}`)}, noon.Add(2 * time.Hour), "expired", false},
		{"the certificate from elsewhere", tenancy.Credentials{Peer: out, Chain: chain, Proxy: plain(`{"sub":"u2"}`)}, noon, "proxy", true},
		{"no JSON", tenancy.Credentials{Peer: mesh, Chain: chain, Proxy: plain(`sub`)}, noon, "proxy", false},
		{"no base64", tenancy.Credentials{Peer: mesh, Chain: chain, Proxy: []byte("{}")}, noon, "proxy", false},
		{"no subject", tenancy.Credentials{Peer: mesh, Chain: chain, Proxy: plain(`{"org":"acme"}`)}, noon, "proxy", false},
		{"a subject twice", tenancy.Credentials{Peer: mesh, Chain: chain, Proxy: plain(`{"sub":"a","sub":"b"}`)}, noon, "proxy", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := ignored.Load()
			p, err := x.Authenticate(t.Context(), &c.creds, c.at)
			got := reason(err)
			if p != nil {
				got += " " + p.ID
			}
			if got != c.want || (ignored.Load() > before) != c.ignored {
				t.Errorf("got %s (%v), ignored %v; want %s, %v", got, err, ignored.Load() > before, c.want, c.ignored)
			}
		})
	}
	if !x.Owns(&tenancy.Credentials{Peer: mesh, Chain: chain}) || x.Owns(&tenancy.Credentials{Peer: mesh, Chain: []*x509.Certificate{client}}) ||
		x.Owns(&tenancy.Credentials{Peer: out, Chain: chain}) || x.Owns(&tenancy.Credentials{Peer: in, Chain: []*x509.Certificate{client}}) {
		t.Error("the owner of a certificate is taken for somebody else")
	}
}

// TestANetworkAloneProvesNothing.
func TestANetworkAloneProvesNothing(t *testing.T) {
	nets := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for name, p := range map[string]Proxy{
		"a network":                             {Issuer: "a", Networks: nets, Mapper: mapper{}},
		"a certificate that nobody vouches for": {Issuer: "a", Networks: nets, Mapper: mapper{}, Certificate: matcher(t, "x")},
		"no network":                            {Issuer: "a", Mapper: mapper{}, Verifier: &oidc.Verifier{}},
	} {
		if _, err := New([]Proxy{p}, new(atomic.Uint64)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
