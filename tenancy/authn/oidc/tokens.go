package oidc

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/authn"
)

// Tokens is the authn.Authenticator of bearer tokens. It is of one generation.
type Tokens struct {
	verifier *Verifier
	mappers  map[string]authn.Mapper // by issuer
	cache    authn.Cache
}

// NewTokens returns an Authenticator of a verifier's tokens. Every issuer of it
// has a mapper.
func NewTokens(v *Verifier, mappers map[string]authn.Mapper) *Tokens {
	return &Tokens{verifier: v, mappers: mappers}
}

// Authenticate implements authn.Authenticator. A token that was verified lately,
// by keys that are still in force, is not verified again.
func (t *Tokens) Authenticate(ctx context.Context, c *tenancy.Credentials, now time.Time) (*tenancy.Principal, error) {
	if c.Bearer == nil {
		return nil, nil
	}
	return t.identify(ctx, c.Bearer, now)
}

// identify verifies a token and finds out whose its bearer is.
func (t *Tokens) identify(ctx context.Context, token []byte, now time.Time) (*tenancy.Principal, error) {
	if len(token) > MaxTokenBytes {
		return nil, refuse(tenancy.AuthTooLarge, "the token is larger than %d KiB", MaxTokenBytes>>10)
	}
	digest := sha256.Sum256(token)
	if p := t.cache.Get(digest, now); p != nil {
		return p, nil
	}
	tok, err := t.verifier.Verify(ctx, token, now)
	if err != nil {
		return nil, err
	}
	p, err := t.mappers[tok.Issuer].Map(ctx, &tok.Verified)
	if err != nil {
		return nil, err
	}
	t.cache.Put(digest, p, now, tok.KeysVersion, tok.Keys.Version)
	return p, nil
}

// Remembered is how many tokens need not be verified again.
func (t *Tokens) Remembered() int { return t.cache.Len() }
