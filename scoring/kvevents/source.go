package kvevents

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicegate/sluice/scoring"
)

// Source is one publisher: one data-parallel rank of one worker.
type Source struct {
	// Worker and Rank name the view that the events go to.
	Worker scoring.WorkerID
	Rank   int
	// Name is the worker's name, for the log.
	Name string
	// Endpoint is where the events come from, tcp://host:port or ipc:///path.
	Endpoint string
	// Bind says that Endpoint is an address of ours, to which the worker's
	// publisher connects; the host may then be "*".
	Bind bool
	// From is who may connect when binding: a host name, an IP address, or a
	// prefix such as 10.0.0.0/8. Names are looked up for each connection. Empty
	// lets anyone in who reaches Endpoint. ZMTP itself identifies nobody here.
	From string
	// Replay is the worker's replay endpoint; empty if it has none. It is
	// always the worker that binds it.
	Replay string
	// Hint is added to the report of a connection that can't be made: what the
	// one who configured it should look at. May be empty.
	Hint string
}

// Validate reports what is wrong with the endpoints.
func (s Source) Validate() error {
	if _, _, err := parseEndpoint(s.Endpoint, s.Bind); err != nil {
		return fmt.Errorf("cannot use event endpoint: %w", err)
	}
	if s.From != "" && !s.Bind {
		return fmt.Errorf("cannot use event endpoint: %q says who may connect, but the endpoint is not bound", s.From)
	}
	if s.Replay == "" {
		return nil
	}
	if _, _, err := parseEndpoint(s.Replay, false); err != nil {
		return fmt.Errorf("cannot use replay endpoint: %w", err)
	}
	return nil
}

// parseEndpoint turns a ZeroMQ endpoint into what package net understands.
func parseEndpoint(endpoint string, bind bool) (network, addr string, err error) {
	scheme, rest, ok := strings.Cut(endpoint, "://")
	if !ok || rest == "" {
		return "", "", fmt.Errorf("%q is no endpoint: want tcp://host:port or ipc:///path", endpoint)
	}
	switch scheme {
	case "ipc":
		return "unix", rest, nil
	case "tcp":
	default:
		return "", "", fmt.Errorf("%q has the transport %q: want tcp or ipc", endpoint, scheme)
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return "", "", fmt.Errorf("%q is no endpoint: want tcp://host:port, with [] around an IPv6 address", endpoint)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", "", fmt.Errorf("%q has the port %q: want a number from 1 to 65535", endpoint, port)
	}
	if host == "*" {
		host = ""
	}
	if host == "" && !bind {
		return "", "", fmt.Errorf("%q names no host: put the worker's address in place of \"*\"", endpoint)
	}
	return "tcp", net.JoinHostPort(host, port), nil
}

// lookupTimeout bounds the look-up of the host that may connect.
const lookupTimeout = 2 * time.Second

// admits says whether a peer at addr may connect; the error tells why not. A
// peer without an IP address (a Unix socket) is admitted: the file's
// permissions decided.
func (s Source) admits(ctx context.Context, addr net.Addr) error {
	tcp, ok := addr.(*net.TCPAddr)
	if s.From == "" || !ok {
		return nil
	}
	peer := tcp.AddrPort().Addr().Unmap().WithZone("")
	if prefix, err := netip.ParsePrefix(s.From); err == nil {
		if prefix.Contains(peer) {
			return nil
		}
		return fmt.Errorf("%v is not in %v", peer, prefix)
	}
	var own []netip.Addr
	if ip, err := netip.ParseAddr(s.From); err == nil {
		own = []netip.Addr{ip}
	} else {
		ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		defer cancel()
		if own, err = net.DefaultResolver.LookupNetIP(ctx, "ip", s.From); err != nil {
			return fmt.Errorf("cannot tell whether %v may: %w", peer, err)
		}
	}
	if slices.ContainsFunc(own, func(ip netip.Addr) bool { return ip.Unmap().WithZone("") == peer }) {
		return nil
	}
	return fmt.Errorf("%v is not %q", peer, s.From)
}
