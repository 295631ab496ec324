package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/policy/decisionlog"
	"github.com/sluicegate/sluice/ratelimit"
	"github.com/sluicegate/sluice/ratelimit/redis"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/scoring/discovery"
	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/chargeback"
	"github.com/sluicegate/sluice/tenancy/ledger"
)

// app is a gateway with all its parts. newApp builds it in the order of the
// fields, Serve runs it, Close gives everything back in reverse.
type app struct {
	cfg *Config
	log *slog.Logger

	reloads *reloader
	meter   *metrics
	// decisions is the decision log, nil if there is none.
	decisions *decisionlog.Log
	fleet     *scoring.Fleet
	names     *workerNames
	subs      *subscriptions
	checker   *discovery.Checker
	tokens    *tokenizers
	limiter   *ratelimit.Limiter // limits in this process
	shared    *redis.Limiter     // limits of all replicas; nil without a store
	tenants   *chargeback.TenantMetrics
	ledger    *ledger.Ledger
	retention *retention
	gateway   *gateway.Gateway
	public    net.Listener
	admin     net.Listener
	pages     http.Handler       // of the admin listener
	admitted  *gateway.Admission // to it

	// budgetsUnread says that what is used of budgets could not be read the last time.
	budgetsUnread atomic.Bool

	closers []func() error

	first   *generation
	base    *lasting
	print   fingerprint     // of the first generation's files
	file    string          // of the configuration, for reloads; empty: it does not change
	hangups <-chan struct{} // ask for a reload; nil: never
}

// appOption sets what a gateway is built with beside its configuration.
type appOption func(*app)

// reloadFrom has the configuration read from that file again whenever something is reloaded, as also at
// each value from hangups. Without it the configuration stays, and the files that it names are read again.
func reloadFrom(file string, hangups <-chan struct{}) appOption {
	return func(a *app) { a.file, a.hangups = file, hangups }
}

// run serves until ctx ends and has drained when it returns.
func run(ctx context.Context, cfg *Config, log *slog.Logger, opts ...appOption) error {
	a, err := newApp(cfg, log, opts...)
	if err != nil {
		return err
	}
	serveErr := a.serve(ctx)
	if err := a.Close(); err != nil {
		return errors.Join(serveErr, err)
	}
	return serveErr
}

// newApp takes the ports and builds the parts. Nothing runs yet but the writers
// of the ledger and the decision log, and the gateway's watcher. Clients that call
// meanwhile wait for serve.
func newApp(cfg *Config, log *slog.Logger, opts ...appOption) (a *app, err error) {
	a = &app{cfg: cfg, log: log}
	for _, o := range opts {
		o(a)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
			a = nil
		}
	}()
	for _, step := range [...]func() error{
		a.listen, a.load, a.buildFleet, a.buildTokens, a.openLedger, a.openDecisions, a.buildGateway,
	} {
		if err := step(); err != nil {
			return a, err
		}
	}
	return a, nil
}

// onClose adds what Close has to do, last in first out.
func (a *app) onClose(f func() error) { a.closers = append(a.closers, f) }

// Close gives back what newApp took. Serve has returned by then.
func (a *app) Close() error {
	var errs []error
	for _, give := range slices.Backward(a.closers) {
		errs = append(errs, give())
	}
	a.closers = nil
	return errors.Join(errs...)
}

// load builds the first generation. A change of its files while the gateway starts is found when the reloader
// looks at them.
func (a *app) load() (err error) {
	now := time.Now()
	a.print = sourcesOf(a.file, a.cfg).fingerprint()
	if a.base, err = newLasting(a.cfg, now, a.log); err != nil {
		return err
	}
	if a.first, err = a.base.generation(a.cfg, nil, now); err != nil {
		return errors.Join(err, a.base.close())
	}
	a.onClose(a.base.close)
	logWarnings(a.log, a.first)
	a.first.certificates.tell(a.log, certificates{})
	return nil
}

func (a *app) buildFleet() error {
	fc := a.cfg.Scoring.fleet(uint64(time.Now().UnixNano()))
	fc.SlowStart = a.cfg.Health.SlowStart
	a.fleet = scoring.NewFleet(fc)
	a.setPriorities(a.cfg)
	a.subs = newSubscriptions(a.fleet, a.log)
	a.names = newWorkerNames()
	dc := a.cfg.Health.checker()
	dc.OnSources, dc.OnName = a.subs.set, a.names.set
	workers, sources, err := discoveryWorkers(a.cfg, a.log)
	if err != nil {
		return err
	}
	a.checker, err = discovery.New(workers, a.fleet, a.log, dc)
	if err != nil {
		return fmt.Errorf("cannot watch the workers: %w", err)
	}
	for _, s := range sources {
		if err := a.checker.Follow(s); err != nil {
			return err
		}
	}
	a.subs.doubt = a.checker.CheckSoon
	return nil
}

// setPriorities tells the fleet whose engines schedule by priority.
func (a *app) setPriorities(cfg *Config) {
	for i := range cfg.Pools {
		a.fleet.SetPriorities(cfg.Pools[i].Name, cfg.Pools[i].PriorityScheduling)
	}
}

func (a *app) buildTokens() error {
	keys := make(map[string]string, len(a.base.pools))
	for name, p := range a.base.pools {
		keys[name] = p.APIKey
	}
	a.tokens = newTokenizers(a.cfg, loadTokenizer, newRoster(a.fleet, keys), a.log)
	a.onClose(func() error { a.tokens.Close(); return nil })
	return nil
}

func (a *app) openLedger() (err error) {
	a.limiter = ratelimit.New(ratelimit.DefaultConfig())
	if a.shared, err = a.cfg.Store.Redis.open(a.log); err != nil {
		return err
	}
	if a.tenants, err = chargeback.NewTenantMetrics(a.first.metrics); err != nil {
		return fmt.Errorf("cannot set up the tenants' metrics: %w", err)
	}
	a.ledger, err = a.openBooks()
	if err != nil {
		return err
	}
	a.onClose(a.ledger.Close)
	a.beginBudgets()
	a.retention = newRetention(&a.cfg.Ledger, a.ledger, a.log)
	return nil
}

func (a *app) buildGateway() error {
	gc, err := gatewayConfig(a.cfg)
	if err != nil {
		return err
	}
	reg := prometheus.NewRegistry()
	a.meter = newMetrics(reg, a.tenants, a.names)
	a.meter.inForce(nil, a.first)
	parts := gateway.Parts{
		LocalLimiter: ratelimit.New(ratelimit.Config{MaxCounters: localCounters}), LocalFraction: a.cfg.Store.LocalFraction,
		Router: a.fleet, Limiter: a.limits(), Tokenizer: a.tokens, Ledger: a.ledger,
		Meter: meters{a.meter, a.tokens}, Health: a.checker, Log: a.log, Ready: a.notReady, Details: a.details,
		Offers: offers{a.checker},
	}
	if a.decisions != nil {
		parts.Decisions = a.decisions
	}
	a.gateway, err = gateway.New(gc, parts, a.first.state)
	if err != nil {
		return err
	}
	a.onClose(a.gateway.Close)
	a.reloads = newReloader(a.file, a.first, a.print, a.base, a.install, a.hangups, a.log)
	if a.decisions != nil {
		a.reloads.hungUp = a.decisions.Reopen // it may have been moved away
	}
	a.admitted = gateway.NewAdmission(adminConnections, adminConnectionsPerAddress, nil)
	reg.MustRegister(&stateCollector{
		gateway: a.gateway, admin: a.admitted, fleet: a.fleet, limiter: a.limiter, shared: a.shared, ledger: a.ledger, tokens: a.tokens, kv: a.subs.stats, checker: a.checker,
		reloads: a.reloads, decisions: a.decisions, keys: a.base.keys, retention: a.retention,
		identities: a.base.identities, budgetsUnread: &a.budgetsUnread, queue: a.gateway.QueueCounts, tenants: a.tenants,
	})
	a.pages, err = a.adminPages(reg)
	return err
}

// meters tells the tokenizers of every request beside the metrics: an answer's
// usage says how long the engine found the prompt.
type meters struct {
	*metrics
	tokens *tokenizers
}

// Observe implements gateway.Meter.
func (m meters) Observe(s *gateway.Summary) {
	m.metrics.Observe(s)
	m.tokens.observe(s)
}

// install makes a generation the one of every request that begins from now on. Limits, workers and the
// ledger are the same as before; requests that run keep the generation they have.
func (a *app) install(old, fresh *generation) {
	a.base.keys.Adopt(fresh.cfg.keyFiles(), fresh.docs.directory)
	fresh.certificates.tell(a.log, old.certificates)
	a.meter.inForce(old, fresh) // first, so that its rules have their names when they are counted
	a.setPriorities(fresh.cfg)
	a.gateway.Swap(fresh.state)
	a.base.identities.keep(fresh.uses())
}

// details says, in words of a fixed list, what is amiss although the gateway can serve.
func (a *app) details() (words []string) {
	if a.reloads.failing() {
		words = append(words, "reload_failed")
	}
	if a.base.keys.Failing() {
		words = append(words, "keys_failing")
	}
	if a.base.identities.failing() {
		words = append(words, "provider_down")
	}
	words = append(words, a.decisionDetails()...)
	words = append(words, a.storeDetails()...)
	switch {
	case a.ledger.Healthy() != nil:
		words = append(words, "ledger_full")
	case a.ledger.Stats().Failing:
		words = append(words, "ledger_failing")
	}
	return words
}

// metricsConfig is the allowlist of the tenants' metrics.
func metricsConfig(cfg *Config, docs *documents) chargeback.MetricsConfig {
	mc := chargeback.MetricsConfig{
		Tenants: cfg.Metrics.Tenants, Top: cfg.Metrics.TopTenants, Known: make(map[string]bool), MaxSeries: cfg.Metrics.MaxSeries,
		Classes: cfg.Policy.Classes, Reasons: gateway.QueueReasons(),
	}
	for _, t := range docs.directory.Tenants() {
		mc.Known[t.ID] = true
	}
	for i := range cfg.Models {
		if name := cfg.Models[i].Name; chargeback.FitsLabel(name) {
			mc.Models = append(mc.Models, name)
		}
	}
	if docs.prices == nil {
		return mc
	}
	seen := make(map[string]bool)
	for _, p := range docs.prices.All() {
		if !seen[p.Currency] {
			seen[p.Currency] = true
			mc.Currencies = append(mc.Currencies, p.Currency)
		}
	}
	return mc
}

// pricer puts prices into ledger rows; without a table they have none.
type pricer struct{ prices *chargeback.Prices }

// Price implements gateway.Pricer. A row without a price is flagged as such.
func (p pricer) Price(row *tenancy.Row) {
	if p.prices == nil {
		row.Flags |= tenancy.FlagUnpriced
		return
	}
	_ = p.prices.Cost(row) // the row says that it has no price
}

// ignoreClosed closes a listener that its server has closed already, or not.
func ignoreClosed(ln net.Listener) func() error {
	return func() error {
		if err := ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
}

// notReady says, in the contract's words, why no traffic should come here. What comes all the same is served
// as well as can be: without its tokenizer a model's token ids come from its workers.
func (a *app) notReady() (reasons []string) {
	if !a.tokens.ready() {
		reasons = append(reasons, "starting")
	}
	if a.fleet.Stats().ReadyWorkers == 0 {
		reasons = append(reasons, "no_worker")
	}
	return reasons
}

// serve runs everything until ctx ends, then drains. It returns the first
// failure of a part, or nil after an orderly end.
func (a *app) serve(ctx context.Context) error {
	tlsCfg := a.listenTLS()
	// The parts outlive the signal: they serve what is being drained.
	parts, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, failed := errgroup.WithContext(parts)
	admin := a.adminServer()
	group.Go(func() error { return newHeapRoom().Run(failed) })
	group.Go(func() error { return a.checker.Run(failed) })
	group.Go(func() error { return a.tokens.Run(failed) })
	group.Go(func() error { return a.base.identities.Run(failed) })
	group.Go(func() error { return a.reloads.Run(failed) })
	if a.shared != nil {
		group.Go(func() error { return a.shared.Run(failed) })
	}
	group.Go(func() error { return a.base.keys.Run(failed) })
	if a.cfg.Keys.CutRunning {
		group.Go(func() error { return a.cutRevoked(failed) })
	}
	group.Go(func() error { return a.retention.Run(failed) })
	group.Go(func() error { a.followBudgets(failed); return nil })
	group.Go(func() error { return a.gateway.Serve(a.public, tlsCfg) })
	group.Go(func() error { return a.serveAdmin(admin, a.adminTLS()) })
	a.log.Info("serving", "public", a.public.Addr().String(), "admin", a.admin.Addr().String(),
		"tls", tlsCfg != nil, "policy", a.first.docs.policies.Revision(), "pid", os.Getpid())
	select {
	case <-ctx.Done():
	case <-failed.Done():
	}
	drainErr := a.drain()
	closeCtx, cancel := context.WithTimeout(parts, time.Second)
	defer cancel()
	if err := admin.Shutdown(closeCtx); err != nil {
		_ = admin.Close()
	}
	stop()
	return errors.Join(group.Wait(), drainErr)
}

// drain takes the gateway out of service: not ready, still accepting for a
// while, then finishing what runs, then cutting what is left.
func (a *app) drain() error {
	a.gateway.BeginDrain()
	deadline, cancel := context.WithTimeout(context.Background(), a.cfg.Drain.Deadline)
	defer cancel()
	a.log.Info("draining", "in_flight", a.gateway.InFlight(), "delay", a.cfg.Drain.Delay, "deadline", a.cfg.Drain.Deadline)
	delay := time.NewTimer(min(a.cfg.Drain.Delay, a.cfg.Drain.Deadline))
	defer delay.Stop()
	<-delay.C
	if err := a.gateway.Shutdown(deadline); err != nil {
		return fmt.Errorf("cannot shut down the public listener: %w", err)
	}
	a.log.Info("drained")
	return nil
}

// baseURL is where the public listener can be reached from this machine.
func (a *app) baseURL() string {
	scheme := "http"
	if a.cfg.Listen.Public.TLS.Enabled() {
		scheme = "https"
	}
	return scheme + "://" + strings.Replace(a.public.Addr().String(), "[::]", "127.0.0.1", 1)
}
