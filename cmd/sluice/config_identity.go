package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy/authn/mtls"
	"github.com/sluicegate/sluice/tenancy/authn/oidc"
	"github.com/sluicegate/sluice/tenancy/plainfile"
)

// IdentityConfig says by what callers are known beside API keys.
type IdentityConfig struct {
	JWT     []IssuerConfig `yaml:"jwt"`
	MTLS    MTLSConfig     `yaml:"mtls"`
	Proxies []ProxyConfig  `yaml:"proxies"`
}

// IssuerConfig is an issuer of tokens.
type IssuerConfig struct {
	Issuer      string         `yaml:"issuer"`      // the claim iss, to the letter
	Audiences   []string       `yaml:"audiences"`   // aud must name one of them
	Algorithms  []string       `yaml:"algorithms"`  // the only ones that signatures may have
	JWKSURL     string         `yaml:"jwksUrl"`     // of its keys; default: by OpenID Connect discovery
	JWKSFile    string         `yaml:"jwksFile"`    // its keys, in place of a provider that is asked
	CacheFile   string         `yaml:"cacheFile"`   // keeps the fetched keys over a restart
	CAFile      string         `yaml:"caFile"`      // vouches for the provider's TLS certificate; default: the system's roots
	Skew        time.Duration  `yaml:"skew"`        // by which clocks may differ
	MaxLifetime time.Duration  `yaml:"maxLifetime"` // from iat to exp at most; 0 = whatever the issuer gives
	Map         ClaimMapConfig `yaml:"map"`
}

// ClaimMapConfig are CEL expressions that say whose a caller is.
type ClaimMapConfig struct {
	Tenant string `yaml:"tenant"`
	Team   string `yaml:"team"`
	Labels string `yaml:"labels"`
	Groups string `yaml:"groups"`
	Scopes string `yaml:"scopes"`
}

// MTLSConfig is about client certificates on the public listener.
type MTLSConfig struct {
	CAFile     string                  `yaml:"caFile"`     // vouches for clients, PEM; turns client certificates on
	ClientAuth string                  `yaml:"clientAuth"` // optional or required
	Unmatched  string                  `yaml:"unmatched"`  // refuse or ignore a certificate that no rule is for
	Rules      []CertificateRuleConfig `yaml:"rules"`
}

// CertificateRuleConfig says whose the certificates are that it is for.
type CertificateRuleConfig struct {
	SPIFFE       string         `yaml:"spiffe"`
	CommonName   string         `yaml:"commonName"`
	Organization string         `yaml:"organization"`
	DNS          string         `yaml:"dns"`
	Map          ClaimMapConfig `yaml:"map"`
}

// ProxyConfig is a proxy whose word about its callers is believed.
type ProxyConfig struct {
	Issuer       string         `yaml:"issuer"`   // of the principals, and of signed headers
	Networks     []string       `yaml:"networks"` // where it calls from
	SPIFFE       string         `yaml:"spiffe"`
	CommonName   string         `yaml:"commonName"`
	Organization string         `yaml:"organization"`
	DNS          string         `yaml:"dns"`
	JWKSFile     string         `yaml:"jwksFile"`   // keys of its signatures
	Algorithms   []string       `yaml:"algorithms"` // of them
	Audience     string         `yaml:"audience"`   // what aud of a signed header must name
	MaxAge       time.Duration  `yaml:"maxAge"`     // from iat to exp of a signed header at most
	Skew         time.Duration  `yaml:"skew"`
	Map          ClaimMapConfig `yaml:"map"`
}

func defaultIdentity() IdentityConfig {
	return IdentityConfig{MTLS: MTLSConfig{ClientAuth: "optional", Unmatched: "refuse"}}
}

// setDefaults fills an issuer before its keys are decoded.
func (c *IssuerConfig) setDefaults() {
	c.Algorithms, c.Skew = []string{"RS256", "ES256"}, time.Minute
}

// setDefaults fills a proxy before its keys are decoded.
func (c *ProxyConfig) setDefaults() {
	c.Algorithms, c.Audience, c.MaxAge, c.Skew = []string{"ES256", "EdDSA"}, "sluice", time.Minute, 5*time.Second
}

func (c *CertificateRuleConfig) match() mtls.Match {
	return mtls.Match{SPIFFE: c.SPIFFE, CommonName: c.CommonName, Organization: c.Organization, DNS: c.DNS}
}

func (c *ProxyConfig) match() mtls.Match {
	return mtls.Match{SPIFFE: c.SPIFFE, CommonName: c.CommonName, Organization: c.Organization, DNS: c.DNS}
}

func (c *ClaimMapConfig) source() policy.ClaimMapSource {
	return policy.ClaimMapSource{Tenant: c.Tenant, Team: c.Team, Labels: c.Labels, Groups: c.Groups, Scopes: c.Scopes}
}

// paths lists the files that identities need.
func (c *IdentityConfig) paths() []configPath {
	all := []configPath{{"identity.mtls.caFile", &c.MTLS.CAFile, false}}
	for i := range c.JWT {
		all = append(all,
			configPath{fmt.Sprintf("identity.jwt[%d].jwksFile", i), &c.JWT[i].JWKSFile, false},
			configPath{fmt.Sprintf("identity.jwt[%d].caFile", i), &c.JWT[i].CAFile, false})
	}
	for i := range c.Proxies {
		all = append(all, configPath{fmt.Sprintf("identity.proxies[%d].jwksFile", i), &c.Proxies[i].JWKSFile, false})
	}
	return all
}

// files lists those that are given.
func (c *IdentityConfig) files() (names []string) {
	for _, p := range c.paths() {
		if *p.value != "" {
			names = append(names, *p.value)
		}
	}
	return names
}

// maxIdentityFile bounds a file of keys or certificates.
const maxIdentityFile = 1 << 20

func readIdentityFile(path string) ([]byte, error) { return plainfile.Read(path, maxIdentityFile) }

const (
	maxIssuers      = 32
	maxIssuerLength = 256 // characters of principal.issuer in policies
	maxCertRules    = 256
)

// identity checks by what callers are known.
func (v *validator) identity() {
	c := &v.cfg.Identity
	if n := len(c.JWT) + len(c.Proxies); n > maxIssuers {
		v.errorf("identity", "names %d issuers and proxies, should be at most %d", n, maxIssuers)
	}
	for i := range c.JWT {
		v.issuer(fmt.Sprintf("identity.jwt[%d]", i), &c.JWT[i])
	}
	v.mtls(&c.MTLS)
	for i := range c.Proxies {
		v.proxy(fmt.Sprintf("identity.proxies[%d]", i), &c.Proxies[i])
	}
	v.issuerNames()
}

func (v *validator) issuer(at string, c *IssuerConfig) {
	v.issuerName(at+".issuer", c.Issuer)
	switch {
	case c.JWKSFile != "" && c.JWKSURL != "":
		v.errorf(at+".jwksFile", "is given beside jwksUrl; the keys are in one place, so take one of the two out")
	case c.JWKSFile != "":
		v.keySet(at+".jwksFile", c.JWKSFile)
	case c.JWKSURL != "":
		if err := oidc.CheckURL(c.JWKSURL); err != nil {
			v.errorf(at+".jwksUrl", "can't be used: %v", err) // not shown: it may hold a password
		}
	case c.Issuer != "":
		if err := oidc.CheckURL(c.Issuer); err != nil {
			v.errorf(at+".issuer", "can't be asked for its keys: %v; give jwksUrl or jwksFile", err)
		}
	}
	v.cacheFile(at+".cacheFile", c)
	if c.CAFile != "" {
		if text, err := readIdentityFile(c.CAFile); err == nil {
			if _, err := oidc.NewClient(text); err != nil {
				v.errorf(at+".caFile", "cannot use %s: %v", c.CAFile, err)
			}
		} else if !isMissing(err) {
			v.errorf(at+".caFile", "cannot use %s: %v", c.CAFile, err)
		}
	}
	if len(c.Audiences) == 0 {
		v.errorf(at+".audiences", "is empty, should list what aud of a token must name: without it a token for any other service of the issuer would be good here")
	}
	for i, aud := range c.Audiences {
		if aud == "" {
			v.errorf(fmt.Sprintf("%s.audiences[%d]", at, i), "is empty, should be an audience")
		}
	}
	v.algorithms(at+".algorithms", c.Algorithms)
	v.duration(at+".skew", c.Skew, 0, oidc.MaxSkew)
	if c.MaxLifetime != 0 {
		v.duration(at+".maxLifetime", c.MaxLifetime, time.Second, 10*365*24*time.Hour)
	}
	v.claimMap(at+".map", &c.Map)
}

func (v *validator) issuerName(at, name string) {
	switch {
	case name == "":
		v.errorf(at, "is missing, should be the issuer as its tokens have it in iss")
	case len(name) > maxIssuerLength || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		v.errorf(at, "%q is not allowed, should be at most %d characters without white space", clip(name), maxIssuerLength)
	}
}

// issuerNames refuses issuers that share the ids of principals: jwt:<issuer>:<subject> must be of one issuer.
func (v *validator) issuerNames() {
	type named struct{ at, name string }
	var all []named
	for i := range v.cfg.Identity.JWT {
		all = append(all, named{fmt.Sprintf("identity.jwt[%d].issuer", i), v.cfg.Identity.JWT[i].Issuer})
	}
	for i := range v.cfg.Identity.Proxies {
		all = append(all, named{fmt.Sprintf("identity.proxies[%d].issuer", i), v.cfg.Identity.Proxies[i].Issuer})
	}
	for i, a := range all {
		for j, b := range all {
			switch {
			case a.name == "" || b.name == "":
			case j < i && a.name == b.name:
				v.errorf(a.at, "%q is %s, too; every issuer is given once", clip(a.name), b.at)
			case i != j && strings.HasPrefix(a.name, b.name+":"):
				v.errorf(a.at, "begins with %s and a colon, so that the id jwt:<issuer>:<subject> could be of either; rename one of the two", b.at)
			}
		}
	}
}

// keySet records an error unless a file holds a key set.
func (v *validator) keySet(at, file string) {
	text, err := readIdentityFile(file)
	if err == nil {
		_, err = oidc.FixedKeys(text)
	}
	if err != nil && !isMissing(err) {
		v.errorf(at, "cannot use %s: %v", file, err)
	}
}

func (v *validator) algorithms(at string, names []string) {
	if len(names) == 0 {
		v.errorf(at, "is empty, should list some of %s", strings.Join(oidc.Algorithms(), ", "))
	}
	for i, name := range names {
		if !slices.Contains(oidc.Algorithms(), name) {
			v.errorf(fmt.Sprintf("%s[%d]", at, i), "%q is not allowed, should be one of %s", clip(name), strings.Join(oidc.Algorithms(), ", "))
		}
	}
	v.unique(at, names)
}

// claimMap reports what the compilation of a mapping finds, each at its key.
func (v *validator) claimMap(at string, c *ClaimMapConfig) {
	_, err := policy.CompileClaimMap(c.source())
	if faults, ok := errors.AsType[*policy.ClaimMapError](err); ok {
		for _, f := range faults.Faults {
			v.errorf(at+"."+f.Field, "%s", f.Text)
		}
	} else if err != nil {
		v.errorf(at, "%v", err)
	}
}

func (v *validator) mtls(c *MTLSConfig) {
	v.oneOf("identity.mtls.clientAuth", c.ClientAuth, "optional", "required")
	v.oneOf("identity.mtls.unmatched", c.Unmatched, "refuse", "ignore")
	if len(c.Rules) > maxCertRules {
		v.errorf("identity.mtls.rules", "has %d entries, should have at most %d", len(c.Rules), maxCertRules)
	}
	for i := range c.Rules {
		at := fmt.Sprintf("identity.mtls.rules[%d]", i)
		if _, err := mtls.NewMatcher(c.Rules[i].match()); err != nil {
			v.errorf(at, "%v", err)
		}
		v.claimMap(at+".map", &c.Rules[i].Map)
	}
	if c.CAFile == "" {
		if len(c.Rules) > 0 {
			v.errorf("identity.mtls.caFile", "is missing while rules are given, should be the certificates that vouch for clients")
		}
		return
	}
	text, err := readIdentityFile(c.CAFile)
	if err == nil {
		_, err = mtls.ParseAuthorities(text)
	}
	if err != nil && !isMissing(err) {
		v.errorf("identity.mtls.caFile", "cannot use %s: %v", c.CAFile, err)
	}
	if !v.cfg.Listen.Public.TLS.Enabled() {
		v.errorf("identity.mtls.caFile", "asks for client certificates, which need TLS; give listen.public.tls.certFile and keyFile")
	}
	if len(c.Rules) == 0 && !slices.ContainsFunc(v.cfg.Identity.Proxies, func(p ProxyConfig) bool { return p.match() != mtls.Match{} }) {
		v.errorf("identity.mtls.rules", "is empty, should say whose the clients' certificates are")
	}
}

func (v *validator) proxy(at string, c *ProxyConfig) {
	v.issuerName(at+".issuer", c.Issuer)
	if len(c.Networks) == 0 {
		v.errorf(at+".networks", "is empty, should list the addresses or networks that the proxy calls from")
	}
	for i, n := range c.Networks {
		if _, err := parseNetwork(n); err != nil {
			v.errorf(fmt.Sprintf("%s.networks[%d]", at, i), "%q is no address or network, should be as in 10.0.0.7 or 10.0.0.0/8", clip(n))
		}
	}
	certificate := c.match() != mtls.Match{}
	if certificate {
		if _, err := mtls.NewMatcher(c.match()); err != nil {
			v.errorf(at, "%v", err)
		}
		if v.cfg.Identity.MTLS.CAFile == "" {
			v.errorf(at, "is known by a client certificate, which identity.mtls.caFile has to vouch for")
		}
	}
	if !certificate && c.JWKSFile == "" {
		v.errorf(at, "is known by its network alone, which anybody on it can pretend; give the proxy's certificate (spiffe, commonName, organization or dns), the keys of its signatures (jwksFile), or both")
	}
	if c.JWKSFile != "" {
		v.keySet(at+".jwksFile", c.JWKSFile)
	}
	v.algorithms(at+".algorithms", c.Algorithms)
	if c.Audience == "" {
		v.errorf(at+".audience", "is empty, should be what aud of a signed header must name")
	}
	v.duration(at+".maxAge", c.MaxAge, time.Second, 10*time.Minute)
	v.duration(at+".skew", c.Skew, 0, oidc.MaxSkew)
	v.claimMap(at+".map", &c.Map)
}

// identityFile reads a file that the validator has read before.
func identityFile(key, path string) ([]byte, error) {
	text, err := readIdentityFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", key, err)
	}
	return text, nil
}

// maps lists the mappings with their places.
func (c *IdentityConfig) maps() map[string]*ClaimMapConfig {
	all := make(map[string]*ClaimMapConfig)
	for i := range c.JWT {
		all[fmt.Sprintf("identity.jwt[%d].map", i)] = &c.JWT[i].Map
	}
	for i := range c.MTLS.Rules {
		all[fmt.Sprintf("identity.mtls.rules[%d].map", i)] = &c.MTLS.Rules[i].Map
	}
	for i := range c.Proxies {
		all[fmt.Sprintf("identity.proxies[%d].map", i)] = &c.Proxies[i].Map
	}
	return all
}

// mappings warns of those that give a tenant whatever the claims are, and one that there is not.
func (c *checker) mappings(cfg *Config, docs *documents) {
	all := cfg.Identity.maps()
	for _, at := range slices.Sorted(maps.Keys(all)) {
		m, err := policy.CompileClaimMap(policy.ClaimMapSource{Tenant: all[at].Tenant})
		if err != nil {
			continue // it was reported
		}
		out, err := m.Eval(context.Background(), &policy.ClaimInput{})
		if err == nil && docs.directory.Tenant(out.Tenant) == nil {
			c.warn(Issue{File: c.config, Path: at + ".tenant", Text: fmt.Sprintf("gives the tenant %q, which %s does not have: such callers are refused", clip(out.Tenant), cfg.Tenants.File)})
		}
	}
}
