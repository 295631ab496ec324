package main

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/tenancy/authn"
	"github.com/sluicegate/sluice/tenancy/chargeback"
)

// generation is one complete load of everything that reloads together. Nothing changes it; a request keeps
// the one that it began with.
type generation struct {
	number   uint64 // from 1
	cfg      *Config
	docs     *documents
	identity *identity
	state    *gateway.State
	metrics  chargeback.MetricsConfig
	loaded   time.Time
	// certificates are those of the listeners.
	certificates certificates
}

// lasting is what every generation has in common, since it is fixed when the gateway starts.
type lasting struct {
	created int64                   // what model listings show
	pools   map[string]gateway.Pool // with the workers' API keys
	// identities follow the keys of issuers.
	identities *identities
	// spareKey keys the salts of clients where nothing is isolated and no key is configured. It is of this
	// process alone, so that nobody can compute a salt from a tenant's name.
	spareKey []byte
	log      *slog.Logger
	// keys are those in force, whatever the generation; nil before the first one. closeKeys gives back what
	// they were read from.
	keys      *authn.Live
	closeKeys func() error
}

func newLasting(cfg *Config, now time.Time, log *slog.Logger) (*lasting, error) {
	pools, err := gatewayPools(cfg)
	if err != nil {
		return nil, err
	}
	l := &lasting{created: now.Unix(), pools: pools, identities: newIdentities(log), spareKey: make([]byte, minKeyBytes), log: log}
	if _, err := rand.Read(l.spareKey); err != nil {
		return nil, fmt.Errorf("cannot make a key: %w", err)
	}
	return l, nil
}

// generation loads the documents that cfg names, as of now, and builds what requests need of them. old is
// the generation in force, nil for the first one. An error lists everything that is wrong, one line each;
// then nothing has changed anywhere.
func (l *lasting) generation(cfg *Config, old *generation, now time.Time) (*generation, error) {
	number, before := uint64(1), &documents{}
	var shown certificates
	if old != nil {
		number, before, shown = old.number+1, old.docs, old.certificates
	}
	docs, err := loadDocumentsAfter(cfg, before, now, l.log)
	if err != nil {
		return nil, err
	}
	if l.keys == nil {
		if l.keys, l.closeKeys, err = newLiveKeys(cfg, docs.directory, l.log); err != nil {
			return nil, err
		}
	}
	models, err := gateway.NewModels(gatewayModels(cfg, l.created))
	if err != nil {
		return nil, fmt.Errorf("cannot use the models: %w", err)
	}
	g := &generation{number: number, cfg: cfg, docs: docs, loaded: now, metrics: metricsConfig(cfg, docs)}
	if g.certificates, err = loadCertificates(cfg, shown, now); err != nil {
		return nil, err
	}
	if err := g.metrics.Validate(); err != nil {
		return nil, fmt.Errorf("cannot set up the tenants' metrics: %w", err)
	}
	if g.identity, err = l.identities.build(cfg, l.keys, docs.directory); err != nil {
		l.identities.keep(old.uses())
		return nil, err
	}
	g.state = &gateway.State{
		Identifier: g.identity.identifier, ConnectionIdentity: g.identity.connection, Policies: docs.policies, Models: models, Pools: withEndpoints(l.pools, cfg), Pricer: pricer{docs.prices},
		PolicyHeaders: cfg.Policy.Headers, LabelPrincipals: cfg.Policy.LabelPrincipals, LabelClaim: cfg.Labels.Claim,
		CacheKey: docs.cacheKey, Generation: number,
	}
	queue := cfg.QoS.queue(cfg.Policy.Classes)
	if cfg.QoS.Enabled {
		g.state.Queue = queue
	}
	g.state.Targets = make(map[string]time.Duration, len(queue.Classes))
	for i := range queue.Classes {
		g.state.Targets[queue.Classes[i].Name] = queue.Classes[i].Target
	}
	if docs.cacheKey == nil {
		g.state.CacheKey = l.spareKey
	}
	if docs.scanner != nil {
		g.state.Classifier = docs.scanner
	}
	return g, nil
}

// uses are the sources of keys that a generation needs; nil is none.
func (g *generation) uses() map[keySource]bool {
	if g == nil {
		return nil
	}
	return g.identity.uses
}

// keepReloadable copies to a configuration what can be changed without a restart from another one. What
// is left different needs one.
func (c *Config) keepReloadable(from *Config) {
	c.Policy, c.CacheIsolation, c.Labels, c.Identity = from.Policy, from.CacheIsolation, from.Labels, from.Identity
	c.QoS = from.QoS
	c.Tenants, c.Prices, c.Metrics, c.Chargeback = from.Tenants, from.Prices, from.Metrics, from.Chargeback
	c.Listen.Public.TLS.keepPair(from.Listen.Public.TLS)
	c.Listen.Admin.TLS.keepPair(from.Listen.Admin.TLS)
	if len(c.Models) == len(from.Models) {
		c.Models = slices.Clone(c.Models)
		for i := range c.Models {
			m, f := &c.Models[i], &from.Models[i]
			m.Aliases, m.Family, m.ContextLength, m.DefaultMaxTokens = f.Aliases, f.Family, f.ContextLength, f.DefaultMaxTokens
		}
	}
	if len(c.Pools) == len(from.Pools) {
		c.Pools = slices.Clone(c.Pools)
		for i := range c.Pools {
			c.Pools[i].Labels, c.Pools[i].CacheSalt = from.Pools[i].Labels, from.Pools[i].CacheSalt
			c.Pools[i].Endpoints, c.Pools[i].PriorityScheduling = from.Pools[i].Endpoints, from.Pools[i].PriorityScheduling
			c.Pools[i].HourlyCost = from.Pools[i].HourlyCost // only commands read it
		}
	}
}

// needsRestart lists the keys by which fresh differs from running and which only a restart can change.
func needsRestart(running, fresh *Config) []string {
	rest := *fresh
	rest.keepReloadable(running)
	return changedKeys(nil, reflect.ValueOf(running).Elem(), reflect.ValueOf(&rest).Elem(), "")
}

// changedKeys appends to list the paths of the keys whose values differ. A list that has grown or shrunk is
// one key.
func changedKeys(list []string, a, b reflect.Value, path string) []string {
	switch {
	case a.Kind() == reflect.Struct:
		for sf, field := range a.Fields() {
			list = changedKeys(list, field, b.FieldByIndex(sf.Index), joinPath(path, sf.Tag.Get("yaml")))
		}
	case a.Kind() == reflect.Slice && a.Type().Elem().Kind() == reflect.Struct && a.Len() == b.Len():
		for i := range a.Len() {
			list = changedKeys(list, a.Index(i), b.Index(i), path+"["+strconv.Itoa(i)+"]")
		}
	case !reflect.DeepEqual(a.Interface(), b.Interface()):
		list = append(list, path)
	}
	return list
}

// refuseRestart returns an error at each key that only a restart can change, or nil.
func refuseRestart(running *Config, fresh *parsedConfig) error {
	v := validator{file: fresh.file, positions: fresh.positions}
	for _, key := range needsRestart(running, fresh.cfg) {
		v.errorf(key, "differs from what the gateway was started with, and only a restart can change it; undo the change, or restart")
	}
	if len(v.errors) == 0 {
		return nil
	}
	sortIssues(v.errors)
	return &ConfigError{Issues: v.errors}
}
