package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/sluicegate/sluice/deploy/bench/internal/rig"
)

// request is one request of a workload. Requests of one group share a prefix.
type request struct {
	at     time.Duration // when to send it, from the start
	body   []byte
	group  int
	prompt int // tokens, without those of the chat template
	output int // tokens, exact
}

// workload makes requests, and says what workers they are meant for.
type workload struct {
	name string
	// blocks and maxModelLen are the workers' cache blocks and context length.
	blocks, maxModelLen int
	// slow is the time factor of the first worker.
	slow float64
	// generate returns requests for the given time at a mean rate a second.
	generate func(rate float64, length time.Duration, seed uint64) []request
}

// newWorkloads returns the workloads by name. text draws prompts; trace holds
// the rows of the trace workload, which is left out without any.
func newWorkloads(text words, trace []traceRow) map[string]*workload {
	m := map[string]*workload{
		"mixed": {name: "mixed", blocks: 1650, maxModelLen: 8192, slow: 1, generate: text.mixed},
		"slow":  {name: "slow", blocks: 1650, maxModelLen: 8192, slow: 3, generate: text.mixed},
		"burst": {name: "burst", blocks: 3300, maxModelLen: 8192, slow: 1, generate: text.burst},
	}
	if len(trace) > 0 {
		m["trace"] = &workload{name: "trace", blocks: 3300, maxModelLen: 32768, slow: 1,
			generate: func(rate float64, length time.Duration, _ uint64) []request { return text.trace(trace, rate, length) }}
	}
	return m
}

// words makes the workloads' texts.
type words struct{ *rig.Words }

// Streams of texts, so that no two kinds share a prefix by chance.
const (
	streamPrefix uint64 = iota + 1
	streamFresh
	streamBurst
	streamBlock
)

// outputTokens is the answer length of all workloads but the trace.
const outputTokens = 16

// mixedKinds are prefixes by share of the requests, number and length. The
// numbers are those of two real engines scaled to eight workers: together the
// prefixes are 1.8 times what the caches hold.
var mixedKinds = []struct {
	share         float64
	count, tokens int
}{{0.5, 12, 3000}, {0.3, 48, 2000}, {0.2, 240, 1000}}

// mixed draws a prefix by weight and 16 to 600 fresh tokens.
func (w words) mixed(rate float64, length time.Duration, seed uint64) []request {
	rng := rand.New(rand.NewPCG(seed, 0))
	prefixes := make(map[int]string)
	var out []request
	for at := exponential(rng, rate); at < length; at += exponential(rng, rate) {
		group, tokens := 0, 0
		u := rng.Float64()
		for _, k := range mixedKinds {
			if tokens = k.tokens; u < k.share {
				group += rng.IntN(k.count)
				break
			}
			u -= k.share
			group += k.count
		}
		if _, ok := prefixes[group]; !ok {
			prefixes[group] = w.Text(streamPrefix, uint64(group), tokens)
		}
		fresh := 16 + rng.IntN(585)
		out = append(out, request{
			at: at, group: group, prompt: tokens + fresh, output: outputTokens,
			body: w.Body(outputTokens, rig.Message{Role: "system", Content: prefixes[group]}, rig.Message{Role: "user", Content: w.Text(streamFresh, rng.Uint64(), fresh)}),
		})
	}
	return out
}

// Of a burst workload half the requests come in bursts of burstSize within
// burstSpread: half of them share a prefix that nobody has seen, half are
// unlike all others. The other half of the requests comes steadily and shares
// a few prefixes that all workers can hold.
const (
	burstSize   = 64
	burstSpread = 100 * time.Millisecond
	burstPrefix = 2000
	steadyCount = 16
)

func (w words) burst(rate float64, length time.Duration, seed uint64) []request {
	rng := rand.New(rand.NewPCG(seed, 1))
	one := func(at time.Duration, group int, prefix string, tokens int) request {
		fresh := 16 + rng.IntN(185)
		return request{
			at: at, group: group, prompt: tokens + fresh, output: outputTokens,
			body: w.Body(outputTokens, rig.Message{Role: "system", Content: prefix}, rig.Message{Role: "user", Content: w.Text(streamFresh, rng.Uint64(), fresh)}),
		}
	}
	var out []request
	for at := exponential(rng, rate/2); at < length; at += exponential(rng, rate/2) {
		group := rng.IntN(steadyCount)
		out = append(out, one(at, group, w.Text(streamPrefix, uint64(group), 1500), 1500))
	}
	period := time.Duration(burstSize / (rate / 2) * float64(time.Second))
	next := steadyCount
	for at := period / 2; at < length; at += period {
		hot := w.Text(streamBurst, rng.Uint64(), burstPrefix)
		group := next
		next++
		for i := range burstSize {
			when := at + time.Duration(rng.Int64N(int64(burstSpread)))
			if i%2 == 0 {
				out = append(out, one(when, group, hot, burstPrefix))
				continue
			}
			n := 500 + rng.IntN(1001)
			out = append(out, one(when, next, w.Text(streamBurst, rng.Uint64(), n), n))
			next++
		}
	}
	slices.SortStableFunc(out, func(a, b request) int { return int(a.at - b.at) })
	return out
}

func exponential(rng *rand.Rand, rate float64) time.Duration {
	return time.Duration(rng.ExpFloat64() / rate * float64(time.Second))
}

// traceRow is a request of the trace: block ids name blocks of its prompt,
// equal leading ids an equal prefix.
type traceRow struct {
	Timestamp int64 `json:"timestamp"` // ms
	Input     int   `json:"input_length"`
	Output    int   `json:"output_length"`
	Blocks    []int `json:"hash_ids"`
}

// traceBlock is the tokens a block id of the trace stands for, traceScale what
// all lengths are multiplied by: tokenising 12,000 tokens a prompt would keep
// this machine's cores from measuring the routers.
const (
	traceBlock = 512
	traceScale = 0.25
	// traceMax leaves out the prompts that are longer than this after scaling.
	traceMax = 16000
)

// readTrace reads a trace in the format of Mooncake's, a JSON object a line.
func readTrace(name string) ([]traceRow, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read the trace: %w", err)
	}
	defer f.Close()
	return parseTrace(f)
}

func parseTrace(r io.Reader) ([]traceRow, error) {
	var rows []traceRow
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		var row traceRow
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			return nil, fmt.Errorf("cannot read the trace: line %d: %w", n, err)
		}
		if row.Input < 1 || row.Output < 1 || len(row.Blocks) != (row.Input+traceBlock-1)/traceBlock {
			return nil, fmt.Errorf("cannot read the trace: line %d: %d tokens in %d blocks", n, row.Input, len(row.Blocks))
		}
		if float64(row.Input)*traceScale <= traceMax {
			rows = append(rows, row)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("cannot read the trace: %w", err)
	}
	return rows, nil
}

// trace plays rows from the beginning, its time stretched to the mean rate of
// as many rows as fit. A prompt is a conversation with a turn for each block,
// so that its prefix is the same text whatever follows.
func (w words) trace(rows []traceRow, rate float64, length time.Duration) []request {
	n := min(len(rows), int(rate*length.Seconds()))
	if n < 2 {
		return nil
	}
	first, last := rows[0].Timestamp, rows[n-1].Timestamp
	stretch := float64(n) / rate * 1e3 / float64(max(1, last-first))
	texts := make(map[int]string)
	roles := [2]string{"user", "assistant"}
	var out []request
	for _, row := range rows[:n] {
		left := max(1, int(float64(row.Input)*traceScale))
		prompt := left
		var turns []rig.Message
		for i, id := range row.Blocks {
			size := min(left, int(traceBlock*traceScale))
			left -= size
			if size < 1 {
				break
			}
			key := id*traceBlock + size
			if _, ok := texts[key]; !ok {
				// A shorter block is the beginning of the whole one.
				texts[key] = w.Text(streamBlock, uint64(id), size)
			}
			turns = append(turns, rig.Message{Role: roles[i%2], Content: texts[key]})
		}
		group := row.Blocks[0]
		if len(row.Blocks) > 1 {
			group = row.Blocks[1] // all share the first
		}
		output := max(1, int(float64(row.Output)*traceScale))
		out = append(out, request{
			at:    time.Duration(float64(row.Timestamp-first) * stretch * float64(time.Millisecond)),
			group: group, prompt: prompt, output: output, body: w.Body(output, turns...),
		})
	}
	return out
}
