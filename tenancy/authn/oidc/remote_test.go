package oidc

import (
	"context"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy/authn/oidc/oidctest"
)

// TestRemote fetches from a real provider, by discovery and without.
func TestRemote(t *testing.T) {
	s := oidctest.NewSigner(t, "ES256", "k")
	p := oidctest.NewProvider(t, s)
	client, err := NewClient(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*Remote{NewRemote(p.Issuer(), "", client), NewRemote("https://elsewhere.example", p.KeysURL(), client)} {
		for range 2 {
			text, _, err := r.Fetch(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got, err := parseKeys(text); err != nil || len(got.keys) != 1 {
				t.Errorf("%v, %v", got, err)
			}
		}
	}
}

func TestRemoteFails(t *testing.T) {
	p := oidctest.NewProvider(t, oidctest.NewSigner(t, "ES256", "k"))
	client, err := NewClient(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		want   string
	}{
		{"500", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, "the provider answers with status 500"},
		{"204", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, "the provider answers with status 204"},
		{"a redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/keys", http.StatusFound)
		}, "redirect, which is not followed"},
		{"10 MiB", func(w http.ResponseWriter, _ *http.Request) {
			for range 10 {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}, "the provider's answer is larger than 1024 KiB"},
		{"cut", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("{"))
		}, "unexpected EOF"},
	} {
		p.Answer(c.answer)
		_, _, err := NewRemote(p.Issuer(), "", client).Fetch(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
	// One that never answers ends with its time.
	p.Answer(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := NewRemote(p.Issuer(), "", client).Fetch(ctx); err == nil {
		t.Error("a provider that hangs has answered")
	}
	// The document of somebody else.
	if _, _, err := NewRemote(p.Issuer()+"/", "", client).Fetch(t.Context()); err == nil || !strings.Contains(err.Error(), "of another issuer") {
		t.Errorf("another issuer's document: %v", err)
	}
}

func TestCheckURL(t *testing.T) {
	for text, good := range map[string]bool{
		"https://idp.example": true, "https://idp.example/realms/a?b=c": true, "http://127.0.0.1:80/k": true, "http://[::1]/k": true, "http://localhost/k": true,
		"http://idp.example": false, "ftp://idp.example": false, "idp.example": false, "": false, "https://": false, "https://u:p@idp.example": false,
		"https://idp.example/#a": false, "file:///etc/passwd": false, "http://localhost.evil.example/": false, "%": false,
	} {
		if err := CheckURL(text); (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestProviderOverTLS: its certificate must be vouched for, by the given authority
// where there is one.
func TestProviderOverTLS(t *testing.T) {
	set := oidctest.Set(oidctest.NewSigner(t, "ES256", "k"))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(set) }))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for _, c := range []struct {
		name string
		ca   []byte
		good bool
	}{{"its own", ca, true}, {"the system's", nil, false}} {
		client, err := NewClient(c.ca)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = NewRemote("x", server.URL, client).Fetch(t.Context())
		if (err == nil) != c.good {
			t.Errorf("vouched for by %s: %v", c.name, err)
		}
		client.CloseIdleConnections()
	}
}

func TestNewClientCA(t *testing.T) {
	if _, err := NewClient([]byte("no certificate")); err == nil {
		t.Error("accepted")
	}
}

func TestCacheAge(t *testing.T) {
	for control, want := range map[string]time.Duration{
		"": 0, "no-store": 0, "max-age=60": time.Minute, "public, max-age=3600, must-revalidate": time.Hour, "Max-Age=\"5\"": 5 * time.Second,
		"max-age=0": time.Nanosecond, "max-age=x": 0, "max-age=-1": 0, "s-maxage=5": 0, "max-age=99999999999": 0,
	} {
		if got := cacheAge(control); got != want {
			t.Errorf("%q: %v", control, got)
		}
	}
}
