package tenancy

import (
	"crypto/x509"
	"net/netip"
	"path"
	"slices"
)

// Credentials are what one request brings to say who calls. They are views,
// valid during the call that they are given to.
type Credentials struct {
	// Bearer is the credential of Authorization, x-api-key or api-key; nil
	// without one.
	Bearer []byte
	// Chain is the client's certificate and those above it as TLS has verified
	// them, leaf first; nil without one.
	Chain []*x509.Certificate
	// Proxy is the value of x-sluice-identity; nil without one.
	Proxy []byte
	// Peer is the address of the connection, never one of a header.
	Peer netip.Addr
}

// Reasons for which a caller is not known: the words of AuthError.Reason, which
// metrics and logs show and clients never see.
const (
	// AuthMissing to AuthConflicting: what the request brings is none, or is not
	// one credential.
	AuthMissing     = "missing"
	AuthRepeated    = "repeated_header"
	AuthNotBearer   = "not_bearer"
	AuthEmpty       = "empty"
	AuthMalformed   = "malformed"
	AuthConflicting = "conflicting"
	// AuthUnknown: nobody's credential, or a wrong secret.
	AuthUnknown = "unknown"
	AuthExpired = "expired"
	AuthRevoked = "revoked"
	// AuthTooLarge to AuthClaims: what is wrong with a token.
	AuthTooLarge    = "too_large"
	AuthHeader      = "header"
	AuthAlgorithm   = "algorithm"
	AuthIssuer      = "issuer"
	AuthKeyUnknown  = "key_unknown"
	AuthKeysDown    = "keys_unavailable"
	AuthSignature   = "signature"
	AuthNotYetValid = "not_yet_valid"
	AuthAudience    = "audience"
	AuthClaims      = "claims"
	// AuthCertificate: a client certificate that no rule is for, or that no longer
	// holds.
	AuthCertificate = "certificate"
	// AuthProxy: a trusted proxy's word that can't be used.
	AuthProxy = "proxy"
	// AuthUnmapped: a known caller whose claims lead to no tenant.
	AuthUnmapped = "unmapped"
	// AuthCancelled: the caller left before it was known.
	AuthCancelled = "cancelled"
	// AuthOther: an error that names none of these.
	AuthOther = "other"
)

// authReasons are all of them.
var authReasons = []string{
	AuthMissing, AuthRepeated, AuthNotBearer, AuthEmpty, AuthMalformed, AuthConflicting, AuthUnknown, AuthExpired, AuthRevoked,
	AuthTooLarge, AuthHeader, AuthAlgorithm, AuthIssuer, AuthKeyUnknown, AuthKeysDown, AuthSignature, AuthNotYetValid, AuthAudience,
	AuthClaims, AuthCertificate, AuthProxy, AuthUnmapped, AuthCancelled, AuthOther,
}

// AuthReasons lists every word that AuthError.Reason may hold.
func AuthReasons() []string { return slices.Clone(authReasons) }

// AuthError is why a caller is not known. Clients get one and the same 401 for
// all of them.
type AuthError struct {
	// Reason is one of AuthReasons.
	Reason string
	// KeyID is the public part of the API key that was shown, where the key is
	// known; else empty.
	KeyID string
	// Cause says more, or is nil. Its text holds nothing of a credential.
	Cause error
}

// Error implements error. The text begins with the reason.
func (e *AuthError) Error() string {
	text := e.Reason
	if e.KeyID != "" {
		text += " key " + e.KeyID
	}
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Unwrap gives the cause.
func (e *AuthError) Unwrap() error { return e.Cause }

// AuthReason is Reason if that is one of AuthReasons, else AuthOther.
func (e *AuthError) AuthReason() string {
	if slices.Contains(authReasons, e.Reason) {
		return e.Reason
	}
	return AuthOther
}

// Scope is what a credential may be used for, beside what its tenant may. It is
// shared by concurrent requests and never changes.
type Scope struct {
	// Models are globs of models, in the syntax of Tenant.Models; empty means all.
	Models []string
	// Operations are names of operations of the policy format; empty means all.
	Operations []string
}

// Allows reports whether the scope admits the operation with the model. A nil
// Scope admits everything. An empty model is that of an operation that has none,
// and is admitted whatever the globs are.
func (s *Scope) Allows(model, operation string) bool {
	if s == nil {
		return true
	}
	if len(s.Operations) > 0 && !slices.Contains(s.Operations, operation) {
		return false
	}
	return model == "" || allowsModel(s.Models, model)
}

// allowsModel reports whether one of the globs matches, or there are none.
func allowsModel(globs []string, model string) bool {
	if len(globs) == 0 {
		return true
	}
	for _, glob := range globs {
		if glob == "*" {
			return true
		}
		if ok, err := path.Match(glob, model); err == nil && ok {
			return true
		}
	}
	return false
}
