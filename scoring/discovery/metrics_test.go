package discovery

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestParseMetricsRecording(t *testing.T) {
	text, err := os.ReadFile("testdata/metrics-0.32.0.txt")
	if err != nil {
		t.Fatal(err)
	}
	// The values were read off the recording with grep.
	want := Metrics{
		PrefixQueries: 53160, PrefixHits: 800, PromptTokens: 53160, GenerationTokens: 399,
		InterTokenSum: 9.91121758600002, InterTokens: 300,
		BlockSize: 32, Blocks: 512, StartTime: 1.79600572162e+09, Engines: 1,
	}
	if got := ParseMetrics(text); got != want {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
}

func TestInterToken(t *testing.T) {
	f := func(name string, a, b Metrics, want time.Duration) {
		t.Helper()
		if got := a.interToken(&b); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	earlier := Metrics{Engines: 1, InterTokenSum: 10, InterTokens: 300}
	f("the first reading", Metrics{}, earlier, 0)
	f("no token since", earlier, earlier, 0)
	f("ten tokens in half a second", earlier, Metrics{Engines: 1, InterTokenSum: 10.5, InterTokens: 310}, 50*time.Millisecond)
	f("another process", earlier, Metrics{Engines: 1, InterTokenSum: 1, InterTokens: 20}, 0)
	f("absurd", earlier, Metrics{Engines: 1, InterTokenSum: 1e15, InterTokens: 301}, time.Minute)
}

func TestParseMetrics(t *testing.T) {
	f := func(name string, want Metrics, lines ...string) {
		t.Helper()
		if got := ParseMetrics([]byte(strings.Join(lines, "\n"))); got != want {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
		}
	}
	f("nothing", Metrics{})
	f("two engines", Metrics{Running: 7, Waiting: 3, KVUsage: 0.5, PromptTokens: 30, BlockSize: 16, Blocks: 1200, Engines: 2},
		`vllm:num_requests_running{engine="0",model_name="m"} 3.0`,
		`vllm:num_requests_running{engine="1",model_name="m"} 4.0`,
		`vllm:num_requests_waiting{engine="0",model_name="m"} 1.0`,
		`vllm:num_requests_waiting{engine="1",model_name="m"} 2.0`,
		`vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25`,
		`vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75`,
		`vllm:prompt_tokens_total{engine="0",model_name="m"} 10`,
		`vllm:prompt_tokens_total{engine="1",model_name="m"} 20`,
		`vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1200"} 1.0`,
		`vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="1000"} 1.0`)
	f("older names", Metrics{Running: 1, KVUsage: 0.5, PrefixQueries: 100, PrefixHits: 40, Engines: 1},
		`vllm:num_requests_running{model_name="m"} 1`,
		`vllm:gpu_cache_usage_perc{model_name="m"} 0.5`,
		`vllm:gpu_prefix_cache_queries_total{model_name="m"} 100`,
		`vllm:gpu_prefix_cache_hits_total{model_name="m"} 40`)
	f("both names count once", Metrics{Running: 1, KVUsage: 0.5, PrefixQueries: 100, Engines: 1},
		`vllm:gpu_cache_usage_perc 0.5`, `vllm:kv_cache_usage_perc 0.5`,
		`vllm:prefix_cache_queries_total 100`, `vllm:gpu_prefix_cache_queries_total 100`,
		`vllm:num_requests_running 1`)
	f("neighbours", Metrics{},
		`vllm:prefix_cache_hits_created{engine="0"} 1.7e9`,
		`vllm:num_requests_waiting_by_reason{reason="capacity"} 9`,
		`vllm:prompt_tokens_by_source_total{source="local_compute"} 9`,
		`vllm:iteration_tokens_total_sum 5`)
	f("odd layout", Metrics{Running: 4, Waiting: 2, Preemptions: 6, Engines: 2},
		"", "#", "# HELP vllm:num_requests_running 9",
		"vllm:num_requests_running 1",
		"vllm:num_requests_running\t3 1700000000000\r",
		`vllm:num_requests_waiting { engine="a} \" b" , x="\\" } 2`,
		`vllm:num_preemptions_total{a="{"} 6`)
	f("unreadable", Metrics{},
		`vllm:num_requests_running{engine="0" 1`,
		`vllm:num_requests_running{engine="0}`,
		`vllm:num_requests_running`,
		`vllm:num_requests_running `,
		`vllm:num_requests_running one`,
		`vllm:num_requests_running NaN`,
		`vllm:num_requests_running +Inf`,
		`vllm:num_requests_running -1`,
		`vllm:num_requests_running 1e300`,
		`vllm:cache_config_info{block_size="None",num_gpu_blocks="-3"} 1`,
		`vllm:cache_config_info{block_size=16} 1`,
		`vllm:cache_config_info`,
		`{} 1`, ` 1`, `=`)
	f("usage over 1", Metrics{KVUsage: 1, Engines: 1}, "vllm:num_requests_running 0", "vllm:kv_cache_usage_perc 1.01")
	f("first cache label escaped", Metrics{BlockSize: 64}, `vllm:cache_config_info{a="x\",num_gpu_blocks=\"9",block_size="64"} 1`)
}

func FuzzParseMetrics(f *testing.F) {
	text, err := os.ReadFile("testdata/metrics-0.32.0.txt")
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "cache_config") || strings.Contains(line, "num_requests") {
			f.Add([]byte(line))
		}
	}
	f.Add([]byte("vllm:num_requests_running{a=\"\\\"}\"} 3 4\nprocess_start_time_seconds 1e9"))
	f.Fuzz(func(t *testing.T, text []byte) {
		m := ParseMetrics(text)
		if m.Running < 0 || m.Waiting < 0 || m.KVUsage < 0 || m.KVUsage > 1 || m.BlockSize < 0 || m.Blocks < 0 ||
			!(m.PrefixHits >= 0) || !(m.PromptTokens >= 0) || m.Engines < 0 {
			t.Fatalf("%+v", m)
		}
	})
}
