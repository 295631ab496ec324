package discovery

import (
	"bytes"
	"math"
	"strconv"
	"time"
)

// Metrics are the few series of a worker's /metrics that matter here, summed
// over its engines (data-parallel ranks). Series that a worker lacks are 0.
type Metrics struct {
	// Running and Waiting are requests in the engine and in its queue.
	Running int `json:"running"`
	Waiting int `json:"waiting"`
	// KVUsage is the share of cache blocks held by running requests, 0 to 1,
	// the mean over the engines. It says nothing about reusable blocks.
	KVUsage float64 `json:"kv_usage"`
	// PrefixQueries and PrefixHits count prompt tokens looked up and found in
	// the prefix cache since the process started.
	PrefixQueries float64 `json:"prefix_queries"`
	PrefixHits    float64 `json:"prefix_hits"`
	// PromptTokens and GenerationTokens count tokens processed, Preemptions
	// requests thrown back into the queue.
	PromptTokens     float64 `json:"prompt_tokens"`
	GenerationTokens float64 `json:"generation_tokens"`
	Preemptions      float64 `json:"preemptions"`
	// InterTokenSum and InterTokens are the seconds between tokens of one
	// answer, summed, and how many there were.
	InterTokenSum float64 `json:"inter_token_seconds_sum"`
	InterTokens   float64 `json:"inter_tokens"`
	// BlockSize is tokens a block, Blocks the most blocks any one engine has.
	BlockSize int `json:"block_size"`
	Blocks    int `json:"blocks"`
	// StartTime is when the process started, in Unix seconds.
	StartTime float64 `json:"start_time"`
	// Engines is the number of engines that report.
	Engines int `json:"engines"`
}

// series names a value that is read; an older engine's name for it counts only
// where the newer one is missing.
type series struct {
	value    float64
	n        int
	oldValue float64
	oldN     int
}

func (s *series) add(v float64, old bool) {
	if old {
		s.oldValue += v
		s.oldN++
		return
	}
	s.value += v
	s.n++
}

func (s *series) sum() float64 {
	if s.n == 0 {
		return s.oldValue
	}
	return s.value
}

func (s *series) mean() float64 {
	switch {
	case s.n > 0:
		return s.value / float64(s.n)
	case s.oldN > 0:
		return s.oldValue / float64(s.oldN)
	}
	return 0
}

// interToken is the mean time between two tokens from metrics a to the later b;
// 0 when there were none.
func (a *Metrics) interToken(b *Metrics) time.Duration {
	n, sum := b.InterTokens-a.InterTokens, b.InterTokenSum-a.InterTokenSum
	if a.Engines == 0 || n <= 0 || sum <= 0 {
		return 0
	}
	return time.Duration(min(sum/n, time.Minute.Seconds()) * float64(time.Second))
}

type metricsParser struct {
	running, waiting, usage, queries, hits series
	prompt, generation, preemptions        series
	gapSum, gaps                           series
	blockSize, blocks                      int
	start                                  float64
}

// ParseMetrics reads Prometheus text. It is tolerant: lines it can't read and
// series it doesn't know are skipped, so it has no error; a text without any
// known series gives Metrics with Engines 0.
func ParseMetrics(text []byte) Metrics {
	var p metricsParser
	for line := range bytes.Lines(text) {
		if len(line) > 0 && line[0] != '#' {
			p.line(line)
		}
	}
	return Metrics{
		Running:          int(p.running.sum()),
		Waiting:          int(p.waiting.sum()),
		KVUsage:          min(p.usage.mean(), 1),
		PrefixQueries:    p.queries.sum(),
		PrefixHits:       p.hits.sum(),
		PromptTokens:     p.prompt.sum(),
		GenerationTokens: p.generation.sum(),
		Preemptions:      p.preemptions.sum(),
		InterTokenSum:    p.gapSum.sum(),
		InterTokens:      p.gaps.sum(),
		BlockSize:        p.blockSize,
		Blocks:           p.blocks,
		StartTime:        p.start,
		Engines:          p.running.n,
	}
}

func (p *metricsParser) line(line []byte) {
	end := bytes.IndexAny(line, "{ \t")
	if end <= 0 {
		return
	}
	name, rest := string(line[:end]), bytes.TrimLeft(line[end:], " \t")
	if name == "vllm:cache_config_info" {
		if labels, _, ok := cutLabels(rest); ok {
			p.cacheConfig(labels)
		}
		return
	}
	target, old := p.series(name)
	if target == nil && name != "process_start_time_seconds" {
		return
	}
	v, ok := sampleValue(rest)
	switch {
	case !ok:
	case target == nil:
		p.start = v
	default:
		target.add(v, old)
	}
}

// series returns where the samples of a name go, and whether it is the name
// that older engines use.
func (p *metricsParser) series(name string) (s *series, old bool) {
	switch name {
	case "vllm:num_requests_running":
		return &p.running, false
	case "vllm:num_requests_waiting":
		return &p.waiting, false
	case "vllm:kv_cache_usage_perc":
		return &p.usage, false
	case "vllm:gpu_cache_usage_perc":
		return &p.usage, true
	case "vllm:prefix_cache_queries_total":
		return &p.queries, false
	case "vllm:gpu_prefix_cache_queries_total":
		return &p.queries, true
	case "vllm:prefix_cache_hits_total":
		return &p.hits, false
	case "vllm:gpu_prefix_cache_hits_total":
		return &p.hits, true
	case "vllm:prompt_tokens_total":
		return &p.prompt, false
	case "vllm:generation_tokens_total":
		return &p.generation, false
	case "vllm:inter_token_latency_seconds_sum":
		return &p.gapSum, false
	case "vllm:time_per_output_token_seconds_sum":
		return &p.gapSum, true
	case "vllm:inter_token_latency_seconds_count":
		return &p.gaps, false
	case "vllm:time_per_output_token_seconds_count":
		return &p.gaps, true
	case "vllm:num_preemptions_total":
		return &p.preemptions, false
	}
	return nil, false
}

// cacheConfig reads the labels of vllm:cache_config_info, whose values are
// Python text: "None" is no number and is skipped.
func (p *metricsParser) cacheConfig(labels []byte) {
	for len(labels) > 0 {
		key, value, rest, ok := nextLabel(labels)
		if !ok {
			return
		}
		labels = rest
		switch string(key) {
		case "block_size":
			p.blockSize = max(p.blockSize, count(value))
		case "num_gpu_blocks":
			p.blocks = max(p.blocks, count(value))
		}
	}
}

// count reads a positive number of ordinary size, or 0.
func count(value []byte) int {
	n, err := strconv.Atoi(string(value))
	if err != nil || n < 0 || n > math.MaxInt32 {
		return 0
	}
	return n
}

// sampleValue reads the value after a sample's name: labels, value, and maybe a
// time stamp. What can't be a count or a share is refused.
func sampleValue(rest []byte) (float64, bool) {
	if len(rest) > 0 && rest[0] == '{' {
		var ok bool
		if _, rest, ok = cutLabels(rest); !ok {
			return 0, false
		}
	}
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(fields[0]), 64)
	if err != nil || !(v >= 0) || v > 1<<53 {
		return 0, false
	}
	return v, true
}

// cutLabels splits "{a="b",…} rest". Braces inside label values don't count.
func cutLabels(s []byte) (labels, rest []byte, ok bool) {
	if len(s) == 0 || s[0] != '{' {
		return nil, nil, false
	}
	quoted := false
	for i := 1; i < len(s); i++ {
		switch {
		case quoted && s[i] == '\\':
			i++
		case s[i] == '"':
			quoted = !quoted
		case !quoted && s[i] == '}':
			return s[1:i], s[i+1:], true
		}
	}
	return nil, nil, false
}

// nextLabel splits the first key="value" off labels. Escapes stay as they are:
// no value that is read has any.
func nextLabel(labels []byte) (key, value, rest []byte, ok bool) {
	labels = bytes.TrimLeft(labels, ", ")
	key, labels, ok = bytes.Cut(labels, []byte(`="`))
	if !ok {
		return nil, nil, nil, false
	}
	for i := 0; i < len(labels); i++ {
		switch labels[i] {
		case '\\':
			i++
		case '"':
			return key, labels[:i], labels[i+1:], true
		}
	}
	return nil, nil, nil, false
}
