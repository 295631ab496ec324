package redis

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// Config says where the store is, and how it is used.
type Config struct {
	// Addresses are host:port, or the path of a unix socket. Several are the nodes
	// of a cluster, or with Sentinel the sentinels.
	Addresses []string
	// Sentinel is the name of the master that the sentinels watch; empty: none do.
	Sentinel string
	// TLS is nil for connections in the clear.
	TLS *tls.Config
	// Username and Password authenticate; Password is called at each connection, so
	// that it may change. Nil: no password. Its error must not hold the secret.
	Username string
	Password func() (string, error)
	// SentinelUsername and SentinelPassword do so for the sentinels.
	SentinelUsername string
	SentinelPassword func() (string, error)
	// Prefix begins all keys, so that several installations can share a store.
	Prefix string
	// Replica names this process for operators. It needs not be unique.
	Replica string
	// Timeout is how long a request waits for the store.
	Timeout time.Duration
	// FlushEvery is how long what was used is kept back from the store.
	FlushEvery time.Duration
	// LeaseShare is the part of a limit that all replicas together may have leased,
	// above 0 and at most 1.
	LeaseShare float64
	// LeaseFor is how long a lease serves when the store does not answer.
	LeaseFor time.Duration
	// DeadAfter is how long a replica may be silent before its slots are freed and
	// its reservations stay charged at their estimates.
	DeadAfter time.Duration
	// MaxCounters bounds the counters that this process knows.
	MaxCounters int
	// Log gets what an operator should know, of the store's errors without secrets.
	// Nil: nothing is logged.
	Log *slog.Logger
}

// DefaultConfig has everything but the addresses.
func DefaultConfig() Config {
	return Config{
		Prefix: "sluice", Replica: "gateway", Timeout: 20 * time.Millisecond, FlushEvery: 50 * time.Millisecond,
		LeaseShare: 0.125, LeaseFor: 10 * time.Second, DeadAfter: 15 * time.Minute, MaxCounters: 1 << 18,
	}
}

// Validate finds what New would refuse.
func (c *Config) Validate() error {
	if len(c.Addresses) == 0 {
		return errors.New("no address of the store is given")
	}
	if slices.Contains(c.Addresses, "") {
		return errors.New("an address of the store is empty")
	}
	if c.Prefix == "" || strings.ContainsAny(c.Prefix, "{}") {
		return fmt.Errorf("the prefix %q should be a word without braces", c.Prefix)
	}
	switch {
	case c.Timeout < time.Millisecond || c.Timeout > 10*time.Second:
		return fmt.Errorf("the timeout %s should be 1ms to 10s", c.Timeout)
	case c.FlushEvery < time.Millisecond || c.FlushEvery > time.Second:
		return fmt.Errorf("the interval of reports %s should be 1ms to 1s", c.FlushEvery)
	case !(c.LeaseShare > 0 && c.LeaseShare <= 1):
		return fmt.Errorf("the lease share %v should be above 0 and at most 1", c.LeaseShare)
	case c.LeaseFor < c.FlushEvery || c.LeaseFor > c.DeadAfter/2:
		return fmt.Errorf("the time of a lease %s should be %s to %s", c.LeaseFor, c.FlushEvery, c.DeadAfter/2)
	case c.DeadAfter < time.Second || c.DeadAfter > 24*time.Hour:
		return fmt.Errorf("the time after which a replica is dead %s should be 1s to 24h", c.DeadAfter)
	case c.MaxCounters < 1:
		return fmt.Errorf("%d counters are too few", c.MaxCounters)
	}
	return nil
}
