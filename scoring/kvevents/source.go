package kvevents

import (
	"fmt"
	"net"
	"strings"

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
	// Replay is the worker's replay endpoint; empty if it has none. It is
	// always the worker that binds it.
	Replay string
}

// Validate reports what is wrong with the endpoints.
func (s Source) Validate() error {
	if _, _, err := parseEndpoint(s.Endpoint, s.Bind); err != nil {
		return fmt.Errorf("cannot use event endpoint: %w", err)
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
	if _, err := net.LookupPort("tcp", port); err != nil {
		return "", "", fmt.Errorf("%q has the port %q: want a number up to 65535", endpoint, port)
	}
	if host == "*" {
		host = ""
	}
	if host == "" && !bind {
		return "", "", fmt.Errorf("%q names no host: put the worker's address in place of \"*\"", endpoint)
	}
	return "tcp", net.JoinHostPort(host, port), nil
}
