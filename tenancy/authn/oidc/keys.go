package oidc

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/go-jose/go-jose/v4"
)

const (
	// maxSetBytes and maxKeys bound a key set, maxRSABits and minRSABits its RSA
	// keys: a larger one costs more to verify with than any issuer needs.
	maxSetBytes = 1 << 20
	maxKeys     = 100
	minRSABits  = 2048
	maxRSABits  = 8192
)

// Algorithms lists the signature algorithms that an issuer may be pinned to.
// None of them is symmetric.
func Algorithms() []string {
	return []string{"ES256", "ES384", "ES512", "EdDSA", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512"}
}

// key is a public key that verifies signatures.
type key struct {
	id     string
	alg    string // the only one that it is for, or empty
	public any    // *rsa.PublicKey, *ecdsa.PublicKey or ed25519.PublicKey
}

// suits reports whether the key can verify signatures of the algorithm.
func (k *key) suits(alg string) bool {
	if k.alg != "" && k.alg != alg {
		return false
	}
	switch p := k.public.(type) {
	case *rsa.PublicKey:
		return slices.Contains([]string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}, alg)
	case ed25519.PublicKey:
		return alg == "EdDSA"
	case *ecdsa.PublicKey:
		switch p.Curve {
		case elliptic.P256():
			return alg == "ES256"
		case elliptic.P384():
			return alg == "ES384"
		case elliptic.P521():
			return alg == "ES512"
		}
	}
	return false
}

// ring is a key set as it was fetched. It does not change.
type ring struct {
	keys    []*key
	digest  [sha256.Size]byte // of the text
	ignored int               // keys that verify no signatures here
}

// find returns the keys that a token may be signed by: those of its key id, or
// without one the only one that suits.
func (r *ring) find(kid *string, alg string) (found []*key) {
	if r == nil {
		return nil
	}
	for _, k := range r.keys {
		if k.suits(alg) && (kid == nil || k.id == *kid) {
			found = append(found, k)
		}
	}
	if kid == nil && len(found) > 1 {
		return nil // which one it is would be a guess
	}
	return found
}

// has reports whether some key has the id, whatever it is for.
func (r *ring) has(kid string) bool {
	return r != nil && slices.ContainsFunc(r.keys, func(k *key) bool { return k.id == kid })
}

var errNoKeys = errors.New("the key set holds no key")

// parseKeys reads a JWKS. Keys that are of no use are left out: of unknown
// types, symmetric or private ones, those for encryption, and RSA keys of odd
// sizes. A set without one that is of use is an error.
func parseKeys(text []byte) (*ring, error) {
	if len(text) > maxSetBytes {
		return nil, fmt.Errorf("the key set is larger than %d KiB", maxSetBytes>>10)
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, errors.New("the key set is not JSON of the form {\"keys\": [...]}")
	}
	if len(set.Keys) == 0 {
		return nil, errNoKeys
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("the key set holds %d keys, at most %d are allowed", len(set.Keys), maxKeys)
	}
	r := &ring{digest: sha256.Sum256(text)}
	for _, raw := range set.Keys {
		k, ok := parseKey(raw)
		if !ok {
			r.ignored++
			continue
		}
		r.keys = append(r.keys, k)
	}
	if len(r.keys) == 0 {
		return nil, fmt.Errorf("none of the %d keys of the set can verify signatures", len(set.Keys))
	}
	return r, nil
}

func parseKey(raw json.RawMessage) (*key, bool) {
	var k jose.JSONWebKey
	if err := k.UnmarshalJSON(raw); err != nil {
		return nil, false
	}
	if k.Use != "" && k.Use != "sig" || !k.Valid() || len(k.KeyID) > maxKeyID {
		return nil, false
	}
	switch p := k.Key.(type) {
	case *rsa.PublicKey:
		if n := p.N.BitLen(); n < minRSABits || n > maxRSABits || p.E < 3 || p.E%2 == 0 {
			return nil, false
		}
	case *ecdsa.PublicKey, ed25519.PublicKey:
	default:
		return nil, false
	}
	out := &key{id: k.KeyID, alg: k.Algorithm, public: k.Key}
	return out, slices.ContainsFunc(Algorithms(), out.suits)
}
