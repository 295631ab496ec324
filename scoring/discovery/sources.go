package discovery

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// errNoEvents says that a worker publishes nothing, which is its choice and no
// failure.
var errNoEvents = errors.New("the worker publishes no cache events: start it with --kv-events-config")

// parseSources reads the body of /kv_event_sources: an object keyed by rank.
// host is the worker's own, put in the place of wildcards.
func parseSources(body []byte, host string) ([]EventSource, error) {
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
		if err != nil || rank < 0 {
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
		sources = append(sources, s)
	}
	if len(sources) == 0 {
		return nil, errNoEvents
	}
	slices.SortFunc(sources, func(a, b EventSource) int { return cmp.Compare(a.Rank, b.Rank) })
	return sources, nil
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
