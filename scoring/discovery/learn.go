package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
)

// learn looks at what rarely changes: the models served, the version, where
// the cache events come from. What can't be read now but was known before is
// kept.
func (m *member) learn(ctx context.Context) {
	known := !m.learnedAt.IsZero()
	list, err := m.listModels(ctx)
	if ctx.Err() != nil {
		return
	}
	wrong := ""
	switch {
	case err == nil:
		wrong = m.missing(list)
		m.takeModels(list, wrong)
	case refused(err):
		wrong = "refuses our API key: " + clip(err.Error())
		m.takeModels(nil, wrong)
	case !known:
		wrong = clip(fmt.Sprintf("cannot list its models: %v", err))
		m.takeModels(nil, wrong)
	}
	if wrong != "" {
		// Events of another model would be filed under the wrong one.
		m.drop()
		return
	}
	m.learnVersion(ctx)
	described := m.learnPaths(ctx)
	if m.learnSources(ctx) && described {
		m.learnedAt = m.c.cfg.Now()
	}
}

// served is an entry of a worker's /v1/models.
type served struct {
	ID string `json:"id"`
	// Parent is the base model's name at a LoRA adapter, null otherwise.
	Parent *string `json:"parent"`
	// Context is null at an adapter.
	Context modelLength `json:"max_model_len"`
}

// modelLength is a number of tokens; 0: not told. What is no such number counts as not
// told: it is no reason to do without the list.
type modelLength int

// UnmarshalJSON implements [json.Unmarshaler].
func (l *modelLength) UnmarshalJSON(text []byte) error {
	*l = 0
	var n float64
	if json.Unmarshal(text, &n) == nil && n >= 1 && n <= 1<<40 {
		*l = modelLength(n)
	}
	return nil
}

// listModels asks what the worker serves.
func (m *member) listModels(ctx context.Context) ([]served, error) {
	body, err := m.api.get(ctx, "/v1/models", maxSmallBody)
	if err != nil {
		return nil, err
	}
	return parseModels(body)
}

// parseModels reads the answer of /v1/models.
func parseModels(body []byte) ([]served, error) {
	var list struct {
		Data []served `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("/v1/models answers no JSON list: %w", err)
	}
	return list.Data, nil
}

// refused reports whether the worker wants another key than it was given.
func refused(err error) bool {
	s, ok := errors.AsType[*statusError](err)
	return ok && (s.status == http.StatusUnauthorized || s.status == http.StatusForbidden)
}

// missing says which of the configured models the worker does not serve, or
// nothing.
func (m *member) missing(list []served) string {
	var missing, models []string
	for _, want := range m.w.wants() {
		if !slices.ContainsFunc(list, func(e served) bool { return e.ID == want }) {
			missing = append(missing, want)
		}
	}
	switch {
	case len(missing) == 0:
		return ""
	case len(list) == 0:
		return fmt.Sprintf("does not serve the configured model %s: it serves none", quoted(missing))
	}
	for _, e := range list {
		models = append(models, e.ID)
	}
	return fmt.Sprintf("does not serve the configured model %s: it serves %s", quoted(missing), quoted(models))
}

// takeModels takes over what the worker serves and tells the fleet which of its
// adapters are loaded. An entry without a parent is no adapter, whatever its
// name: its blocks would be filed under the wrong model.
func (m *member) takeModels(list []served, wrong string) {
	var models, adapters []string
	for _, e := range list[:min(len(list), maxModels)] {
		models = append(models, clip(e.ID))
	}
	for _, a := range m.w.Adapters {
		if slices.ContainsFunc(list, func(e served) bool { return e.ID == a.served() && e.Parent != nil && *e.Parent != "" }) {
			adapters = append(adapters, a.Name)
		}
	}
	m.mu.Lock()
	m.health.wrong = wrong
	m.status.Models = models
	m.mu.Unlock()
	m.setAdapters(adapters)
	m.setContext(m.contextOf(list))
}

// contextOf is the longest context that the worker lists for what is configured of it: an
// engine has one for all names of its model.
func (m *member) contextOf(list []served) int {
	longest := 0
	wants := m.w.wants()
	for _, e := range list {
		if slices.Contains(wants, e.ID) {
			longest = max(longest, int(e.Context))
		}
	}
	return longest
}

// setContext tells the fleet how long requests to the worker can be, if that has changed.
func (m *member) setContext(tokens int) {
	if tokens == m.context {
		return
	}
	m.context = tokens
	m.mu.Lock()
	m.status.Context = tokens
	m.mu.Unlock()
	m.c.fleet.SetContext(m.id, tokens)
}

// setAdapters tells the fleet which adapters are loaded, if that has changed.
func (m *member) setAdapters(adapters []string) {
	if slices.Equal(adapters, m.adapters) {
		return
	}
	m.adapters = adapters
	m.mu.Lock()
	m.status.Adapters = adapters
	m.mu.Unlock()
	m.c.fleet.SetAdapters(m.id, adapters)
	m.c.log.Info("worker's adapters changed", "worker", m.w.Name, "loaded", len(adapters))
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
		reason = clipTo(err.Error(), 600)
	}
	m.mu.Lock()
	news := reason != m.status.SourcesReason
	m.status.SourcesReason = reason
	m.mu.Unlock()
	if news && err != nil && !errors.Is(err, errNotWanted) {
		m.c.log.Warn("no cache events, the worker is picked by load alone", "worker", m.w.Name, "err", reason)
	}
	if s, ok := errors.AsType[*statusError](err); ok && s.status != http.StatusNotFound || err != nil && !ok && isTransport(err) {
		return false // try again soon, keep what there is
	}
	m.announce(sources)
	return true
}

func (m *member) findSources(ctx context.Context) ([]EventSource, error) {
	switch m.w.Events {
	case EventsNone, "":
		return nil, errNotWanted
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
	return parseSources(body, m.host, func(host string) []netip.Addr {
		addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			return nil
		}
		for i := range addrs {
			addrs[i] = addrs[i].Unmap()
		}
		return addrs
	})
}
