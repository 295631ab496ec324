package oidc

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/authn"
)

const (
	// MaxTokenBytes bounds a token. Parsing it and hashing it is work that nobody
	// has paid for.
	MaxTokenBytes = 16 << 10
	// maxHeaderBytes bounds its decoded header, maxKeyID a key id.
	maxHeaderBytes = 2 << 10
	maxKeyID       = 256
	// MaxSkew is the most that clocks may differ.
	MaxSkew = 5 * time.Minute
)

// Issuer is whose tokens are believed, and which of them.
type Issuer struct {
	// Name is the iss claim, compared byte for byte.
	Name string
	// Audiences are those of which a token's aud must name one.
	Audiences []string
	// Algorithms are the only ones that its signatures may have: some of
	// Algorithms().
	Algorithms []string
	// Skew is how much the clocks of issuer and gateway may differ.
	Skew time.Duration
	// MaxLife is the most time from iat to exp; zero is without a bound, and then
	// iat need not be there.
	MaxLife time.Duration
	Keys    *KeySet
}

// Verifier verifies the tokens of its issuers. It is immutable and safe for
// concurrent use.
type Verifier struct {
	issuers map[string]*pinned
}

// pinned is an issuer, prepared.
type pinned struct {
	Issuer
	algs []jose.SignatureAlgorithm
}

// NewVerifier returns a verifier of the tokens of several issuers. An error
// names the issuer by its place in the list.
func NewVerifier(issuers []Issuer) (*Verifier, error) {
	v := &Verifier{issuers: make(map[string]*pinned, len(issuers))}
	for i := range issuers {
		is := &pinned{Issuer: issuers[i]}
		if err := is.check(); err != nil {
			return nil, fmt.Errorf("issuer %d: %w", i+1, err)
		}
		if v.issuers[is.Name] != nil {
			return nil, fmt.Errorf("issuer %d: its name is given twice", i+1)
		}
		for _, alg := range is.Algorithms {
			is.algs = append(is.algs, jose.SignatureAlgorithm(alg))
		}
		v.issuers[is.Name] = is
	}
	return v, nil
}

func (is *pinned) check() error {
	switch {
	case is.Name == "" || is.Keys == nil:
		return errors.New("it has no name or no keys")
	case len(is.Audiences) == 0 || slices.Contains(is.Audiences, ""):
		return errors.New("it has no audience, or an empty one")
	case len(is.Algorithms) == 0 || slices.ContainsFunc(is.Algorithms, func(a string) bool { return !slices.Contains(Algorithms(), a) }):
		return errors.New("it has no algorithm, or one that is not known")
	case is.Skew < 0 || is.Skew > MaxSkew || is.MaxLife < 0:
		return errors.New("its skew or its longest life is out of bounds")
	}
	return nil
}

// Token is a verified token.
type Token struct {
	authn.Verified
	// KeysVersion and Keys are what it was verified by: once Keys has another
	// version, it must be verified again.
	KeysVersion uint64
	Keys        *KeySet
}

// reasonOf is the reason of one of this package's errors; empty for none.
func reasonOf(err error) string {
	if e, ok := errors.AsType[*tenancy.AuthError](err); ok {
		return e.Reason
	}
	return ""
}

func refuse(reason, format string, args ...any) error {
	return &tenancy.AuthError{Reason: reason, Cause: fmt.Errorf(format, args...)}
}

// The errors of unknown keys are many in a flood, so they are made once.
var (
	errKeyUnknown = refuse(tenancy.AuthKeyUnknown, "the issuer has no such key, or none for the token's algorithm")
	errKeysDown   = refuse(tenancy.AuthKeysDown, "the key is not known, and the issuer's keys can't be fetched")
	errKeysLate   = refuse(tenancy.AuthKeysDown, "the key is not known, and the issuer's keys take too long to come")
)

// Verify verifies a compact JWS and what it claims. The error is a
// *tenancy.AuthError. It waits for a fetch of keys at most, and only for a token
// whose issuer is configured.
func (v *Verifier) Verify(ctx context.Context, token []byte, now time.Time) (*Token, error) {
	if len(token) > MaxTokenBytes {
		return nil, refuse(tenancy.AuthTooLarge, "the token is larger than %d KiB", MaxTokenBytes>>10)
	}
	head, body, err := split(token)
	if err != nil {
		return nil, err
	}
	h, err := parseHeader(head)
	if err != nil {
		return nil, err
	}
	claims, err := parseObject(body)
	if err != nil {
		return nil, refuse(tenancy.AuthClaims, "the claims can't be read: %w", err)
	}
	// Which keys and rules hold is found by what the token says of its issuer; that
	// it is his is what the signature then shows.
	iss, _ := claims["iss"].(string)
	is := v.issuers[iss]
	if is == nil {
		return nil, refuse(tenancy.AuthIssuer, "the token is of no issuer that is configured")
	}
	if !slices.Contains(is.Algorithms, h.alg) {
		return nil, refuse(tenancy.AuthAlgorithm, "the token's algorithm is not one that its issuer is pinned to")
	}
	version := is.Keys.Version()
	keys, err := is.Keys.find(ctx, h.kid, h.alg)
	if err != nil {
		return nil, err
	}
	if err = is.signed(token, body, keys); reasonOf(err) == tenancy.AuthSignature {
		// An issuer that gives all its keys one name, or none, shows a new one only so.
		if keys, version = is.Keys.renewed(ctx, h, version); keys != nil {
			err = is.signed(token, body, keys)
		}
	}
	if err != nil {
		return nil, err
	}
	out, err := is.judge(claims, now)
	if err != nil {
		return nil, err
	}
	return &Token{Verified: *out, KeysVersion: version, Keys: is.Keys}, nil
}

// split decodes the header and the payload of a compact JWS. Every text that
// decodes must be the only one that does so: no padding, no white space, no
// stray bits at the end.
func split(token []byte) (head, body []byte, err error) {
	parts := bytes.Split(token, []byte{'.'})
	if len(parts) != 3 {
		return nil, nil, refuse(tenancy.AuthMalformed, "a token has three parts, not %d", min(len(parts), 9))
	}
	var decoded [3][]byte
	for i, p := range parts {
		if bytes.ContainsAny(p, "\r\n") { // which the decoder passes over
			return nil, nil, refuse(tenancy.AuthMalformed, "a part of the token is not base64url")
		}
		decoded[i] = make([]byte, base64.RawURLEncoding.DecodedLen(len(p)))
		n, err := base64.RawURLEncoding.Strict().Decode(decoded[i], p)
		if err != nil || n == 0 {
			return nil, nil, refuse(tenancy.AuthMalformed, "a part of the token is empty or not base64url")
		}
		decoded[i] = decoded[i][:n]
	}
	return decoded[0], decoded[1], nil
}

// header is what of a token's header counts.
type header struct {
	alg string
	kid *string
}

// unwanted are header parameters by which a token says how it is to be read or
// verified. It is not for a token to say.
var unwanted = []string{"crit", "jwk", "jku", "x5u", "x5c", "b64", "zip", "enc", "cty"}

func parseHeader(text []byte) (header, error) {
	if len(text) > maxHeaderBytes {
		return header{}, refuse(tenancy.AuthHeader, "the token's header is larger than %d KiB", maxHeaderBytes>>10)
	}
	fields, err := parseObject(text)
	if err != nil {
		return header{}, refuse(tenancy.AuthHeader, "the token's header can't be read: %w", err)
	}
	for _, name := range unwanted {
		if _, there := fields[name]; there {
			return header{}, refuse(tenancy.AuthHeader, "the token's header has %s, which is not allowed", name)
		}
	}
	if typ, there := fields["typ"]; there {
		s, _ := typ.(string)
		switch strings.TrimPrefix(strings.ToLower(s), "application/") {
		case "jwt", "at+jwt":
		default:
			return header{}, refuse(tenancy.AuthHeader, "the token's typ is neither JWT nor at+jwt")
		}
	}
	var h header
	ok := false
	if h.alg, ok = fields["alg"].(string); !ok {
		return header{}, refuse(tenancy.AuthHeader, "the token's header has no alg")
	}
	if kid, there := fields["kid"]; there {
		s, ok := kid.(string)
		if !ok || len(s) > maxKeyID {
			return header{}, refuse(tenancy.AuthHeader, "the token's kid is no text of at most %d bytes", maxKeyID)
		}
		h.kid = &s
	}
	return h, nil
}

// signed reports, by nil, that one of the keys has signed the token. body is its
// payload as it was judged.
func (is *pinned) signed(token, body []byte, keys []*key) error {
	jws, err := jose.ParseSignedCompact(string(token), is.algs)
	if err != nil {
		return refuse(tenancy.AuthMalformed, "the token is no compact JWS of an algorithm that its issuer is pinned to")
	}
	for _, k := range keys {
		if payload, err := jws.Verify(k.public); err == nil && bytes.Equal(payload, body) {
			return nil
		}
	}
	return refuse(tenancy.AuthSignature, "the token's signature is not of the issuer's key")
}

// judge holds the claims of a token, which are its issuer's, against what is
// expected of them.
func (is *pinned) judge(claims map[string]any, now time.Time) (*authn.Verified, error) {
	expires, err := is.times(claims, now)
	if err != nil {
		return nil, err
	}
	if err := is.audience(claims["aud"]); err != nil {
		return nil, err
	}
	sub, ok := Subject(claims)
	if !ok {
		return nil, refuse(tenancy.AuthClaims, "sub is no text, or an empty one, or has control characters")
	}
	return &authn.Verified{
		Kind: tenancy.KindJWT, ID: "jwt:" + is.Name + ":" + sub, Subject: sub, Issuer: is.Name, Claims: claims, Expires: expires,
	}, nil
}

// Subject returns the claim sub, if it is one that can name somebody.
func Subject(claims map[string]any) (sub string, ok bool) {
	sub, ok = claims["sub"].(string)
	return sub, ok && sub != "" && !strings.ContainsFunc(sub, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// times judges exp, nbf and iat.
func (is *pinned) times(claims map[string]any, now time.Time) (expires time.Time, err error) {
	exp, there, err := instant(claims, "exp")
	if err != nil {
		return expires, err
	}
	if !there {
		return expires, refuse(tenancy.AuthClaims, "exp is missing")
	}
	if !now.Before(exp.Add(is.Skew)) {
		return expires, refuse(tenancy.AuthExpired, "the token has ended")
	}
	nbf, there, err := instant(claims, "nbf")
	if err != nil {
		return expires, err
	}
	if there && now.Add(is.Skew).Before(nbf) {
		return expires, refuse(tenancy.AuthNotYetValid, "the token does not hold yet")
	}
	iat, there, err := instant(claims, "iat")
	switch {
	case err != nil:
		return expires, err
	case there && now.Add(is.Skew).Before(iat):
		return expires, refuse(tenancy.AuthNotYetValid, "the token is of the future")
	case is.MaxLife > 0 && !there:
		return expires, refuse(tenancy.AuthClaims, "iat is missing, and the issuer's tokens have a longest life")
	case is.MaxLife > 0 && exp.Sub(iat) > is.MaxLife:
		return expires, refuse(tenancy.AuthClaims, "the token is good for longer than %s", is.MaxLife)
	}
	return exp, nil
}

// lastSecond is the end of the year 9999; what lies beyond is no date.
const lastSecond = 253402300799

// instant reads a date in seconds since 1970, which may have a fraction.
func instant(claims map[string]any, name string) (at time.Time, there bool, err error) {
	v, there := claims[name]
	if !there {
		return at, false, nil
	}
	seconds := math.NaN()
	switch v := v.(type) {
	case int64:
		seconds = float64(v)
	case float64:
		seconds = v
	}
	if !(seconds >= 0 && seconds <= lastSecond) {
		return at, true, refuse(tenancy.AuthClaims, "%s is no date in seconds since 1970", name)
	}
	return time.Unix(int64(seconds), 0), true, nil
}

// audience judges aud: a text, or a list of texts.
func (is *pinned) audience(aud any) error {
	switch v := aud.(type) {
	case string:
		if slices.Contains(is.Audiences, v) {
			return nil
		}
	case []any:
		found := false
		for _, x := range v {
			s, ok := x.(string)
			if !ok {
				return refuse(tenancy.AuthAudience, "aud holds something other than texts")
			}
			found = found || slices.Contains(is.Audiences, s)
		}
		if found {
			return nil
		}
	}
	return refuse(tenancy.AuthAudience, "aud names no audience that is configured for the issuer")
}
