package main

import (
	"crypto/sha256"
	"crypto/subtle"
	"math"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Reasons for which the admin listener refuses, a fixed list.
const (
	adminNoCredential = "missing"   // none was given
	adminBadToken     = "wrong"     // it is not the admin token, or not in the one form there is
	adminThrottled    = "throttled" // too many wrong ones came from there
	adminBadHost      = "host"      // it was called by a name that is not its own
)

var adminReasons = [...]string{adminNoCredential, adminBadToken, adminThrottled, adminBadHost}

// adminGuard decides who sees the admin listener's pages.
type adminGuard struct {
	token    [sha256.Size]byte
	names    []string // beside addresses and localhost, lower case
	guesses  guesses
	refusals *prometheus.CounterVec
	now      func() time.Time
}

func newAdminGuard(token string, l *AdminListenConfig, reg prometheus.Registerer) *adminGuard {
	g := &adminGuard{
		token: sha256.Sum256([]byte(token)), now: time.Now,
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_admin_refusals_total", Help: "Requests that the admin listener refused.",
		}, []string{"reason"}),
	}
	reg.MustRegister(g.refusals)
	for _, reason := range adminReasons {
		g.refusals.WithLabelValues(reason)
	}
	for _, name := range l.Hosts {
		g.names = append(g.names, strings.ToLower(name))
	}
	if host, _, err := net.SplitHostPort(l.Address); err == nil && host != "" {
		g.names = append(g.names, strings.ToLower(host))
	}
	return g
}

// named refuses what was sent to a name that is not the listener's. The name of somebody else's page may
// resolve to this machine, and a browser would take the page for ours then.
func (g *adminGuard) named(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !g.answersTo(r.Host) {
			g.refusals.WithLabelValues(adminBadHost).Inc()
			http.Error(w, "the admin listener is not known by this name; call it by its address, or name it in listen.admin.hosts", http.StatusMisdirectedRequest)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func (g *adminGuard) answersTo(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return name == "localhost" || slices.Contains(g.names, name)
}

// holders asks for the admin token, compared in constant time.
func (g *adminGuard) holders(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given := r.Header["Authorization"]
		if len(given) == 0 {
			g.ask(w, adminNoCredential)
			return
		}
		peer, now := peerKey(r.RemoteAddr), g.now()
		if !g.guesses.allowed(peer, now) {
			g.refusals.WithLabelValues(adminThrottled).Inc()
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many wrong tokens came from this address; wait a moment", http.StatusTooManyRequests)
			return
		}
		scheme, token, _ := strings.Cut(given[0], " ")
		got := sha256.Sum256([]byte(token))
		right := subtle.ConstantTimeCompare(got[:], g.token[:]) == 1
		if len(given) > 1 || !strings.EqualFold(scheme, "Bearer") || !right {
			g.guesses.wrong(peer, now)
			g.ask(w, adminBadToken)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func (g *adminGuard) ask(w http.ResponseWriter, reason string) {
	g.refusals.WithLabelValues(reason).Inc()
	w.Header().Set("WWW-Authenticate", "Bearer")
	http.Error(w, "the admin token is required: Authorization: Bearer <token>", http.StatusUnauthorized)
}

// peerKey is the address that a caller's guesses are counted for; an IPv6 address stands for its network.
func peerKey(remote string) netip.Addr {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	addr := at.Addr().Unmap().WithZone("")
	if addr.Is6() {
		if p, err := addr.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return addr
}

// How many wrong tokens an address may send: so many at once and so many a second.
const (
	guessBurst = 10
	guessRate  = 5
	// maxGuessers bounds the addresses that are told apart; those beyond are taken for one.
	maxGuessers = 1024
)

// guesses counts wrong tokens by address.
type guesses struct {
	mu sync.Mutex // protects by
	by map[netip.Addr]guesser
}

// guesser is how many guesses an address has used up, as of a time.
type guesser struct {
	used float64
	at   time.Time
}

// left is what is used up by now.
func (u guesser) left(now time.Time) float64 {
	return math.Max(0, u.used-now.Sub(u.at).Seconds()*guessRate)
}

// allowed reports whether a token from there is looked at.
func (g *guesses) allowed(addr netip.Addr, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.by[g.keyLocked(addr)].left(now) < guessBurst
}

// wrong counts a wrong one.
func (g *guesses) wrong(addr netip.Addr, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.by == nil {
		g.by = make(map[netip.Addr]guesser)
	}
	if len(g.by) >= maxGuessers {
		for a, u := range g.by {
			if u.left(now) == 0 {
				delete(g.by, a)
			}
		}
	}
	key := g.keyLocked(addr)
	g.by[key] = guesser{g.by[key].left(now) + 1, now}
}

// keyLocked is the address to count for.
func (g *guesses) keyLocked(addr netip.Addr) netip.Addr {
	if _, known := g.by[addr]; !known && len(g.by) >= maxGuessers {
		return netip.Addr{}
	}
	return addr
}
