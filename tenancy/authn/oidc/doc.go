// Package oidc believes the tokens of configured issuers: compact JWS whose
// claims say who somebody is (RFC 7519, RFC 9068, OpenID Connect).
//
// An issuer's keys come from its JWKS, which OpenID Connect discovery finds. One
// goroutine for each issuer fetches them; a request never does. A token whose
// key is not known asks for a fetch and waits for it, together with all others
// that ask meanwhile; after that there is none for a while, whatever tokens
// come. Keys that are known stay in force while the provider is down.
//
// A token is refused unless every step of Verifier.Verify passes. What the
// token itself says about how it is to be verified (jwk, jku, x5u, x5c, crit)
// is never followed: its presence is a refusal. No error holds any part of a
// token.
package oidc
