package simworker

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// wireEvent is an event as it is on the wire, whichever form it has.
type wireEvent struct {
	Type   string
	Hashes []uint64
	Parent *uint64
	Tokens []uint32
	Size   int
	LoRA   string
	Extra  [][]any
}

// decodeBatch reads a payload by the generic decoder, so that a mistake of the
// encoder cannot repeat itself here.
func decodeBatch(t *testing.T, payload []byte) (ts float64, events []wireEvent) {
	t.Helper()
	var v []any
	if err := msgpack.Unmarshal(payload, &v); err != nil {
		t.Fatal(err)
	}
	if len(v) != 3 {
		t.Fatalf("batch of %d elements, want 3", len(v))
	}
	for _, e := range v[1].([]any) {
		m, ok := e.(map[string]any)
		if !ok {
			m = arrayEvent(t, e.([]any))
		}
		ev := wireEvent{Type: m["type"].(string)}
		for _, h := range asList(m["block_hashes"]) {
			ev.Hashes = append(ev.Hashes, asUint(t, h))
		}
		if p := m["parent_block_hash"]; p != nil {
			ev.Parent = new(asUint(t, p))
		}
		for _, tok := range asList(m["token_ids"]) {
			ev.Tokens = append(ev.Tokens, uint32(asUint(t, tok)))
		}
		if s := m["block_size"]; s != nil {
			ev.Size = int(asUint(t, s))
		}
		ev.LoRA, _ = m["lora_name"].(string)
		for _, keys := range asList(m["extra_keys"]) {
			ev.Extra = append(ev.Extra, asList(keys))
		}
		events = append(events, ev)
	}
	return v[0].(float64), events
}

// arrayEvent names the fields of an event in the form of vLLM up to 0.23.
func arrayEvent(t *testing.T, a []any) map[string]any {
	t.Helper()
	fields := map[string][]string{
		"BlockStored":      {"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx", "kind"},
		"BlockRemoved":     {"block_hashes", "medium", "group_idx"},
		"AllBlocksCleared": {},
	}[a[0].(string)]
	if len(a) != 1+len(fields) {
		t.Fatalf("%v has %d elements, want %d", a[0], len(a), 1+len(fields))
	}
	m := map[string]any{"type": a[0]}
	for i, f := range fields {
		m[f] = a[1+i]
	}
	return m
}

func asList(v any) []any {
	l, _ := v.([]any)
	return l
}

func asUint(t *testing.T, v any) uint64 {
	t.Helper()
	switch v := v.(type) {
	case int8:
		return uint64(v)
	case uint8:
		return uint64(v)
	case uint16:
		return uint64(v)
	case uint32:
		return uint64(v)
	case uint64:
		return v
	case int64:
		return uint64(v)
	case []byte: // a whole digest; its low half names it as well
		return binary.BigEndian.Uint64(v[len(v)-8:])
	}
	t.Fatalf("%T is no integer", v)
	return 0
}

// frame is one recorded batch.
type frame struct {
	After   string `json:"after"`
	Topic   string `json:"topic"`
	Seq     uint64 `json:"seq"`
	Payload string `json:"payload_b64"`
}

func recordedFrames(t *testing.T) []frame {
	t.Helper()
	frames := readJSON[struct {
		Frames []frame `json:"kv_event_frames"`
	}](t, "testdata/vllm-0.32.0/kv_events.json").Frames
	if len(frames) != 31 {
		t.Fatalf("%d recorded frames, want 31", len(frames))
	}
	return frames
}

func unbase64(t *testing.T, s string) []byte {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// hashOf returns a hash that is published as low.
func hashOf(low uint64) engine.Hash {
	var h engine.Hash
	binary.BigEndian.PutUint64(h[len(h)-8:], low)
	return h
}

// engineEvents turns recorded events back into what the engine would have to
// report for them.
func engineEvents(t *testing.T, list []wireEvent) []engine.Event {
	t.Helper()
	var out []engine.Event
	for _, w := range list {
		ev := engine.Event{Tokens: w.Tokens, LoRA: w.LoRA}
		ev.Kind = map[string]engine.EventKind{
			"BlockStored": engine.Stored, "BlockRemoved": engine.Removed, "AllBlocksCleared": engine.Cleared,
		}[w.Type]
		for _, h := range w.Hashes {
			ev.Hashes = append(ev.Hashes, hashOf(h))
		}
		if w.Parent != nil {
			ev.Parent, ev.First = new(hashOf(*w.Parent)), 1
		}
		if len(w.Extra) > 0 && len(w.Extra[0]) > 0 {
			ev.Salt = w.Extra[0][0].(string)
		}
		out = append(out, ev)
	}
	return out
}

func TestEventsAreEncodedAsRecorded(t *testing.T) {
	enc := encoder{blockSize: 32}
	stamp := 1 + 1 + 8 // array of three, float64
	for _, f := range recordedFrames(t) {
		want := unbase64(t, f.Payload)
		_, list := decodeBatch(t, want)
		got, err := enc.encode(time.Now(), engineEvents(t, list), batchShape{})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got[:2], want[:2]) || !bytes.Equal(got[stamp:], want[stamp:]) {
			t.Errorf("seq %d: payload differs from the recorded one", f.Seq)
		}
	}
}

// chains names blocks by the store that brought them and their place in the
// chain, so that two runs can be compared although their hashes differ.
type chains struct {
	names map[uint64]string
	n     int
}

func (c *chains) describe(events []wireEvent) []string {
	var list []string
	for _, e := range events {
		switch e.Type {
		case "BlockStored":
			chain, first := fmt.Sprint("chain ", c.n), 0
			parent := "none"
			if e.Parent == nil {
				c.n++
			} else {
				parent = c.name(*e.Parent)
				chain, _, _ = strings.Cut(parent, "/")
				fmt.Sscanf(parent[strings.Index(parent, "/")+1:], "%d", &first)
				first++
			}
			for i, h := range e.Hashes {
				c.names[h] = fmt.Sprintf("%s/%d", chain, first+i)
			}
			list = append(list, fmt.Sprintf("stored %d blocks, %d tokens of %d under %s as %s, keys %v",
				len(e.Hashes), len(e.Tokens), e.Size, parent, c.names[e.Hashes[0]], e.Extra))
		case "BlockRemoved":
			list = append(list, fmt.Sprintf("removed %d: %s", len(e.Hashes), c.name(e.Hashes[0])))
		default:
			list = append(list, e.Type)
		}
	}
	return list
}

// name returns the name of a block; those from before the recording get one
// when they are first seen.
func (c *chains) name(h uint64) string {
	if _, ok := c.names[h]; !ok {
		c.names[h] = fmt.Sprintf("older %d/0", len(c.names))
	}
	return c.names[h]
}

// recordedRun is the recorded requests, given to an engine without HTTP. The
// prompts' full blocks are known from the events; their tails only by length.
type recordedRun struct {
	t   *testing.T
	eng *engine.Engine
	enc encoder
	log [][]byte
}

func (r *recordedRun) serve(blocks []uint32, prompt, generate int, salt string) {
	r.t.Helper()
	p := slices.Clone(blocks)
	for len(p) < prompt {
		p = append(p, uint32(len(p)))
	}
	now := time.Unix(0, 0)
	if _, err := r.eng.Add(now, engine.Request{Prompt: p[:prompt], MaxTokens: generate, Salt: salt}); err != nil {
		r.t.Fatal(err)
	}
	for {
		if _, ok := r.eng.Begin(now); !ok {
			return
		}
		if res := r.eng.End(now); len(res.Events) > 0 {
			payload, err := r.enc.encode(now, res.Events, batchShape{})
			if err != nil {
				r.t.Fatal(err)
			}
			r.log = append(r.log, payload)
		}
	}
}

// TestEngineRepeatsTheRecording serves the recorded requests and wants the
// recorded batches: the same pieces, parents, salt, evictions and order.
func TestEngineRepeatsTheRecording(t *testing.T) {
	frames := recordedFrames(t)
	var recorded [][]wireEvent
	tokens := map[string][]uint32{} // a prompt's full blocks
	for _, f := range frames {
		_, list := decodeBatch(t, unbase64(t, f.Payload))
		recorded = append(recorded, list)
		for _, e := range list {
			tokens[f.After] = append(tokens[f.After], e.Tokens...)
		}
	}
	eng, err := engine.New(engine.Config{BlockSize: 32, Blocks: 512, MaxModelLen: 8192, MaxSeqs: 64, BatchTokens: 1024, Vocab: 1000})
	if err != nil {
		t.Fatal(err)
	}
	r := &recordedRun{t: t, eng: eng, enc: encoder{blockSize: 32}}

	// What came before the first frame: the prompt of kv_after_reset after a
	// reset, requests too short for a block, and kv_first, a full hit.
	first := tokens["kv_after_reset"]
	r.serve(first, 169, 2, "")
	for i := range 12 {
		r.serve([]uint32{uint32(i)}, 10, 6, "")
	}
	r.serve(first, 169, 2, "")
	if r.log = nil; eng.Stats().BlocksCached != 5 {
		t.Fatalf("%d blocks cached before the recording, want 5", eng.Stats().BlocksCached)
	}

	extended := append(slices.Clone(first), tokens["kv_extend"][:22]...)
	r.serve(extended, 182, 40, "")
	r.serve(first, 169, 2, "tenant-a")
	for i := range 14 {
		r.serve(tokens[fmt.Sprint("kv_fill_", i)], 1208, 2, "")
	}
	if !eng.Reset() {
		t.Fatal("reset fails")
	}
	r.serve(first, 169, 2, "")

	if len(r.log) != len(frames) {
		t.Errorf("%d batches, recorded %d", len(r.log), len(frames))
	}
	ours, theirs := &chains{names: map[uint64]string{}}, &chains{names: map[uint64]string{}}
	for i := range min(len(r.log), len(frames)) {
		_, list := decodeBatch(t, r.log[i])
		got, want := ours.describe(list), theirs.describe(recorded[i])
		if !slices.Equal(got, want) {
			t.Errorf("batch %d after %s:\n%s\nrecorded:\n%s", frames[i].Seq, frames[i].After, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// decodeBatchLoosely returns the kinds of a batch that may hold unknown events.
func decodeBatchLoosely(t *testing.T, payload []byte) (ts float64, kinds []string) {
	t.Helper()
	var v []any
	if err := msgpack.Unmarshal(payload, &v); err != nil {
		t.Fatal(err)
	}
	for _, e := range v[1].([]any) {
		kinds = append(kinds, e.(map[string]any)["type"].(string))
	}
	return v[0].(float64), kinds
}
