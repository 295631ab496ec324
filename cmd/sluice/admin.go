package main

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// adminPages is the admin listener: /metrics for everyone who reaches it, and
// /debug and /admin for holders of the admin token, if there is one. Nothing of
// the data listener is here.
func (a *app) adminPages(reg *prometheus.Registry) (http.Handler, error) {
	token := ""
	if file := a.cfg.Listen.Admin.TokenFile; file != "" {
		var err error
		if token, err = readSecretText(file); err != nil {
			return nil, fmt.Errorf("cannot read listen.admin.tokenFile: %w", err)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{Registry: reg}))
	mux.Handle("GET /debug/workers", guarded(token, jsonPage(a.debugWorkers)))
	mux.Handle("GET /debug/predictions", guarded(token, jsonPage(a.debugPredictions)))
	mux.Handle("GET /debug/limits", guarded(token, jsonPage(a.debugLimits)))
	mux.Handle("GET /debug/policies", guarded(token, jsonPage(a.reloads.page)))
	mux.Handle("GET /debug/pprof/{name}", guarded(token, &profilePages{}))
	// Pages of other origins that an operator's browser shows must not get through to it.
	mux.Handle("POST /admin/reload", http.NewCrossOriginProtection().Handler(guarded(token, http.HandlerFunc(a.reloads.serveReload))))
	return mux, nil
}

// guarded asks for the admin token, compared in constant time.
func guarded(token string, h http.Handler) http.Handler {
	if token == "" {
		return h
	}
	want := sha256.Sum256([]byte(token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		got := sha256.Sum256([]byte(given))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "the admin token is required: Authorization: Bearer <token>", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	})
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
