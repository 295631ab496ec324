package oidctest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// Provider is an OpenID Connect provider on loopback. It is safe for concurrent
// use.
type Provider struct {
	t      testing.TB
	server *httptest.Server

	mu      sync.Mutex
	signers []*Signer
	answer  http.HandlerFunc // in place of the keys
	fetches int
}

// NewProvider starts a provider with keys, and stops it with the test.
func NewProvider(t testing.TB, signers ...*Signer) *Provider {
	t.Helper()
	p := &Provider{t: t, signers: signers}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", p.discovery)
	mux.HandleFunc("GET /keys", p.keys)
	p.server = httptest.NewServer(mux)
	t.Cleanup(p.server.Close)
	return p
}

// Issuer is its name, which is where it is found.
func (p *Provider) Issuer() string { return p.server.URL }

// KeysURL is where its keys are.
func (p *Provider) KeysURL() string { return p.server.URL + "/keys" }

// Rotate makes other keys the ones that it publishes. The first signs tokens.
func (p *Provider) Rotate(signers ...*Signer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.signers = signers
}

// Answer has every request for keys answered by fn, or if that is nil again by
// the keys. Fetches are counted all the same.
func (p *Provider) Answer(fn http.HandlerFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = fn
}

// Down has every request for keys answered with 503.
func (p *Provider) Down() {
	p.Answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
}

// Fetches is how often the keys were asked for.
func (p *Provider) Fetches() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fetches
}

func (p *Provider) discovery(w http.ResponseWriter, _ *http.Request) {
	p.write(w, map[string]any{"issuer": p.Issuer(), "jwks_uri": p.KeysURL()})
}

func (p *Provider) keys(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.fetches++
	answer, set := p.answer, Set(p.signers...)
	p.mu.Unlock()
	if answer != nil {
		answer(w, r)
		return
	}
	p.write(w, json.RawMessage(set))
}

func (p *Provider) write(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		p.t.Errorf("the provider cannot answer: %v", err)
	}
}

// Claims are those of a good token of an issuer, good for an hour.
func Claims(issuer string, now time.Time) map[string]any {
	return map[string]any{"iss": issuer, "sub": "u1", "aud": "sluice", "iat": now.Unix(), "exp": now.Add(time.Hour).Unix()}
}

// Token makes a token with a proper header.
func (s *Signer) Token(claims map[string]any) string {
	header := map[string]any{"alg": s.Alg, "typ": "JWT"}
	if s.Kid != "" {
		header["kid"] = s.Kid
	}
	return s.Sign(encode(header), encode(claims))
}

func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic("BUG: cannot encode: " + err.Error())
	}
	return string(text)
}
