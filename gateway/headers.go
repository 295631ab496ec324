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
// malformed traceparent takes its tracestate with it.
func traceContext(h *fasthttp.RequestHeader) (parent, state string) {
	p := h.Peek("traceparent")
	if len(p) != 55 || p[2] != '-' || p[35] != '-' || p[52] != '-' || string(p[:2]) == "ff" {
		return "", ""
	}
	for i, b := range p {
		if i != 2 && i != 35 && i != 52 && (b < '0' || b > '9') && (b < 'a' || b > 'f') {
			return "", ""
		}
	}
	s := h.Peek("tracestate")
	if len(s) > 512 || slices.ContainsFunc(s, func(b byte) bool { return b < ' ' || b > '~' }) {
		s = nil
	}
	return string(p), string(s)
}

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

// policyHeaders are the headers that policies may read, repeats joined.
func (st *State) policyHeaders(h *fasthttp.RequestHeader) map[string]string {
	if len(st.PolicyHeaders) == 0 {
		return nil
	}
	out := make(map[string]string, len(st.PolicyHeaders))
	for _, name := range st.PolicyHeaders {
		if identityHeader(name) {
			continue
		}
		if values := h.PeekAll(name); len(values) > 0 {
			out[name] = string(bytes.Join(values, []byte(", ")))
		}
	}
	return out
}
