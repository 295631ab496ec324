package main

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/ratelimit/redis"
	"github.com/sluicegate/sluice/scoring/kvevents"
	"github.com/sluicegate/sluice/tenancy"
	"github.com/sluicegate/sluice/tenancy/chargeback"
)

// metricFamily is one exported metric, for the bound on series. A test holds the list to the metrics that
// metrics.go and collector.go define.
type metricFamily struct {
	name    string
	labels  []string
	buckets int // of a histogram; 0 for counters and gauges
}

func metricFamilies() []metricFamily {
	ttft, duration, body := len(ttftBuckets), len(durationBuckets), len(bodyBuckets)
	return []metricFamily{
		{"sluice_build_info", []string{"version", "go_version"}, 0},
		{"sluice_config_info", []string{"digest"}, 0},
		{"sluice_config_reloads_total", []string{"result"}, 0},
		{"sluice_config_generation", nil, 0},
		{"sluice_config_last_reload_successful", nil, 0},
		{"sluice_config_loaded_timestamp_seconds", nil, 0},
		{"sluice_tls_certificate_expiry_timestamp_seconds", []string{"listener"}, 0},
		{"sluice_keys", []string{"state"}, 0},
		{"sluice_keys_source_failing", []string{"source"}, 0},
		{"sluice_keys_source_failures_total", []string{"source"}, 0},
		{"sluice_keys_stale_seconds", nil, 0},
		{"sluice_http_requests_total", []string{"route", "method", "status", "dialect"}, 0},
		{"sluice_http_framing_rejections_total", []string{"reason"}, 0},
		{"sluice_tls_handshake_errors_total", []string{"reason"}, 0},
		{"sluice_http_request_duration_seconds", []string{"route"}, duration},
		{"sluice_http_request_body_bytes", []string{"route"}, body},
		{"sluice_http_requests_in_flight", []string{"route"}, 0},
		{"sluice_http_connections", nil, 0},
		{"sluice_http_connections_limit", nil, 0},
		{"sluice_http_connections_refused_total", []string{"listener", "reason"}, 0},
		{"sluice_http_memory_bytes", nil, 0},
		{"sluice_http_memory_limit_bytes", nil, 0},
		{"sluice_http_memory_refused_total", []string{"reason"}, 0},
		{"sluice_response_store_entries", nil, 0},
		{"sluice_response_store_limit", nil, 0},
		{"sluice_response_store_bytes", nil, 0},
		{"sluice_response_store_evictions_total", []string{"reason"}, 0},
		{"sluice_admin_refusals_total", []string{"reason"}, 0},
		{"sluice_auth_failures_total", []string{"reason"}, 0},
		{"sluice_jwks_keys", []string{"issuer"}, 0},
		{"sluice_jwks_fetches_total", []string{"issuer", "result"}, 0},
		{"sluice_jwks_fetched_timestamp_seconds", []string{"issuer"}, 0},
		{"sluice_jwks_failing", []string{"issuer"}, 0},
		{"sluice_identity_remembered_tokens", nil, 0},
		{"sluice_identity_headers_ignored_total", nil, 0},
		{"sluice_client_disconnects_total", []string{"phase"}, 0},
		{"sluice_stream_errors_total", []string{"route", "code"}, 0},
		{"sluice_sse_malformed_total", []string{"route"}, 0},
		{"sluice_usage_unknown_total", []string{"model", "reason"}, 0},
		{"sluice_policy_decisions_total", []string{"policy", "rule", "decision"}, 0},
		{"sluice_policy_errors_total", []string{"policy", "reason"}, 0},
		{"sluice_policy_rule_errors_total", []string{"policy", "rule", "kind"}, 0},
		{"sluice_policy_rehearsals_skipped_total", nil, 0},
		{"sluice_content_labels_ignored_total", nil, 0},
		{"sluice_policy_eval_seconds", nil, len(overheadBuckets)},
		{"sluice_policy_eval_cost", nil, 9},
		{"sluice_ratelimit_rejections_total", []string{"limit", "unit"}, 0},
		{"sluice_ratelimit_thresholds_total", []string{"limit", "percent"}, 0},
		{"sluice_ratelimit_store_failures_total", []string{"state", "decision"}, 0},
		{"sluice_ratelimit_overflows_total", nil, 0},
		{"sluice_ratelimit_clock_steps_total", nil, 0},
		{"sluice_ratelimit_counters", nil, 0},
		{"sluice_ratelimit_open_reservations", nil, 0},
		{"sluice_ratelimit_store_state", []string{"state"}, 0},
		{"sluice_ratelimit_store_replicas", nil, 0},
		{"sluice_ratelimit_store_decisions_total", []string{"by"}, 0},
		{"sluice_ratelimit_store_roundtrip_seconds", nil, redis.TripBuckets},
		{"sluice_ratelimit_store_losses_total", nil, 0},
		{"sluice_upstream_attempts_total", []string{"pool", "worker", "status"}, 0},
		{"sluice_upstream_retries_total", []string{"pool", "reason"}, 0},
		{"sluice_upstream_retries_denied_total", []string{"pool"}, 0},
		{"sluice_ttft_seconds", []string{"model", "pool", "class"}, ttft},
		{"sluice_ttft_upstream_seconds", []string{"model", "pool", "class"}, ttft},
		{"sluice_time_per_output_token_seconds", []string{"model", "pool", "class"}, len(tokenBuckets)},
		{"sluice_overhead_seconds", []string{"phase"}, len(overheadBuckets)},
		{"sluice_class_requests_total", []string{"class", "result"}, 0},
		{"sluice_class_target_seconds", []string{"class"}, 0},
		{"sluice_class_max_wait_seconds", []string{"class"}, 0},
		{"sluice_class_share_ratio", []string{"class"}, 0},
		{"sluice_class_rank", []string{"class"}, 0},
		{"sluice_queue_depth", []string{"pool", "class"}, 0},
		{"sluice_queue_work_tokens", []string{"pool", "class"}, 0},
		{"sluice_queue_oldest_seconds", []string{"class"}, 0},
		{"sluice_queue_wait_seconds", []string{"pool", "class"}, len(waitBuckets)},
		{"sluice_queue_forecast_error_ratio", []string{"class"}, len(forecastBuckets)},
		{"sluice_queue_refusals_total", []string{"class", "reason"}, 0},
		{"sluice_queue_turns_total", []string{"class", "result"}, 0},
		{"sluice_queue_requests", nil, 0},
		{"sluice_queue_requests_limit", nil, 0},
		{"sluice_queue_bytes", nil, 0},
		{"sluice_queue_bytes_limit", nil, 0},
		{"sluice_queue_placed_tokens_total", []string{"pool", "class"}, 0},
		{"sluice_queue_contended_tokens_total", []string{"pool", "class"}, 0},
		{"sluice_queue_got_tokens_total", []string{"pool", "class"}, 0},
		{"sluice_queue_late_wakeups_total", nil, 0},
		{"sluice_content_scans_total", []string{"status"}, 0},
		{"sluice_content_scanned_bytes_total", nil, 0},
		{"sluice_content_findings_total", []string{"label"}, 0},
		{"sluice_content_unmapped_findings_total", []string{"detector"}, 0},
		{"sluice_content_detector_failures_total", []string{"detector", "reason"}, 0},
		{"sluice_decision_log_records_total", []string{"type", "result"}, 0},
		{"sluice_decision_log_sampled_out_total", nil, 0},
		{"sluice_decision_log_bytes_total", nil, 0},
		{"sluice_decision_log_rotations_total", nil, 0},
		{"sluice_decision_log_errors_total", nil, 0},
		{"sluice_decision_log_queue", nil, 0},
		{"sluice_draining", nil, 0},
		{"sluice_worker_ready", []string{"pool", "worker"}, 0},
		{"sluice_worker_state", []string{"pool", "worker", "state"}, 0},
		{"sluice_worker_ejections_total", []string{"pool", "worker"}, 0},
		{"sluice_worker_failures_total", []string{"pool", "worker"}, 0},
		{"sluice_worker_restarts_total", []string{"pool", "worker"}, 0},
		{"sluice_worker_adapters", []string{"pool", "worker"}, 0},
		{"sluice_discovery_workers", []string{"pool"}, 0},
		{"sluice_discovery_draining_workers", []string{"pool"}, 0},
		{"sluice_discovery_failing", []string{"pool"}, 0},
		{"sluice_discovery_updates_total", []string{"pool"}, 0},
		{"sluice_discovery_failures_total", []string{"pool"}, 0},
		{"sluice_degraded", []string{"part", "reason"}, 0},
		{"sluice_route_prompts_total", []string{"tokens"}, 0},
		{"sluice_route_prediction_error_ratio", nil, 13},
		{"sluice_route_worker_requests", []string{"pool", "worker"}, 0},
		{"sluice_route_worker_prefill_tokens", []string{"pool", "worker"}, 0},
		{"sluice_route_worker_prediction_ratio", []string{"pool", "worker", "percentile"}, 0},
		{"sluice_route_picks_total", []string{"result"}, 0},
		{"sluice_route_prompt_tokens_total", nil, 0},
		{"sluice_route_cached_tokens_total", nil, 0},
		{"sluice_route_prediction_relative_error", []string{"percentile"}, 0},
		{"sluice_route_tokenizer_state", []string{"model", "state"}, 0},
		{"sluice_route_tokenizer_shape", []string{"model", "shape", "state"}, 0},
		{"sluice_route_tokenizer_memo_bytes", []string{"model"}, 0},
		{"sluice_route_token_comparisons_total", []string{"model", "result"}, 0},
		{"sluice_route_token_disagreements_total", []string{"model"}, 0},
		{"sluice_route_tokenise_waiting", nil, 0},
		{"sluice_route_tokenize_breaker", []string{"worker", "state"}, 0},
		{"sluice_route_tokenize_calls_total", []string{"worker", "result"}, 0},
		{"sluice_route_bytes_per_token", []string{"model"}, 0},
		{"sluice_route_tokenised_total", []string{"model", "source"}, 0},
		{"sluice_kv_index_keys", nil, 0},
		{"sluice_kv_index_blocks", nil, 0},
		{"sluice_kv_index_bytes", nil, 0},
		{"sluice_kv_held_blocks", nil, 0},
		{"sluice_kv_index_changes_total", []string{"change"}, 0},
		{"sluice_kv_view", []string{"worker", "rank", "state"}, 0},
		{"sluice_kv_connected", []string{"worker", "rank"}, 0},
		{"sluice_kv_batches_total", []string{"worker", "rank"}, 0},
		{"sluice_kv_events_total", []string{"worker", "rank"}, 0},
		{"sluice_kv_last_batch_timestamp_seconds", []string{"worker", "rank"}, 0},
		{"sluice_kv_gaps_total", []string{"worker", "rank"}, 0},
		{"sluice_kv_replays_total", []string{"worker", "rank"}, 0},
		{"sluice_kv_incidents_total", []string{"worker", "rank", "incident"}, 0},
		{"sluice_kv_skipped_events_total", []string{"worker", "rank", "reason"}, 0},
		{"sluice_kv_bad_messages_total", []string{"worker", "rank", "reason"}, 0},
		{"sluice_kv_reconnects_total", []string{"worker", "rank"}, 0},
		{"sluice_kv_connect_errors_total", []string{"worker", "rank"}, 0},
		{"sluice_ledger_errors_total", []string{"reason"}, 0},
		{"sluice_ledger_rows_total", nil, 0},
		{"sluice_ledger_queue", nil, 0},
		{"sluice_ledger_open_intents", nil, 0},
		{"sluice_ledger_recovered", nil, 0},
		{"sluice_ledger_spool_bytes", nil, 0},
		{"sluice_ledger_held_rows", nil, 0},
		{"sluice_ledger_refused_rows_total", nil, 0},
		{"sluice_ledger_failing", nil, 0},
		{"sluice_ledger_process_info", []string{"gateway", "process"}, 0},
		{"sluice_ledger_retention_failing", nil, 0},
		{"sluice_gpu_busy_seconds_total", []string{"pool"}, 0},
	}
}

// Sizes of the labels whose values are words of the code and not names of the configuration: as many as
// there are, or a round number above.
var fixedLabels = map[string]int{
	"route": 16, "method": 8, "status": 24, "dialect": 2, "phase": 6, "code": 16, "reason": 16, "decision": 4, "unit": 6,
	"gateway": 1, "process": 1,
	"percentile": 2, "result": 5, "state": 5, "source": 5, "shape": 14, "tokens": 3, "version": 1, "go_version": 1, "digest": 1, "part": 9,
	"sluice_degraded/reason": 5, "sluice_route_tokenizer_state/state": len(tokenStates),

	"percent": 8, "kind": 8, "sluice_ratelimit_store_failures_total/state": 3, "sluice_ratelimit_store_failures_total/decision": 3,

	"listener": 2, "sluice_http_connections_refused_total/reason": 2, "sluice_http_memory_refused_total/reason": 2, "sluice_response_store_evictions_total/reason": 2, "sluice_admin_refusals_total/reason": len(adminReasons),
	"sluice_tls_handshake_errors_total/reason": len(gateway.HandshakeReasons()),
	"sluice_auth_failures_total/reason":        len(tenancy.AuthReasons()), "sluice_jwks_fetches_total/result": 2,
	"sluice_route_tokenizer_shape/state": 3, "sluice_route_tokenize_breaker/state": 3,
	"by": 3, "sluice_ratelimit_store_state/state": 3, "sluice_content_scans_total/status": 4, "sluice_content_detector_failures_total/reason": 2,
	"sluice_class_requests_total/result": len(chargeback.ClassResults), "sluice_queue_turns_total/result": len(gateway.QueueTurns()),
	"sluice_queue_refusals_total/reason": len(gateway.QueueReasons()),
	"type":                               3, "sluice_decision_log_records_total/result": 2,
	// A worker is in one state at a time.
	"sluice_worker_state/state": 1,
	// A worker may answer with any status that HTTP knows.
	"sluice_upstream_attempts_total/status": 64,
	// A rank's view is in one state at a time.
	"sluice_kv_view/state":                  1,
	"sluice_kv_skipped_events_total/reason": int(kvevents.NumSkipReasons), "sluice_kv_bad_messages_total/reason": 2,
	"change": 12, "incident": 6,
	// One rank for each worker whose ranks are not configured: data parallelism is the engines' own setting.
	// A worker with n ranks adds n - 1 times its sluice_kv_* series.
	"rank": 1,
}

// ownSeries returns the most series that the gateway's own metrics can have, those of tenants apart: for
// each metric the product of the numbers of values that its labels can take. Labels that follow from
// another one (the dialect from the route, the pool from the worker) add nothing.
func ownSeries(cfg *Config, set *policy.Set) int {
	sizes := maps.Clone(fixedLabels)
	sizes["model"], sizes["class"], sizes["pool"] = len(cfg.Models), len(cfg.Policy.Classes), len(cfg.Pools)
	for _, moved := range []string{"class_requests_total", "queue_refusals_total", "queue_turns_total", "queue_wait_seconds", "queue_forecast_error_ratio", "ttft_seconds", "ttft_upstream_seconds", "time_per_output_token_seconds"} {
		sizes["sluice_"+moved+"/class"] = sizes["class"] + 1 // and what is counted of those that have left
	}
	sizes["issuer"] = len(cfg.Identity.JWT)
	sizes["label"], sizes["detector"] = len(cfg.Labels.labels()), len(cfg.Labels.External)
	for i := range cfg.Pools {
		sizes["worker"] += len(cfg.Pools[i].Workers)
		for j := range cfg.Pools[i].Workers {
			sizes["rank"] = max(sizes["rank"], cfg.Pools[i].Workers[j].Ranks)
		}
		if from := &cfg.Pools[i].WorkersFrom; from.Enabled() {
			sizes["rank"] = max(sizes["rank"], from.DNS.Ranks)
			sizes["worker"] += from.MaxWorkers
			// What is counted of those that have left; once a pool, as the pool is a label beside it.
			sizes["sluice_upstream_attempts_total/worker"]++
		}
	}
	sizes["sluice_upstream_attempts_total/worker"] += sizes["worker"]
	policies := map[string]bool{otherRule: true}
	rules, limits := 3, 1 // a decision without a rule is an allow; other rules of policies in force, and of others
	for _, r := range set.Rules() {
		rules++
		if r.Kind == policy.LimitRule {
			limits++
		}
		name, _, _ := strings.Cut(r.Rule, "/")
		policies[name] = true
	}
	sizes["rule"], sizes["policy"], sizes["limit"] = rules, len(policies), limits
	total := runtimeSeries()
	for _, f := range metricFamilies() {
		n := 1
		for _, label := range f.labels {
			if !implied(label, f.labels) {
				n *= cmp.Or(sizes[f.name+"/"+label], sizes[label])
			}
		}
		if f.buckets > 0 {
			n *= f.buckets + 3 // the bucket without an end, the sum and the count
		}
		total += n
	}
	return total
}

// implied reports whether a label's value follows from another label's.
func implied(label string, labels []string) bool {
	by := map[string]string{"dialect": "route", "pool": "worker", "policy": "rule", "unit": "limit"}[label]
	return by != "" && slices.Contains(labels, by)
}

// runtimeSeries counts what the collectors of the Go runtime and the process export here.
func runtimeSeries() int {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	families, err := reg.Gather()
	if err != nil {
		panic("BUG: the runtime's own collectors fail: " + err.Error())
	}
	n := 0
	for _, f := range families {
		for _, m := range f.Metric {
			switch {
			case m.Histogram != nil:
				n += len(m.Histogram.Bucket) + 3
			case m.Summary != nil:
				n += len(m.Summary.Quantile) + 2
			default:
				n++
			}
		}
	}
	return n
}
