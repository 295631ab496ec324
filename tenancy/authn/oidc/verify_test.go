package oidc

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/authn"
	"github.com/sluicegate/sluice/tenancy/authn/oidc/oidctest"
)

const issuerName = "https://idp.example"

var noon = time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)

func fixed(t testing.TB, signers ...*oidctest.Signer) *KeySet {
	t.Helper()
	keys, err := FixedKeys(oidctest.Set(signers...))
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func verifier(t testing.TB, keys *KeySet) *Verifier {
	t.Helper()
	v, err := NewVerifier([]Issuer{{
		Name: issuerName, Audiences: oidctest.Audiences, Algorithms: oidctest.Algorithms, Skew: time.Minute, Keys: keys,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func reason(err error) string {
	if err == nil {
		return "ok"
	}
	e, ok := errors.AsType[*tenancy.AuthError](err)
	if !ok {
		return "no reason: " + err.Error()
	}
	return e.Reason
}

// TestCorpus holds every token of testdata/jwt against its expected answer.
func TestCorpus(t *testing.T) {
	c := oidctest.NewCorpus(t, issuerName, noon)
	v := verifier(t, fixed(t, c.Published()...))
	cases := c.Load(t, "testdata/jwt")
	wants := make(map[string]int)
	for _, k := range cases {
		wants[k.Want]++
		tok, err := v.Verify(t.Context(), []byte(k.Token), noon)
		if got := reason(err); got != k.Want {
			t.Errorf("%s: got %s (%v), want %s", k.Name, got, err, k.Want)
			continue
		}
		if err == nil && (tok.Issuer != issuerName || tok.ID != "jwt:"+issuerName+":"+tok.Subject || tok.Kind != tenancy.KindJWT || tok.Expires.Before(noon.Add(-time.Minute))) {
			t.Errorf("%s: %+v", k.Name, tok)
		}
		if err != nil {
			showsNothing(t, k, err)
		}
	}
	t.Logf("%d tokens: %v", len(cases), wants)
}

// showsNothing: an error holds no part of its token.
func showsNothing(t *testing.T, k oidctest.Case, err error) {
	t.Helper()
	for part := range strings.SplitSeq(k.Token, ".") {
		if len(part) > 8 && strings.Contains(err.Error(), part[:8]) {
			t.Errorf("%s: the error shows the token: %v", k.Name, err)
		}
	}
	for _, text := range []string{"evil", "UNION", "admin", "dev/null", "stranger"} {
		if strings.Contains(err.Error(), text) {
			t.Errorf("%s: the error shows what the token says: %v", k.Name, err)
		}
	}
}

// TestClaimsOfAToken: numbers keep their kind, and nothing is lost.
func TestClaimsOfAToken(t *testing.T) {
	s := oidctest.NewSigner(t, "ES256", "k")
	claims := oidctest.Claims(issuerName, noon)
	maps.Copy(claims, map[string]any{
		"whole": 3, "part": 0.5, "big": json.Number("9007199254740993"), "yes": true, "none": nil, "list": []any{"a", 1}, "object": map[string]any{"a": "b"},
	})
	tok, err := verifier(t, fixed(t, s)).Verify(t.Context(), []byte(s.Token(claims)), noon)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"iss": issuerName, "sub": "u1", "aud": "sluice", "iat": noon.Unix(), "exp": noon.Add(time.Hour).Unix(),
		"whole": int64(3), "part": 0.5, "big": int64(9007199254740993), "yes": true, "none": nil, "list": []any{"a", int64(1)}, "object": map[string]any{"a": "b"},
	}
	if !reflect.DeepEqual(tok.Claims, want) || !tok.Expires.Equal(noon.Add(time.Hour)) {
		t.Errorf("got %v, ends %v", tok.Claims, tok.Expires)
	}
}

// TestMaxLife: where an issuer's tokens have a longest life, others are refused.
func TestMaxLife(t *testing.T) {
	s := oidctest.NewSigner(t, "EdDSA", "k")
	v, err := NewVerifier([]Issuer{{Name: issuerName, Audiences: []string{"sluice"}, Algorithms: []string{"EdDSA"}, MaxLife: time.Minute, Keys: fixed(t, s)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		iat, exp any
		want     string
	}{
		{"as long as may be", noon.Unix(), noon.Unix() + 60, "ok"},
		{"longer", noon.Unix(), noon.Unix() + 61, tenancy.AuthClaims},
		{"without iat", nil, noon.Unix() + 10, tenancy.AuthClaims},
		{"of the future", noon.Unix() + 1, noon.Unix() + 10, tenancy.AuthNotYetValid},
		{"ended", noon.Unix() - 60, noon.Unix(), tenancy.AuthExpired},
	} {
		claims := oidctest.Claims(issuerName, noon)
		claims["iat"], claims["exp"] = c.iat, c.exp
		if c.iat == nil {
			delete(claims, "iat")
		}
		if _, err := v.Verify(t.Context(), []byte(s.Token(claims)), noon); reason(err) != c.want {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
}

// TestIssuersAreApart: the key of one issuer signs nothing of another.
func TestIssuersAreApart(t *testing.T) {
	a, b := oidctest.NewSigner(t, "ES256", "k"), oidctest.NewSigner(t, "ES256", "k")
	v, err := NewVerifier([]Issuer{
		{Name: "https://a.example", Audiences: []string{"sluice"}, Algorithms: []string{"ES256"}, Keys: fixed(t, a)},
		{Name: "https://b.example", Audiences: []string{"sluice"}, Algorithms: []string{"ES256"}, Keys: fixed(t, b)},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		s      *oidctest.Signer
		issuer string
		want   string
	}{{a, "https://a.example", "ok"}, {b, "https://b.example", "ok"}, {a, "https://b.example", tenancy.AuthSignature}, {b, "https://a.example", tenancy.AuthSignature}} {
		if _, err := v.Verify(t.Context(), []byte(c.s.Token(oidctest.Claims(c.issuer, noon))), noon); reason(err) != c.want {
			t.Errorf("%s: %v, want %s", c.issuer, err, c.want)
		}
	}
}

func TestBadIssuers(t *testing.T) {
	keys := fixed(t, oidctest.NewSigner(t, "ES256", "k"))
	good := Issuer{Name: issuerName, Audiences: []string{"a"}, Algorithms: []string{"ES256"}, Keys: keys}
	change := func(f func(*Issuer)) []Issuer {
		is := good
		f(&is)
		return []Issuer{is}
	}
	for name, list := range map[string][]Issuer{
		"twice":        {good, good},
		"no name":      change(func(is *Issuer) { is.Name = "" }),
		"no keys":      change(func(is *Issuer) { is.Keys = nil }),
		"no audience":  change(func(is *Issuer) { is.Audiences = nil }),
		"no algorithm": change(func(is *Issuer) { is.Algorithms = nil }),
		"HS256":        change(func(is *Issuer) { is.Algorithms = []string{"HS256"} }),
		"none":         change(func(is *Issuer) { is.Algorithms = []string{"ES256", "none"} }),
		"skew":         change(func(is *Issuer) { is.Skew = time.Hour }),
	} {
		if _, err := NewVerifier(list); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// grantAll maps everybody to one tenant.
type grantAll struct{ tenant *tenancy.Tenant }

func (g grantAll) Map(_ context.Context, v *authn.Verified) (*tenancy.Principal, error) {
	return &tenancy.Principal{Kind: v.Kind, ID: v.ID, Subject: v.Subject, Issuer: v.Issuer, ExpiresAt: v.Expires, Tenant: g.tenant}, nil
}

// TestTokensAreRemembered until they end, and not a moment longer.
func TestTokensAreRemembered(t *testing.T) {
	s := oidctest.NewSigner(t, "ES256", "k")
	tokens := NewTokens(verifier(t, fixed(t, s)), map[string]authn.Mapper{issuerName: grantAll{&tenancy.Tenant{ID: "acme"}}})
	claims := oidctest.Claims(issuerName, noon)
	claims["exp"] = noon.Unix() + 30
	bearer := []byte(s.Token(claims))
	at := func(after time.Duration) (*tenancy.Principal, error) {
		return tokens.Authenticate(t.Context(), &tenancy.Credentials{Bearer: bearer}, noon.Add(after))
	}
	first, err := at(0)
	if err != nil {
		t.Fatal(err)
	}
	for _, after := range []time.Duration{0, time.Second, 30*time.Second - 1} {
		if p, err := at(after); p != first || err != nil {
			t.Errorf("after %v the token was verified again: %v", after, err)
		}
	}
	if p, err := at(30 * time.Second); err != nil || p == first {
		t.Errorf("within the skew: %p, %v; want another principal", p, err)
	}
	if _, err := at(90 * time.Second); reason(err) != tenancy.AuthExpired {
		t.Errorf("after the skew: %v", err)
	}
	if p, err := tokens.Authenticate(t.Context(), &tenancy.Credentials{}, noon); p != nil || err != nil {
		t.Errorf("no bearer: %v, %v", p, err)
	}
	// Another token of the same caller is another credential.
	claims["jti"] = "2"
	bearer = []byte(s.Token(claims))
	if p, err := at(0); err != nil || p == first || p.ID != first.ID {
		t.Errorf("another token: %+v, %v", p, err)
	}
	if n := tokens.Remembered(); n != 2 {
		t.Errorf("%d tokens are remembered", n)
	}
}

func TestParseKeys(t *testing.T) {
	s := oidctest.NewSigner(t, "ES256", "k")
	jwk := func(change map[string]any) string {
		key := s.JWK()
		maps.Copy(key, change)
		text, err := json.Marshal(key)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	many := strings.TrimSuffix(strings.Repeat(jwk(nil)+",", 101), ",")
	for _, c := range []struct {
		name, text string
		keys       int
		want       string
	}{
		{"one", `{"keys":[` + jwk(nil) + `]}`, 1, ""},
		{"beside unusable ones", `{"keys":[{"kty":"oct","k":"c2VjcmV0","kid":"s"},{"kty":"magic"},{},1,` + jwk(map[string]any{"use": "enc", "kid": "e"}) + `,` + jwk(nil) + `]}`, 1, ""},
		{"small RSA", `{"keys":[{"kty":"RSA","kid":"r","n":"` + strings.Repeat("_", 170) + `","e":"AQAB"}]}`, 0, "none of the 1 keys of the set can verify signatures"},
		{"a private key", `{"keys":[` + jwk(map[string]any{"d": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE"}) + `]}`, 0, "none of the 1 keys of the set can verify signatures"},
		{"a point off the curve", `{"keys":[` + jwk(map[string]any{"x": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE"}) + `]}`, 0, "none of the 1 keys of the set can verify signatures"},
		{"of another algorithm", `{"keys":[` + jwk(map[string]any{"alg": "HS256"}) + `]}`, 0, "none of the 1 keys of the set can verify signatures"},
		{"empty", `{"keys":[]}`, 0, "the key set holds no key"},
		{"no keys", `{}`, 0, "the key set holds no key"},
		{"HTML", `<html>`, 0, `the key set is not JSON of the form {"keys": [...]}`},
		{"nothing", ``, 0, `the key set is not JSON of the form {"keys": [...]}`},
		{"too many", `{"keys":[` + many + `]}`, 0, "the key set holds 101 keys, at most 100 are allowed"},
		{"too large", `{"keys":[` + strings.Repeat(" ", maxSetBytes) + `]}`, 0, "the key set is larger than 1024 KiB"},
	} {
		r, err := parseKeys([]byte(c.text))
		if err != nil {
			if err.Error() != c.want {
				t.Errorf("%s: %v, want %s", c.name, err, c.want)
			}
			continue
		}
		if c.want != "" || len(r.keys) != c.keys {
			t.Errorf("%s: %d keys", c.name, len(r.keys))
		}
	}
}

func FuzzVerify(f *testing.F) {
	c := oidctest.NewCorpus(f, issuerName, noon)
	v := verifier(f, fixed(f, c.Published()...))
	good := make(map[string]bool)
	for _, k := range c.Load(f, "testdata/jwt") {
		f.Add([]byte(k.Token))
		if k.Want == "ok" {
			good[k.Token] = true
		}
	}
	f.Fuzz(func(t *testing.T, token []byte) {
		tok, err := v.Verify(t.Context(), token, noon)
		switch {
		case err == nil && !good[string(token)]:
			t.Errorf("accepted a token that nobody has signed: %s", token)
		case err == nil && tok.Subject == "":
			t.Error("a token without a subject")
		case err != nil && !slices.Contains(tenancy.AuthReasons(), reason(err)):
			t.Errorf("%v has no reason of the list", err)
		}
	})
}

// FuzzParseObject: what is read is what the standard library reads, or refused
// for a reason that is ours alone.
func FuzzParseObject(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":1}`, `{"a":[1,2,{"b":null}],"c":"\u0061"}`, `{"a":1,"a":2}`, `[]`, `{"a":1}x`, "{\"\xff\":1}", `{"a":1e999}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := parseObject(text)
		var want map[string]any
		std := json.Unmarshal(text, &want)
		if err == nil && (std != nil || want == nil) {
			t.Errorf("read what is no JSON object: %q", text)
		}
		if err == nil && len(got) != len(want) {
			t.Errorf("%q: %d members, want %d", text, len(got), len(want))
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	for _, alg := range []string{"RS256", "PS256", "ES256", "EdDSA"} {
		s := oidctest.NewSigner(b, alg, "k")
		v := verifier(b, fixed(b, s))
		claims := oidctest.Claims(issuerName, noon)
		maps.Copy(claims, map[string]any{"org": "acme", "groups": []string{"dev", "ops"}, "email": "u1@example.com", "azp": "client", "scope": "openid profile"})
		token := []byte(s.Token(claims))
		b.Run(alg, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := v.Verify(b.Context(), token, noon); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkRemembered(b *testing.B) {
	s := oidctest.NewSigner(b, "RS256", "k")
	tokens := NewTokens(verifier(b, fixed(b, s)), map[string]authn.Mapper{issuerName: grantAll{&tenancy.Tenant{ID: "acme"}}})
	c := &tenancy.Credentials{Bearer: []byte(s.Token(oidctest.Claims(issuerName, noon)))}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tokens.Authenticate(b.Context(), c, noon); err != nil {
			b.Fatal(err)
		}
	}
}
