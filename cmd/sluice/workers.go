package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/scoring/discovery"
)

// checker returns the configuration of the health checks.
func (h *HealthConfig) checker() discovery.Config {
	c := discovery.DefaultConfig()
	c.Interval, c.Timeout, c.MetricsInterval, c.LearnInterval = h.Interval, h.Timeout, h.MetricsInterval, h.ModelsInterval
	c.UnhealthyAfter, c.HealthyAfter = h.UnhealthyAfter, h.HealthyAfter
	c.EjectAfter, c.EjectBase, c.EjectMax = h.EjectAfter, h.EjectBase, h.EjectMax
	c.DrainTimeout = h.DrainTimeout
	for _, e := range gateway.Endpoints() {
		c.Paths = append(c.Paths, e.Path)
	}
	return c
}

// discoveryWorkers returns the workers that the configuration lists, and where the other lists are.
func discoveryWorkers(cfg *Config, log *slog.Logger) (workers []discovery.Worker, sources []discovery.Source, err error) {
	upstream := make(map[string]string, len(cfg.Models))
	for i := range cfg.Models {
		upstream[cfg.Models[i].Name] = cfg.Models[i].Upstream
	}
	for i := range cfg.Pools {
		p := &cfg.Pools[i]
		template := discovery.Worker{Pool: p.Name, Models: p.Models}
		if p.APIKeyFile != "" {
			if template.APIKey, err = readSecretText(p.APIKeyFile); err != nil {
				return nil, nil, fmt.Errorf("cannot read pools[%d].apiKeyFile: %w", i, err)
			}
		}
		for _, m := range p.Models {
			template.Serves = append(template.Serves, upstream[m])
		}
		for _, m := range p.Adapters {
			template.Adapters = append(template.Adapters, discovery.Adapter{Name: m, Served: upstream[m]})
		}
		workers = append(workers, describeWorkers(template, p.Workers)...)
		if c := &p.WorkersFrom; c.Enabled() {
			sources = append(sources, c.source(template, log))
		}
	}
	return workers, sources, nil
}

// describeWorkers fills a pool's template with what a list says of each worker.
func describeWorkers(template discovery.Worker, list []WorkerConfig) []discovery.Worker {
	workers := make([]discovery.Worker, len(list))
	for i, c := range list {
		w := template
		w.Name, w.URL, w.Events, w.Replay, w.Ranks = c.Name, c.URL, c.Events, c.Replay, c.Ranks
		if c.EventsBind != "" {
			w.Events, w.Bind, w.From = c.EventsBind, true, c.EventsFrom
		}
		workers[i] = w
	}
	return workers
}

// source returns the pool's changing list.
func (c *WorkersFromConfig) source(template discovery.Worker, log *slog.Logger) discovery.Source {
	s := discovery.Source{Pool: template.Pool, MaxWorkers: c.MaxWorkers}
	if c.File != "" {
		s.Kind = "file"
		s.Discoverer = &discovery.File{Path: c.File, Log: log, Parse: func(data []byte) ([]discovery.Worker, error) {
			list, err := parseWorkers(c.File, data, c.MaxWorkers)
			return describeWorkers(template, list), err
		}}
		return s
	}
	template.URL, template.Events, template.Replay, template.Ranks = c.DNS.Scheme, c.DNS.Events, c.DNS.Replay, c.DNS.Ranks
	s.Kind = "dns"
	s.Discoverer = &discovery.DNS{
		Name: c.DNS.Name, Type: discovery.RecordType(c.DNS.Type), Port: c.DNS.Port,
		Interval: c.DNS.Interval, RemoveAfter: c.DNS.RemoveAfter, Resolver: resolver(c.DNS.Server), Template: template,
	}
	return s
}

// resolver asks the DNS server at host:port, or the system's if it is empty. It is Go's own in either
// case, which costs no thread while a server is silent.
func resolver(server string) *net.Resolver {
	r := &net.Resolver{PreferGo: true}
	if server != "" {
		r.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, server)
		}
	}
	return r
}

// workerNames are the names that workers have at present: the only ones that may label a series. A name
// that has left takes its series along, so that workers that come and go do not add up.
type workerNames struct {
	mu    sync.RWMutex // protects what follows, and keeps a name's series from coming back after it left
	known map[string]bool
	gone  func(name string) // drops the series; nil until there are any
}

func newWorkerNames() *workerNames { return &workerNames{known: make(map[string]bool)} }

// set says whether there is a worker of that name.
func (n *workerNames) set(name string, there bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if there {
		n.known[name] = true
		return
	}
	delete(n.known, name)
	if n.gone != nil {
		n.gone(name)
	}
}

// onGone sets what drops a name's series.
func (n *workerNames) onGone(f func(name string)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gone = f
}

// removedWorker labels what is counted of workers that have left.
const removedWorker = "removed"

// with calls count with the name as a label; the label is removedWorker for a name that has left.
func (n *workerNames) with(name string, count func(label string)) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if !n.known[name] {
		name = removedWorker
	}
	count(name)
}
