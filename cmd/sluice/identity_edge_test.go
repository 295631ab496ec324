package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/authn/oidc/oidctest"
)

// TestTokenCorpusAtTheEdge sends every token of the corpus to a gateway as `serve`
// runs it: what is no good gets one and the same 401, the reason is in the metric
// and the log, and no part of a token is in the log, the ledger or an answer.
func TestTokenCorpusAtTheEdge(t *testing.T) {
	const issuer = "https://login.example"
	c := oidctest.NewCorpus(t, issuer, time.Now())
	r := startReloading(t, unwatched, func(dir string) {
		editConfig(dir, `identity:
  jwt:
    - issuer: https://login.example
      audiences: [sluice, "https://api.example"]
      algorithms: [RS256, PS256, ES256, EdDSA]
      jwksFile: keys.jwks
      map: { tenant: "'acme'" }
`)
		write(t, dir, map[string]string{"keys.jwks": string(oidctest.Set(c.Published()...))})
	})
	// The reasons of texts that can't be sent in a header, or that are no token to
	// look at, are the edge's own.
	own := map[string]string{"encoding/a line break": "", "encoding/a space": "", "encoding/the JSON form": tenancy.AuthUnknown}
	for _, name := range []string{"claims/does not hold yet, a second beyond the skew", "claims/of the future", "good/ended within the skew"} {
		own[name] = "" // they are about a second, and time goes on here
	}
	answers := make(map[string]int)
	wants := make(map[string]int)
	for _, k := range c.Load(t, "../../tenancy/authn/oidc/testdata/jwt") {
		want, mine := own[k.Name]
		if mine && want == "" {
			continue
		}
		if !mine {
			want = k.Want
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.tour.base+"/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+k.Token)
		resp, err := r.tour.client.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", k.Name, err)
		}
		var body bytes.Buffer
		_, err = body.ReadFrom(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		status := http.StatusUnauthorized
		if want == "ok" {
			status = http.StatusOK
		} else {
			wants[want]++
			answers[body.String()]++
			if resp.Header.Get("WWW-Authenticate") != "Bearer" {
				t.Errorf("%s: a 401 without WWW-Authenticate", k.Name)
			}
		}
		if resp.StatusCode != status {
			t.Errorf("%s: got %d %s, want %d", k.Name, resp.StatusCode, body.String(), status)
		}
	}
	if len(answers) != 1 {
		t.Errorf("refusals differ: %v", answers)
	}
	var lines []string
	for reason, n := range wants {
		lines = append(lines, fmt.Sprintf(`sluice_auth_failures_total{reason=%q} %d`, reason, n))
		if got := strings.Count(r.log.String(), `auth=`+reason+` `); got != n {
			t.Errorf("the log has %d refusals for %s, want %d", got, reason, n)
		}
	}
	r.wantMetrics(lines...)
	books, err := os.ReadFile(r.d.cfg.Ledger.Path)
	if err != nil {
		t.Fatal(err)
	}
	encoded := regexp.MustCompile(`eyJ[A-Za-z0-9_-]{6,}`)
	for what, text := range map[string]string{"log": r.log.String(), "ledger": string(books), "metrics": metricsText(t, r.a)} {
		if found := encoded.FindString(text); found != "" {
			t.Errorf("the %s holds a part of a token: %s", what, found)
		}
	}
}

// TestClaimsReachPolicies: declared claims are variables of policies with their
// types, and one of them can carry content labels.
func TestClaimsReachPolicies(t *testing.T) {
	s := oidctest.NewSigner(t, "ES256", "k")
	p := oidctest.NewProvider(t, s)
	r := startReloading(t, unwatched, func(dir string) {
		editFile(t, filepath.Join(dir, "sluice.yaml"), "policy: { dir: policies,", "policy: { dir: policies, claims: { clearance: int, roles: list(string) },")
		editConfig(dir, jwtConfig(p)+"labels: { claim: marks }\n")
		write(t, filepath.Join(dir, "policies"), map[string]string{"claims.yaml": claimsPolicy})
	})
	with := func(name string, value any) string {
		claims := oidctest.Claims(p.Issuer(), time.Now())
		claims["org"], claims["clearance"], claims["roles"] = "acme", 3, []string{"dev"}
		if name != "" {
			claims[name] = value
		}
		return s.Token(claims)
	}
	r.wantBearer("as it should be", with("", nil), "200")
	r.wantBearer("too low", with("clearance", 1), "403 policy_denied")
	r.wantBearer("of another type", with("clearance", "high"), "403 policy_denied")
	r.wantBearer("without the role", with("roles", []string{"ops"}), "403 policy_denied")
	r.wantBearer("a claim that is an object", with("roles", map[string]any{"dev": true}), "403 policy_denied")
	r.wantBearer("a label", with("marks", []string{"secret"}), "403 policy_denied")
	r.wantBearer("another label", with("marks", "internal public"), "200")
	r.wantBearer("a malformed label", with("marks", "Not_A_Label"), "403 policy_denied")
	r.wantBearer("by an API key", r.d.keys["acme"], "200")
}

const claimsPolicy = `apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: claims }
spec:
  matchConditions:
    - { name: tokens, expression: "principal.kind == 'jwt'" }
  validations:
    - { name: clearance, expression: "principal.claims.clearance.orValue(0) >= 3", message: clearance }
    - { name: role, expression: "'dev' in principal.claims.roles.orValue([])", message: role }
    - { name: not-secret, expression: "!('secret' in content.declared_labels)", message: secret }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: claims }
spec: { policyName: claims, actions: [Deny] }
`

// TestSlowProvider: a request by a new key waits for its provider while it is slow,
// and nobody else does.
func TestSlowProvider(t *testing.T) {
	old, young := oidctest.NewSigner(t, "ES256", "old"), oidctest.NewSigner(t, "ES256", "young")
	p := oidctest.NewProvider(t, old)
	r := startReloading(t, func(dir string) { unwatched(dir); editConfig(dir, jwtConfig(p)) })
	claims := oidctest.Claims(p.Issuer(), time.Now())
	claims["org"] = "acme"
	r.wantBearer("the key of today", old.Token(claims), "200")
	asked, answer := make(chan struct{}), make(chan struct{})
	p.Answer(func(w http.ResponseWriter, _ *http.Request) {
		close(asked)
		<-answer
		_, _ = w.Write(oidctest.Set(young, old))
	})
	done := make(chan string, 1)
	go func() { done <- r.bearer(young.Token(claims)) }()
	<-asked
	claims["jti"] = "2"
	r.wantBearer("the key of today, meanwhile", old.Token(claims), "200")
	r.wantBearer("an API key, meanwhile", r.d.keys["acme"], "200")
	select {
	case got := <-done:
		t.Errorf("the new key's token was answered with %s before its key was there", got)
	default:
	}
	close(answer)
	if got := <-done; got != "200" {
		t.Errorf("the new key's token: %s", got)
	}
}

// TestKeptKeysOverARestart: a gateway that starts while the provider is down knows
// the keys that an earlier one has kept, unless somebody else may have written them.
func TestKeptKeysOverARestart(t *testing.T) {
	s := oidctest.NewSigner(t, "ES256", "k")
	p := oidctest.NewProvider(t, s)
	file := filepath.Join(t.TempDir(), "login.keys")
	start := func(t *testing.T) *reloading {
		t.Helper()
		return startReloading(t, func(dir string) {
			unwatched(dir)
			editConfig(dir, strings.Replace(jwtConfig(p), "      audiences", fmt.Sprintf("      cacheFile: %s\n      audiences", file), 1))
		})
	}
	claims := oidctest.Claims(p.Issuer(), time.Now())
	claims["org"] = "acme"
	token := s.Token(claims)
	t.Run("first", func(t *testing.T) {
		r := start(t)
		r.wantBearer("before", token, "200")
		soon(t, "the file", stackPatience, func() bool { _, err := os.Stat(file); return err == nil })
	})
	p.Down()
	t.Run("second", func(t *testing.T) { start(t).wantBearer("by a key that was kept", token, "200") })
	for name, spoil := range map[string]func() error{
		"writable by others": func() error { return os.Chmod(file, 0o666) },
		"of another issuer": func() error {
			return os.WriteFile(file, []byte(`{"issuer":"https://other.example","jwks":`+string(oidctest.Set(s))+`}`), 0o600)
		},
		"cut": func() error { return os.WriteFile(file, []byte(`{"issuer":`), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.RemoveAll(file); err != nil {
				t.Fatal(err)
			}
			kept := keptKeys{path: file, issuer: p.Issuer(), log: slog.New(slog.DiscardHandler), now: time.Now}
			kept.store(oidctest.Set(s))
			if kept.load() == nil {
				t.Fatal("what was kept can't be used")
			}
			if err := spoil(); err != nil {
				t.Fatal(err)
			}
			start(t).wantBearer("by what must not count", token, "503 unavailable")
		})
	}
}

// TestRequiredCertificates: without one there is no connection, and no session is
// resumed that was begun with one.
func TestRequiredCertificates(t *testing.T) {
	server, ca := gatewaytest.NewCertificate(t), newClients(t)
	r := startReloading(t, unwatched, overTLS(server), func(dir string) {
		editConfig(dir, strings.Replace(mtlsConfig, "    caFile: clients.pem\n", "    caFile: clients.pem\n    clientAuth: required\n", 1))
		write(t, dir, map[string]string{"clients.pem": string(ca.pem)})
	})
	r.as(server)
	if got, err := r.tour.ask(t.Context(), "acme", user("hello")); err == nil {
		t.Errorf("a client without a certificate got %d", got.status)
	}
	cfg := server.Client.Clone()
	cfg.Certificates = []tls.Certificate{ca.issue("svc-acme")}
	cfg.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	for range 2 {
		conn, err := tls.Dial("tcp", r.a.public.Addr().String(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		status := getModels(t, conn)
		if conn.ConnectionState().DidResume || status != 200 {
			t.Errorf("resumed %v, status %d", conn.ConnectionState().DidResume, status)
		}
		conn.Close()
	}
}

// getModels asks for the models on a connection.
func getModels(t *testing.T, conn net.Conn) int {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}}
	resp, err := client.Get("http://127.0.0.1/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var page struct{ Data []any }
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil || len(page.Data) == 0 {
		t.Errorf("%d models, %v", len(page.Data), err)
	}
	return resp.StatusCode
}

// TestCheckWarnsOfTenants: a mapping that gives a tenant whatever a token says, and
// one that there is not, is worth knowing before a deploy.
func TestCheckWarnsOfTenants(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/script/files")); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if code := execute(t.Context(), scriptNow, []string{"check", "-c", filepath.Join(dir, "identity.yaml")}, strings.NewReader(""), &out, &out); code != exitOK {
		t.Fatalf("%d\n%s", code, out.String())
	}
	if n := strings.Count(out.String(), ".map.tenant: warning: "); n != 1 || !strings.Contains(out.String(), `identity.jwt[1].map.tenant: warning: gives the tenant "nobody"`) {
		t.Errorf("%d warnings:\n%s", n, out.String())
	}
}

// TestServeKnowsTokens: `sluice serve` itself, from its command line to its drain.
func TestServeKnowsTokens(t *testing.T) {
	s := oidctest.NewSigner(t, "ES256", "k")
	p := oidctest.NewProvider(t, s)
	d, err := newDemo(demoOptions{public: "127.0.0.1:0", admin: "127.0.0.1:0", timeScale: 0.1}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	editConfig(d.dir, jwtConfig(p))
	editFile(t, filepath.Join(d.dir, "sluice.yaml"), "log: { level: warn,", "log: { level: info,")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var log syncBuffer
	ended := make(chan int, 1)
	go func() {
		ended <- execute(ctx, time.Now, []string{"serve", "-c", filepath.Join(d.dir, "sluice.yaml")}, strings.NewReader(""), &log, &log)
	}()
	place := regexp.MustCompile(`msg=serving public=(\S+)`)
	soon(t, "the gateway", stackPatience, func() bool { return place.MatchString(log.String()) })
	claims := oidctest.Claims(p.Issuer(), time.Now())
	claims["org"] = "acme"
	ask := func(token string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+place.FindStringSubmatch(log.String())[1]+"/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	good := s.Token(claims)
	if got := ask(good); got != 200 {
		t.Errorf("a token: %d", got)
	}
	if got := ask(good[:len(good)-8] + "AAAAAAAA"); got != 401 {
		t.Errorf("a forged one: %d", got)
	}
	http.DefaultClient.CloseIdleConnections()
	stop()
	if code := <-ended; code != exitOK {
		t.Errorf("serve ended with %d:\n%s", code, log.String())
	}
	if strings.Contains(log.String(), good[:40]) {
		t.Error("the log holds the token")
	}
}
