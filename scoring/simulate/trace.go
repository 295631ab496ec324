package simulate

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// traceBlock is the tokens that one hash id of a trace stands for.
const traceBlock = 512

// maxTraceLine bounds a line of a trace: ids for a prompt of millions of tokens.
const maxTraceLine = 1 << 20

// maxTraceTokens bounds a prompt and an answer, maxTraceTime a time stamp: a year.
const (
	maxTraceTokens = 1 << 26
	maxTraceTime   = 365 * 24 * 3600 * 1000
)

// traceRow is one line of a trace in the Mooncake format.
type traceRow struct {
	Timestamp *float64 `json:"timestamp"`
	Input     *int     `json:"input_length"`
	Output    *int     `json:"output_length"`
	Hashes    []uint64 `json:"hash_ids"`
}

// ReadTrace reads a trace in the format of Mooncake (Qin et al., FAST 2025): one
// JSON object a line, with timestamp in milliseconds, input_length and
// output_length in tokens, and hash_ids, one for each 512 tokens of the prompt,
// where equal leading ids mean an equal prefix. Further members are ignored. At
// most max requests are read, all with max 0. An answer of 0 tokens counts as 1.
//
// An error names the line, counted from 1.
func ReadTrace(name string, r io.Reader, max int) (*Plan, error) {
	p := &Plan{Name: name}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 1<<16), maxTraceLine)
	n := 0
	for lines.Scan() && (max == 0 || len(p.Requests) < max) {
		n++
		if len(lines.Bytes()) == 0 {
			continue
		}
		req, err := traceRequest(lines.Bytes())
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n, err)
		}
		p.Requests = append(p.Requests, req)
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, fmt.Errorf("%s:%d: line is longer than %d bytes", name, n+1, maxTraceLine)
	} else if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, err)
	}
	if len(p.Requests) == 0 {
		return nil, fmt.Errorf("%s has no requests; it should have one JSON object a line", name)
	}
	return p, nil
}

// traceRequest decodes one line.
func traceRequest(line []byte) (Request, error) {
	var row traceRow
	if err := json.Unmarshal(line, &row); err != nil {
		if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && kind.Field != "" {
			return Request{}, fmt.Errorf("%s is a %s, should be %s", kind.Field, kind.Value, traceKind(kind.Field))
		}
		return Request{}, fmt.Errorf("not a JSON object of a trace: %w", err)
	}
	switch {
	case row.Timestamp == nil:
		return Request{}, errors.New("timestamp is missing, should be milliseconds from the start")
	case row.Input == nil:
		return Request{}, errors.New("input_length is missing, should be the prompt's tokens")
	case row.Output == nil:
		return Request{}, errors.New("output_length is missing, should be the answer's tokens")
	case !(*row.Timestamp >= 0 && *row.Timestamp <= maxTraceTime):
		return Request{}, fmt.Errorf("timestamp is %v, should be milliseconds from the start, 0 to a year", *row.Timestamp)
	case *row.Input < 1 || *row.Input > maxTraceTokens:
		return Request{}, fmt.Errorf("input_length is %d, should be 1 to %d", *row.Input, maxTraceTokens)
	case *row.Output < 0 || *row.Output > maxTraceTokens:
		return Request{}, fmt.Errorf("output_length is %d, should be 0 to %d", *row.Output, maxTraceTokens)
	}
	blocks := (*row.Input + traceBlock - 1) / traceBlock
	if len(row.Hashes) != blocks {
		return Request{}, fmt.Errorf("hash_ids has %d ids, should have %d for input_length %d: one for each %d tokens",
			len(row.Hashes), blocks, *row.Input, traceBlock)
	}
	req := Request{
		At:     time.Duration(math.Round(*row.Timestamp * float64(time.Millisecond))),
		Output: max(1, *row.Output),
		Prompt: make([]Segment, blocks),
	}
	for i, id := range row.Hashes {
		req.Prompt[i] = Segment{ID: id, Tokens: min(traceBlock, *row.Input-i*traceBlock)}
	}
	return req, nil
}

func traceKind(field string) string {
	switch field {
	case "timestamp":
		return "a number of milliseconds"
	case "hash_ids":
		return "an array of whole numbers from 0"
	}
	return "a whole number"
}
