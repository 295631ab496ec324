package mtls

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/authn"
)

var noon = time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key := newKey(t)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert: parse(t, der), key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func parse(t testing.TB, der []byte) *x509.Certificate {
	t.Helper()
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// issue makes a client's chain; the changes are made to a plain leaf.
func (a *authority) issue(t testing.TB, change func(*x509.Certificate)) []*x509.Certificate {
	t.Helper()
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(255), NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	change(tmpl)
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &newKey(t).PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return []*x509.Certificate{parse(t, der), a.cert}
}

func uris(t testing.TB, texts ...string) func(*x509.Certificate) {
	t.Helper()
	return func(c *x509.Certificate) {
		for _, text := range texts {
			u, err := url.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			c.URIs = append(c.URIs, u)
		}
	}
}

func named(cn string, org ...string) func(*x509.Certificate) {
	return func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: cn, Organization: org} }
}

// toTenant maps everybody to a tenant and counts how often it is asked.
type toTenant struct {
	id    string
	asked *int
	saw   *authn.Verified
}

func (m *toTenant) Map(_ context.Context, v *authn.Verified) (*tenancy.Principal, error) {
	*m.asked++
	m.saw = v
	return &tenancy.Principal{Kind: v.Kind, ID: v.ID, SPIFFEID: v.SPIFFEID, ExpiresAt: v.Expires, Tenant: &tenancy.Tenant{ID: m.id}}, nil
}

func rule(t testing.TB, m Match, mapper authn.Mapper) Rule {
	t.Helper()
	matcher, err := NewMatcher(m)
	if err != nil {
		t.Fatal(err)
	}
	return Rule{matcher, mapper}
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

func TestCertificates(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	authorities, err := ParseAuthorities(ca.pem)
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	a, b := &toTenant{id: "a", asked: &asked}, &toTenant{id: "b", asked: &asked}
	x := New(authorities, []Rule{
		rule(t, Match{SPIFFE: "spiffe://corp/ns/*/sa/web"}, a),
		rule(t, Match{CommonName: "svc-*", Organization: "Corp"}, b),
		rule(t, Match{CommonName: "svc-both"}, a),
		rule(t, Match{DNS: "*.clients.example"}, a),
	}, false)
	for _, c := range []struct {
		name  string
		chain []*x509.Certificate
		at    time.Time
		want  string
		id    string
	}{
		{"a SPIFFE id", ca.issue(t, uris(t, "spiffe://corp/ns/prod/sa/web")), noon, "ok", "mtls:spiffe://corp/ns/prod/sa/web"},
		{"another path", ca.issue(t, uris(t, "spiffe://corp/ns/prod/sa/db")), noon, "certificate", ""},
		{"a deeper path", ca.issue(t, uris(t, "spiffe://corp/ns/prod/x/sa/web")), noon, "certificate", ""},
		{"another trust domain", ca.issue(t, uris(t, "spiffe://evil/ns/prod/sa/web")), noon, "certificate", ""},
		{"two URIs", ca.issue(t, uris(t, "spiffe://corp/ns/prod/sa/web", "https://corp/x")), noon, "certificate", ""},
		{"two SPIFFE ids", ca.issue(t, uris(t, "spiffe://corp/ns/prod/sa/web", "spiffe://corp/ns/prod/sa/db")), noon, "certificate", ""},
		{"a dot segment", ca.issue(t, uris(t, "spiffe://corp/ns/../sa/web")), noon, "certificate", ""},
		{"a port", ca.issue(t, uris(t, "spiffe://corp:80/ns/prod/sa/web")), noon, "certificate", ""},
		{"a query", ca.issue(t, uris(t, "spiffe://corp/ns/prod/sa/web?a")), noon, "certificate", ""},
		{"an escape", ca.issue(t, uris(t, "spiffe://corp/ns/pr%6fd/sa/web")), noon, "certificate", ""},
		{"a slash at the end", ca.issue(t, uris(t, "spiffe://corp/ns/prod/sa/web/")), noon, "certificate", ""},
		{"a trust domain in capitals", ca.issue(t, uris(t, "spiffe://CORP/ns/prod/sa/web")), noon, "certificate", ""},
		{"one that signs others", ca.issue(t, func(c *x509.Certificate) {
			uris(t, "spiffe://corp/ns/prod/sa/web")(c)
			c.IsCA, c.BasicConstraintsValid = true, true
		}), noon, "certificate", ""},
		{"a subject", ca.issue(t, named("svc-1", "Corp")), noon, "ok", "mtls:CN=svc-1,O=Corp"},
		{"another organisation", ca.issue(t, named("svc-1", "Evil")), noon, "certificate", ""},
		{"no organisation", ca.issue(t, named("svc-1")), noon, "certificate", ""},
		{"another name", ca.issue(t, named("asvc-1", "Corp")), noon, "certificate", ""},
		{"two rules", ca.issue(t, named("svc-both", "Corp")), noon, "certificate", ""},
		{"a DNS name", ca.issue(t, func(c *x509.Certificate) { c.DNSNames = []string{"x.clients.example"} }), noon, "ok", "mtls:dns:x.clients.example"},
		{"ended", ca.issue(t, named("svc-1", "Corp")), noon.Add(2 * time.Hour), "expired", ""},
		{"does not hold yet", ca.issue(t, named("svc-1", "Corp")), noon.Add(-2 * time.Hour), "not_yet_valid", ""},
		{"of an authority of old", other.issue(t, named("svc-1", "Corp")), noon, "certificate", ""},
		{"none", nil, noon, "ok", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := x.Authenticate(t.Context(), &tenancy.Credentials{Chain: c.chain}, c.at)
			if reason(err) != c.want {
				t.Fatalf("%v, want %s", err, c.want)
			}
			if p == nil && c.id != "" || p != nil && p.ID != c.id {
				t.Errorf("got %+v, want %s", p, c.id)
			}
		})
	}
	// What was judged once is not judged again for each request of a connection.
	chain := ca.issue(t, named("svc-9", "Corp"))
	asked = 0
	for range 3 {
		if _, err := x.Authenticate(t.Context(), &tenancy.Credentials{Chain: chain}, noon); err != nil {
			t.Fatal(err)
		}
	}
	if asked != 1 {
		t.Errorf("three requests were mapped %d times", asked)
	}
	ignoring := New(authorities, nil, true)
	if p, err := ignoring.Authenticate(t.Context(), &tenancy.Credentials{Chain: chain}, noon); p != nil || err != nil {
		t.Errorf("a certificate that no rule is for: %v, %v", p, err)
	}
}

// TestWhatACertificateSays is there for the mapping.
func TestWhatACertificateSays(t *testing.T) {
	ca := newAuthority(t)
	authorities, err := ParseAuthorities(ca.pem)
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	m := &toTenant{id: "a", asked: &asked}
	x := New(authorities, []Rule{rule(t, Match{SPIFFE: "spiffe://corp/**"}, m)}, false)
	chain := ca.issue(t, func(c *x509.Certificate) {
		uris(t, "spiffe://corp/ns/prod/sa/web")(c)
		c.Subject = pkix.Name{CommonName: "web", Organization: []string{"Corp"}, OrganizationalUnit: []string{"ads", "search"}}
		c.DNSNames = []string{"web.example"}
	})
	if _, err := x.Authenticate(t.Context(), &tenancy.Credentials{Chain: chain}, noon); err != nil {
		t.Fatal(err)
	}
	v := m.saw
	if v.SPIFFEID != "spiffe://corp/ns/prod/sa/web" || v.Kind != "mtls" || !v.Expires.Equal(chain[0].NotAfter) {
		t.Errorf("%+v", v)
	}
	for name, want := range map[string]any{"common_name": "web", "trust_domain": "corp", "serial": "ff", "issuer_common_name": "ca", "spiffe_id": v.SPIFFEID} {
		if v.Claims[name] != want {
			t.Errorf("%s is %v, want %v", name, v.Claims[name], want)
		}
	}
	if v.Subject != v.SPIFFEID {
		t.Errorf("subject %q", v.Subject)
	}
	long := "spiffe://corp/" + strings.Repeat("a", 400)
	if _, err := x.Authenticate(t.Context(), &tenancy.Credentials{Chain: ca.issue(t, uris(t, long))}, noon); err != nil || m.saw.SPIFFEID != long || m.saw.Subject != "" {
		t.Errorf("a long id: %v, %+v", err, m.saw)
	}
	if path := v.Claims["path"].([]any); len(path) != 4 || path[1] != "prod" {
		t.Errorf("path is %v", path)
	}
	if units := v.Claims["organizational_unit"].([]any); len(units) != 2 || units[1] != "search" {
		t.Errorf("units are %v", units)
	}
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		pattern, id string
		want        bool
	}{
		{"spiffe://corp", "spiffe://corp", true},
		{"spiffe://corp", "spiffe://corp/a", false},
		{"spiffe://corp/**", "spiffe://corp/a/b", true},
		{"spiffe://corp/**", "spiffe://corp", false},
		{"spiffe://corp/a/**", "spiffe://corp/a", false},
		{"spiffe://corp/a/**", "spiffe://corp/a/b/c", true},
		{"spiffe://corp/a/**", "spiffe://corp/b/c", false},
		{"spiffe://corp/*", "spiffe://corp/a", true},
		{"spiffe://corp/*", "spiffe://corp/a/b", false},
		{"spiffe://corp/a*z", "spiffe://corp/abcz", true},
		{"spiffe://corp/a*z", "spiffe://corp/az", true},
		{"spiffe://corp/a*z", "spiffe://corp/abc", false},
		{"spiffe://corp/a*b*c", "spiffe://corp/axbxc", true},
		{"spiffe://corp/a*b*c", "spiffe://corp/acb", false},
		{"spiffe://corp/A", "spiffe://corp/a", false},
	} {
		m, err := NewMatcher(Match{SPIFFE: c.pattern})
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
			continue
		}
		if got := m.spiffe.matches(c.id); got != c.want {
			t.Errorf("%s, %s: %v", c.pattern, c.id, got)
		}
	}
	for _, bad := range []string{"corp/a", "spiffe://*/a", "spiffe://co*/a", "spiffe://", "spiffe:///a", "spiffe://corp/", "spiffe://corp//a", "spiffe://corp/**/a", "spiffe://corp/a**",
		"spiffe://corp/../a", "spiffe://corp/a?b", "https://corp/a", "spiffe://corp/" + strings.Repeat("a", 512)} {
		if _, err := NewMatcher(Match{SPIFFE: bad}); err == nil {
			t.Errorf("%s: accepted", bad)
		}
	}
	if _, err := NewMatcher(Match{}); err == nil {
		t.Error("a match of everything was accepted")
	}
}

func TestBadAuthorities(t *testing.T) {
	ca := newAuthority(t)
	leaf := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.issue(t, named("x"))[0].Raw})
	for name, text := range map[string][]byte{
		"nothing": nil, "text": []byte("hello"), "a leaf": leaf, "a key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}),
		"garbage": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), "a leaf behind one": append(append([]byte{}, ca.pem...), leaf...),
	} {
		if _, err := ParseAuthorities(text); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// FuzzSPIFFE: an id is read whole or not at all.
func FuzzSPIFFE(f *testing.F) {
	for _, s := range []string{"spiffe://corp/a/b", "spiffe://corp", "spiffe://corp/..", "spiffe://", "spiffe://a/b?c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, id string) {
		domain, segments, err := splitID(id)
		if err == nil && strings.Join(append([]string{spiffeScheme + domain}, segments...), "/") != id {
			t.Errorf("%q is read as %q and %q", id, domain, segments)
		}
	})
}
