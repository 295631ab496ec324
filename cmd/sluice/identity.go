package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/tenancy/authn"
	"github.com/sluicegate/sluice/tenancy/authn/mtls"
	"github.com/sluicegate/sluice/tenancy/authn/oidc"
	"github.com/sluicegate/sluice/tenancy/authn/proxyid"
)

// By these the gateway refuses early, and notices who is taken back while a request comes or waits.
var (
	_ gateway.Refuser = (*authn.Chain)(nil)
	_ gateway.Changer = (*authn.Chain)(nil)
)

// identity is by what callers are known in one generation.
type identity struct {
	identifier gateway.Identifier
	// connection says that callers may be known without a bearer credential.
	connection bool
	tokens     *oidc.Tokens // nil without issuers
	uses       map[keySource]bool

	// authorities vouch for clients; nil where no certificate is asked for.
	authorities *mtls.Authorities
	required    bool
	tlsOnce     sync.Once
	tls         *tls.Config
}

// clientTLS is base, which is the listener's own, with the request for a client certificate. Sessions are
// not resumed then: a resumed one would bring a certificate that was verified by other authorities.
func (id *identity) clientTLS(base *tls.Config) *tls.Config {
	if id.authorities == nil {
		return nil
	}
	id.tlsOnce.Do(func() {
		id.tls = base.Clone()
		id.tls.GetConfigForClient = nil
		id.tls.ClientCAs, id.tls.ClientAuth, id.tls.SessionTicketsDisabled = id.authorities.Pool, tls.VerifyClientCertIfGiven, true
		if id.required {
			id.tls.ClientAuth = tls.RequireAndVerifyClientCert
		}
	})
	return id.tls
}

// identities outlive generations: the keys of issuers, which must not be fetched anew at every reload, and
// what is counted.
type identities struct {
	log     *slog.Logger
	ignored atomic.Uint64 // headers of proxies that are none

	mu   sync.Mutex
	sets map[keySource]*followedKeys
	ctx  context.Context // of Run; nil while it does not run
	ends sync.WaitGroup
}

// keySource is where keys come from.
type keySource struct {
	issuer, url string
	file        string // that keeps them over a restart, or empty
	ca          [sha256.Size]byte
}

// followedKeys are the keys of one issuer.
type followedKeys struct {
	set  *oidc.KeySet
	stop context.CancelFunc // nil while nothing runs
}

func newIdentities(log *slog.Logger) *identities {
	return &identities{log: log, sets: make(map[keySource]*followedKeys)}
}

// Run fetches the keys of all issuers that generations use, until ctx ends.
func (ids *identities) Run(ctx context.Context) error {
	ids.mu.Lock()
	ids.ctx = ctx
	for _, f := range ids.sets {
		ids.start(f)
	}
	ids.mu.Unlock()
	<-ctx.Done()
	ids.mu.Lock()
	ids.ctx = nil
	ids.mu.Unlock()
	ids.ends.Wait()
	return nil
}

// start runs what follows an issuer's keys, if Run runs. Its caller holds mu.
func (ids *identities) start(f *followedKeys) {
	if ids.ctx == nil {
		return
	}
	ctx, stop := context.WithCancel(ids.ctx)
	f.stop = stop
	ids.ends.Go(func() {
		if err := f.set.Run(ctx); err != nil {
			ids.log.Error("an issuer's keys are not followed any more", "error", err)
		}
	})
}

// keys returns the keys of an issuer, and follows them from now on.
func (ids *identities) keys(from keySource, ca []byte) (*oidc.KeySet, error) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	if f := ids.sets[from]; f != nil {
		return f.set, nil
	}
	client, err := oidc.NewClient(ca)
	if err != nil {
		return nil, err
	}
	log := ids.log.With("issuer", from.issuer)
	set := oidc.NewKeySet(oidc.NewRemote(from.issuer, from.url, client).Fetch, oidc.DefaultTiming(), log)
	if kept := from.keep(log); kept != nil {
		if err := set.Keep(kept.load(), kept.store); err != nil {
			log.Warn("cannot use the issuer's keys that were kept; they are fetched", "file", from.file, "error", err)
		}
	}
	f := &followedKeys{set: set}
	ids.sets[from] = f
	ids.start(f)
	return set, nil
}

// keep ends the following of all keys but those that are used.
func (ids *identities) keep(uses map[keySource]bool) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	for from, f := range ids.sets {
		if uses[from] {
			continue
		}
		if f.stop != nil {
			f.stop()
		}
		delete(ids.sets, from)
	}
}

// issuerKeys is the state of one issuer's keys.
type issuerKeys struct {
	issuer string
	oidc.KeySetStats
}

// stats tells how the keys are that are followed.
func (ids *identities) stats() (all []issuerKeys) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	for from, f := range ids.sets {
		all = append(all, issuerKeys{from.issuer, f.set.Stats()})
	}
	return all
}

// failing reports whether the keys of some issuer can't be fetched.
func (ids *identities) failing() bool {
	for _, s := range ids.stats() {
		if s.Failing {
			return true
		}
	}
	return false
}

// build makes what a generation knows callers by: the keys in force, and the tenants that it has loaded.
func (ids *identities) build(cfg *Config, keys *authn.Live, tenants *authn.Directory) (*identity, error) {
	c := &cfg.Identity
	read := slices.Sorted(maps.Keys(cfg.Policy.Claims))
	if cfg.Labels.Claim != "" {
		read = append(read, cfg.Labels.Claim)
	}
	mapper := authn.NewMappers(tenants, read)
	id := &identity{uses: make(map[keySource]bool), required: c.MTLS.ClientAuth == "required"}
	chain := &authn.Chain{Keys: keys.View(tenants), Standing: keys}
	var err error
	if len(c.JWT) > 0 {
		if id.tokens, err = ids.tokens(c, id, mapper); err != nil {
			return nil, err
		}
		chain.Tokens = id.tokens
	}
	if c.MTLS.CAFile != "" {
		certificates, err := clientCertificates(&c.MTLS, id, mapper)
		if err != nil {
			return nil, err
		}
		chain.Certificates = certificates
	}
	if len(c.Proxies) > 0 {
		if chain.Proxies, err = ids.proxies(c, id, mapper); err != nil {
			return nil, err
		}
	}
	id.identifier, id.connection = chain, chain.Certificates != nil || chain.Proxies != nil
	return id, nil
}

// granter compiles a mapping.
func granter(c *ClaimMapConfig) (authn.GrantFunc, error) {
	m, err := policy.CompileClaimMap(c.source())
	if err != nil {
		return nil, fmt.Errorf("cannot compile the mapping of claims: %w", err)
	}
	return func(ctx context.Context, v *authn.Verified) (authn.Grant, error) {
		out, err := m.Eval(ctx, &policy.ClaimInput{Kind: v.Kind, Issuer: v.Issuer, Subject: v.Subject, SPIFFEID: v.SPIFFEID, Claims: v.Claims})
		return authn.Grant{Tenant: out.Tenant, Team: out.Team, Labels: out.Labels, Groups: out.Groups, Scopes: out.Scopes}, err
	}, nil
}

// tokens makes what knows the bearers of tokens.
func (ids *identities) tokens(c *IdentityConfig, id *identity, mapper func(authn.GrantFunc) authn.Mapper) (*oidc.Tokens, error) {
	var issuers []oidc.Issuer
	mappers := make(map[string]authn.Mapper, len(c.JWT))
	for i := range c.JWT {
		is := &c.JWT[i]
		keys, err := ids.issuerKeys(fmt.Sprintf("identity.jwt[%d]", i), is, id)
		if err != nil {
			return nil, err
		}
		grant, err := granter(&is.Map)
		if err != nil {
			return nil, err
		}
		mappers[is.Issuer] = mapper(grant)
		issuers = append(issuers, oidc.Issuer{
			Name: is.Issuer, Audiences: is.Audiences, Algorithms: is.Algorithms, Skew: is.Skew, MaxLife: is.MaxLifetime, Keys: keys,
		})
	}
	verifier, err := oidc.NewVerifier(issuers)
	if err != nil {
		return nil, fmt.Errorf("cannot use identity.jwt: %w", err)
	}
	return oidc.NewTokens(verifier, mappers), nil
}

func (ids *identities) issuerKeys(at string, c *IssuerConfig, id *identity) (*oidc.KeySet, error) {
	if c.JWKSFile != "" {
		return fixedKeys(at+".jwksFile", c.JWKSFile)
	}
	var ca []byte
	from := keySource{issuer: c.Issuer, url: c.JWKSURL, file: c.CacheFile}
	if c.CAFile != "" {
		var err error
		if ca, err = identityFile(at+".caFile", c.CAFile); err != nil {
			return nil, err
		}
		from.ca = sha256.Sum256(ca)
	}
	id.uses[from] = true
	set, err := ids.keys(from, ca)
	if err != nil {
		return nil, fmt.Errorf("cannot use %s.caFile: %w", at, err)
	}
	return set, nil
}

func fixedKeys(key, file string) (*oidc.KeySet, error) {
	text, err := identityFile(key, file)
	if err != nil {
		return nil, err
	}
	set, err := oidc.FixedKeys(text)
	if err != nil {
		return nil, fmt.Errorf("cannot use %s: %w", key, err)
	}
	return set, nil
}

// clientCertificates makes what knows the owners of client certificates.
func clientCertificates(c *MTLSConfig, id *identity, mapper func(authn.GrantFunc) authn.Mapper) (*mtls.Certificates, error) {
	text, err := identityFile("identity.mtls.caFile", c.CAFile)
	if err != nil {
		return nil, err
	}
	if id.authorities, err = mtls.ParseAuthorities(text); err != nil {
		return nil, fmt.Errorf("cannot use identity.mtls.caFile: %w", err)
	}
	var rules []mtls.Rule
	for i := range c.Rules {
		m, err := mtls.NewMatcher(c.Rules[i].match())
		if err != nil {
			return nil, fmt.Errorf("cannot use identity.mtls.rules[%d]: %w", i, err)
		}
		grant, err := granter(&c.Rules[i].Map)
		if err != nil {
			return nil, err
		}
		rules = append(rules, mtls.Rule{Matcher: m, Mapper: mapper(grant)})
	}
	return mtls.New(id.authorities, rules, c.Unmatched == "ignore"), nil
}

// proxies makes what knows callers by the word of proxies.
func (ids *identities) proxies(c *IdentityConfig, id *identity, mapper func(authn.GrantFunc) authn.Mapper) (*proxyid.Proxies, error) {
	var all []proxyid.Proxy
	for i := range c.Proxies {
		p, err := proxy(fmt.Sprintf("identity.proxies[%d]", i), &c.Proxies[i], id)
		if err != nil {
			return nil, err
		}
		grant, err := granter(&c.Proxies[i].Map)
		if err != nil {
			return nil, err
		}
		p.Mapper = mapper(grant)
		all = append(all, p)
	}
	out, err := proxyid.New(all, &ids.ignored)
	if err != nil {
		return nil, fmt.Errorf("cannot use identity.proxies: %w", err)
	}
	return out, nil
}

func proxy(at string, c *ProxyConfig, id *identity) (proxyid.Proxy, error) {
	p := proxyid.Proxy{Issuer: c.Issuer, Authorities: id.authorities}
	for _, text := range c.Networks {
		n, err := parseNetwork(text)
		if err != nil {
			return p, fmt.Errorf("cannot read %s.networks: %w", at, err)
		}
		p.Networks = append(p.Networks, n)
	}
	var err error
	if m := c.match(); m != (mtls.Match{}) {
		if p.Certificate, err = mtls.NewMatcher(m); err != nil {
			return p, fmt.Errorf("cannot use %s: %w", at, err)
		}
	}
	if c.JWKSFile == "" {
		return p, nil
	}
	keys, err := fixedKeys(at+".jwksFile", c.JWKSFile)
	if err != nil {
		return p, err
	}
	p.Verifier, err = oidc.NewVerifier([]oidc.Issuer{{
		Name: c.Issuer, Audiences: []string{c.Audience}, Algorithms: c.Algorithms, Skew: c.Skew, MaxLife: c.MaxAge, Keys: keys,
	}})
	if err != nil {
		return p, fmt.Errorf("cannot use %s: %w", at, err)
	}
	return p, nil
}
