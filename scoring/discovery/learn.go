package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
)

// learn looks at what rarely changes: the models served, the version, where
// the cache events come from. What can't be read now but was known before is
// kept.
func (m *member) learn(ctx context.Context) {
	known := !m.learnedAt.IsZero()
	models, wrong, err := m.learnModels(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil && !known {
		wrong = clip(err.Error())
	}
	if err == nil || !known {
		m.mu.Lock()
		m.health.wrong = wrong
		if err == nil {
			m.status.Models = models
		}
		m.mu.Unlock()
	}
	if wrong != "" {
		// Events of another model would be filed under the wrong one.
		m.drop()
		return
	}
	m.learnVersion(ctx)
	if m.learnSources(ctx) {
		m.learnedAt = m.c.cfg.Now()
	}
}

// learnModels lists what the worker serves. wrong says why it can't be used.
func (m *member) learnModels(ctx context.Context) (models []string, wrong string, err error) {
	body, err := m.api.get(ctx, "/v1/models", maxSmallBody)
	if s, ok := errors.AsType[*statusError](err); ok && (s.status == http.StatusUnauthorized || s.status == http.StatusForbidden) {
		return nil, fmt.Sprintf("refuses our API key: /v1/models answers %d", s.status), nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("cannot list its models: %w", err)
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, "", fmt.Errorf("cannot list its models: /v1/models answers no JSON list: %w", err)
	}
	for _, e := range list.Data {
		models = append(models, clip(e.ID))
	}
	var missing []string
	for _, want := range m.w.wants() {
		if !slices.Contains(models, want) {
			missing = append(missing, want)
		}
	}
	if len(missing) > 0 {
		wrong = fmt.Sprintf("does not serve the configured model %s: it serves %s", quoted(missing), quoted(models))
		if len(models) == 0 {
			wrong = fmt.Sprintf("does not serve the configured model %s: it serves none", quoted(missing))
		}
	}
	return models, wrong, nil
}

func (m *member) learnVersion(ctx context.Context) {
	body, err := m.api.get(ctx, "/version", maxSmallBody)
	if err != nil {
		return
	}
	var v struct {
		Version string `json:"version"`
	}
	if json.Unmarshal(body, &v) != nil {
		return
	}
	m.mu.Lock()
	m.status.Version = clip(v.Version)
	m.mu.Unlock()
}

// learnSources finds out where the cache events come from and announces it. It
// reports whether the answer will do until the next regular look.
func (m *member) learnSources(ctx context.Context) bool {
	sources, err := m.findSources(ctx)
	if ctx.Err() != nil {
		return false
	}
	reason := ""
	if err != nil {
		reason = clip(err.Error())
	}
	m.mu.Lock()
	m.status.SourcesReason = reason
	m.mu.Unlock()
	if s, ok := errors.AsType[*statusError](err); ok && s.status != http.StatusNotFound || err != nil && !ok && isTransport(err) {
		return false // try again soon, keep what there is
	}
	m.announce(sources)
	return true
}

func (m *member) findSources(ctx context.Context) ([]EventSource, error) {
	switch m.w.Events {
	case EventsNone, "":
		return nil, errors.New("no cache events are configured")
	case EventsAuto:
	default:
		return m.w.configuredSources()
	}
	body, err := m.api.get(ctx, "/kv_event_sources", maxSmallBody)
	if s, ok := errors.AsType[*statusError](err); ok && s.status == http.StatusNotFound {
		return nil, fmt.Errorf("the worker does not say where it publishes cache events, configure its endpoints: %w", err)
	}
	if err != nil {
		return nil, err
	}
	return parseSources(body, m.host)
}
