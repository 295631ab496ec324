package authn

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// KeyIdentifier knows API keys; Directory is one.
type KeyIdentifier interface {
	// IdentifyKey returns the principal of an API key, or a *tenancy.AuthError. It
	// returns that of a disabled tenant as such.
	IdentifyKey(credential []byte, now time.Time) (*tenancy.Principal, error)
}

// ProxyAuthenticator judges the word of proxies.
type ProxyAuthenticator interface {
	Authenticator
	// Owns reports whether the connection's certificate is that of a proxy, and so
	// no credential of a caller.
	Owns(c *tenancy.Credentials) bool
}

// Standing is what is known of callers at this moment, whatever kind of credential
// they have; Live is one.
type Standing interface {
	// Revoked reports whether a principal's credentials have been taken back.
	Revoked(principal string) bool
	// Disabled reports whether a tenant is to be refused.
	Disabled(tenant string) bool
	// Changed returns another number as long as something may have been taken back.
	Changed() uint64
	// Stands reports whether a principal that was let in would still be.
	Stands(p *tenancy.Principal) bool
}

// Chain identifies callers by everything that a request brings. It is a
// gateway.Identifier, a gateway.Refuser and a gateway.Changer.
type Chain struct {
	// Keys must be given.
	Keys KeyIdentifier
	// Tokens, Certificates and Proxies are nil where that kind is not configured.
	Tokens       Authenticator
	Certificates Authenticator
	Proxies      ProxyAuthenticator
	// Standing is asked about callers by other credentials than keys, of which Keys
	// itself knows; nil says nothing of anybody.
	Standing Standing
}

var (
	errTwo    = errors.New("the request brings the credentials of two callers")
	errNoKind = errors.New("neither an API key nor a token of a configured issuer")
	// Who could not be taken back is not let in.
	errUnlistable = errors.New("the caller's name can't stand in the list of revoked credentials: it ends in white space, or has control characters or \" #\"")
	errNone       = errors.New("no credential of any kind")
	errShapeless  = &tenancy.AuthError{Reason: tenancy.AuthUnknown, Cause: errNoKind}
)

// Identify implements gateway.Identifier. All credentials that are there must be
// good, and of one caller: a request with a valid key and an invalid
// certificate, or with two valid ones of different callers, is nobody's.
func (ch *Chain) Identify(ctx context.Context, c *tenancy.Credentials, now time.Time) (*tenancy.Principal, error) {
	var found *tenancy.Principal
	for _, judge := range [...]func(context.Context, *tenancy.Credentials, time.Time) (*tenancy.Principal, error){
		ch.bearer, ch.proxy, ch.certificate,
	} {
		p, err := judge(ctx, c, now)
		switch {
		case err != nil:
			return nil, err
		case p == nil:
		case found != nil && (found.ID != p.ID || found.Tenant.ID != p.Tenant.ID):
			return nil, &tenancy.AuthError{Reason: tenancy.AuthConflicting, Cause: errTwo}
		case found == nil:
			found = p
		}
	}
	if found == nil {
		return nil, &tenancy.AuthError{Reason: tenancy.AuthMissing, Cause: errNone}
	}
	return ch.standing(found)
}

// standing holds who was found against what is known of them by now: a token is
// remembered, and a tenant of the generation, for longer than that.
func (ch *Chain) standing(p *tenancy.Principal) (*tenancy.Principal, error) {
	if ch.Standing == nil || p.Kind == tenancy.KindAPIKey {
		return p, nil
	}
	if !OtherPrincipal(p.ID) {
		return nil, &tenancy.AuthError{Reason: tenancy.AuthUnmapped, Cause: errUnlistable}
	}
	if ch.Standing.Revoked(p.ID) {
		return nil, &tenancy.AuthError{Reason: tenancy.AuthRevoked, Cause: errListed}
	}
	if p.Tenant.Disabled || !ch.Standing.Disabled(p.Tenant.ID) {
		return p, nil
	}
	refused, tenant := *p, *p.Tenant
	tenant.Disabled = true
	refused.Tenant = &tenant
	return &refused, nil
}

// bearer judges the credential of the headers.
func (ch *Chain) bearer(ctx context.Context, c *tenancy.Credentials, now time.Time) (*tenancy.Principal, error) {
	switch {
	case c.Bearer == nil:
		return nil, nil
	case bytes.HasPrefix(c.Bearer, []byte(keyPrefix)):
		return ch.Keys.IdentifyKey(c.Bearer, now)
	case ch.Tokens != nil && looksLikeToken(c.Bearer):
		return ch.Tokens.Authenticate(ctx, c, now)
	}
	return nil, errShapeless
}

// looksLikeToken reports whether a credential has the dots of a compact JWS. An
// API key has none.
func looksLikeToken(bearer []byte) bool { return bytes.IndexByte(bearer, '.') >= 0 }

func (ch *Chain) proxy(ctx context.Context, c *tenancy.Credentials, now time.Time) (*tenancy.Principal, error) {
	if ch.Proxies == nil || c.Proxy == nil {
		return nil, nil
	}
	return ch.Proxies.Authenticate(ctx, c, now)
}

func (ch *Chain) certificate(ctx context.Context, c *tenancy.Credentials, now time.Time) (*tenancy.Principal, error) {
	if ch.Certificates == nil || len(c.Chain) == 0 || ch.Proxies != nil && ch.Proxies.Owns(c) {
		return nil, nil
	}
	return ch.Certificates.Authenticate(ctx, c, now)
}

// Changed implements gateway.Changer.
func (ch *Chain) Changed() uint64 {
	if ch.Standing == nil {
		return 0
	}
	return ch.Standing.Changed()
}

// Stands implements gateway.Changer.
func (ch *Chain) Stands(p *tenancy.Principal) bool {
	return ch.Standing == nil || ch.Standing.Stands(p)
}

// Refuses implements gateway.Refuser: it knows the keys that are no good, and
// what is nothing at all. Whether a token is good is for Identify to find out.
func (ch *Chain) Refuses(c *tenancy.Credentials, now time.Time) bool {
	switch {
	case c.Bearer == nil:
		return ch.Certificates == nil && ch.Proxies == nil
	case bytes.HasPrefix(c.Bearer, []byte(keyPrefix)):
		p, err := ch.Keys.IdentifyKey(c.Bearer, now)
		return err != nil || p.Tenant.Disabled
	}
	return ch.Tokens == nil || !looksLikeToken(c.Bearer)
}
