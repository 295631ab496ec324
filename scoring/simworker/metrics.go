package simworker

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// pyFloat returns v as the engine's exporter writes numbers: always with a
// point, with an exponent from a million on.
func pyFloat(v float64) string {
	s := strconv.FormatFloat(v, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	dot := strings.IndexByte(s, '.')
	if v <= 0 || dot <= 6 {
		return s
	}
	mantissa := strings.TrimRight(s[:1]+"."+s[1:dot]+s[dot+1:], "0.")
	return fmt.Sprintf("%se+%02d", mantissa, dot-1)
}

// exposition writes the Prometheus text format, names and labels as the
// engine's.
type exposition struct {
	b       []byte
	base    string // labels of every series
	created string // when the series came to be
}

func (x *exposition) header(name, kind, help string) {
	x.b = fmt.Appendf(x.b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

func (x *exposition) sample(name, labels string, v float64) {
	x.b = fmt.Appendf(x.b, "%s{%s} %s\n", name, labels, pyFloat(v))
}

// series is one value of a family that has more than one.
type series struct {
	labels string
	value  float64
}

func (x *exposition) gauge(name, help string, list ...series) {
	x.header(name, "gauge", help)
	for _, s := range list {
		x.sample(name, s.labels, s.value)
	}
}

// counter writes NAME_total and the NAME_created beside it.
func (x *exposition) counter(name, help string, list ...series) {
	x.header(name+"_total", "counter", help)
	for _, s := range list {
		x.sample(name+"_total", s.labels, s.value)
	}
	x.header(name+"_created", "gauge", help)
	for _, s := range list {
		x.b = fmt.Appendf(x.b, "%s_created{%s} %s\n", name, s.labels, x.created)
	}
}

func (x *exposition) histogram(name, help string, h *histogram) {
	x.header(name, "histogram", help)
	label, rest, _ := strings.Cut(x.base, ",")
	var n uint64
	for i, c := range h.counts {
		n += c
		le := "+Inf"
		if i < len(h.bounds) {
			le = pyFloat(h.bounds[i])
		}
		x.sample(name+"_bucket", label+`,le="`+le+`",`+rest, float64(n))
	}
	x.sample(name+"_count", x.base, float64(n))
	x.sample(name+"_sum", x.base, h.sum)
	x.header(name+"_created", "gauge", help)
	x.b = fmt.Appendf(x.b, "%s_created{%s} %s\n", name, x.base, x.created)
}

// by returns one series for each value of a label that sorts after
// model_name; the engine sorts labels.
func (x *exposition) by(label string, values ...any) []series {
	var list []series
	for i := 0; i < len(values); i += 2 {
		list = append(list, series{fmt.Sprintf(`%s,%s="%s"`, x.base, label, values[i]), values[i+1].(float64)})
	}
	return list
}

// serveMetrics writes the vllm: series of the engine.
func (w *Worker) serveMetrics(rw http.ResponseWriter, _ *http.Request, _ []byte) {
	w.core.mu.Lock()
	st := w.core.eng.Stats()
	m := w.core.meters.clone()
	w.core.mu.Unlock()
	model := fmt.Sprintf(`model_name="%s"`, escapeLabel(w.cfg.Model))
	x := &exposition{
		base:    `engine="0",` + model,
		created: pyFloat(float64(w.started.UnixMicro()) / 1e6),
	}
	one := func(v float64) series { return series{x.base, v} }
	x.load(st, one)
	x.cache(st, one)
	x.tokens(st, one)
	var finished []series
	for _, r := range engine.Reasons {
		finished = append(finished, series{fmt.Sprintf(`engine="0",finished_reason="%s",%s`, r, model), float64(st.Finished[r])})
	}
	x.counter("vllm:request_success", "Requests that ended, by reason.", finished...)
	x.counter("vllm:admission_rejections", "Requests turned away by a queue limit, by reason.",
		series{model + `,reason="max_num_queued_reqs"`, 0}, series{model + `,reason="max_num_queued_tokens"`, 0})
	x.histograms(m)
	w.cacheConfig(x)
	rw.Header().Set("Content-Type", "text/plain; version=1.0.0; charset=utf-8")
	rw.Header().Set("Content-Length", strconv.Itoa(len(x.b)))
	_, _ = rw.Write(x.b)
}

func (x *exposition) load(st engine.Stats, one func(float64) series) {
	for _, name := range []string{"flops", "read_bytes", "write_bytes"} {
		x.counter("vllm:estimated_"+name+"_per_gpu", "Not estimated by a simulated worker.", one(0))
	}
	x.gauge("vllm:num_requests_running", "Requests in the batch.", one(float64(st.Running)))
	x.gauge("vllm:num_requests_waiting", "Requests in the queue.", one(float64(st.Waiting)))
	x.gauge("vllm:num_requests_waiting_by_reason", "Requests in the queue, by reason.",
		x.by("reason", "capacity", float64(st.Waiting), "deferred", 0.0)...)
	x.gauge("vllm:engine_sleep_state", "Whether the engine is awake.",
		x.by("sleep_state", "awake", 1.0, "weights_offloaded", 0.0, "discard_all", 0.0)...)
	x.gauge("vllm:kv_cache_usage_perc", "Share of cache blocks that running requests hold, 0 to 1.", one(st.Usage()))
}

func (x *exposition) cache(st engine.Stats, one func(float64) series) {
	x.counter("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.", one(float64(st.Queried)))
	x.counter("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", one(float64(st.Hits)))
	x.counter("vllm:external_prefix_cache_queries", "Tokens looked up in other instances' caches.", one(0))
	x.counter("vllm:external_prefix_cache_hits", "Tokens found in other instances' caches.", one(0))
	x.counter("vllm:mm_cache_queries", "Items looked up in the multi-modal cache.", one(0))
	x.counter("vllm:mm_cache_hits", "Items found in the multi-modal cache.", one(0))
	x.counter("vllm:num_preemptions", "Requests that lost their blocks to another.", one(float64(st.Preemptions)))
}

func (x *exposition) tokens(st engine.Stats, one func(float64) series) {
	cached := float64(st.PromptCached)
	x.counter("vllm:prompt_tokens", "Prompt tokens processed.", one(float64(st.Prompt)))
	x.counter("vllm:prompt_tokens_by_source", "Prompt tokens by where they came from.",
		x.by("source", "local_compute", float64(st.Prompt)-cached, "local_cache_hit", cached, "external_kv_transfer", 0.0)...)
	x.counter("vllm:prompt_tokens_cached", "Prompt tokens that were cached.", one(cached))
	x.counter("vllm:prompt_tokens_cached_by_source", "Prompt tokens that were cached, by tier; counted at admission.",
		x.by("source", "device", float64(st.Hits), "host", 0.0, "p2p", 0.0, "disk", 0.0, "external_unspecified", 0.0)...)
	x.counter("vllm:generation_tokens", "Tokens generated.", one(float64(st.Generated)))
}

func (x *exposition) histograms(m *meters) {
	x.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", m.promptTokens)
	x.histogram("vllm:request_generation_tokens", "Tokens generated for a request.", m.generationTokens)
	x.histogram("vllm:iteration_tokens_total", "Tokens of one scheduler step.", m.iterationTokens)
	x.histogram("vllm:request_max_num_generation_tokens", "Most tokens generated for a choice of a request.", m.maxGeneration)
	x.histogram("vllm:request_params_n", "The parameter n.", m.paramN)
	x.histogram("vllm:request_params_max_tokens", "The parameter max_tokens.", m.paramMaxTokens)
	x.histogram("vllm:time_to_first_token_seconds", "Time to the first token.", m.firstToken)
	x.histogram("vllm:inter_token_latency_seconds", "Time between tokens.", m.nextToken)
	x.histogram("vllm:request_time_per_output_token_seconds", "Mean time between tokens of a request.", m.perOutputToken)
	x.histogram("vllm:e2e_request_latency_seconds", "Time from arrival to end.", m.endToEnd)
	x.histogram("vllm:request_queue_time_seconds", "Time in the queue.", m.queue)
	x.histogram("vllm:request_inference_time_seconds", "Time in the batch.", m.inference)
	x.histogram("vllm:request_prefill_time_seconds", "Time from scheduling to the first token.", m.prefill)
	x.histogram("vllm:request_decode_time_seconds", "Time from the first token to the last.", m.decode)
	x.histogram("vllm:request_num_preemptions", "Preemptions of a request.", m.preemptions)
	x.histogram("vllm:request_prefill_kv_computed_tokens", "Prompt tokens of a request that were not cached.", m.computedTokens)
}

// clone returns a copy that stays as it is.
func (m *meters) clone() *meters {
	c := *m
	for _, h := range []**histogram{
		&c.promptTokens, &c.generationTokens, &c.iterationTokens, &c.maxGeneration, &c.paramN, &c.paramMaxTokens,
		&c.firstToken, &c.nextToken, &c.perOutputToken, &c.endToEnd, &c.queue, &c.inference, &c.prefill, &c.decode,
		&c.preemptions, &c.computedTokens,
	} {
		*h = (*h).clone()
	}
	return &c
}

// cacheConfig writes the engine's settings as labels, in Python text.
func (w *Worker) cacheConfig(x *exposition) {
	slots := w.cfg.Blocks * w.cfg.BlockSize
	labels := []struct {
		name  string
		value any
	}{
		{"_block_size_resolved", "True"}, {"block_size", w.cfg.BlockSize}, {"cache_dtype", "auto"},
		{"cache_hit_alignment_tokens", "None"}, {"effective_attention_block_size", w.cfg.BlockSize},
		{"enable_mamba_shared_prefix_checkpoint", "False"}, {"enable_prefix_caching", "True"}, {"engine", 0},
		{"gpu_memory_utilization", "0.92"}, {"hash_block_size", "None"}, {"is_attention_free", "False"},
		{"kv_cache_dtype_skip_layers", "[]"}, {"kv_cache_layout", "None"},
		{"kv_cache_max_concurrency", pyFloat(float64(slots) / float64(w.cfg.MaxModelLen))},
		{"kv_cache_memory_bytes", "None"}, {"kv_cache_size_tokens", slots}, {"kv_offloading_backend", "native"},
		{"kv_offloading_size", "None"}, {"kv_sharing_fast_prefill", "False"}, {"mamba_block_size", "None"},
		{"mamba_cache_dtype", "auto"}, {"mamba_cache_mode", "none"}, {"mamba_page_size_padded", "None"},
		{"mamba_ssm_cache_dtype", "float32"}, {"num_cpu_blocks", "None"}, {"num_gpu_blocks", w.cfg.Blocks},
		{"num_gpu_blocks_override", w.cfg.Blocks}, {"prefix_cache_retention_interval", 0},
		{"prefix_caching_hash_algo", "sha256"}, {"prefix_match_unit", "None"}, {"replayssm_buffer_len", 16},
		{"skip_page_size_padded", "None"}, {"sliding_window", "None"}, {"swa_bounded_replay", "True"},
		{"use_kda_recoverssm", "False"}, {"use_replayssm", "False"}, {"user_specified_block_size", "True"},
	}
	var text []string
	for _, l := range labels {
		text = append(text, fmt.Sprintf(`%s="%v"`, l.name, l.value))
	}
	x.gauge("vllm:cache_config_info", "Settings of the cache.", series{strings.Join(text, ","), 1})
	if len(w.cfg.LoRAs) > 0 {
		x.gauge("vllm:lora_requests_info", "Adapters at work.", series{
			fmt.Sprintf(`max_lora="%d",running_lora_adapters="",waiting_lora_adapters=""`, len(w.cfg.LoRAs)),
			float64(time.Now().UnixMicro()) / 1e6,
		})
	}
}

func escapeLabel(s string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s)
}
