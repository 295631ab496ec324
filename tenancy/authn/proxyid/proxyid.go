// Package proxyid believes what trusted proxies say of the callers behind them,
// in the header x-sluice-identity.
//
// A proxy is known by the network that it calls from together with its client
// certificate, or with its signature under the header, or with both; never by
// its network alone. Whoever else sends the header is not believed: it counts as
// if it were not there. Only where it comes over a proxy's certificate from a
// network that is not the proxy's, the request is refused: the callers behind the
// proxy must not become the proxy itself.
//
// A signed header is a compact JWS with the claims of a token: iss, aud, sub,
// exp, iat and whatever the mapping reads. Over a certificate it may also be the
// base64url of a JSON object of such claims, of which sub alone must be there.
package proxyid

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/authn"
	"github.com/sluicegate/sluice/tenancy/authn/mtls"
	"github.com/sluicegate/sluice/tenancy/authn/oidc"
)

// Proxy is a trusted proxy, or several of one kind.
type Proxy struct {
	// Issuer is what principals have as theirs, and what signed headers must have
	// as iss.
	Issuer string
	// Networks are where it calls from.
	Networks []netip.Prefix
	// Certificate is what its client certificate must match, or nil if it needs
	// none. Authorities must be given with it.
	Certificate *mtls.Matcher
	Authorities *mtls.Authorities
	// Verifier verifies its signed headers; nil if they are not signed, which a
	// Certificate must make up for.
	Verifier *oidc.Verifier
	Mapper   authn.Mapper
}

// Proxies is the authn.ProxyAuthenticator of all of them. It is of one
// generation.
type Proxies struct {
	proxies []Proxy
	ignored *atomic.Uint64
	cache   authn.Cache
}

// New returns an Authenticator. ignored counts the headers that were not
// believed for their sender.
func New(proxies []Proxy, ignored *atomic.Uint64) (*Proxies, error) {
	for i := range proxies {
		p := &proxies[i]
		switch {
		case p.Issuer == "" || len(p.Networks) == 0 || p.Mapper == nil:
			return nil, errors.New("a proxy has no issuer, no network or no mapping")
		case p.Certificate == nil && p.Verifier == nil:
			return nil, errors.New("a proxy has neither a certificate nor keys: a network alone proves nothing")
		case p.Certificate != nil && p.Authorities == nil:
			return nil, errors.New("a proxy has a certificate and no authorities to vouch for it")
		}
	}
	return &Proxies{proxies: proxies, ignored: ignored}, nil
}

// Owns implements authn.ProxyAuthenticator.
func (x *Proxies) Owns(c *tenancy.Credentials) bool {
	return slices.ContainsFunc(x.proxies, func(p Proxy) bool { return p.Certificate != nil && p.calls(c) })
}

// calls reports whether the connection is the proxy's.
func (p *Proxy) calls(c *tenancy.Credentials) bool {
	if !slices.ContainsFunc(p.Networks, func(n netip.Prefix) bool { return n.Contains(c.Peer) }) {
		return false
	}
	return p.Certificate == nil || p.shows(c)
}

// shows reports whether the connection has the proxy's certificate.
func (p *Proxy) shows(c *tenancy.Credentials) bool {
	return len(c.Chain) > 0 && p.Certificate.Matches(c.Chain[0])
}

var (
	errHeader   = errors.New("the header of a trusted proxy is repeated, empty or too long")
	errClaims   = errors.New("the header of a trusted proxy is not the base64url of a JSON object")
	errSubject  = errors.New("the header of a trusted proxy has no sub, or not as a text")
	errSeveral  = errors.New("several proxies are configured for this connection")
	errPlace    = errors.New("the certificate is a trusted proxy's, and the network none of its own")
	errUnsigned = errors.New("the header of a trusted proxy is not signed")
)

func refuse(cause error) error {
	return &tenancy.AuthError{Reason: tenancy.AuthProxy, Cause: cause}
}

// Authenticate implements authn.Authenticator.
func (x *Proxies) Authenticate(ctx context.Context, c *tenancy.Credentials, now time.Time) (*tenancy.Principal, error) {
	if c.Proxy == nil {
		return nil, nil
	}
	var p *Proxy
	for i := range x.proxies {
		if !x.proxies[i].calls(c) {
			continue
		}
		if p != nil {
			return nil, refuse(errSeveral)
		}
		p = &x.proxies[i]
	}
	if p == nil {
		x.ignored.Add(1)
		if slices.ContainsFunc(x.proxies, func(p Proxy) bool { return p.Certificate != nil && p.shows(c) }) {
			return nil, refuse(errPlace)
		}
		return nil, nil
	}
	if p.Certificate != nil {
		if err := p.Authorities.Valid(c.Chain, now); err != nil {
			return nil, err
		}
	}
	if len(c.Proxy) == 0 || len(c.Proxy) > oidc.MaxTokenBytes {
		return nil, refuse(errHeader)
	}
	return x.identify(ctx, p, c.Proxy, now)
}

// identify finds out for whom a proxy speaks.
func (x *Proxies) identify(ctx context.Context, p *Proxy, header []byte, now time.Time) (*tenancy.Principal, error) {
	h := sha256.New()
	h.Write([]byte(p.Issuer + "\n"))
	h.Write(header)
	digest := [sha256.Size]byte(h.Sum(nil))
	if known := x.cache.Get(digest, now); known != nil {
		return known, nil
	}
	v, version, current, err := p.verify(ctx, header, now)
	if err != nil {
		return nil, err
	}
	who, err := p.Mapper.Map(ctx, v)
	if err != nil {
		return nil, err
	}
	x.cache.Put(digest, who, now, version, current)
	return who, nil
}

// unsignedLife is how long the word of a proxy that signs nothing is taken to
// hold: it is said anew with every request.
const unsignedLife = time.Minute

func (p *Proxy) verify(ctx context.Context, header []byte, now time.Time) (v *authn.Verified, version uint64, current func() uint64, err error) {
	if p.Verifier != nil {
		if bytes.IndexByte(header, '.') < 0 {
			return nil, 0, nil, refuse(errUnsigned)
		}
		t, err := p.Verifier.Verify(ctx, header, now)
		if err != nil {
			return nil, 0, nil, err
		}
		return &t.Verified, t.KeysVersion, t.Keys.Version, nil
	}
	text := make([]byte, base64.RawURLEncoding.DecodedLen(len(header)))
	n, err := base64.RawURLEncoding.Strict().Decode(text, header)
	if err != nil {
		return nil, 0, nil, refuse(errClaims)
	}
	claims, err := oidc.ParseClaims(text[:n])
	if err != nil {
		return nil, 0, nil, refuse(errClaims)
	}
	sub, ok := oidc.Subject(claims)
	if !ok {
		return nil, 0, nil, refuse(errSubject)
	}
	return &authn.Verified{
		Kind: tenancy.KindJWT, ID: "jwt:" + p.Issuer + ":" + sub, Subject: sub, Issuer: p.Issuer, Claims: claims, Expires: now.Add(unsignedLife),
	}, 0, nil, nil
}
