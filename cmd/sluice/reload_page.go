package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"
)

// policiesPage is GET /debug/policies: what is in force, and what came of the last reload. It may name
// files: operators alone see it.
type policiesPage struct {
	Revision   string    `json:"revision"`
	Generation uint64    `json:"generation"`
	Loaded     time.Time `json:"loaded"`
	// PricesChange is when a price begins or ends to hold, and everything is reloaded for that.
	PricesChange *time.Time   `json:"prices_change,omitempty"`
	Succeeded    uint64       `json:"reloads_succeeded"`
	Failed       uint64       `json:"reloads_failed"`
	Last         *attemptPage `json:"last_reload,omitempty"`
	Warnings     []string     `json:"warnings"`
	Rules        []rulePage   `json:"rules"`
}

// attemptPage is a reload.
type attemptPage struct {
	At         time.Time `json:"at"`
	Took       millis    `json:"took_ms"`
	Cause      string    `json:"cause"`
	OK         bool      `json:"ok"`
	Revision   string    `json:"revision"`
	Generation uint64    `json:"generation"`
	// Errors are one line each, with the file and the place where they are known.
	Errors []string `json:"errors,omitempty"`
}

// rulePage is a rule in force.
type rulePage struct {
	Rule  string `json:"rule"`
	Kind  string `json:"kind"`
	Bound bool   `json:"bound"`
	File  string `json:"file"`
	Line  int    `json:"line"`
}

func newAttemptPage(a attempt) *attemptPage {
	p := &attemptPage{At: a.at, Took: inMillis(a.took), Cause: a.cause, OK: a.err == nil, Revision: a.revision, Generation: a.number}
	if a.err != nil {
		p.Errors = strings.Split(a.err.Error(), "\n")
	}
	return p
}

// page returns what /debug/policies shows.
func (r *reloader) page() any {
	r.mu.Lock()
	g, last, good, failed := r.current, r.last, r.good, r.failed
	r.mu.Unlock()
	p := policiesPage{
		Revision: g.docs.policies.Revision(), Generation: g.number, Loaded: g.loaded,
		Succeeded: good, Failed: failed, Warnings: []string{}, Rules: []rulePage{},
	}
	if next := g.docs.prices.Next(g.loaded); !next.IsZero() {
		p.PricesChange = &next
	}
	if !last.at.IsZero() {
		p.Last = newAttemptPage(last)
	}
	for _, w := range g.docs.policies.Warnings() {
		e := inFolder(g.cfg.Policy.Dir, w.Error)
		p.Warnings = append(p.Warnings, Issue{File: e.File, Line: e.Line, Column: e.Col, Path: e.Path, Text: e.Text}.String())
	}
	for _, rule := range g.docs.policies.Rules() {
		at := inFolder(g.cfg.Policy.Dir, rule.At)
		p.Rules = append(p.Rules, rulePage{Rule: rule.Rule, Kind: string(rule.Kind), Bound: rule.Bound, File: at.File, Line: at.Line})
	}
	return p
}

// serveReload is POST /admin/reload: 200 with the generation that is in force now, or 409 with what is wrong
// of the files and the generation that stays in force.
func (r *reloader) serveReload(w http.ResponseWriter, req *http.Request) {
	a, err := r.Reload(req.Context(), causeAdmin)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	status := http.StatusOK
	if a.err != nil {
		status = http.StatusConflict
	}
	text, err := json.MarshalIndent(newAttemptPage(a), "", "  ")
	if err != nil {
		http.Error(w, "cannot encode the answer: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
}
