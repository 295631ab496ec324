package main

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/scoring/discovery"
	"github.com/sluicegate/sluice/scoring/kvevents"
)

// adminPages is the admin listener: /metrics for everyone who reaches it, and
// /debug for holders of the admin token, if there is one. Nothing of the data
// listener is here.
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

// workerPage is one worker on /debug/workers: what the health checks know,
// what the scorer knows, and how its cache events come in.
type workerPage struct {
	Health  discovery.Status       `json:"health"`
	Scoring scoring.WorkerSnapshot `json:"scoring"`
	Events  []eventsPage           `json:"events"`
}

// eventsPage is one subscription on /debug/workers.
type eventsPage struct {
	Rank  string         `json:"rank"`
	View  string         `json:"view"`
	Stats kvevents.Stats `json:"stats"`
}

// tokensPage is one model on /debug/workers.
type tokensPage struct {
	State  string `json:"state"`
	Local  int64  `json:"local"`
	Remote int64  `json:"remote"`
	Failed int64  `json:"failed"`
}

func (a *app) debugWorkers() any {
	snapshots := make(map[scoring.WorkerID]scoring.WorkerSnapshot)
	for _, w := range a.fleet.Snapshot(time.Now()) {
		snapshots[w.Worker.ID] = w
	}
	events := make(map[string][]eventsPage)
	for _, s := range a.subs.stats() {
		events[s.worker] = append(events[s.worker], eventsPage{Rank: s.rank, View: s.View.String(), Stats: s.Stats})
	}
	var workers []workerPage
	for _, st := range a.checker.Snapshot() {
		workers = append(workers, workerPage{Health: st, Scoring: snapshots[st.ID], Events: events[st.Name]})
	}
	tokens := make(map[string]tokensPage)
	for name, m := range a.tokens.models {
		tokens[name] = tokensPage{
			State: tokenState(m.state.Load()).String(), Local: m.usedLocal.Load(), Remote: m.usedRemote.Load(), Failed: m.failed.Load(),
		}
	}
	return struct {
		Workers []workerPage          `json:"workers"`
		Tokens  map[string]tokensPage `json:"tokenizers"`
		Fleet   scoring.Stats         `json:"fleet"`
	}{workers, tokens, a.fleet.Stats()}
}

// predictionPage is one pick on /debug/predictions.
type predictionPage struct {
	Winner string `json:"winner"`
	scoring.PredictionRecord
}

func (a *app) debugPredictions() any {
	names := make(map[scoring.WorkerID]string)
	for _, w := range a.fleet.Snapshot(time.Now()) {
		names[w.Worker.ID] = w.Worker.Name
	}
	records := a.fleet.Predictions()
	out := make([]predictionPage, len(records))
	for i, r := range records {
		out[i] = predictionPage{Winner: names[r.Winner], PredictionRecord: r}
	}
	return struct {
		Workers map[scoring.WorkerID]string `json:"workers"`
		Recent  []predictionPage            `json:"recent"`
	}{names, out}
}
