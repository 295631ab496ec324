package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/authn/oidc/oidctest"
)

// jwtConfig is an issuer whose tokens carry the tenant in org.
func jwtConfig(p *oidctest.Provider) string {
	return fmt.Sprintf(`identity:
  jwt:
    - issuer: %s
      audiences: [sluice]
      algorithms: [RS256, PS256, ES256, EdDSA]
      map: { tenant: claims.org, team: "claims.?dept", groups: "claims.?groups.orValue([])" }
`, p.Issuer())
}

// bearer asks with a credential and returns the status and the code of the error.
func (r *reloading) bearer(credential string, header ...string) string {
	r.Helper()
	got, err := r.tour.ask(r.Context(), "", user("hello"), append([]string{"Authorization", "Bearer " + credential}, header...)...)
	if err != nil {
		r.Fatal(err)
	}
	if got.status == 200 {
		return "200"
	}
	return fmt.Sprintf("%d %s", got.status, got.code)
}

func (r *reloading) wantBearer(what, credential, want string, header ...string) {
	r.Helper()
	if got := r.bearer(credential, header...); got != want {
		r.Errorf("%s: got %s, want %s", what, got, want)
	}
}

// rows returns what the ledger has.
func (r *reloading) rows() (rows []*tenancy.Row) {
	r.Helper()
	for row, err := range r.a.ledger.Rows(r.Context(), time.Time{}, time.Now().Add(time.Hour)) {
		if err != nil {
			r.Fatal(err)
		}
		rows = append(rows, row)
	}
	return rows
}

const refused = "401 invalid_api_key"

// TestTokensEndToEnd: a gateway as `serve` runs it, before a provider that
// rotates, goes down and is slow.
func TestTokensEndToEnd(t *testing.T) {
	old, young, stranger := oidctest.NewSigner(t, "ES256", "old"), oidctest.NewSigner(t, "RS256", "young"), oidctest.NewSigner(t, "ES256", "stranger")
	p := oidctest.NewProvider(t, old)
	r := startReloading(t, func(dir string) { unwatched(dir); editConfig(dir, jwtConfig(p)) })
	token := func(s *oidctest.Signer, more map[string]any) string {
		claims := oidctest.Claims(p.Issuer(), time.Now())
		claims["org"], claims["dept"] = "acme", "research"
		maps.Copy(claims, more)
		return s.Token(claims)
	}
	good := token(old, nil)
	r.wantBearer("a token", good, "200")
	r.wantBearer("again", good, "200")
	r.wantBearer("in another header too", good, "200", "X-Api-Key", good)
	r.wantBearer("another tenant's", token(old, map[string]any{"org": "globex", "dept": nil}), refused) // dept is null
	r.wantBearer("no tenant of the file", token(old, map[string]any{"org": "nobody"}), refused)
	r.wantBearer("ended", token(old, map[string]any{"exp": time.Now().Unix() - 120}), refused)
	r.wantBearer("for another", token(old, map[string]any{"aud": "other"}), refused)
	r.wantBearer("an API key", r.d.keys["acme"], "200")
	r.wantBearer("key and token", good, refused, "X-Api-Key", r.d.keys["acme"])
	if got := r.bearer(token(old, map[string]any{"groups": manyGroups()})); got != "403 policy_denied" {
		t.Errorf("129 groups: %s", got)
	}
	// Who is on the list is refused without a reload.
	list := filepath.Join(r.d.dir, "tenants.yaml.revoked")
	if err := os.WriteFile(list, []byte("jwt:"+p.Issuer()+":u1 # left\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	soon(t, "the revocation", stackPatience, func() bool { return r.bearer(good) == refused })
	if err := os.Remove(list); err != nil {
		t.Fatal(err)
	}
	soon(t, "its end", stackPatience, func() bool { return r.bearer(good) == "200" })
	byToken := -len(r.tokenRows(p))
	fetches := p.Fetches()

	// The key changes under load: no request is lost, and the provider is asked once.
	p.Rotate(young, old)
	var wg sync.WaitGroup
	for i := range 40 {
		signer := old
		if i%2 == 0 {
			signer = young
		}
		wg.Go(func() { r.wantBearer("while the key changes", token(signer, map[string]any{"jti": i}), "200") })
	}
	wg.Wait()
	for range 20 {
		r.wantBearer("of a key that nobody has", token(stranger, nil), refused)
	}
	if n := p.Fetches() - fetches; n != 1 {
		t.Errorf("the keys were fetched %d times", n)
	}

	// The provider is down: what is known serves on.
	p.Down()
	r.wantBearer("while the provider is down", token(young, map[string]any{"jti": "d"}), "200")
	r.wantMetrics(
		`sluice_jwks_keys{issuer="`+p.Issuer()+`"} 2`,
		`sluice_jwks_failing{issuer="`+p.Issuer()+`"} 0`,
		`sluice_auth_failures_total{reason="unmapped"} 2`,
		`sluice_auth_failures_total{reason="expired"} 1`,
		`sluice_auth_failures_total{reason="audience"} 1`,
		`sluice_auth_failures_total{reason="conflicting"} 1`,
		`sluice_auth_failures_total{reason="key_unknown"} 20`,
	)
	byToken += len(r.tokenRows(p))
	if byToken != 41 {
		t.Errorf("the ledger has %d rows of the tokens' subject since the key has changed, want 41", byToken)
	}
}

// tokenRows are the rows of requests that a token's subject was served.
func (r *reloading) tokenRows(p *oidctest.Provider) (rows []*tenancy.Row) {
	r.Helper()
	for _, row := range r.rows() {
		if row.Principal != "jwt:"+p.Issuer()+":u1" || row.Status != 200 {
			continue
		}
		rows = append(rows, row)
		if row.Tenant != "acme" || row.Team != "research" || row.KeyID != "" {
			r.Errorf("row %+v", row)
		}
	}
	return rows
}

func manyGroups() []string {
	groups := make([]string, 129)
	for i := range groups {
		groups[i] = fmt.Sprint("g", i)
	}
	return groups
}

// TestStartWithoutProvider: the gateway starts and serves keys, and takes tokens
// as soon as the provider is up.
func TestStartWithoutProvider(t *testing.T) {
	s := oidctest.NewSigner(t, "ES256", "k")
	p := oidctest.NewProvider(t, s)
	p.Down()
	r := startReloading(t, func(dir string) { unwatched(dir); editConfig(dir, jwtConfig(p)) })
	claims := oidctest.Claims(p.Issuer(), time.Now())
	claims["org"] = "acme"
	r.wantBearer("an API key", r.d.keys["acme"], "200")
	r.wantBearer("a token", s.Token(claims), "503 unavailable")
	if text := metricsText(t, r.a); !strings.Contains(text, `sluice_degraded{part="identity",reason="provider_down"} 1`) {
		t.Error("nothing says that the provider is down")
	}
	p.Answer(nil)
	soon(t, "tokens", stackPatience, func() bool { return r.bearer(s.Token(claims)) == "200" })
}

// TestIdentityReloads: issuers come and go, and mappings change, without a
// restart, and what can't be used changes nothing.
func TestIdentityReloads(t *testing.T) {
	s := oidctest.NewSigner(t, "ES256", "k")
	p := oidctest.NewProvider(t, s)
	r := startReloading(t, unwatched)
	claims := oidctest.Claims(p.Issuer(), time.Now())
	claims["org"], claims["other"] = "acme", "globex"
	token := s.Token(claims)
	plain, err := os.ReadFile(filepath.Join(r.d.dir, "sluice.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	set := func(more string, want int) attemptPage {
		t.Helper()
		if err := os.WriteFile(filepath.Join(r.d.dir, "sluice.yaml"), append(slices.Clip(plain), more...), 0o600); err != nil {
			t.Fatal(err)
		}
		code, page := r.reload()
		if code != want {
			t.Fatalf("reload: %d %+v", code, page)
		}
		return page
	}
	r.wantBearer("without an issuer", token, refused)
	set(jwtConfig(p), 200)
	soon(t, "tokens", stackPatience, func() bool { return r.bearer(token) == "200" })
	fetches := p.Fetches()
	set(strings.Replace(jwtConfig(p), "claims.org", "claims.other", 1), 200)
	r.wantBearer("mapped to another tenant", token, "200")
	if rows := r.rows(); rows[len(rows)-1].Tenant != "globex" {
		t.Errorf("the row is of %s", rows[len(rows)-1].Tenant)
	}
	if p.Fetches() != fetches {
		t.Error("a reload fetched the keys anew")
	}
	page := set(strings.Replace(jwtConfig(p), "claims.org", "claims.org +", 1), 409)
	if text := fmt.Sprint(page); !strings.Contains(text, "identity.jwt[0].map.tenant: Syntax error") {
		t.Errorf("the error is %s", text)
	}
	r.wantBearer("after a reload that failed", token, "200")
	set("", 200)
	r.wantBearer("after the issuer was taken out", token, refused)
	if n := len(r.a.base.identities.stats()); n != 0 {
		t.Errorf("%d key sets are still followed", n)
	}
}

// clients is an authority of clients' certificates, in files.
type clients struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newClients(t *testing.T) *clients {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "clients"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &clients{t, cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// issue makes the certificate of a client with a SPIFFE id or a common name.
func (c *clients) issue(name string) tls.Certificate {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if u, err := url.Parse(name); err == nil && u.Scheme == "spiffe" {
		tmpl.URIs = []*url.URL{u}
	} else {
		tmpl.Subject = pkix.Name{CommonName: name}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, c.cert, &key.PublicKey, c.key)
	if err != nil {
		c.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// overTLS gives the demo's public listener a certificate.
func overTLS(cert *gatewaytest.Certificate) func(dir string) {
	return func(dir string) {
		file := filepath.Join(dir, "sluice.yaml")
		text, err := os.ReadFile(file)
		if err != nil {
			panic(err)
		}
		with := strings.Replace(string(text), `  public: { address: "127.0.0.1:0" }`,
			fmt.Sprintf(`  public: { address: "127.0.0.1:0", tls: { certFile: %q, keyFile: %q } }`, cert.CertFile, cert.KeyFile), 1)
		if with == string(text) {
			panic("the demo's listener is not where it was")
		}
		if err := os.WriteFile(file, []byte(with), 0o600); err != nil {
			panic(err)
		}
	}
}

// as makes the tour's connections those of a client with a certificate, or none.
func (r *reloading) as(server *gatewaytest.Certificate, cert ...tls.Certificate) {
	r.tour.client.CloseIdleConnections()
	cfg := server.Client.Clone()
	cfg.Certificates = cert
	transport := &http.Transport{TLSClientConfig: cfg}
	r.tour.client.Transport = transport
	r.Cleanup(transport.CloseIdleConnections)
}

const mtlsConfig = `identity:
  mtls:
    caFile: clients.pem
    rules:
      - spiffe: spiffe://corp/ns/*/sa/web
        map: { tenant: "claims.path[1]" }
      - commonName: svc-acme
        map: { tenant: "'acme'" }
`

// TestClientCertificatesEndToEnd: who they are, what stands beside them, and what
// becomes of them when their authority goes.
func TestClientCertificatesEndToEnd(t *testing.T) {
	server, ca, other := gatewaytest.NewCertificate(t), newClients(t), newClients(t)
	r := startReloading(t, unwatched, overTLS(server), func(dir string) {
		editConfig(dir, mtlsConfig)
		write(t, dir, map[string]string{"clients.pem": string(ca.pem)})
		write(t, filepath.Join(dir, "policies"), map[string]string{"spiffe.yaml": spiffePolicy})
	})
	ask := func(tenant string, header ...string) string { return r.answer(tenant, header...) }
	want := r.want
	r.as(server)
	want("no certificate and no key", ask(""), refused)
	want("no certificate and a key", ask("acme"), "200")
	r.as(server, ca.issue("spiffe://corp/ns/acme/sa/web"))
	want("a SPIFFE id", ask(""), "200")
	want("a SPIFFE id and a key of another caller", ask("acme"), refused)
	want("a SPIFFE id and a header that is nobody's to send", ask("", "X-Sluice-Identity", "eyJzdWIiOiJhIn0"), "200")
	r.as(server, ca.issue("spiffe://corp/ns/nobody/sa/web"))
	want("of no tenant", ask(""), refused)
	r.as(server, ca.issue("spiffe://corp/ns/acme/sa/db"))
	want("a SPIFFE id that no rule is for", ask(""), refused)
	want("a SPIFFE id that no rule is for, and a key", ask("acme"), refused)
	r.as(server, other.issue("svc-acme"))
	want("of another authority", ask("acme"), "no answer")
	r.as(server, ca.issue("spiffe://corp/ns/globex/sa/web"))
	want("refused by a policy on the id", ask(""), "403 policy_denied")
	r.as(server, ca.issue("svc-acme"))
	want("a subject", ask(""), "200")

	// The authority is replaced: a connection that is kept is not trusted on.
	write(t, r.d.dir, map[string]string{"clients.pem": string(other.pem)})
	if code, page := r.reload(); code != 200 {
		t.Fatalf("%d %+v", code, page)
	}
	want("of an authority that was taken out, on a kept connection", ask(""), refused)
	r.as(server, ca.issue("svc-acme"))
	want("of an authority that was taken out", ask(""), "no answer")
	r.as(server, other.issue("svc-acme"))
	want("of the new authority", ask(""), "200")
	principals := make(map[string]int)
	for _, row := range r.rows() {
		principals[row.Principal]++
	}
	if principals["mtls:spiffe://corp/ns/acme/sa/web"] != 2 || principals["mtls:CN=svc-acme"] != 2 {
		t.Errorf("the ledger has rows of %v", principals)
	}
	r.wantMetrics(`sluice_auth_failures_total{reason="conflicting"} 1`, `sluice_auth_failures_total{reason="certificate"} 3`,
		`sluice_auth_failures_total{reason="missing"} 1`, `sluice_auth_failures_total{reason="unmapped"} 1`)
}

// spiffePolicy refuses the workloads of a namespace.
const spiffePolicy = `apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: workloads }
spec:
  validations:
    - { name: not-globex, expression: "!principal.spiffe_id.orValue('').startsWith('spiffe://corp/ns/globex/')", message: not this workload }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: workloads }
spec: { policyName: workloads, actions: [Deny] }
`

// TestProxiesEndToEnd: a proxy's word counts over its certificate or under its
// signature, and nobody else's does.
func TestProxiesEndToEnd(t *testing.T) {
	server, ca := gatewaytest.NewCertificate(t), newClients(t)
	signer, stranger := oidctest.NewSigner(t, "EdDSA", "edge"), oidctest.NewSigner(t, "EdDSA", "edge")
	r := startReloading(t, unwatched, overTLS(server), func(dir string) {
		editConfig(dir, `identity:
  mtls: { caFile: clients.pem }
  proxies:
    - issuer: mesh
      networks: [127.0.0.0/8]
      commonName: mesh-proxy
      map: { tenant: claims.org }
    - issuer: edge
      networks: [127.0.0.1, 10.0.0.0/8]
      jwksFile: edge.jwks
      map: { tenant: claims.org }
`)
		// One process plays both proxies here, so each has a network of its own in turn.
		write(t, dir, map[string]string{"clients.pem": string(ca.pem), "edge.jwks": string(oidctest.Set(signer))})
	})
	ask := func(tenant, word string) string { return r.answer(tenant, "X-Sluice-Identity", word) }
	want := r.want
	plain := base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"u1","org":"acme"}`))
	signed := func(s *oidctest.Signer, life int64) string {
		claims := oidctest.Claims("edge", time.Now())
		claims["org"], claims["exp"] = "acme", time.Now().Unix()+life
		return s.Token(claims)
	}
	r.as(server)
	want("signed", ask("", signed(signer, 60)), "200")
	want("signed for long", ask("", signed(signer, 3600)), refused)
	want("signed by another", ask("", signed(stranger, 60)), refused)
	want("signed, and a key beside it", ask("acme", signed(signer, 60)), refused)
	want("not signed", ask("", plain), refused)
	// Both are at the same address here: over the mesh's certificate two are meant.
	r.as(server, ca.issue("mesh-proxy"))
	want("two proxies at one connection", ask("", plain), refused)
	editFile(t, filepath.Join(r.d.dir, "sluice.yaml"), "networks: [127.0.0.1, 10.0.0.0/8]", "networks: [10.0.0.0/8]")
	if code, page := r.reload(); code != 200 {
		t.Fatalf("%d %+v", code, page)
	}
	want("over a certificate", ask("", plain), "200")
	want("over a certificate, and a key beside it", ask("acme", plain), refused)
	r.as(server)
	want("over none", ask("", plain), refused)
	want("over none, with a key", ask("acme", plain), "200")
	want("signed, from a network that is not listed", ask("", signed(signer, 60)), refused)
	r.wantMetrics("sluice_identity_headers_ignored_total 3")
	for _, row := range r.rows() {
		if p := row.Principal; !strings.HasPrefix(p, "key:") && p != "jwt:edge:u1" && p != "jwt:mesh:u1" {
			t.Errorf("a row of %s", p)
		}
	}
}

func editFile(t *testing.T, file, old, with string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), old, with, 1)
	if changed == string(text) {
		t.Fatalf("%s does not have %q", file, old)
	}
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
}

// answer asks as a tenant and returns the status, with the code of an error.
func (r *reloading) answer(tenant string, header ...string) string {
	r.Helper()
	got, err := r.tour.ask(r.Context(), tenant, user("hello"), header...)
	if err != nil {
		return "no answer"
	}
	if got.status == 200 {
		return "200"
	}
	return fmt.Sprintf("%d %s", got.status, got.code)
}

// want compares what was answered with what should have been.
func (r *reloading) want(what, got, want string) {
	r.Helper()
	if got != want {
		r.Errorf("%s: got %s, want %s", what, got, want)
	}
}
