// Package mtls believes client certificates: those that TLS has verified against
// the configured authorities, for which one rule of the configuration is.
//
// A certificate is known by its SPIFFE id, by the common name and organisation
// of its subject, or by a DNS name. What it says then goes through the same
// mapping as the claims of a token.
package mtls

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/authn"
)

// Match says which certificates are meant. All fields that are not empty must
// hold, and one must be given. SPIFFE is an id whose path segments may hold '*',
// and end in "/**"; '*' in the others stands for any text.
type Match struct {
	SPIFFE, CommonName, Organization, DNS string
}

// Matcher is a prepared Match.
type Matcher struct {
	Match
	spiffe idPattern
}

// NewMatcher prepares a Match.
func NewMatcher(m Match) (*Matcher, error) {
	out := &Matcher{Match: m}
	if m == (Match{}) {
		return nil, errors.New("it says of no certificate that it is meant: give spiffe, commonName, organization or dns")
	}
	if m.SPIFFE == "" {
		return out, nil
	}
	var err error
	if out.spiffe, err = parsePattern(m.SPIFFE); err != nil {
		return nil, fmt.Errorf("the pattern of SPIFFE ids can't be used: %w", err)
	}
	return out, nil
}

// Matches reports whether a leaf is meant.
func (m *Matcher) Matches(leaf *x509.Certificate) bool {
	id, err := idOf(leaf)
	return err == nil && m.matches(leaf, id)
}

func (m *Matcher) matches(leaf *x509.Certificate, id string) bool {
	is := func(pattern string) func(string) bool {
		return func(text string) bool { return glob(pattern, text) }
	}
	return (m.SPIFFE == "" || id != "" && m.spiffe.matches(id)) &&
		(m.CommonName == "" || glob(m.CommonName, leaf.Subject.CommonName)) &&
		(m.Organization == "" || slices.ContainsFunc(leaf.Subject.Organization, is(m.Organization))) &&
		(m.DNS == "" || slices.ContainsFunc(leaf.DNSNames, is(m.DNS)))
}

// Rule says whose the certificates are that it matches.
type Rule struct {
	Matcher *Matcher
	Mapper  authn.Mapper
}

// Authorities are the certificates that vouch for clients.
type Authorities struct {
	// Pool is for the TLS configuration.
	Pool  *x509.CertPool
	roots []*x509.Certificate
}

// ParseAuthorities reads certificates in PEM.
func ParseAuthorities(text []byte) (*Authorities, error) {
	a := &Authorities{Pool: x509.NewCertPool()}
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, errors.New("it holds something other than certificates")
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d can't be read: %w", len(a.roots)+1, err)
		}
		if !c.IsCA {
			return nil, fmt.Errorf("certificate %d is not one that signs others", len(a.roots)+1)
		}
		a.Pool.AddCert(c)
		a.roots = append(a.roots, c)
	}
	if len(a.roots) == 0 {
		return nil, errors.New("it holds no certificate in PEM")
	}
	return a, nil
}

// vouches reports whether a chain ends in one of the authorities. TLS has seen
// to that, but perhaps by authorities of a while ago: connections are kept.
func (a *Authorities) vouches(chain []*x509.Certificate) bool {
	last := chain[len(chain)-1]
	return slices.ContainsFunc(a.roots, func(c *x509.Certificate) bool { return bytes.Equal(c.Raw, last.Raw) })
}

// Valid judges a chain that TLS has verified, now: kept connections outlive
// certificates. The error is a *tenancy.AuthError.
func (a *Authorities) Valid(chain []*x509.Certificate, now time.Time) error {
	if !a.vouches(chain) {
		return refuse("the certificate is of an authority that is not configured any more")
	}
	for _, c := range chain {
		if now.After(c.NotAfter) {
			return &tenancy.AuthError{Reason: tenancy.AuthExpired, Cause: errors.New("the certificate, or one above it, has ended")}
		}
		if now.Before(c.NotBefore) {
			return &tenancy.AuthError{Reason: tenancy.AuthNotYetValid, Cause: errors.New("the certificate, or one above it, does not hold yet")}
		}
	}
	return nil
}

func refuse(format string, args ...any) error {
	return &tenancy.AuthError{Reason: tenancy.AuthCertificate, Cause: fmt.Errorf(format, args...)}
}

// Certificates is the authn.Authenticator of client certificates. It is of one
// generation.
type Certificates struct {
	authorities *Authorities
	rules       []Rule
	ignore      bool
	cache       authn.Cache
}

// New returns an Authenticator. With ignoreUnmatched a certificate that no rule
// matches counts as none; else it is refused.
func New(a *Authorities, rules []Rule, ignoreUnmatched bool) *Certificates {
	return &Certificates{authorities: a, rules: rules, ignore: ignoreUnmatched}
}

// Authenticate implements authn.Authenticator.
func (x *Certificates) Authenticate(ctx context.Context, c *tenancy.Credentials, now time.Time) (*tenancy.Principal, error) {
	if len(c.Chain) == 0 {
		return nil, nil
	}
	if err := x.authorities.Valid(c.Chain, now); err != nil {
		return nil, err
	}
	leaf := c.Chain[0]
	digest := sha256.Sum256(leaf.Raw)
	if p := x.cache.Get(digest, now); p != nil {
		return p, nil
	}
	rule, id, err := x.rule(leaf)
	if rule == nil {
		return nil, err
	}
	v, err := verified(leaf, id)
	if err != nil {
		return nil, err
	}
	p, err := rule.Mapper.Map(ctx, v)
	if err != nil {
		return nil, err
	}
	x.cache.Put(digest, p, now, 0, nil)
	return p, nil
}

// rule finds the one rule for a certificate. Where several are, their order must
// not decide whose the client is.
func (x *Certificates) rule(leaf *x509.Certificate) (*Rule, string, error) {
	id, err := idOf(leaf)
	if err != nil {
		return nil, "", &tenancy.AuthError{Reason: tenancy.AuthCertificate, Cause: err}
	}
	var found *Rule
	for i := range x.rules {
		r := &x.rules[i]
		if !r.Matcher.matches(leaf, id) {
			continue
		}
		if found != nil {
			return nil, "", refuse("several rules are for the certificate")
		}
		found = r
	}
	if found == nil && !x.ignore {
		return nil, "", refuse("no rule is for the certificate")
	}
	return found, id, nil
}

// maxSubject is the longest principal.subject.
const maxSubject = 256

var errNameless = errors.New("the certificate has neither a SPIFFE id nor a subject nor a DNS name")

// verified is what a certificate says of its owner.
func verified(leaf *x509.Certificate, id string) (*authn.Verified, error) {
	name := id
	if name == "" {
		name = leaf.Subject.String()
	}
	if name == "" && len(leaf.DNSNames) > 0 {
		name = "dns:" + leaf.DNSNames[0]
	}
	if name == "" {
		return nil, &tenancy.AuthError{Reason: tenancy.AuthCertificate, Cause: errNameless}
	}
	texts := func(list []string) []any {
		out := make([]any, len(list))
		for i, s := range list {
			out[i] = s
		}
		return out
	}
	claims := map[string]any{
		"subject": leaf.Subject.String(), "common_name": leaf.Subject.CommonName, "serial": leaf.SerialNumber.Text(16),
		"organization": texts(leaf.Subject.Organization), "organizational_unit": texts(leaf.Subject.OrganizationalUnit),
		"dns_names": texts(leaf.DNSNames), "email_addresses": texts(leaf.EmailAddresses), "issuer_common_name": leaf.Issuer.CommonName,
	}
	if id != "" {
		domain, segments, err := splitID(id)
		if err != nil {
			panic("BUG: a SPIFFE id that was read can't be read")
		}
		claims["spiffe_id"], claims["trust_domain"], claims["path"] = id, domain, texts(segments)
	}
	subject := name
	if len(subject) > maxSubject {
		subject = "" // a SPIFFE id may be longer than policies take a subject to be; they have it whole beside it
	}
	return &authn.Verified{
		Kind: tenancy.KindMTLS, ID: "mtls:" + name, Subject: subject, SPIFFEID: id, Claims: claims, Expires: leaf.NotAfter,
	}, nil
}
