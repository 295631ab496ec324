package gateway

import (
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Reasons for which a connection is refused, a fixed list.
const (
	refusedTotal   = "total"   // as many as the gateway takes are open
	refusedAddress = "address" // as many as one address may have are open
)

// Admission says which connections may be opened: so many in all and so many from
// one address. It is safe for concurrent use.
type Admission struct {
	total, perAddress int
	exempt            []netip.Prefix

	mu     sync.Mutex // protects what follows
	open   int
	by     map[netip.Prefix]int // without those of exempt networks
	refuse map[string]uint64    // by reason
}

// NewAdmission takes total connections in all, and perAddress of them from any one
// address outside the exempt networks, which are those of proxies that speak for
// many. Zero is no bound. An IPv6 address counts as its network of 64 bits, of which
// whoever has one address has them all.
func NewAdmission(total, perAddress int, exempt []netip.Prefix) *Admission {
	return &Admission{
		total: total, perAddress: perAddress, exempt: exempt, by: make(map[netip.Prefix]int),
		refuse: map[string]uint64{refusedTotal: 0, refusedAddress: 0},
	}
}

// Enter counts a connection from addr. Either reason says why it may not be, or
// release must be called once when it has ended.
func (a *Admission) Enter(addr netip.Addr) (release func(), reason string) {
	addr = addr.Unmap().WithZone("")
	limited := a.perAddress > 0 && addr.IsValid() && !slices.ContainsFunc(a.exempt, func(p netip.Prefix) bool { return p.Contains(addr) })
	var key netip.Prefix
	if limited {
		key = addressKey(addr)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case limited && a.by[key] >= a.perAddress:
		reason = refusedAddress // first: it is the caller's own doing
	case a.total > 0 && a.open >= a.total:
		reason = refusedTotal
	}
	if reason != "" {
		a.refuse[reason]++
		return nil, reason
	}
	a.open++
	if limited {
		a.by[key]++
	}
	return func() { a.leave(key) }, ""
}

// leave undoes Enter; the zero key is that of a connection that counts for no address.
func (a *Admission) leave(key netip.Prefix) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open--
	if !key.IsValid() {
		return
	}
	if a.by[key]--; a.by[key] == 0 {
		delete(a.by, key)
	}
}

// Refused returns how many connections were refused, by reason; all reasons are there.
func (a *Admission) Refused() map[string]uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return map[string]uint64{refusedTotal: a.refuse[refusedTotal], refusedAddress: a.refuse[refusedAddress]}
}

// addressKey is what counts as one address.
func addressKey(addr netip.Addr) netip.Prefix {
	bits := 32
	if addr.Is6() {
		bits = 64
	}
	p, err := addr.Prefix(bits)
	if err != nil {
		panic("BUG: an address without a zone has such a prefix: " + err.Error())
	}
	return p
}

// peerOf is the address at the other end of a connection; the zero Addr if it has
// none.
func peerOf(nc net.Conn) netip.Addr {
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr()
	}
	return netip.Addr{}
}

// gate refuses connections that Admission doesn't let in.
type gate struct {
	*Admission
	log *slog.Logger

	mu   sync.Mutex // protects told
	told map[string]time.Time
}

// tellEvery is how long the log is silent on refusals of a kind.
const tellEvery = time.Minute

// enter returns what the end of the connection has to call; nil if it was refused,
// and is closed. A refused one gets no byte, so that it costs no TLS, and no wait
// for its end.
func (g *gate) enter(nc *net.TCPConn) (release func()) {
	peer := peerOf(nc)
	release, reason := g.Enter(peer)
	if release != nil {
		return release
	}
	_ = nc.SetLinger(0)
	_ = nc.Close()
	now := time.Now()
	g.mu.Lock()
	tell := now.Sub(g.told[reason]) >= tellEvery
	if tell {
		g.told[reason] = now
	}
	g.mu.Unlock()
	if tell {
		g.log.Warn("connections are refused", "reason", reason, "peer", peer.String(), "limit", g.limitOf(reason),
			"next", "told again in a minute; sluice_http_connections_refused_total counts them")
	}
	return nil
}

// limitOf is the number that was reached.
func (g *gate) limitOf(reason string) int {
	if reason == refusedAddress {
		return g.perAddress
	}
	return g.total
}
