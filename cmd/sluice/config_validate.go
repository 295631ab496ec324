package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/tenancy/chargeback"
	"github.com/sluicegate/sluice/tenancy/plainfile"
)

// validator checks a decoded configuration as a whole. Every check goes on after a failure, so that one
// run lists everything.
type validator struct {
	cfg       *Config
	file      string
	positions map[string]filePosition
	errors    []Issue
	warnings  []Issue
	running   bool // lists of workers are followed by themselves
}

var (
	// labelPattern is what policies may name: pools, classes, labels.
	labelPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	// workerPattern is what appears in metrics, the ledger and x-sluice-worker.
	workerPattern    = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)
	headerPattern    = regexp.MustCompile(`^[a-z0-9!#$%&'*+.^_|~-]{1,64}$`)
	principalPattern = regexp.MustCompile(`^(key|jwt|mtls):.+$`)
	claimPattern     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)
	// claimTypePattern is a type that policies know for claims: a scalar or a list of one.
	claimTypePattern = regexp.MustCompile(`^(?:bool|int|double|string|list\((?:bool|int|double|string)\))$`)
)

const (
	maxModelName     = 256 // characters of request.model in policies
	maxPolicyHeaders = 32  // headers that policies may read
	maxTenantSeries  = 1000
)

func (v *validator) validate() {
	v.listen()
	v.limits()
	v.cors()
	v.identity()
	v.policy()
	v.cacheIsolation()
	v.labels()
	v.decisionLog()
	v.reload()
	v.models()
	v.pools()
	v.pacing()
	v.tokens()
	v.store()
	v.qos()
	v.observability()
	v.chargeback()
	v.files()
}

// errorf records an error at path, or at the nearest enclosing value that is in the file.
func (v *validator) errorf(path, format string, args ...any) {
	v.errors = append(v.errors, v.issue(path, format, args...))
}

func (v *validator) warnf(path, format string, args ...any) {
	v.warnings = append(v.warnings, v.issue(path, format, args...))
}

func (v *validator) issue(path, format string, args ...any) Issue {
	is := Issue{File: v.file, Path: path, Text: fmt.Sprintf(format, args...)}
	for at := path; at != ""; at = at[:max(0, strings.LastIndexAny(at, ".["))] {
		if p, ok := v.positions[at]; ok {
			is.Line, is.Column = p.line, p.column
			break
		}
	}
	return is
}

// oneOf records an error unless value is one of allowed.
func (v *validator) oneOf(path, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		v.errorf(path, "%q is not known, should be one of %s", clip(value), strings.Join(allowed, ", "))
	}
}

// matching records an error unless value matches pattern, which should describes.
func (v *validator) matching(path, value string, pattern *regexp.Regexp, should string) {
	if value == "" {
		v.errorf(path, "is missing, should be %s", should)
	} else if !pattern.MatchString(value) {
		v.errorf(path, "%q is not allowed, should be %s", clip(value), should)
	}
}

func (v *validator) listen() {
	l := &v.cfg.Listen
	public := v.address("listen.public.address", l.Public.Address)
	admin := v.address("listen.admin.address", l.Admin.Address)
	if public && admin && l.Public.Address == l.Admin.Address && !strings.HasSuffix(l.Public.Address, ":0") {
		v.errorf("listen.admin.address", "is the public address too; the two listeners need an address each")
	}
	if admin {
		v.admin()
	}
	if public && !l.Public.TLS.Enabled() && !isLoopback(l.Public.Address) {
		v.warnf("listen.public.address", "%q can be reached from other machines without TLS: API keys cross the network in clear text", l.Public.Address)
	}
	v.tls("listen.public.tls", l.Public.TLS)
	for i, p := range v.cfg.TrustedProxies {
		if _, err := parseNetwork(p); err != nil {
			v.errorf(fmt.Sprintf("trustedProxies[%d]", i), "%q is no address or network, should be as in 10.0.0.7 or 10.0.0.0/8", clip(p))
		}
	}
}

func (v *validator) tls(path string, t TLSConfig) {
	v.oneOf(path+".minVersion", t.MinVersion, "1.2", "1.3")
	switch {
	case t.CertFile == "" && t.KeyFile == "":
		return
	case t.CertFile == "":
		v.errorf(path+".certFile", "is missing while keyFile is given; TLS needs both")
		return
	case t.KeyFile == "":
		v.errorf(path+".keyFile", "is missing while certFile is given; TLS needs both")
		return
	}
	pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		if !isMissing(err) { // files() reports those
			v.errorf(path, "cannot use the certificate and its key: %v", err)
		}
		return
	}
	if leaf, err := x509.ParseCertificate(pair.Certificate[0]); err == nil {
		if fault := outOfTime(leaf, time.Now()); fault != "" {
			v.warnf(path+".certFile", "the certificate %s", fault)
		}
	}
}

// address records an error unless value is a host and a port to listen on.
func (v *validator) address(path, value string) bool {
	_, port, err := net.SplitHostPort(value)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		v.errorf(path, "%q is no address to listen on, should be host:port as in 127.0.0.1:8080", clip(value))
	}
	return err == nil
}

// isLoopback reports whether only this machine can reach a listener on address.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// parseNetwork reads an address or a network in prefix notation.
func parseNetwork(text string) (netip.Prefix, error) {
	if ip, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(ip.Unmap(), ip.Unmap().BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err == nil && p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96) // as the addresses are that are compared with it
	}
	return p.Masked(), err
}

func (v *validator) limits() {
	v.responses()
	l := &v.cfg.Limits
	for _, s := range []struct {
		key         string
		value       ByteSize
		least, most ByteSize
	}{
		{"bodyBytes", l.BodyBytes, KiB, GiB},
		{"headerBytes", l.HeaderBytes, 4 * KiB, MiB},
		{"responseBytes", l.ResponseBytes, KiB, 4 * GiB},
		{"eventBytes", l.EventBytes, KiB, GiB},
	} {
		if s.value < s.least || s.value > s.most {
			v.errorf("limits."+s.key, "is %s, should be between %s and %s", s.value, s.least, s.most)
		}
	}
	for _, d := range []struct {
		key   string
		value time.Duration
	}{
		{"headerRead", l.HeaderRead},
		{"bodyRead", l.BodyRead},
		{"bodyIdle", l.BodyIdle},
		{"connectTimeout", l.ConnectTimeout},
		{"firstByteStream", l.FirstByteStream},
		{"firstByteUnary", l.FirstByteUnary},
		{"streamIdle", l.StreamIdle},
		{"clientWrite", l.ClientWrite},
		{"idleConnection", l.IdleConnection},
	} {
		v.duration("limits."+d.key, d.value, time.Millisecond, 24*time.Hour)
	}
	if l.KeepAliveComment != 0 {
		v.duration("limits.keepAliveComment", l.KeepAliveComment, time.Second, time.Hour)
	}
	v.memory()
	v.count("limits.retries", int64(l.Retries), 0, 10)
	v.connections()
	if !(l.RetryShare >= 0 && l.RetryShare <= 1) {
		v.errorf("limits.retryShare", "is %v, should be between 0 and 1", l.RetryShare)
	}
}

func (v *validator) duration(path string, value, least, most time.Duration) {
	if value < least || value > most {
		v.errorf(path, "is %s, should be between %s and %s", value, least, most)
	}
}

func (v *validator) count(path string, value, least, most int64) {
	if value < least || value > most {
		v.errorf(path, "is %d, should be between %d and %d", value, least, most)
	}
}

func (v *validator) policy() {
	p := &v.cfg.Policy
	if p.Dir == "" {
		v.errorf("policy.dir", "is missing, should be the folder of the policies")
	}
	if len(p.Headers) > maxPolicyHeaders {
		v.errorf("policy.headers", "has %d entries, should have at most %d", len(p.Headers), maxPolicyHeaders)
	}
	for i, h := range p.Headers {
		v.policyHeader(fmt.Sprintf("policy.headers[%d]", i), h)
	}
	v.unique("policy.headers", p.Headers)
	for i, id := range p.LabelPrincipals {
		v.matching(fmt.Sprintf("policy.labelPrincipals[%d]", i), id, principalPattern, "a principal's id as in key:KEY-ID")
	}
	if len(p.Classes) == 0 {
		v.errorf("policy.classes", "is empty, should list the QoS classes, most urgent first")
	}
	for i, c := range p.Classes {
		v.matching(fmt.Sprintf("policy.classes[%d]", i), c, labelPattern, "lower-case letters, digits and dashes, at most 63")
	}
	v.unique("policy.classes", p.Classes)
	if len(p.Classes) > 0 && !slices.Contains(p.Classes, p.DefaultClass) {
		v.errorf("policy.defaultClass", "%q is not in policy.classes (%s)", clip(p.DefaultClass), strings.Join(p.Classes, ", "))
	}
	v.count("policy.defaultMaxTokens", p.DefaultMaxTokens, 1, 1<<31-1)
	for name, typ := range p.Claims {
		at := "policy.claims." + name
		v.matching(at, name, claimPattern, "letters, digits and underscores, so that policies can write principal.claims.NAME")
		v.matching(at, typ, claimTypePattern, "string, int, double, bool, or a list of one of them such as list(string)")
	}
}

// policyHeader refuses headers that never reach policies: credentials, and what is stripped on the way
// in because a client could forge it.
func (v *validator) policyHeader(path, name string) {
	v.matching(path, name, headerPattern, "a header name in lower case")
	switch name {
	case "authorization", "x-api-key", "api-key", "cookie", "proxy-authorization":
		v.errorf(path, "%q carries credentials, which policies never see", name)
	case "forwarded", "x-real-ip":
		v.errorf(path, "%q is removed from every request, as clients can forge it; policies have request.source_ip", name)
	}
	for _, prefix := range []string{"x-sluice-", "x-tenant", "x-user", "x-forwarded-"} {
		if strings.HasPrefix(strings.ReplaceAll(name, "_", "-"), prefix) {
			v.errorf(path, "%q is removed from every request, as clients can forge it", name)
		}
	}
}

// unique records an error at each value of a list that was there before.
func (v *validator) unique(path string, values []string) {
	for i, value := range values {
		if first := slices.Index(values, value); first < i {
			v.errorf(fmt.Sprintf("%s[%d]", path, i), "%q is listed twice, first as %s[%d]", clip(value), path, first)
		}
	}
}

func (v *validator) cacheIsolation() {
	c := &v.cfg.CacheIsolation
	v.oneOf("cacheIsolation.default", c.Default, "none", "tenant", "principal")
	if c.KeyFile == "" {
		if c.Default == "tenant" || c.Default == "principal" {
			v.errorf("cacheIsolation.keyFile", "is missing, should be a file of %d random bytes or more, as cacheIsolation.default is %q; for example: openssl rand -out cache.key 32",
				minKeyBytes, clip(c.Default))
		}
		return
	}
	if _, err := readKey(c.KeyFile); err != nil && !isMissing(err) {
		v.errorf("cacheIsolation.keyFile", "%v", err)
	}
}

func (v *validator) pacing() {
	h := &v.cfg.Health
	v.duration("health.interval", h.Interval, 10*time.Millisecond, time.Hour)
	v.duration("health.timeout", h.Timeout, 10*time.Millisecond, time.Hour)
	v.duration("health.metricsInterval", h.MetricsInterval, 10*time.Millisecond, time.Hour)
	v.count("health.unhealthyAfter", int64(h.UnhealthyAfter), 1, 1000)
	v.count("health.healthyAfter", int64(h.HealthyAfter), 1, 1000)
	v.duration("health.modelsInterval", h.ModelsInterval, 10*time.Millisecond, time.Hour)
	v.count("health.ejectAfter", int64(h.EjectAfter), 1, 1000)
	v.duration("health.ejectBase", h.EjectBase, 10*time.Millisecond, time.Hour)
	v.duration("health.ejectMax", h.EjectMax, h.EjectBase, 24*time.Hour)
	v.duration("health.slowStart", h.SlowStart, 0, time.Hour)
	v.duration("health.drainTimeout", h.DrainTimeout, time.Second, 24*time.Hour)
	if _, err := scoring.ParseStrategy(v.cfg.Scoring.Strategy); err != nil {
		v.errorf("scoring.strategy", "%v", err)
	}
	fleet := v.cfg.Scoring.fleet(0)
	if err := fleet.Validate(); err != nil {
		v.scoring(err)
	}
	d := &v.cfg.Drain
	v.duration("drain.delay", d.Delay, 0, 24*time.Hour)
	v.duration("drain.deadline", d.Deadline, 0, 24*time.Hour)
	if d.Deadline < d.Delay {
		v.errorf("drain.deadline", "is %s, should not be before drain.delay (%s): both count from the signal", d.Deadline, d.Delay)
	}
}

// tokens checks the bounds of tokenisation.
func (v *validator) tokens() {
	c := &v.cfg.Tokens
	v.count("tokens.sampleEvery", int64(c.SampleEvery), 0, 1<<30)
	v.duration("tokens.remoteTimeout", c.RemoteTimeout, 10*time.Millisecond, time.Minute)
	v.count("tokens.remoteParallel", int64(c.RemoteParallel), 1, 1024)
	v.count("tokens.parallel", int64(c.Parallel), 0, 1024)
	v.count("tokens.cacheBytes", int64(c.CacheBytes), int64(MiB), int64(64*GiB))
}

// scoring reports an error of scoring.Config.Validate, which begins with the field's Go name, at the key
// of that field.
func (v *validator) scoring(err error) {
	text := strings.TrimPrefix(err.Error(), "scoring: ")
	field, rest, _ := strings.Cut(text, " ")
	names := strings.Split(field, ".")
	for i, name := range names {
		first := min(1, len(name))
		names[i] = strings.ToLower(name[:first]) + name[first:]
	}
	v.errorf("scoring."+strings.Join(names, "."), "%s", rest)
}

func (v *validator) observability() {
	m := &v.cfg.Metrics
	if len(m.Tenants) > maxTenantSeries {
		v.errorf("metrics.tenants", "has %d entries, should have at most %d", len(m.Tenants), maxTenantSeries)
	}
	v.unique("metrics.tenants", m.Tenants)
	for i, tenant := range m.Tenants {
		if !chargeback.FitsLabel(tenant) {
			v.errorf(fmt.Sprintf("metrics.tenants[%d]", i), "%q can't be a label's value, should be a tenant's id of at most 128 printable characters, and not `other`", clip(tenant))
		}
	}
	v.count("metrics.topTenants", int64(m.TopTenants), 0, maxTenantSeries)
	v.count("metrics.maxSeries", int64(m.MaxSeries), 100, 10_000_000)
	v.oneOf("log.level", v.cfg.Log.Level, "debug", "info", "warn", "error")
	v.oneOf("log.format", v.cfg.Log.Format, "json", "text")
}

// files checks that everything the configuration names exists and can be read.
func (v *validator) files() {
	if v.cfg.Tenants.File == "" {
		v.errorf("tenants.file", "is missing, should be the file of tenants and their API keys")
	}
	for _, p := range v.cfg.paths() {
		if *p.value != "" && !(v.running && strings.HasSuffix(p.key, ".workersFrom.file")) {
			v.readable(p)
		}
	}
	v.keys()
	v.ledger()
	secrets := []configPath{{"listen.admin.tokenFile", &v.cfg.Listen.Admin.TokenFile, false}}
	for i := range v.cfg.Pools {
		secrets = append(secrets, configPath{fmt.Sprintf("pools[%d].apiKeyFile", i), &v.cfg.Pools[i].APIKeyFile, false})
	}
	for i := range v.cfg.Labels.External {
		secrets = append(secrets, configPath{fmt.Sprintf("labels.external[%d].apiKeyFile", i), &v.cfg.Labels.External[i].APIKeyFile, false})
	}
	for _, s := range secrets {
		if *s.value == "" {
			continue
		}
		if _, err := readSecretText(*s.value); err != nil && !isMissing(err) {
			v.errorf(s.key, "cannot use %s: %v", *s.value, err)
		}
	}
}

// isMissing reports whether an error is that of a file that can't be opened or read, which files reports.
func isMissing(err error) bool {
	_, ok := errors.AsType[*fs.PathError](err)
	return ok
}

// secret reports whether the file that a key names holds nothing but a secret. What is given for such a key
// may be the secret itself, by mistake, so no error shows it unless it is the name of a file.
func (p configPath) secret() bool {
	for _, end := range []string{"okenFile", "eyFile", "postgresFile", "asswordFile"} {
		if strings.HasSuffix(p.key, end) {
			return true
		}
	}
	return false
}

// readable records an error unless p can be opened and is of its kind.
func (v *validator) readable(p configPath) {
	f, err := plainfile.Open(*p.value)
	if err != nil {
		what := "file"
		if p.isDir {
			what = "folder"
		}
		exists := errors.Is(err, plainfile.ErrIrregular) || errors.Is(err, fs.ErrPermission)
		if pe, ok := errors.AsType[*fs.PathError](err); ok && p.secret() && !exists {
			v.errorf(p.key, "cannot read the file: %v; should be the name of a file that holds the secret, not the secret", pe.Err)
			return
		}
		v.errorf(p.key, "cannot read the %s: %v", what, err)
		return
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		v.errorf(p.key, "cannot read %s: %v", *p.value, err)
	case p.isDir && !st.IsDir():
		v.errorf(p.key, "%s is a file, should be a folder", *p.value)
	case !p.isDir && st.IsDir():
		v.errorf(p.key, "%s is a folder, should be a file", *p.value)
	}
}

// workerURL records an error unless value is the root of an HTTP server.
func (v *validator) workerURL(path, value string) {
	const should = "should be the root of the worker as in http://10.0.0.5:8000"
	if value == "" {
		v.errorf(path, "is missing, %s", should)
		return
	}
	u, err := url.Parse(value)
	switch {
	case err != nil:
		v.errorf(path, "is no URL, %s", should)
	case u.User != nil:
		v.errorf(path, "holds a user name or password; a worker's key belongs in the pool's apiKeyFile")
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		v.errorf(path, "%q is not the URL of an HTTP server, %s", clip(value), should)
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		v.errorf(path, "%q has more than scheme, host and port, %s", clip(value), should)
	}
}

// zmqEndpoint records an error unless value is an endpoint to connect to.
func (v *validator) zmqEndpoint(path, value, should string) {
	host, port, err := net.SplitHostPort(strings.TrimPrefix(value, "tcp://"))
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil || host == "" || !strings.HasPrefix(value, "tcp://") {
		v.errorf(path, "%q is not allowed, should be %s", clip(value), should)
	} else if host == "*" {
		v.errorf(path, "%q is what the worker listens on; give the worker's address in place of *", clip(value))
	}
}
