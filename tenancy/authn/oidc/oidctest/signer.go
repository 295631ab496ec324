// Package oidctest makes tokens, also wrong ones, and is an OpenID Connect
// provider on loopback that rotates its keys, is slow, and goes down.
//
// It signs with the standard library alone, so that what it makes is not what
// the code under test would have made.
package oidctest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"testing"
)

// Signer is a private key with an id.
type Signer struct {
	// Kid is its key id, Alg what it signs by where nothing else is asked for.
	Kid, Alg string
	private  crypto.Signer
}

var curves = map[string]elliptic.Curve{"ES256": elliptic.P256(), "ES384": elliptic.P384(), "ES512": elliptic.P521()}

var hashes = map[string]crypto.Hash{
	"RS256": crypto.SHA256, "RS384": crypto.SHA384, "RS512": crypto.SHA512, "PS256": crypto.SHA256, "PS384": crypto.SHA384, "PS512": crypto.SHA512,
	"ES256": crypto.SHA256, "ES384": crypto.SHA384, "ES512": crypto.SHA512,
}

// NewSigner makes a key of an algorithm's kind.
func NewSigner(t testing.TB, alg, kid string) *Signer {
	t.Helper()
	s := &Signer{Kid: kid, Alg: alg}
	var err error
	switch {
	case alg == "EdDSA":
		_, s.private, err = ed25519.GenerateKey(rand.Reader)
	case curves[alg] != nil:
		s.private, err = ecdsa.GenerateKey(curves[alg], rand.Reader)
	default:
		s.private, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// JWK is the public key as a key set has it.
func (s *Signer) JWK() map[string]any {
	out := map[string]any{"use": "sig"}
	if s.Kid != "" {
		out["kid"] = s.Kid
	}
	switch p := s.private.Public().(type) {
	case *rsa.PublicKey:
		e := binary.BigEndian.AppendUint32(nil, uint32(p.E))
		out["kty"], out["n"], out["e"] = "RSA", b64(p.N.Bytes()), b64(e[1:])
	case *ecdsa.PublicKey:
		point, err := p.Bytes() // 4, x, y
		if err != nil {
			panic("BUG: a key that was made has no point: " + err.Error())
		}
		half := (len(point) - 1) / 2
		out["kty"], out["crv"], out["x"], out["y"] = "EC", p.Curve.Params().Name, b64(point[1:1+half]), b64(point[1+half:])
	case ed25519.PublicKey:
		out["kty"], out["crv"], out["x"] = "OKP", "Ed25519", b64(p)
	}
	return out
}

// Set is a key set of the signers' public keys.
func Set(signers ...*Signer) []byte {
	keys := make([]any, len(signers))
	for i, s := range signers {
		keys[i] = s.JWK()
	}
	text, err := json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		panic("BUG: a key set can't be encoded: " + err.Error())
	}
	return text
}

// Signature signs a text by an algorithm that the key can.
func (s *Signer) Signature(alg, text string) []byte {
	h := hashes[alg]
	digest := []byte(text)
	if h != 0 {
		d := h.New()
		d.Write(digest)
		digest = d.Sum(nil)
	}
	var sig []byte
	var err error
	switch k := s.private.(type) {
	case *rsa.PrivateKey:
		if alg[0] == 'P' {
			sig, err = rsa.SignPSS(rand.Reader, k, h, digest, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash})
		} else {
			sig, err = rsa.SignPKCS1v15(rand.Reader, k, h, digest)
		}
	case *ecdsa.PrivateKey:
		var r, v *big.Int
		r, v, err = ecdsa.Sign(rand.Reader, k, digest)
		size := (k.Curve.Params().BitSize + 7) / 8
		sig = make([]byte, 2*size)
		r.FillBytes(sig[:size])
		v.FillBytes(sig[size:])
	case ed25519.PrivateKey:
		sig = ed25519.Sign(k, digest)
	}
	if err != nil {
		panic(fmt.Sprintf("BUG: cannot sign by %s: %v", alg, err))
	}
	return sig
}

// Sign makes a token of a header and claims, whatever they are.
func (s *Signer) Sign(header, claims string) string {
	text := b64([]byte(header)) + "." + b64([]byte(claims))
	return text + "." + b64(s.Signature(s.Alg, text))
}

// derSignature is an ES256 signature in the form that certificates have.
func (s *Signer) derSignature(text string) []byte {
	raw := s.Signature("ES256", text)
	sig, err := asn1.Marshal(struct{ R, S *big.Int }{new(big.Int).SetBytes(raw[:32]), new(big.Int).SetBytes(raw[32:])})
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return sig
}

// publicForms are the texts of the public key that somebody could take for a
// shared secret.
func (s *Signer) publicForms() map[string][]byte {
	der, err := x509.MarshalPKIXPublicKey(s.private.Public())
	if err != nil {
		panic("BUG: " + err.Error())
	}
	jwk, err := json.Marshal(s.JWK())
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return map[string][]byte{"pem": pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), "der": der, "jwk": jwk}
}

func hs256(secret []byte, text string) []byte {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(text))
	return m.Sum(nil)
}
