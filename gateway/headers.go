package gateway

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"
)

// requestID is the id a client sees: its own if it sent one usable value, else
// ours.
func requestID(ctx *fasthttp.RequestCtx, own string) string {
	values := ctx.Request.Header.PeekAll("X-Request-Id")
	if len(values) != 1 || len(values[0]) == 0 || len(values[0]) > 128 {
		return own
	}
	for _, b := range values[0] {
		if !isAlnum(b) && b != '.' && b != '_' && b != '-' {
			return own
		}
	}
	id := values[0] // the list is of the header, which the next look at it reuses
	if showsCredential(&ctx.Request.Header, id) {
		return own
	}
	return string(id)
}

// showsCredential reports whether a value that logs and the ledger would have is a
// credential in the wrong place: the shape of an API key, or what the request brings
// as its own.
func showsCredential(h *fasthttp.RequestHeader, value []byte) bool {
	const fewest = 12 // of a credential, in bytes; less of one may be there by chance
	if bytes.Contains(value, []byte("slk_")) {
		return true
	}
	if len(value) < fewest {
		return false
	}
	for _, name := range [...]string{"Authorization", "X-Api-Key", "Api-Key", proxyHeader} {
		for _, v := range h.PeekAll(name) {
			if bytes.Contains(v, value) {
				return true
			}
		}
	}
	return false
}

func isAlnum(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9'
}

// traceContext returns the W3C trace headers to pass on, or empty strings. A
// malformed traceparent takes its tracestate with it, and of two nobody knows which
// is meant.
func traceContext(h *fasthttp.RequestHeader) (parent, state string) {
	parents := h.PeekAll("traceparent")
	if len(parents) != 1 {
		return "", ""
	}
	if parent = traceParent(parents[0]); parent == "" {
		return "", ""
	}
	s := bytes.Join(h.PeekAll("tracestate"), []byte(","))
	if len(s) > 512 || slices.ContainsFunc(s, func(b byte) bool { return b < ' ' || b > '~' }) {
		return parent, ""
	}
	return parent, string(s)
}

// traceParent returns a traceparent as it is passed on, or nothing if it is invalid.
// What a later version has beyond version 00 stays behind.
func traceParent(p []byte) string {
	const length = len("00-0123456789abcdef0123456789abcdef-0123456789abcdef-01")
	later := len(p) > length && p[length] == '-' && !bytes.HasPrefix(p, []byte("00"))
	if len(p) != length && !later || p[2] != '-' || p[35] != '-' || p[52] != '-' || string(p[:2]) == "ff" {
		return ""
	}
	for i, b := range p[:length] {
		if i != 2 && i != 35 && i != 52 && (b < '0' || b > '9') && (b < 'a' || b > 'f') {
			return ""
		}
	}
	if allZero(p[3:35]) || allZero(p[36:52]) {
		return ""
	}
	return "00" + string(p[2:length])
}

func allZero(hex []byte) bool { return len(bytes.Trim(hex, "0")) == 0 }

// sourceIP is the client's address: the peer's, or where the peer is a trusted
// proxy, the rightmost hop of X-Forwarded-For that is not one.
func (g *Gateway) sourceIP(ctx *fasthttp.RequestCtx) string {
	addr, ok := netip.AddrFromSlice(ctx.RemoteIP())
	if !ok {
		return ""
	}
	addr = addr.Unmap()
	if !g.trusted(addr) {
		return addr.String()
	}
	var hops []string
	for _, v := range ctx.Request.Header.PeekAll("X-Forwarded-For") {
		hops = append(hops, strings.Split(string(v), ",")...)
	}
	for _, hop := range slices.Backward(hops) {
		a, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil {
			break // what lies left of nonsense can't be trusted either
		}
		addr = a.Unmap()
		if !g.trusted(addr) {
			break
		}
	}
	return addr.String()
}

func (g *Gateway) trusted(a netip.Addr) bool {
	return slices.ContainsFunc(g.cfg.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(a) })
}

// strippedPrefixes and strippedNames are the headers by which clients might
// claim an identity or an origin. Policies never see them; nothing of the
// client's headers reaches a worker anyway but an allowlist.
var (
	strippedPrefixes = []string{"x-sluice-", "x-tenant", "x-user", "x-forwarded-"}
	strippedNames    = []string{"forwarded", "x-real-ip", "authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"}
)

// identityHeader reports whether policies must not see a header of that
// lower-case name, in dash or underscore spelling.
func identityHeader(name string) bool {
	name = strings.ReplaceAll(name, "_", "-")
	return slices.Contains(strippedNames, name) ||
		slices.ContainsFunc(strippedPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// policyHeaders are the headers that policies may read, repeats joined, without those
// that were meant for one hop only.
func (st *State) policyHeaders(h *fasthttp.RequestHeader) map[string]string {
	if len(st.PolicyHeaders) == 0 {
		return nil
	}
	out := make(map[string]string, len(st.PolicyHeaders))
	hop := bytes.Join(h.PeekAll("Connection"), []byte(","))
	for _, name := range st.PolicyHeaders {
		if identityHeader(name) || listed(hop, name) {
			continue
		}
		if values := h.PeekAll(name); len(values) > 0 {
			out[name] = string(bytes.Join(values, []byte(", ")))
		}
	}
	return out
}

// listed reports whether a comma-separated list has a name.
func listed(list []byte, name string) bool {
	for item := range bytes.SplitSeq(list, []byte(",")) {
		if bytes.EqualFold(bytes.Trim(item, " \t"), []byte(name)) {
			return true
		}
	}
	return false
}
