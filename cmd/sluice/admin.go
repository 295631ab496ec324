package main

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluicegate/sluice/gateway"
)

// What the admin listener takes. Its callers are a few people and scrapers.
const (
	adminConnections           = 64
	adminConnectionsPerAddress = 32
	adminHeaderBytes           = 16 << 10
	adminHeaderRead            = 10 * time.Second
	adminRead                  = 30 * time.Second
	// adminWrite is longer than any page takes, a reload with many policies among them.
	adminWrite = 5 * time.Minute
	adminIdle  = 75 * time.Second
)

// adminPages is the admin listener: /metrics, and /debug and /admin for holders of the admin token. Nothing
// of the data listener is here, and no credential of a tenant is worth anything.
func (a *app) adminPages(reg *prometheus.Registry) (http.Handler, error) {
	l := &a.cfg.Listen.Admin
	token, err := a.adminCredential()
	if err != nil {
		return nil, err
	}
	guard := newAdminGuard(token, l, reg)
	mux := http.NewServeMux()
	metrics := promhttp.HandlerFor(reg, promhttp.HandlerOpts{Registry: reg})
	if l.MetricsOpen || isLoopback(l.Address) {
		mux.Handle("GET /metrics", metrics)
	} else {
		mux.Handle("GET /metrics", guard.holders(metrics))
	}
	mux.Handle("GET /debug/workers", guard.holders(jsonPage(a.debugWorkers)))
	mux.Handle("GET /debug/predictions", guard.holders(jsonPage(a.debugPredictions)))
	mux.Handle("GET /debug/limits", guard.holders(jsonPage(a.debugLimits)))
	mux.Handle("GET /debug/queue", guard.holders(jsonPage(a.debugQueue)))
	mux.Handle("GET /debug/policies", guard.holders(jsonPage(a.reloads.page)))
	mux.Handle("GET /debug/pprof/{name}", guard.holders(&profilePages{}))
	// Pages of other origins that an operator's browser shows must not get through to it.
	mux.Handle("POST /admin/reload", http.NewCrossOriginProtection().Handler(guard.holders(http.HandlerFunc(a.reloads.serveReload))))
	return guard.named(mux), nil
}

// adminServer serves the pages. Every phase of a request has its bound.
func (a *app) adminServer() *http.Server {
	return &http.Server{
		Handler: a.pages, ReadHeaderTimeout: adminHeaderRead, ReadTimeout: adminRead, WriteTimeout: adminWrite, IdleTimeout: adminIdle,
		MaxHeaderBytes: adminHeaderBytes, TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}, // no HTTP/2
		ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
	}
}

// serveAdmin serves the admin listener until server is shut down.
func (a *app) serveAdmin(server *http.Server, tlsConfig *tls.Config) error {
	var ln net.Listener = &admittingListener{Listener: a.admin, admission: a.admitted}
	if tlsConfig != nil {
		ln = tls.NewListener(ln, tlsConfig)
	}
	if err := server.Serve(ln); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot serve the admin listener: %w", err)
	}
	return nil
}

// admittingListener closes connections at once that are one too many.
type admittingListener struct {
	net.Listener
	admission *gateway.Admission
}

// Accept implements net.Listener.
func (l *admittingListener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		var peer netip.Addr
		if at, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
			peer = at.AddrPort().Addr()
		}
		if release, _ := l.admission.Enter(peer); release != nil {
			return &admittedConn{Conn: nc, release: release}, nil
		}
		if tcp, ok := nc.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = nc.Close()
	}
}

// admittedConn gives its place back when it ends.
type admittedConn struct {
	net.Conn
	once    sync.Once
	release func()
}

// Close implements net.Conn.
func (c *admittedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.release)
	return err
}

// jsonPage serves what build returns.
func jsonPage(build func() any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		text, err := json.MarshalIndent(build(), "", "  ")
		if err != nil {
			http.Error(w, "cannot encode the page: "+err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(text, '\n'))
	})
}
