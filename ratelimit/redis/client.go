package redis

import (
	"context"
	"crypto/sha1"
	"crypto/tls"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

//go:embed script.lua
var scriptText string

// conn runs the script in the store.
type conn interface {
	eval(ctx context.Context, keys, args []string) (string, error)
	close()
}

// link is a conn that can be made anew under those who use it. Its zero value is
// none.
type link struct{ now atomic.Pointer[conn] }

var errNoLink = errors.New("it is not connected")

func (l *link) eval(ctx context.Context, keys, args []string) (string, error) {
	c := l.now.Load()
	if c == nil {
		return "", errNoLink
	}
	return (*c).eval(ctx, keys, args)
}

// set puts c in the place of the connection, which it closes; nil for none.
func (l *link) set(c conn) {
	var fresh *conn
	if c != nil {
		fresh = &c
	}
	if old := l.now.Swap(fresh); old != nil {
		(*old).close()
	}
}

var errLate = errors.New("it answers later than a request waits")

// client is a conn over rueidis, which finds the master again by itself.
type client struct {
	redis rueidis.Client
	text  string
	sha   string
}

const dialTimeout = time.Second

// dial connects. It waits for dialTimeout an address.
func dial(_ context.Context, cfg *Config) (conn, error) { return dialScript(cfg, scriptText) }

func dialScript(cfg *Config, text string) (conn, error) {
	o := rueidis.ClientOption{
		InitAddress: cfg.Addresses, TLSConfig: cfg.TLS, ClientName: "sluice",
		Dialer: net.Dialer{Timeout: dialTimeout}, DialCtxFn: dialAny, ConnWriteTimeout: 5 * time.Second,
		// A script that changes something must not be run twice behind our back.
		DisableRetry: true,
		// Nothing is read that could be cached.
		DisableCache: true,
		// One connection carries all decisions, and is there from the first one on.
		AlwaysPipelining: true, PipelineMultiplex: -1,
	}
	if err := authenticate(&o, cfg); err != nil {
		return nil, err
	}
	c, err := rueidis.NewClient(o)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to the store: %w", err)
	}
	sum := sha1.Sum([]byte(text))
	return &client{redis: c, text: text, sha: hex.EncodeToString(sum[:])}, nil
}

// dialAny dials host:port, or the path of a unix socket.
func dialAny(ctx context.Context, address string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
	network := "tcp"
	if strings.HasPrefix(address, "/") {
		network = "unix"
	}
	if t == nil {
		return d.DialContext(ctx, network, address)
	}
	return (&tls.Dialer{NetDialer: d, Config: t}).DialContext(ctx, network, address)
}

// authenticate sets users and passwords: read at each connection, or with sentinels
// when the client is made, since the library asks for both in the same way.
func authenticate(o *rueidis.ClientOption, cfg *Config) error {
	if cfg.Sentinel == "" {
		if read := cfg.Password; read != nil {
			o.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
				p, err := read()
				return rueidis.AuthCredentials{Username: cfg.Username, Password: p}, err
			}
		}
		return nil
	}
	o.Sentinel = rueidis.SentinelOption{
		MasterSet: cfg.Sentinel, TLSConfig: cfg.TLS, Dialer: o.Dialer, ClientName: "sluice",
		Username: cfg.SentinelUsername, TopologyRefreshInterval: 5 * time.Second,
	}
	o.Username = cfg.Username
	for _, p := range [...]struct {
		read func() (string, error)
		to   *string
	}{{cfg.Password, &o.Password}, {cfg.SentinelPassword, &o.Sentinel.Password}} {
		if p.read == nil {
			continue
		}
		var err error
		if *p.to, err = p.read(); err != nil {
			return fmt.Errorf("cannot read a password of the store: %w", err)
		}
	}
	return nil
}

func (c *client) eval(ctx context.Context, keys, args []string) (string, error) {
	text, err := c.redis.Do(ctx, c.redis.B().Evalsha().Sha1(c.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()).ToString()
	if refused, ok := rueidis.IsRedisErr(err); ok && refused.IsNoScript() {
		text, err = c.redis.Do(ctx, c.redis.B().Eval().Script(c.text).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()).ToString()
	}
	if refused, ok := rueidis.IsRedisErr(err); ok {
		return "", fmt.Errorf("the store refuses: %s", firstLine(refused.Error()))
	}
	return text, err
}

func (c *client) close() { c.redis.Close() }

// firstLine cuts what a store says to a line of bounded length.
func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s[:min(len(s), 200)]
}
