package main

import (
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/policy/classify"
	"github.com/sluicegate/sluice/policy/decisionlog"
	"github.com/sluicegate/sluice/ratelimit"
	"github.com/sluicegate/sluice/ratelimit/redis"
	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/scoring/discovery"
	"github.com/sluicegate/sluice/scoring/kvevents"
	"github.com/sluicegate/sluice/scoring/tokenize"
	"github.com/sluicegate/sluice/scoring/tokenize/verify"
	"github.com/sluicegate/sluice/tenancy/authn"
	"github.com/sluicegate/sluice/tenancy/chargeback"
	"github.com/sluicegate/sluice/tenancy/ledger"
)

// stateCollector reads, at each scrape, what the parts know of themselves.
type stateCollector struct {
	gateway   *gateway.Gateway
	admin     *gateway.Admission // of the admin listener
	fleet     *scoring.Fleet
	limiter   *ratelimit.Limiter
	shared    *redis.Limiter // nil without a store
	ledger    *ledger.Ledger
	tokens    *tokenizers
	kv        func() []kvSource
	checker   *discovery.Checker
	reloads   *reloader
	retention *retention

	identities *identities
	// decisions is nil without a decision log.
	decisions *decisionlog.Log
	keys      *authn.Live
	// budgetsUnread says that what is used of budgets can't be read.
	budgetsUnread *atomic.Bool
	// queue fills in what the queue holds; false without one.
	queue func(*gateway.QueueState) bool
	// tenants is told how many requests of each tenant wait.
	tenants *chargeback.TenantMetrics
}

var (
	descInFlight    = desc("sluice_http_requests_in_flight", "Requests between their first check and their end.", "route")
	descConns       = desc("sluice_http_connections", "Open client connections.")
	descConnLimit   = desc("sluice_http_connections_limit", "The most client connections that may be open.")
	descConnRefused = desc("sluice_http_connections_refused_total", "Connections that were refused because as many were open as there may be: in all (total), or of one address (address).", "listener", "reason")
	descMemory      = desc("sluice_http_memory_bytes", "Memory of the bodies of all requests in flight, and of answers that their clients don't have yet.")
	descMemoryLimit = desc("sluice_http_memory_limit_bytes", "The most that it may be.")
	descStored      = desc("sluice_response_store_entries", "Stored responses whose worker is known, with those whose time is over and that nobody has asked for since.")
	descStoredMost  = desc("sluice_response_store_limit", "The most that there may be; 0 without a store.")
	descStoredBytes = desc("sluice_response_store_bytes", "Memory that they take.")
	descStoredGone  = desc("sluice_response_store_evictions_total", "Stored responses that were forgotten: when their time was over (expired), or before, for newer ones (full).", "reason")
	descMemoryFull  = desc("sluice_http_memory_refused_total", "Requests that were refused because there was as much as there may be: in all (total), or of one tenant (tenant).", "reason")
	descDraining    = desc("sluice_draining", "1 while the gateway is shutting down.")
	descReloads     = desc("sluice_config_reloads_total", "Reloads by result: success, failure.", "result")
	descGeneration  = desc("sluice_config_generation", "Number of the generation in force, from 1.")
	descReloadOK    = desc("sluice_config_last_reload_successful", "0 while what the files say is not in force, because it could not be loaded.")
	descLoaded      = desc("sluice_config_loaded_timestamp_seconds", "When the generation in force was loaded.")
	descCertExpiry  = desc("sluice_tls_certificate_expiry_timestamp_seconds", "When the certificate that a listener shows ends.", "listener")
	descKeys        = desc("sluice_keys", "API keys by state: active, expiring (they work and end within keys.warnBefore), expired, revoked, asleep (their tenant is disabled or unknown).", "state")
	descKeysFailing = desc("sluice_keys_source_failing", "1 while what keys are read from can't be followed, or their use not be noted; what was read last stays in force.", "source")
	descKeysFails   = desc("sluice_keys_source_failures_total", "Times that it could not.", "source")
	descKeysStale   = desc("sluice_keys_stale_seconds", "Time since the database of keys was last asked and answered; 0 without one.")
	descJWKSKeys    = desc("sluice_jwks_keys", "Keys of the issuer that verify tokens.", "issuer")
	descJWKSFetches = desc("sluice_jwks_fetches_total", "Fetches of the issuer's keys by result: success, failure.", "issuer", "result")
	descJWKSFetched = desc("sluice_jwks_fetched_timestamp_seconds", "When the issuer's keys were last fetched; 0 if they never were.", "issuer")
	descJWKSFailing = desc("sluice_jwks_failing", "1 while the issuer's keys can't be fetched; those that are known stay in force.", "issuer")
	descRemembered  = desc("sluice_identity_remembered_tokens", "Tokens that were verified lately and need not be again.")
	descNoProxy     = desc("sluice_identity_headers_ignored_total", "x-sluice-identity headers of senders that are no trusted proxy.")
	descScans       = desc("sluice_content_scans_total", "Bodies scanned for content labels, by scan_status.", "status")
	descScanBytes   = desc("sluice_content_scanned_bytes_total", "Text scanned for content labels.")
	descFindings    = desc("sluice_content_findings_total", "What detectors have found, by label.", "label")
	descUnmapped    = desc("sluice_content_unmapped_findings_total", "Findings of an external detector that no label is given for.", "detector")
	descScanFails   = desc("sluice_content_detector_failures_total", "Bodies that an external detector did not judge, by why: error, timeout.", "detector", "reason")
	descDecisions   = desc("sluice_decision_log_records_total", "Records of the decision log by type and what became of them: written, dropped.", "type", "result")
	descSampledOut  = desc("sluice_decision_log_sampled_out_total", "Plain allows that were left out by decisionLog.sample.")
	descDecisionLen = desc("sluice_decision_log_bytes_total", "Bytes written to the decision log.")
	descRotations   = desc("sluice_decision_log_rotations_total", "Files of the decision log that were full.")
	descDecisionErr = desc("sluice_decision_log_errors_total", "Attempts to encode, write, rotate, compress or delete that failed.")
	descDecisionQ   = desc("sluice_decision_log_queue", "Records that wait for the disk.")
	descDegraded    = desc("sluice_degraded", "Workers, cache views and models that are not as they should be, by why.", "part", "reason")
	descReady       = desc("sluice_worker_ready", "1 if the worker may be picked.", "pool", "worker")
	descWorkerState = desc("sluice_worker_state", "1 for the worker's state: new, ready, trial, down, unusable, ejected.", "pool", "worker", "state")
	descEjections   = desc("sluice_worker_ejections_total", "Times that the worker was set aside for failed requests.", "pool", "worker")
	descFailures    = desc("sluice_worker_failures_total", "Requests that failed by the worker's fault.", "pool", "worker")
	descRestarts    = desc("sluice_worker_restarts_total", "Times that the worker's process was found to be another one.", "pool", "worker")
	descAdapters    = desc("sluice_worker_adapters", "Configured LoRA adapters that the worker has loaded.", "pool", "worker")
	descListed      = desc("sluice_discovery_workers", "Workers of the pool's changing list.", "pool")
	descListDrain   = desc("sluice_discovery_draining_workers", "Workers removed from the list that still have requests.", "pool")
	descListFailing = desc("sluice_discovery_failing", "1 while the list can't be had, or not all of it be used; the last good one stays in force.", "pool")
	descListUpdates = desc("sluice_discovery_updates_total", "Lists that came.", "pool")
	descListFails   = desc("sluice_discovery_failures_total", "Times that no list came, or that not all of it could be used.", "pool")
	descWorkerLoad  = desc("sluice_route_worker_requests", "Requests on the worker that this gateway has sent and not seen finish.", "pool", "worker")
	descWorkerAhead = desc("sluice_route_worker_prefill_tokens", "Uncached prompt tokens sent to the worker and not yet known to be read.", "pool", "worker")
	descWorkerError = desc("sluice_route_worker_prediction_ratio", "Percentiles of actual over predicted time to first token.", "pool", "worker", "percentile")
	descPicks       = desc("sluice_route_picks_total", "Picks by result.", "result")
	descPromptTok   = desc("sluice_route_prompt_tokens_total", "Prompt tokens of picked requests.")
	descCachedTok   = desc("sluice_route_cached_tokens_total", "Prompt tokens that were in the picked worker's view.")
	descError       = desc("sluice_route_prediction_relative_error", "Percentiles of |actual-predicted|/actual over recent first tokens.", "percentile")
	descIndexKeys   = desc("sluice_kv_index_keys", "Distinct blocks in the index, counted in each tier they are in.")
	descIndexBlocks = desc("sluice_kv_index_blocks", "Blocks held by workers, all workers together.")
	descIndexBytes  = desc("sluice_kv_index_bytes", "Memory of the index's tables.")
	descIndexHeld   = desc("sluice_kv_held_blocks", "Blocks kept aside because their parent is not known.")
	descKVChanges   = desc("sluice_kv_index_changes_total", "What cache events did to the index, in blocks; cleared, malformed and ignored count events.", "change")
	descView        = desc("sluice_kv_view", "1 for the state of the view of a rank's cache.", "worker", "rank", "state")
	descKVConnected = desc("sluice_kv_connected", "1 while the publisher of a rank is connected.", "worker", "rank")
	descKVBatches   = desc("sluice_kv_batches_total", "Event batches applied.", "worker", "rank")
	descKVEvents    = desc("sluice_kv_events_total", "Events applied.", "worker", "rank")
	descKVLast      = desc("sluice_kv_last_batch_timestamp_seconds", "When a batch was last applied.", "worker", "rank")
	descKVGaps      = desc("sluice_kv_gaps_total", "Batches found missing in the live stream.", "worker", "rank")
	descKVReplays   = desc("sluice_kv_replays_total", "Replays asked for.", "worker", "rank")
	descKVIncidents = desc("sluice_kv_incidents_total", "What may have cost a part of the view, by what it was.", "worker", "rank", "incident")
	descKVSkipped   = desc("sluice_kv_skipped_events_total", "Events that could not be used, by why.", "worker", "rank", "reason")
	descKVBad       = desc("sluice_kv_bad_messages_total", "Messages that could not be taken apart (frames), or whose payload is no batch (payload).", "worker", "rank", "reason")
	descKVReconnect = desc("sluice_kv_reconnects_total", "Connections made to the publisher.", "worker", "rank")
	descKVConnErr   = desc("sluice_kv_connect_errors_total", "Connections to the publisher that failed.", "worker", "rank")
	descTokenState  = desc("sluice_route_tokenizer_state", "1 for who computes the model's token ids: unverified, verified, partial, mismatch, remote.", "model", "state")
	descTokenShape  = desc("sluice_route_tokenizer_shape", "1 for the verdict on a shape of requests: unverified, verified, mismatch (left to the workers).", "model", "shape", "state")
	descCompared    = desc("sluice_route_token_comparisons_total", "Requests whose ids were compared with a worker's /tokenize, or dropped for want of room.", "model", "result")
	descDisagreed   = desc("sluice_route_token_disagreements_total", "Answers whose prompt the engine found to be of another length than the local tokenizer.", "model")
	descTokenMemo   = desc("sluice_route_tokenizer_memo_bytes", "Memory of encoded segments. Models with the same tokenizer files share it.", "model")
	descTokenRatio  = desc("sluice_route_bytes_per_token", "Bytes of text in a token as learned from answers, for estimates.", "model")
	descTokenGate   = desc("sluice_route_tokenise_waiting", "Long prompts that wait for a processor to be encoded.")
	descBreaker     = desc("sluice_route_tokenize_breaker", "1 for the state of the worker's /tokenize: closed (asked), open (left alone), half-open (tried).", "worker", "state")
	descRemoteCalls = desc("sluice_route_tokenize_calls_total", "Questions for the worker's /tokenize by what came of them.", "worker", "result")
	descTokenised   = desc("sluice_route_tokenised_total", "Requests by where their token ids came from: local, client, worker, beginning (local as far as known), estimate.", "model", "source")
	descCounters    = desc("sluice_ratelimit_counters", "Counters held.")
	descOverflows   = desc("sluice_ratelimit_overflows_total", "Claims on new counters that there was no room for.")
	descClockSteps  = desc("sluice_ratelimit_clock_steps_total", "Times that the wall clock was set by more than five minutes.")
	descLeases      = desc("sluice_ratelimit_open_reservations", "Reservations not yet settled.")
	descStoreState  = desc("sluice_ratelimit_store_state", "1 for the state of the shared store of limits: up, slow, down.", "state")
	descStorePeers  = desc("sluice_ratelimit_store_replicas", "Gateways that share limits with this one, itself included, as last heard.")
	descStoreBy     = desc("sluice_ratelimit_store_decisions_total", "Reservations by what decided them: lease (in this process), store (a round trip), memory (a refusal that still stands).", "by")
	descStoreTrip   = histogramDesc("sluice_ratelimit_store_roundtrip_seconds", "Time that requests waited for the shared store of limits.")
	descStoreLosses = desc("sluice_ratelimit_store_losses_total", "Times that the store had lost its data, or had given this gateway up.")
	descLedgerRows  = desc("sluice_ledger_rows_total", "Rows made durable.")
	descLedgerQueue = desc("sluice_ledger_queue", "Rows waiting for the writer.")
	descLedgerOpen  = desc("sluice_ledger_open_intents", "Requests noted as in flight.")
	descLedgerSpool = desc("sluice_ledger_spool_bytes", "Rows in the spool, which wait for the database to take them.")
	descLedgerHeld  = desc("sluice_ledger_held_rows", "Rows that neither the database nor the spool takes; new requests are refused.")
	descLedgerBad   = desc("sluice_ledger_refused_rows_total", "Rows that the database refuses for what is in them; the file of refused rows has them.")
	descLedgerFails = desc("sluice_ledger_failing", "1 while the database does not take rows.")
	descLedgerRun   = desc("sluice_ledger_process_info", "Always 1; the name of this run in the rows of the ledger.", "gateway", "process")
	descRetention   = desc("sluice_ledger_retention_failing", "1 while a month is older than ledger.retention holds and can't be archived.")
	descGPUBusy     = desc("sluice_gpu_busy_seconds_total", "Time for which the pool's GPUs have had requests of this gateway in hand: the sum of the requests' GPU time.", "pool")
	descLedgerLost  = desc("sluice_ledger_recovered", "Requests found lost at start.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// histogramDesc is desc for a histogram.
func histogramDesc(name, help string, labels ...string) *prometheus.Desc {
	return desc(name, help, labels...)
}

// Describe implements prometheus.Collector; the set is unchecked, as most of
// it depends on the workers there are.
func (c *stateCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	c.collectEdge(ch)
	c.collectQueue(ch)
	c.collectFleet(ch)
	c.collectWorkers(ch)
	c.collectViews(ch)
	c.collectTokens(ch)
	c.collectBooks(ch)
	c.collectReloads(ch)
	c.collectKeys(ch)
	c.collectIdentity(ch)
	c.collectLabels(ch)
	c.collectDecisions(ch)
	c.collectDegraded(ch)
}

func gauge(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func counter(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (c *stateCollector) collectEdge(ch chan<- prometheus.Metric) {
	for route, n := range c.gateway.InFlightByRoute() {
		gauge(ch, descInFlight, float64(n), route)
	}
	gauge(ch, descConns, float64(c.gateway.Connections()))
	gauge(ch, descConnLimit, float64(c.gateway.MaxConnections()))
	for reason, n := range c.gateway.Refused() {
		counter(ch, descConnRefused, float64(n), "public", reason)
	}
	for reason, n := range c.admin.Refused() {
		counter(ch, descConnRefused, float64(n), "admin", reason)
	}
	m := c.gateway.Memory()
	gauge(ch, descMemory, float64(m.Used))
	gauge(ch, descMemoryLimit, float64(m.Limit))
	counter(ch, descMemoryFull, float64(m.RefusedTotal), "total")
	counter(ch, descMemoryFull, float64(m.RefusedTenant), "tenant")
	stored := c.gateway.Stored()
	gauge(ch, descStored, float64(stored.Entries))
	gauge(ch, descStoredMost, float64(stored.Most))
	gauge(ch, descStoredBytes, float64(stored.Bytes))
	counter(ch, descStoredGone, float64(stored.Expired), "expired")
	counter(ch, descStoredGone, float64(stored.Pushed), "full")
	gauge(ch, descDraining, oneIf(c.gateway.Draining()))
}

// collectReloads tells which generation is in force, and whether it is what the files say.
func (c *stateCollector) collectReloads(ch chan<- prometheus.Metric) {
	good, failed := c.reloads.counts()
	counter(ch, descReloads, float64(good), "success")
	counter(ch, descReloads, float64(failed), "failure")
	g := c.reloads.generation()
	gauge(ch, descGeneration, float64(g.number))
	gauge(ch, descLoaded, float64(g.loaded.UnixMilli())/1000)
	if c := g.certificates.public; c != nil {
		gauge(ch, descCertExpiry, float64(c.Leaf.NotAfter.Unix()), "public")
	}
	if c := g.certificates.admin; c != nil {
		gauge(ch, descCertExpiry, float64(c.Leaf.NotAfter.Unix()), "admin")
	}
	gauge(ch, descReloadOK, oneIf(!c.reloads.failing()))
}

// collectLabels tells what is found in bodies. Everything that is configured has its series from the start,
// so that an increase can be seen.
func (c *stateCollector) collectLabels(ch chan<- prometheus.Metric) {
	g := c.reloads.generation()
	if g.docs.scanner == nil {
		return
	}
	s := g.docs.scanner.stats()
	for _, status := range []string{classify.StatusComplete, classify.StatusPartial, classify.StatusTimeout, classify.StatusUnavailable} {
		counter(ch, descScans, float64(s.Scans[status]), status)
	}
	counter(ch, descScanBytes, float64(s.Bytes))
	for _, label := range g.cfg.Labels.labels() {
		counter(ch, descFindings, float64(s.Hits[label]), label)
	}
	for i := range g.cfg.Labels.External {
		name := g.cfg.Labels.External[i].Name
		counter(ch, descUnmapped, float64(s.Unmapped[name]), name)
		counter(ch, descScanFails, float64(s.Failures[name]), name, "error")
		counter(ch, descScanFails, float64(s.Timeouts[name]), name, "timeout")
	}
}

// collectDecisions tells how the decision log is written.
func (c *stateCollector) collectDecisions(ch chan<- prometheus.Metric) {
	if c.decisions == nil {
		return
	}
	s := c.decisions.Stats()
	for _, of := range []struct {
		result string
		decisionlog.Counts
	}{{"written", s.Written}, {"dropped", s.Dropped}} {
		counter(ch, descDecisions, float64(of.Decision), "decision", of.result)
		counter(ch, descDecisions, float64(of.Shadow), "shadow", of.result)
		counter(ch, descDecisions, float64(of.Settlement), "settlement", of.result)
	}
	counter(ch, descSampledOut, float64(s.SampledOut))
	counter(ch, descDecisionLen, float64(s.Bytes))
	counter(ch, descRotations, float64(s.Rotations))
	counter(ch, descDecisionErr, float64(s.Errors))
	gauge(ch, descDecisionQ, float64(s.Queued))
}

// workers are those in force. A removed one that still has requests has no series: its successor may
// have its name.
func (c *stateCollector) workers() []scoring.WorkerSnapshot {
	return slices.DeleteFunc(c.fleet.Snapshot(time.Now()), func(w scoring.WorkerSnapshot) bool { return w.Retired })
}

// collectWorkers tells how the workers and the lists of them are.
func (c *stateCollector) collectWorkers(ch chan<- prometheus.Metric) {
	for _, w := range c.checker.Snapshot() {
		if w.State == discovery.StateDraining {
			continue
		}
		gauge(ch, descWorkerState, 1, w.Pool, w.Name, string(w.State))
		counter(ch, descEjections, float64(w.Ejections), w.Pool, w.Name)
		counter(ch, descFailures, float64(w.Failures), w.Pool, w.Name)
		counter(ch, descRestarts, float64(w.Restarts), w.Pool, w.Name)
		gauge(ch, descAdapters, float64(len(w.Adapters)), w.Pool, w.Name)
	}
	for _, s := range c.checker.Sources() {
		gauge(ch, descListed, float64(s.Workers), s.Pool)
		gauge(ch, descListDrain, float64(s.Draining), s.Pool)
		gauge(ch, descListFailing, oneIf(s.Error != ""), s.Pool)
		counter(ch, descListUpdates, float64(s.Updates), s.Pool)
		counter(ch, descListFails, float64(s.Failures), s.Pool)
	}
}

func (c *stateCollector) collectFleet(ch chan<- prometheus.Metric) {
	for _, w := range c.workers() {
		gauge(ch, descReady, oneIf(w.Ready), w.Worker.Pool, w.Worker.Name)
		gauge(ch, descWorkerLoad, float64(w.InFlight), w.Worker.Pool, w.Worker.Name)
		gauge(ch, descWorkerAhead, float64(w.Ahead), w.Worker.Pool, w.Worker.Name)
		if w.Trained > 0 {
			gauge(ch, descWorkerError, w.ErrorP50, w.Worker.Pool, w.Worker.Name, "50")
			gauge(ch, descWorkerError, w.ErrorP90, w.Worker.Pool, w.Worker.Name, "90")
		}
	}
	s := c.fleet.Stats()
	counter(ch, descPicks, float64(s.Picks), "picked")
	counter(ch, descPicks, float64(s.NoWorker), "no_worker")
	counter(ch, descPicks, float64(s.NotReady), "not_ready")
	counter(ch, descPicks, float64(s.TooLong), "too_long")
	counter(ch, descPromptTok, float64(s.PromptTokens))
	counter(ch, descCachedTok, float64(s.CachedTokens))
	if s.FirstTokens > 0 {
		gauge(ch, descError, s.ErrorP50, "50")
		gauge(ch, descError, s.ErrorP90, "90")
	}
	gauge(ch, descIndexKeys, float64(s.Keys))
	gauge(ch, descIndexBlocks, float64(s.Blocks))
	gauge(ch, descIndexBytes, float64(s.Bytes))
	gauge(ch, descIndexHeld, float64(s.Held))
	for change, n := range indexChanges(s.Events) {
		counter(ch, descKVChanges, float64(n), change)
	}
}

// collectDegraded counts what works, but not as well as it should: the reasons
// for routing that is worse than it could be. All of them are exported at all
// times, so that an alert has a zero to come back to.
func (c *stateCollector) collectDegraded(ch chan<- prometheus.Metric) {
	type state struct{ part, reason string }
	n := map[state]int{
		{"worker", "not_ready"}: 0, {"view", "not_reporting"}: 0, {"view", "incomplete"}: 0, {"view", "recovering"}: 0,
		{"discovery", "failing"}:      0,
		{"identity", "provider_down"}: 0,
		{"keys", "failing"}:           0,
		{"config", "reload_failed"}:   0,
		{"tokenizer", "unverified"}:   0, {"tokenizer", "remote"}: 0, {"tokenizer", "partial"}: 0, {"tokenizer", "mismatch"}: 0,
	}
	for _, w := range c.workers() {
		if !w.Ready {
			n[state{"worker", "not_ready"}]++
			continue
		}
		if len(w.Views) == 0 {
			n[state{"view", "not_reporting"}]++
		}
		for _, v := range w.Views {
			switch v.State {
			case scoring.ViewNotReporting:
				n[state{"view", "not_reporting"}]++
			case scoring.ViewPartial:
				n[state{"view", "incomplete"}]++
			case scoring.ViewJoining, scoring.ViewRecovering:
				n[state{"view", "recovering"}]++
			}
		}
	}
	for _, s := range c.checker.Sources() {
		if s.Error != "" {
			n[state{"discovery", "failing"}]++
		}
	}
	for _, m := range c.tokens.models {
		if s := m.state(); s != tokensVerified {
			n[state{"tokenizer", s.String()}]++
		}
	}
	for _, s := range c.identities.stats() {
		n[state{"identity", "provider_down"}] += int(oneIf(s.Failing))
	}
	if c.reloads.failing() {
		n[state{"config", "reload_failed"}] = 1
	}
	if c.shared != nil {
		s := c.shared.Stats().State
		n[state{"limits", "store_down"}], n[state{"limits", "store_slow"}] = countIf(s == redis.StateDown), countIf(s == redis.StateSlow)
	}
	n[state{"limits", "budgets_unread"}] = countIf(c.budgetsUnread.Load())
	if c.keys.Failing() {
		n[state{"keys", "failing"}] = 1
	}
	if c.decisions != nil && c.decisions.Stats().Failing {
		n[state{"decision_log", "failing"}] = 1
	}
	for s, count := range n {
		gauge(ch, descDegraded, float64(count), s.part, s.reason)
	}
}

func (c *stateCollector) collectViews(ch chan<- prometheus.Metric) {
	current := make(map[scoring.WorkerID]bool)
	for _, w := range c.workers() {
		current[w.Worker.ID] = true
		for _, v := range w.Views {
			gauge(ch, descView, 1, w.Worker.Name, strconv.Itoa(v.Rank), v.State.String())
		}
	}
	for _, s := range c.kv() {
		if !current[s.source.Worker] {
			continue // its successor may have the name
		}
		gauge(ch, descKVConnected, oneIf(s.Connected), s.worker, s.rank)
		counter(ch, descKVBatches, float64(s.Machine.Applied), s.worker, s.rank)
		counter(ch, descKVEvents, float64(s.Events), s.worker, s.rank)
		if !s.LastBatch.IsZero() {
			gauge(ch, descKVLast, float64(s.LastBatch.UnixMilli())/1000, s.worker, s.rank)
		}
		counter(ch, descKVGaps, float64(s.Machine.Gaps), s.worker, s.rank)
		counter(ch, descKVReplays, float64(s.Machine.Replays), s.worker, s.rank)
		for incident, n := range s.incidents() {
			counter(ch, descKVIncidents, float64(n), s.worker, s.rank, incident)
		}
		for reason, n := range s.Skipped {
			counter(ch, descKVSkipped, float64(n), s.worker, s.rank, kvevents.SkipReason(reason).String())
		}
		counter(ch, descKVBad, float64(s.BadMessages), s.worker, s.rank, "frames")
		counter(ch, descKVBad, float64(s.BadBatches), s.worker, s.rank, "payload")
		counter(ch, descKVReconnect, float64(s.Connects), s.worker, s.rank)
		counter(ch, descKVConnErr, float64(s.ConnectErrors), s.worker, s.rank)
	}
}

// indexChanges names what events did to the index.
func indexChanges(e scoring.ApplyStats) map[string]int {
	return map[string]int{
		"stored": e.Stored, "repeated": e.Repeated, "removed": e.Removed, "unknown_removed": e.UnknownRemoved, "cleared": e.Cleared,
		"held_back": e.HeldBack, "held_dropped": e.HeldDropped, "unusable": e.Unusable, "unknown_stored": e.UnknownStored,
		"evicted": e.Evicted, "malformed": e.Malformed, "ignored": e.Ignored,
	}
}

func (c *stateCollector) collectTokens(ch chan<- prometheus.Metric) {
	for name, m := range c.tokens.models {
		is := m.state()
		for i, state := range tokenStates {
			gauge(ch, descTokenState, oneIf(tokenState(i) == is), name, state)
		}
		for i, source := range tokenSources {
			counter(ch, descTokenised, float64(m.used[i].Load()), name, source)
		}
		gauge(ch, descTokenRatio, m.ratio.bytesPerToken(), name)
		c.collectVerdicts(ch, m)
	}
	gauge(ch, descTokenGate, float64(c.tokens.gate.Waiting()))
	for name, w := range c.tokens.remoteWorkers() {
		for _, state := range tokenize.BreakerStates {
			gauge(ch, descBreaker, oneIf(w.Breaker == state), name, state)
		}
		counter(ch, descRemoteCalls, float64(w.Answered), name, "answered")
		counter(ch, descRemoteCalls, float64(w.Refused), name, "refused")
		counter(ch, descRemoteCalls, float64(w.Failed), name, "failed")
		counter(ch, descRemoteCalls, float64(w.Busy), name, "busy")
		counter(ch, descRemoteCalls, float64(w.Broken), name, "broken")
	}
}

func (c *stateCollector) collectVerdicts(ch chan<- prometheus.Metric, m *modelTokenizer) {
	local := m.here.Load()
	if local == nil {
		return
	}
	gauge(ch, descTokenMemo, float64(local.Stats().CacheBytes), m.name)
	st := local.checker.Status()
	var agreed, disagreed, undecided int64
	for _, s := range st.Shapes {
		for _, state := range verify.States {
			gauge(ch, descTokenShape, oneIf(s.State.String() == state), m.name, s.Shape.String(), state)
		}
		agreed, disagreed, undecided = agreed+s.Agreed, disagreed+s.Disagreed, undecided+s.Undecided
	}
	counter(ch, descCompared, float64(agreed), m.name, "agreed")
	counter(ch, descCompared, float64(disagreed), m.name, "disagreed")
	counter(ch, descCompared, float64(undecided), m.name, "undecided")
	counter(ch, descCompared, float64(st.Dropped), m.name, "dropped")
	counter(ch, descDisagreed, float64(st.Disagreements), m.name)
}

func (c *stateCollector) collectBooks(ch chan<- prometheus.Metric) {
	ls := c.limiter.Stats()
	if c.shared != nil {
		c.collectStore(ch, &ls)
	}
	gauge(ch, descCounters, float64(ls.Counters))
	gauge(ch, descLeases, float64(ls.OpenLeases))
	counter(ch, descOverflows, float64(ls.Overflows))
	counter(ch, descClockSteps, float64(ls.ClockSteps))
	st := c.ledger.Stats()
	counter(ch, descLedgerRows, float64(st.Rows))
	gauge(ch, descLedgerQueue, float64(st.Queued))
	gauge(ch, descLedgerOpen, float64(st.OpenIntents))
	gauge(ch, descLedgerLost, float64(st.Recovered))
	gauge(ch, descLedgerSpool, float64(st.SpoolBytes))
	gauge(ch, descLedgerHeld, float64(st.Held))
	counter(ch, descLedgerBad, float64(st.Failed))
	failing := 0.0
	if st.Failing {
		failing = 1
	}
	gauge(ch, descLedgerFails, failing)
	gauge(ch, descLedgerRun, 1, st.Gateway, st.Process)
	gauge(ch, descRetention, oneIf(c.retention.failing.Load()))
	for pool, busy := range c.gateway.GPUTime(time.Now()) {
		counter(ch, descGPUBusy, busy.Seconds(), pool)
	}
}
