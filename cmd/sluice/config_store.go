package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/sluicegate/sluice/ratelimit/redis"
	"github.com/sluicegate/sluice/tenancy/plainfile"
)

// StoreConfig says where replicas keep what they share, beside the ledger.
type StoreConfig struct {
	Redis RedisConfig `yaml:"redis"`
	// LocalFraction is the part of a limit that says Local which this process grants by itself while
	// the limit's counter can't be had.
	LocalFraction float64 `yaml:"localFraction"`
}

// RedisConfig is the Redis that keeps the counters of limits. Without addresses each process keeps its
// own.
type RedisConfig struct {
	Addresses            []string       `yaml:"addresses"` // host:port or a socket's path; of the sentinels where there are some
	Sentinel             string         `yaml:"sentinel"`  // the name of the master that the sentinels watch
	TLS                  RedisTLSConfig `yaml:"tls"`
	Username             string         `yaml:"username"`
	PasswordFile         string         `yaml:"passwordFile"` // read at each connection
	SentinelUsername     string         `yaml:"sentinelUsername"`
	SentinelPasswordFile string         `yaml:"sentinelPasswordFile"`
	Prefix               string         `yaml:"prefix"`     // begins all keys
	Replica              string         `yaml:"replica"`    // this gateway's name in the store; default: the host's
	Timeout              time.Duration  `yaml:"timeout"`    // how long a request waits for an answer
	LeaseShare           float64        `yaml:"leaseShare"` // the part of a limit that all replicas together may have leased
}

// RedisTLSConfig turns on TLS to the store.
type RedisTLSConfig struct {
	Enabled    bool   `yaml:"enabled"`
	CAFile     string `yaml:"caFile"`     // PEM; default: the system's
	CertFile   string `yaml:"certFile"`   // PEM, of a client's certificate
	KeyFile    string `yaml:"keyFile"`    // PEM
	ServerName string `yaml:"serverName"` // in the store's certificate; default: the host of the address
}

func defaultStore() StoreConfig {
	c := redis.DefaultConfig()
	return StoreConfig{LocalFraction: 0.5, Redis: RedisConfig{Prefix: c.Prefix, Timeout: c.Timeout, LeaseShare: c.LeaseShare}}
}

// Enabled reports whether limits are shared.
func (c *RedisConfig) Enabled() bool { return len(c.Addresses) > 0 }

// paths are the files that must exist before the gateway starts.
func (c *RedisConfig) paths() []configPath {
	return []configPath{
		{"store.redis.passwordFile", &c.PasswordFile, false},
		{"store.redis.sentinelPasswordFile", &c.SentinelPasswordFile, false},
		{"store.redis.tls.caFile", &c.TLS.CAFile, false},
		{"store.redis.tls.certFile", &c.TLS.CertFile, false},
		{"store.redis.tls.keyFile", &c.TLS.KeyFile, false},
	}
}

// redisPattern is what may stand in keys of the store.
var redisPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

func (v *validator) store() {
	if f := v.cfg.Store.LocalFraction; !(f > 0 && f <= 1) {
		v.errorf("store.localFraction", "%v is not allowed, should be above 0 and at most 1", f)
	}
	c := &v.cfg.Store.Redis
	const at = "store.redis."
	if !c.Enabled() {
		if c.Sentinel != "" || c.PasswordFile != "" || c.TLS.Enabled || c.Replica != "" || c.Username != "" {
			v.errorf(at+"addresses", "is missing: without it limits are not shared and the other keys of store.redis mean nothing")
		}
		return
	}
	for i, a := range c.Addresses {
		if !strings.HasPrefix(a, "/") {
			if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" {
				v.errorf(fmt.Sprintf(at+"addresses[%d]", i), "%s should be host:port, or the path of a unix socket", shownAddress(a))
			}
		}
	}
	v.matching(at+"prefix", c.Prefix, redisPattern, "letters, digits, dots, dashes and underscores")
	if c.Replica != "" {
		v.matching(at+"replica", c.Replica, redisPattern, "letters, digits, dots, dashes and underscores")
	}
	if c.Timeout < time.Millisecond || c.Timeout > time.Second {
		v.errorf(at+"timeout", "%s is not allowed, should be 1ms to 1s", c.Timeout)
	}
	if !(c.LeaseShare > 0 && c.LeaseShare <= 1) {
		v.errorf(at+"leaseShare", "%v is not allowed, should be above 0 and at most 1", c.LeaseShare)
	}
	v.redisCredentials()
	v.redisTLS()
}

// shownAddress is an address as errors show it: not at all where it may be a URL with a password.
func shownAddress(a string) string {
	if strings.ContainsAny(a, "@/") {
		return "what looks like a URL, of which nothing is shown since it may hold a password,"
	}
	return strconv.Quote(clip(a))
}

// redisCredentials checks that passwords can be read, and have a user's name only beside them.
func (v *validator) redisCredentials() {
	c := &v.cfg.Store.Redis
	for _, k := range [...]struct{ user, key, name, file string }{
		{"store.redis.username", "store.redis.passwordFile", c.Username, c.PasswordFile},
		{"store.redis.sentinelUsername", "store.redis.sentinelPasswordFile", c.SentinelUsername, c.SentinelPasswordFile},
	} {
		if k.file == "" {
			if k.name != "" {
				v.errorf(k.user, "is given without %s", k.key)
			}
			continue
		}
		if _, err := readSecretText(k.file); err != nil && !isMissing(err) {
			v.errorf(k.key, "cannot use %s: %v", k.file, err)
		}
	}
	if c.Sentinel == "" && (c.SentinelUsername != "" || c.SentinelPasswordFile != "") {
		v.errorf("store.redis.sentinel", "is missing while a user or password for sentinels is given; it should be the name of the master")
	}
}

func (v *validator) redisTLS() {
	t := &v.cfg.Store.Redis.TLS
	if !t.Enabled {
		if *t != (RedisTLSConfig{}) {
			v.errorf("store.redis.tls.enabled", "is false, so that the other keys of store.redis.tls mean nothing; set it to true or remove them")
		}
		return
	}
	if _, err := t.config(); err != nil && !isMissing(err) {
		v.errorf("store.redis.tls", "%v", err)
	}
}

// config reads the certificates.
func (t *RedisTLSConfig) config() (*tls.Config, error) {
	if !t.Enabled {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile != "" {
		pem, err := plainfile.Read(t.CAFile, maxSecretBytes)
		if err != nil {
			return nil, fmt.Errorf("cannot read caFile: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("caFile holds no certificate in PEM")
		}
	}
	switch {
	case t.CertFile == "" && t.KeyFile == "":
		return c, nil
	case t.CertFile == "" || t.KeyFile == "":
		return nil, errors.New("certFile and keyFile need each other")
	}
	pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("cannot use certFile and keyFile: %w", err)
	}
	c.Certificates = []tls.Certificate{pair}
	return c, nil
}

// limiter is what package redis is to be set up with.
func (c *RedisConfig) limiter() (redis.Config, error) {
	rc := redis.DefaultConfig()
	rc.Addresses, rc.Sentinel, rc.Prefix, rc.Timeout, rc.LeaseShare = c.Addresses, c.Sentinel, c.Prefix, c.Timeout, c.LeaseShare
	rc.Username, rc.Password = c.Username, secretReader(c.PasswordFile)
	rc.SentinelUsername, rc.SentinelPassword = c.SentinelUsername, secretReader(c.SentinelPasswordFile)
	rc.Replica = c.Replica
	if rc.Replica == "" {
		host, err := os.Hostname()
		if err != nil || !redisPattern.MatchString(host) {
			host = "gateway"
		}
		rc.Replica = host
	}
	var err error
	if rc.TLS, err = c.TLS.config(); err != nil {
		return rc, fmt.Errorf("cannot set up store.redis.tls: %w", err)
	}
	return rc, nil
}

// secretReader reads a secret anew whenever it is asked for; nil without a file.
func secretReader(file string) func() (string, error) {
	if file == "" {
		return nil
	}
	return func() (string, error) { return readSecretText(file) }
}
