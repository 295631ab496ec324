package authn

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// authenticatorFunc judges by a function.
type authenticatorFunc func(c *tenancy.Credentials) (*tenancy.Principal, error)

func (f authenticatorFunc) Authenticate(_ context.Context, c *tenancy.Credentials, _ time.Time) (*tenancy.Principal, error) {
	return f(c)
}

// proxyFunc judges the word of proxies; the connection is a proxy's if owns says
// so.
type proxyFunc struct {
	authenticatorFunc
	owns bool
}

func (p proxyFunc) Owns(*tenancy.Credentials) bool { return p.owns }

func reasonWord(err error) string {
	if e, ok := errors.AsType[*tenancy.AuthError](err); ok {
		return e.Reason
	}
	if err != nil {
		return err.Error()
	}
	return "ok"
}

// TestChain: everything that a request brings must be good, and of one caller.
func TestChain(t *testing.T) {
	acme, globex := &tenancy.Tenant{ID: "acme"}, &tenancy.Tenant{ID: "globex"}
	u1 := &tenancy.Principal{ID: "jwt:i:u1", Tenant: acme}
	u2 := &tenancy.Principal{ID: "jwt:i:u2", Tenant: acme}
	elsewhere := &tenancy.Principal{ID: "jwt:i:u1", Tenant: globex}
	is := func(p *tenancy.Principal) authenticatorFunc {
		return func(*tenancy.Credentials) (*tenancy.Principal, error) { return p, nil }
	}
	bad := func(reason string) authenticatorFunc {
		return func(*tenancy.Credentials) (*tenancy.Principal, error) { return nil, &tenancy.AuthError{Reason: reason} }
	}
	dir := load(t, sample())
	key, token, cert, word := []byte("slk_ka1_"+secretA), []byte("a.b.c"), []*x509.Certificate{{}}, []byte("x.y.z")
	for _, c := range []struct {
		name  string
		chain Chain
		creds tenancy.Credentials
		want  string // reason, or ok and the principal's id
	}{
		{"nothing", Chain{Tokens: is(u1), Certificates: is(u1), Proxies: proxyFunc{is(u1), false}}, tenancy.Credentials{}, "missing"},
		{"a key", Chain{}, tenancy.Credentials{Bearer: key}, "ok key:ka1"},
		{"a token", Chain{Tokens: is(u1)}, tenancy.Credentials{Bearer: token}, "ok jwt:i:u1"},
		{"a token that nobody judges", Chain{}, tenancy.Credentials{Bearer: token}, "unknown"},
		{"neither key nor token", Chain{Tokens: is(u1)}, tenancy.Credentials{Bearer: []byte("abc")}, "unknown"},
		{"a certificate", Chain{Certificates: is(u1)}, tenancy.Credentials{Chain: cert}, "ok jwt:i:u1"},
		{"a certificate that is ignored", Chain{Certificates: is(nil)}, tenancy.Credentials{Chain: cert}, "missing"},
		{"a certificate that nobody judges", Chain{}, tenancy.Credentials{Bearer: key, Chain: cert}, "ok key:ka1"},
		{"a proxy's word", Chain{Proxies: proxyFunc{is(u1), true}}, tenancy.Credentials{Proxy: word}, "ok jwt:i:u1"},
		{"a proxy's word over its certificate", Chain{Certificates: bad("certificate"), Proxies: proxyFunc{is(u1), true}}, tenancy.Credentials{Proxy: word, Chain: cert}, "ok jwt:i:u1"},
		{"a key over a proxy's certificate", Chain{Certificates: is(u1), Proxies: proxyFunc{is(nil), true}}, tenancy.Credentials{Bearer: key, Chain: cert}, "ok key:ka1"},
		{"a proxy's certificate alone", Chain{Certificates: is(u1), Proxies: proxyFunc{is(nil), true}}, tenancy.Credentials{Chain: cert}, "missing"},
		{"one's word for a proxy", Chain{Proxies: proxyFunc{is(nil), false}}, tenancy.Credentials{Proxy: word}, "missing"},
		{"key and certificate", Chain{Certificates: is(u1)}, tenancy.Credentials{Bearer: key, Chain: cert}, "conflicting"},
		{"token and certificate of one", Chain{Tokens: is(u1), Certificates: is(u1)}, tenancy.Credentials{Bearer: token, Chain: cert}, "ok jwt:i:u1"},
		{"token and certificate of two", Chain{Tokens: is(u1), Certificates: is(u2)}, tenancy.Credentials{Bearer: token, Chain: cert}, "conflicting"},
		{"of one name in two tenants", Chain{Tokens: is(u1), Proxies: proxyFunc{is(elsewhere), false}}, tenancy.Credentials{Bearer: token, Proxy: word}, "conflicting"},
		{"key and proxy's word", Chain{Proxies: proxyFunc{is(u1), false}}, tenancy.Credentials{Bearer: key, Proxy: word}, "conflicting"},
		{"a good key and a bad certificate", Chain{Certificates: bad("expired")}, tenancy.Credentials{Bearer: key, Chain: cert}, "expired"},
		{"a good token and a bad word", Chain{Tokens: is(u1), Proxies: proxyFunc{bad("signature"), false}}, tenancy.Credentials{Bearer: token, Proxy: word}, "signature"},
		{"a bad key and a good certificate", Chain{Certificates: is(u1)}, tenancy.Credentials{Bearer: []byte("slk_ka1_" + secretB), Chain: cert}, "unknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.chain.Keys = dir
			p, err := c.chain.Identify(t.Context(), &c.creds, noon)
			got := reasonWord(err)
			if err == nil {
				got += " " + p.ID
			}
			if got != c.want {
				t.Errorf("got %s (%v), want %s", got, err, c.want)
			}
			if err == nil && c.chain.Refuses(&c.creds, noon) {
				t.Error("it is refused before it is judged")
			}
		})
	}
}

// standing is what a test knows of callers.
type standing struct{ revoked, disabled string }

func (s standing) Revoked(principal string) bool { return principal == s.revoked }

func (s standing) Disabled(tenant string) bool { return tenant == s.disabled }

func (standing) Changed() uint64 { return 0 }

func (s standing) Stands(p *tenancy.Principal) bool {
	return !s.Revoked(p.ID) && !s.Disabled(p.Tenant.ID)
}

// TestStanding: who is revoked is refused by whatever credential, and a tenant that
// was disabled since the generation was loaded is disabled.
func TestStanding(t *testing.T) {
	u1 := &tenancy.Principal{Kind: tenancy.KindJWT, ID: "jwt:i:u1", Tenant: &tenancy.Tenant{ID: "acme"}}
	ch := Chain{Keys: load(t, sample()), Tokens: authenticatorFunc(func(*tenancy.Credentials) (*tenancy.Principal, error) { return u1, nil })}
	c := &tenancy.Credentials{Bearer: []byte("a.b.c")}
	for _, k := range []struct {
		standing Standing
		want     string
		disabled bool
	}{
		{nil, "ok", false}, {standing{"jwt:i:u2", "globex"}, "ok", false}, {standing{"jwt:i:u1", ""}, "revoked", false}, {standing{"", "acme"}, "ok", true},
	} {
		ch.Standing = k.standing
		p, err := ch.Identify(t.Context(), c, noon)
		if reasonWord(err) != k.want || p != nil && p.Tenant.Disabled != k.disabled {
			t.Errorf("%+v: %+v, %v", k.standing, p, err)
		}
		if got := ch.Stands(u1); got != (k.want == "ok" && !k.disabled) {
			t.Errorf("%+v: stands: %v", k.standing, got)
		}
	}
	if u1.Tenant.Disabled {
		t.Error("a principal that others share has changed")
	}
	for _, id := range []string{"jwt:i:u1 ", "jwt:i:u #1", "mtls:CN=a\nb", "mtls:CN=a\u00a0"} {
		other := *u1
		other.ID = id
		ch.Tokens = authenticatorFunc(func(*tenancy.Credentials) (*tenancy.Principal, error) { return &other, nil })
		ch.Standing = standing{}
		if _, err := ch.Identify(t.Context(), c, noon); reasonWord(err) != "unmapped" || ParseRevoked([]byte(id)).Principal(id) {
			t.Errorf("%q, which no line of the list revokes: %v", id, err)
		}
	}
}

// TestChainRefuses: what is certainly no good needs no body.
func TestChainRefuses(t *testing.T) {
	dir := load(t, sample())
	tokens := authenticatorFunc(func(*tenancy.Credentials) (*tenancy.Principal, error) { return nil, errors.New("asked") })
	for _, c := range []struct {
		name   string
		chain  Chain
		bearer string
		want   bool
	}{
		{"a good key", Chain{}, "slk_ka1_" + secretA, false},
		{"a wrong secret", Chain{Tokens: tokens}, "slk_ka1_" + secretB, true},
		{"a disabled tenant", Chain{}, "slk_kb2_" + secretB, true},
		{"a token", Chain{Tokens: tokens}, "a.b.c", false},
		{"a token without issuers", Chain{}, "a.b.c", true},
		{"something else", Chain{Tokens: tokens}, "abc", true},
	} {
		c.chain.Keys = dir
		if got := c.chain.Refuses(&tenancy.Credentials{Bearer: []byte(c.bearer)}, noon); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if !(&Chain{Keys: dir}).Refuses(&tenancy.Credentials{}, noon) || (&Chain{Keys: dir, Certificates: tokens}).Refuses(&tenancy.Credentials{}, noon) {
		t.Error("a request without a bearer is refused where certificates count, or not where they don't")
	}
}

func TestMapper(t *testing.T) {
	dir := load(t, sample())
	team := func(s string) *string { return &s }
	v := &Verified{
		Kind: tenancy.KindJWT, ID: "jwt:i:s", Subject: "s", Issuer: "i", SPIFFEID: "spiffe://a/b", Expires: noon,
		Claims: map[string]any{"s": "x", "n": int64(1), "f": 0.5, "b": true, "l": []any{"a", int64(2)}, "o": map[string]any{"a": 1}, "none": nil, "deep": []any{[]any{"a"}}, "unread": "x"},
	}
	var grant Grant
	var failure error
	m := NewMappers(dir, []string{"s", "n", "f", "b", "l", "o", "none", "deep", "missing"})(func(context.Context, *Verified) (Grant, error) { return grant, failure })
	do := func(g Grant) (*tenancy.Principal, error) {
		grant = g
		return m.Map(t.Context(), v)
	}
	p, err := do(Grant{Tenant: "acme", Groups: []string{"g"}, Scopes: []string{"s"}})
	if err != nil || p.Tenant != dir.Tenant("acme") || p.ID != v.ID || p.Kind != v.Kind || p.SPIFFEID != v.SPIFFEID || !p.ExpiresAt.Equal(noon) || p.Groups[0] != "g" || p.Scopes[0] != "s" {
		t.Errorf("%+v, %v", p, err)
	}
	if got, want := fmt.Sprint(p.Claims), fmt.Sprint(map[string]any{"s": "x", "n": 1, "f": 0.5, "b": true, "l": []any{"a", 2}}); got != want {
		t.Errorf("claims %s, want %s", got, want)
	}
	// The same as the file says is the tenant itself; another is one for all.
	if p, err := do(Grant{Tenant: "acme", Team: team("search"), Labels: map[string]string{"env": "prod"}}); err != nil || p.Tenant != dir.Tenant("acme") {
		t.Errorf("%+v, %v", p, err)
	}
	other := Grant{Tenant: "acme", Team: team("ads"), Labels: map[string]string{"cost": "7"}}
	p, err = do(other)
	again, errAgain := do(other)
	if err != nil || errAgain != nil || p.Tenant != again.Tenant || p.Tenant == dir.Tenant("acme") {
		t.Fatalf("%v, %v", err, errAgain)
	}
	if d := p.Tenant; d.Team != "ads" || !maps.Equal(d.Labels, map[string]string{"env": "prod", "zone": "eu", "cost": "7"}) || d.Tier != "gold" || len(d.Models) != 2 {
		t.Errorf("%+v", d)
	}
	if len(dir.Tenant("acme").Labels) != 2 {
		t.Error("the tenants file's own labels have changed")
	}
	for _, c := range []struct {
		name string
		g    Grant
	}{{"unknown tenant", Grant{Tenant: "nobody"}}, {"no tenant", Grant{}}, {"a label of the file", Grant{Tenant: "acme", Labels: map[string]string{"env": "dev"}}}} {
		if p, err := do(c.g); reasonWord(err) != tenancy.AuthUnmapped {
			t.Errorf("%s: %+v, %v", c.name, p, err)
		}
	}
	failure = errors.New("no such claim")
	if _, err := do(Grant{Tenant: "acme"}); reasonWord(err) != tenancy.AuthUnmapped {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Map(ctx, v); reasonWord(err) != tenancy.AuthCancelled {
		t.Error(err)
	}
}

func digestOf(n int) (d [sha256.Size]byte) {
	binary.BigEndian.PutUint64(d[:], uint64(n)*0x9e3779b97f4a7c15)
	return d
}

// TestCacheIsBounded, and never gives out what has ended or was verified by keys
// that have changed.
func TestCacheIsBounded(t *testing.T) {
	var c Cache
	p := &tenancy.Principal{ExpiresAt: noon.Add(time.Hour)}
	for n := range 2 * cacheShards * shardRoom {
		c.Put(digestOf(n), p, noon, 0, nil)
	}
	if n := c.Len(); n > cacheShards*shardRoom || n < cacheShards*shardRoom/2 {
		t.Errorf("%d are remembered", n)
	}
	if c.Get(digestOf(2*cacheShards*shardRoom-1), noon) != p {
		t.Error("the last one is forgotten")
	}
	var d Cache
	short := &tenancy.Principal{ExpiresAt: noon.Add(time.Second)}
	d.Put(digestOf(1), p, noon, 0, nil)
	d.Put(digestOf(2), short, noon, 0, nil)
	version := uint64(7)
	d.Put(digestOf(3), p, noon, 7, func() uint64 { return version })
	d.Put(digestOf(4), short, noon.Add(time.Second), 0, nil)
	at := func(n int, after time.Duration) bool { return d.Get(digestOf(n), noon.Add(after)) != nil }
	if !at(1, maxRemembered-1) || at(1, maxRemembered) || !at(2, time.Second-1) || at(2, time.Second) || !at(3, 0) || at(4, 0) || at(5, 0) {
		t.Error("something is remembered for too long, or not long enough")
	}
	version++
	if at(3, 0) {
		t.Error("remembered although the keys have changed")
	}
}
