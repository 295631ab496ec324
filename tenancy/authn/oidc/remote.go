package oidc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// rediscover is how long the place of the keys is believed before the provider
// is asked for it again.
const rediscover = time.Hour

// Remote is where an issuer's keys are on the network. Its Fetch is for one
// KeySet.
type Remote struct {
	issuer, keysURL string
	discovers       bool
	client          *http.Client
	discovered      time.Time
}

// NewRemote returns the place of an issuer's keys: keysURL, or if that is empty
// where OpenID Connect discovery finds them.
func NewRemote(issuer, keysURL string, client *http.Client) *Remote {
	return &Remote{issuer: issuer, keysURL: keysURL, discovers: keysURL == "", client: client}
}

// NewClient returns a client for providers whose certificates the system's roots
// or, unless caPEM is empty, those of caPEM alone vouch for. It follows no
// redirect: a provider says where its keys are, and nobody else does.
func NewClient(caPEM []byte) (*http.Client, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	t.MaxResponseHeaderBytes = 64 << 10
	if len(caPEM) > 0 {
		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM(caPEM) {
			return nil, errors.New("it holds no certificate in PEM")
		}
	}
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error {
		return errors.New("the provider answers with a redirect, which is not followed")
	}}, nil
}

// CheckURL returns an error unless keys may be fetched from there: by https, or
// by http on this machine.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http":
		return errors.New("it is no https URL")
	case u.User != nil:
		return errors.New("it holds a user name or password")
	case u.Fragment != "":
		return errors.New("it has a fragment")
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return errors.New("it is http, which whoever is on the way could answer; only https is believed from other machines")
	}
	return nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// Fetch gets the issuer's key set.
func (r *Remote) Fetch(ctx context.Context) (jwks []byte, maxAge time.Duration, err error) {
	if r.discovers && (r.keysURL == "" || time.Since(r.discovered) > rediscover) {
		if err := r.discover(ctx); err != nil {
			return nil, 0, fmt.Errorf("cannot discover the issuer: %w", err)
		}
	}
	jwks, maxAge, err = r.get(ctx, r.keysURL)
	if err != nil {
		if r.discovers {
			r.keysURL = "" // it may have moved
		}
		return nil, 0, fmt.Errorf("cannot fetch the issuer's keys: %w", err)
	}
	return jwks, maxAge, nil
}

// discover finds the place of the keys.
func (r *Remote) discover(ctx context.Context) error {
	text, _, err := r.get(ctx, strings.TrimSuffix(r.issuer, "/")+"/.well-known/openid-configuration")
	if err != nil {
		return err
	}
	var doc struct {
		Issuer  string `json:"issuer"`
		JWKSURI string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		return errors.New("the answer is not the JSON of a discovery document")
	}
	if doc.Issuer != r.issuer {
		return errors.New("the discovery document is of another issuer; identity.jwt[].issuer must be the issuer that it names, to the letter")
	}
	if err := CheckURL(doc.JWKSURI); err != nil {
		return fmt.Errorf("the discovery document's jwks_uri can't be used: %w", err)
	}
	r.keysURL, r.discovered = doc.JWKSURI, time.Now()
	return nil
}

func (r *Remote) get(ctx context.Context, from string) (body []byte, maxAge time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, 0, err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, 0, fmt.Errorf("the provider answers with status %d", resp.StatusCode)
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxSetBytes+1))
	if err != nil {
		return nil, 0, err
	}
	if len(body) > maxSetBytes {
		return nil, 0, fmt.Errorf("the provider's answer is larger than %d KiB", maxSetBytes>>10)
	}
	return body, cacheAge(resp.Header.Get("Cache-Control")), nil
}

// cacheAge reads max-age of a Cache-Control; zero if there is none.
func cacheAge(control string) time.Duration {
	for word := range strings.SplitSeq(control, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(word), "=")
		if !ok || !strings.EqualFold(name, "max-age") {
			continue
		}
		if n, err := strconv.ParseUint(strings.Trim(value, `"`), 10, 31); err == nil {
			return max(time.Duration(n)*time.Second, time.Nanosecond) // none at all is said, too
		}
	}
	return 0
}
