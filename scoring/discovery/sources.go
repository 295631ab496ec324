package discovery

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// errNoEvents says that a worker publishes nothing, which is its choice and no
// failure.
var errNoEvents = errors.New("the worker publishes no cache events: start it with --kv-events-config")

// errNotWanted says that the configuration asks for no events.
var errNotWanted = errors.New("no cache events are configured")

// parseSources reads the body of /kv_event_sources: an object keyed by rank.
// host is the worker's own, put in the place of wildcards; lookup returns the
// addresses that a host name stands for, and is asked only where they matter.
func parseSources(body []byte, host string, lookup func(host string) []netip.Addr) ([]EventSource, error) {
	var ranks map[string]struct {
		Enabled   *bool   `json:"enable_kv_cache_events"`
		Publisher *string `json:"publisher"`
		Endpoint  *string `json:"endpoint"`
		Replay    *string `json:"replay_endpoint"`
	}
	if err := json.Unmarshal(body, &ranks); err != nil {
		return nil, fmt.Errorf("cannot read /kv_event_sources: %w", err)
	}
	if len(ranks) > maxRanks {
		return nil, fmt.Errorf("cannot use /kv_event_sources: it lists %d ranks, more than %d", len(ranks), maxRanks)
	}
	var sources []EventSource
	for key, r := range ranks {
		rank, err := strconv.Atoi(key)
		if err != nil || rank < 0 || strconv.Itoa(rank) != key {
			return nil, fmt.Errorf("cannot use /kv_event_sources: %q is no rank", clip(key))
		}
		if r.Enabled != nil && !*r.Enabled || r.Publisher != nil && *r.Publisher == "null" || r.Endpoint == nil {
			continue
		}
		if r.Publisher != nil && *r.Publisher != "zmq" {
			return nil, fmt.Errorf("cannot follow cache events: the worker publishes by %q, want zmq", clip(*r.Publisher))
		}
		s := EventSource{Rank: rank}
		if s.Endpoint, err = resolveEndpoint(*r.Endpoint, host); err != nil {
			return nil, fmt.Errorf("cannot follow cache events of rank %d: %w", rank, err)
		}
		if r.Replay != nil && *r.Replay != "" {
			if s.Replay, err = resolveEndpoint(*r.Replay, host); err != nil {
				return nil, fmt.Errorf("cannot ask rank %d for replays: %w", rank, err)
			}
		}
		if addr, plain := plainHost(*r.Endpoint); plain {
			if !sameHost(addr, host, lookup) {
				return nil, connectsError(rank, addr, &s)
			}
			s.Hint = connectsHint(*r.Endpoint)
		}
		sources = append(sources, s)
	}
	if len(sources) == 0 {
		return nil, errNoEvents
	}
	slices.SortFunc(sources, func(a, b EventSource) int { return cmp.Compare(a.Rank, b.Rank) })
	if len(sources) == 1 {
		// Behind an outer load balancer every rank is a server of its own, and
		// the number is its place among servers that are workers of their own.
		sources[0].Rank = 0
	}
	if last := sources[len(sources)-1].Rank; last >= maxRanks {
		return nil, fmt.Errorf("cannot use /kv_event_sources: rank %d is beyond %d, the last that can be followed", last, maxRanks-1)
	}
	return sources, nil
}

// plainHost returns the host of an endpoint that vLLM does not bind by its
// form: it binds one with "*" or "::" in it, and connects to any other.
// "0.0.0.0" leads nowhere as an address to connect to, so it is taken for the
// wildcard that was meant.
func plainHost(endpoint string) (host string, plain bool) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	i := strings.LastIndexByte(rest, ':')
	if !ok || i < 0 || strings.Contains(rest, "*") || strings.Contains(rest, "::") {
		return "", false
	}
	host = strings.Trim(rest[:i], "[]")
	return host, host != "" && host != "0.0.0.0"
}

// sameHost reports whether addr, a host of an event endpoint, is the worker's
// own. A worker that took a free port ("tcp://*:0") reports its own address,
// and so it is one that it listens on.
func sameHost(addr, host string, lookup func(host string) []netip.Addr) bool {
	if strings.EqualFold(addr, host) || isLoopback(addr) && isLoopback(host) {
		return true
	}
	addrs := func(h string) []netip.Addr {
		if ip, err := netip.ParseAddr(h); err == nil {
			return []netip.Addr{ip.Unmap()}
		}
		return lookup(h)
	}
	own := addrs(host)
	return len(own) > 0 && slices.ContainsFunc(addrs(addr), func(ip netip.Addr) bool { return slices.Contains(own, ip) })
}

// connectsError says what to configure for a publisher that connects to us.
func connectsError(rank int, addr string, s *EventSource) error {
	port := s.Endpoint[strings.LastIndexByte(s.Endpoint, ':')+1:]
	replay := ""
	if s.Replay != "" {
		replay = fmt.Sprintf(" and its replay to %q", clip(s.Replay))
	}
	endpoint := clip(s.Endpoint)
	return fmt.Errorf("rank %d connects its publisher to %q instead of listening: set the worker's eventsBind to where it reaches this gateway, as in tcp://*:%s%s; or, if %s is the worker itself, set its events to %q",
		rank, endpoint, port, replay, clip(addr), endpoint)
}

// connectsHint is what to look at when an endpoint that may be one or the other
// does not answer.
func connectsHint(endpoint string) string {
	return fmt.Sprintf("a worker that was started with the event endpoint %q connects to it; then set the worker's eventsBind to this address", clip(endpoint))
}

// resolveEndpoint turns an endpoint as the worker sees it into one that can be
// dialled from here. A wildcard becomes the worker's host. An address that
// means something else here than there is refused: it could reach another
// worker's publisher.
func resolveEndpoint(endpoint, host string) (string, error) {
	scheme, rest, ok := strings.Cut(endpoint, "://")
	if !ok {
		return "", fmt.Errorf("%q is no endpoint", clip(endpoint))
	}
	local := isLoopback(host)
	switch scheme {
	case "tcp":
	case "ipc":
		if !local {
			return "", fmt.Errorf("%q can be reached on the worker's own machine only", clip(endpoint))
		}
		return endpoint, nil
	default:
		return "", fmt.Errorf("%q has the transport %q, want tcp", clip(endpoint), clip(scheme))
	}
	// vLLM writes IPv6 wildcards with and without brackets.
	i := strings.LastIndexByte(rest, ':')
	if i < 0 {
		return "", fmt.Errorf("%q has no port", clip(endpoint))
	}
	addr, port := strings.Trim(rest[:i], "[]"), rest[i+1:]
	if p, err := strconv.Atoi(port); err != nil || p < 1 || p > 65535 {
		return "", fmt.Errorf("%q has no usable port", clip(endpoint))
	}
	switch {
	case addr == "*" || addr == "0.0.0.0" || addr == "::" || addr == "":
		addr = host
	case isLoopback(addr) && !local:
		return "", fmt.Errorf("%q can be reached on the worker's own machine only: let it bind tcp://*:%s", clip(endpoint), port)
	}
	return "tcp://" + net.JoinHostPort(addr, port), nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// clip bounds text that came from a worker before it is shown.
func clip(s string) string { return clipTo(s, 120) }

func clipTo(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
