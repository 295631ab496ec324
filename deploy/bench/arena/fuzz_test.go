package main

import (
	"bytes"
	"testing"
)

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
