package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// simulated is what the JSON of a report is read for here.
type simulated struct {
	Requests, Workers int
	Strategies        []struct {
		Strategy string
		Requests int
		TTFT     struct{ Mean, P99 float64 } `json:"ttft_ms"`
		Hits     float64                     `json:"hit_ratio"`
		Prompt   int                         `json:"prompt_tokens"`
		Workers  []struct{ Requests int }
	}
}

// runSimulation runs `sluice simulate` with the arguments.
func runSimulation(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	if code := execute(t.Context(), time.Now, append([]string{"simulate"}, args...), nil, &out, &errs); code != exitOK {
		t.Fatalf("%v: exit code %d: %s", args, code, errs.String())
	}
	return out.String()
}

func simulation(t *testing.T, args ...string) simulated {
	t.Helper()
	var got simulated
	if err := json.Unmarshal([]byte(runSimulation(t, append(args, "--format", "json")...)), &got); err != nil {
		t.Fatal(err)
	}
	return got
}

// Every kind of load runs on every strategy, and the same flags give the same output although strategies
// run side by side.
func TestSimulateLoads(t *testing.T) {
	for _, args := range [][]string{
		{"--workload", "shared-prefix", "--prefixes", "3"},
		{"--workload", "mixed", "--buckets", "1:2x300,1:5x100"},
		{"--workload", "multi-turn", "--rate", "2"},
		{"--workload", "independent", "--streams", "6", "--profile", "cpu-pair"},
		{"--trace", "testdata/script/files/trace.jsonl", "--trace-spread", "3s", "--rate-scale", "2", "--requests", "3"},
	} {
		args = append(args, "--workers", "3")
		if args[0] == "--workload" {
			args = append(args, "--requests", "60")
		}
		got := simulation(t, args...)
		if len(got.Strategies) != 6 || got.Workers != 3 || got.Requests != 60 && got.Requests != 3 {
			t.Fatalf("%v: %+v", args, got)
		}
		for _, s := range got.Strategies {
			n := 0
			for _, w := range s.Workers {
				n += w.Requests
			}
			if n != got.Requests || s.Requests != n || s.TTFT.Mean <= 0 || s.Prompt <= 0 {
				t.Errorf("%v: %+v", args, s)
			}
		}
		if a, b := runSimulation(t, args...), runSimulation(t, args...); a != b || !strings.Contains(a, "prefix-only") {
			t.Errorf("%v: two runs differ:\n%s\n%s", args, a, b)
		}
	}
}

// Flags reach what they are named for.
func TestSimulateFlagsTell(t *testing.T) {
	base := []string{"--workload", "independent", "--requests", "40", "--rate", "1", "--workers", "2", "--strategy", "round-robin"}
	mean := func(args ...string) float64 {
		t.Helper()
		return simulation(t, append(slices.Clip(base), args...)...).Strategies[0].TTFT.Mean
	}
	plain := mean()
	for _, slower := range [][]string{
		{"--prefill-tps", "1000"}, {"--prefill-token", "1ms"}, {"--step", "200ms"}, {"--decode-tps", "5"}, {"--attention", "1s"},
		{"--decode-seq", "1s", "--output", "40"}, {"--context", "1s", "--output", "40"}, {"--batch-tokens", "100"}, {"--slow", "0=5,1=3"},
		{"--shared-cores", "0.5"}, {"--fresh", "3000"}, {"--max-seqs", "1", "--output", "60"}, {"--cache-blocks", "104", "--output", "60"},
	} {
		if got := mean(slower...); got < 1.02*plain {
			t.Errorf("%v: mean TTFT is %.0f ms, %.0f without", slower, got, plain)
		}
	}
	if one, other := mean("--jitter", "0.9"), mean("--jitter", "0.9", "--seed", "2"); one == plain || one == other {
		t.Errorf("jitter and seed change nothing: %v, %v, %v", plain, one, other)
	}
	if got := simulation(t, append(base, "--warmup", "30")...).Strategies[0].Requests; got != 10 {
		t.Errorf("%d requests count after 30 of 40 to warm up", got)
	}
}

func TestSimulatePlot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plot.svg")
	runSimulation(t, "--requests", "20", "--strategy", "ttft,random", "--plot", file)
	svg, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(svg, []byte("<polyline")); n != 2 || !bytes.HasSuffix(svg, []byte("</svg>\n")) {
		t.Errorf("%d curves, want 2", n)
	}
}
