package main

import (
	"bytes"
	"testing"
)

// FuzzCounters reads arbitrary metrics: counters only ever add up what was there.
func FuzzCounters(f *testing.F) {
	f.Add([]byte("# HELP x\nvllm:prompt_tokens_total{engine=\"0\"} 12.0\nvllm:prompt_tokens_total{engine=\"1\"} 3\n"))
	f.Add([]byte("vllm:request_success_total{finished_reason=\"stop\"} 1e400\n"))
	f.Add([]byte("vllm:num_preemptions_total x\n\xff{ 7"))
	f.Fuzz(func(t *testing.T, text []byte) {
		once, err := parseCounters(text)
		twice, err2 := parseCounters(append(append(bytes.Clone(text), '\n'), text...))
		if (err == nil) != (err2 == nil) {
			t.Fatalf("once: %v, twice: %v", err, err2)
		}
		if err == nil && once.Prompt == once.Prompt && once.Prompt*2 != twice.Prompt {
			t.Fatalf("%v tokens once, %v twice", once.Prompt, twice.Prompt)
		}
	})
}

// FuzzTrace reads arbitrary traces: a row that is taken has as many blocks as its
// tokens fill.
func FuzzTrace(f *testing.F) {
	f.Add([]byte(`{"timestamp":0,"input_length":600,"output_length":5,"hash_ids":[1,2]}` + "\n"))
	f.Add([]byte(`{"input_length":-1}` + "\n{}\n"))
	f.Add([]byte("\n\x00[]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		rows, err := parseTrace(bytes.NewReader(text))
		if err != nil && rows != nil {
			t.Fatal("an error comes with rows")
		}
		for _, r := range rows {
			if r.Input < 1 || r.Output < 1 || (len(r.Blocks)-1)*traceBlock >= r.Input || len(r.Blocks)*traceBlock < r.Input {
				t.Fatalf("took %+v", r)
			}
		}
	})
}
