package gateway

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
)

// Scopes of cache isolation, as policies name them.
const (
	isolationNone      = "none"
	isolationTenant    = "tenant"
	isolationPrincipal = "principal"
)

// cacheSalt is the engine's cache_salt for a request, or empty for a request
// that shares its tenant-less cache: base64url without padding of
//
//	HMAC-SHA256(key, lp(scope) lp(tenant) [lp(principal)] [lp(client's salt)])
//
// where lp is a 4-byte big-endian length and the bytes (policy format,
// section 6). A client's own salt is only ever an input, so it can narrow
// sharing and never widen it. The result holds none of the characters that
// the engine refuses, and no tenant's name, since the engine publishes salts
// in its cache events.
func cacheSalt(key []byte, scope, tenant, principal, client string) string {
	if scope == isolationNone && client == "" {
		return ""
	}
	mac := hmac.New(sha256.New, key)
	part := func(s string) {
		var n [4]byte
		binary.BigEndian.PutUint32(n[:], uint32(len(s)))
		mac.Write(n[:])
		mac.Write([]byte(s))
	}
	part(scope)
	part(tenant)
	if scope == isolationPrincipal {
		part(principal)
	}
	if client != "" {
		part(client)
	}
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
