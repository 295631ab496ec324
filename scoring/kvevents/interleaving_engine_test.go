package kvevents_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"

	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"
)

// text is everything that decides what a block holds: the adapter, the salt and
// all tokens from the prompt's start to the block's end.
type text struct {
	lora, salt string
	tokens     string // one byte a token, blockTokens a block
}

const blockTokens = 2

func (x text) parent() text {
	x.tokens = x.tokens[:len(x.tokens)-blockTokens]
	return x
}

func (x text) root() bool { return x.tokens == "" }

// spot is one block in one place of an engine's cache.
type spot struct {
	group  int
	medium string
	text   text
}

// engine is a naive vLLM: what its cache holds, and the batches it published,
// encoded in whichever of the known forms is drawn.
type engine struct {
	t       *rapid.T
	process int
	groups  int
	bytes   bool // hashes are digests, not integers
	cache   map[spot]bool
	seq     uint64
	buffer  []batch
	whole   bool // nothing was lost to encoding or to the buffer's end
}

// batch is one published batch, and what the cache held after it.
type batch struct {
	process int
	seq     uint64
	payload []byte
	facts   []fact
	after   map[spot]bool
}

// fact is one event in the model's own terms.
type fact struct {
	kind   string // "store", "repeat" (a store without tokens), "remove", "clear"
	group  int
	medium string
	chain  []text // each the parent of the next
}

// hash is the engine's name of a text: equal in all groups, another one in
// every process.
func (e *engine) hash(x text) any {
	h := uint64(0xcbf29ce484222325) ^ uint64(e.process)<<32
	for _, c := range []byte(x.lora + "\x00" + x.salt + "\x00" + x.tokens) {
		h = (h ^ uint64(c)) * 0x100000001b3
	}
	if e.bytes {
		return append(binary.BigEndian.AppendUint64(nil, h), "the rest of a digest"...)
	}
	if rapid.Bool().Draw(e.t, "signed") {
		return int64(h)
	}
	return h
}

func (e *engine) hashes(chain []text) []any {
	var out []any
	for _, x := range chain {
		out = append(out, e.hash(x))
	}
	return out
}

// step lets the engine run once: it draws what happens, up to the given number
// of events, and returns the batch.
func (e *engine) step(ts float64, most int) batch {
	b := batch{process: e.process, seq: e.seq}
	e.seq++
	events := []any{}
	for range rapid.IntRange(0, most).Draw(e.t, "events") {
		for _, f := range e.draw() {
			e.happen(f)
			b.facts = append(b.facts, f)
			events = append(events, e.encode(f))
		}
		if rapid.IntRange(0, 3).Draw(e.t, "noise") == 0 {
			events = append(events, rapid.SampledFrom(noise).Draw(e.t, "kind"))
		}
	}
	b.after = maps.Clone(e.cache)
	b.payload = encode([]any{ts, events, rapid.SampledFrom([]any{0, nil, 3}).Draw(e.t, "rank")})
	return b
}

// noise is what must cost itself and nothing else.
var noise = []any{
	nil, 7, []any{}, []any{"BlockMoved", 1}, []any{"BlockStored", "x"}, []any{"BlockRemoved", nil}, []any{"BlockRemoved", []any{}},
	map[string]any{"type": "BlockStored"}, map[string]any{"type": nil}, map[string]any{"type": "Later", "block_hashes": []any{1}},
	// Groups that hold only a part of a prefix, a sparse one, an unknown medium.
	[]any{"BlockStored", []any{1}, nil, []any{1, 1}, 2, nil, "GPU", nil, nil, 9, "sliding_window"},
	[]any{"BlockStored", []any{2}, nil, []any{1, 1, 2, 2}, 2},
	[]any{"BlockStored", []any{3}, nil, []any{1, 1}, 2, nil, "TAPE"},
}

// draw returns what happens next in the cache. A store reaches every group,
// mostly.
func (e *engine) draw() []fact {
	switch rapid.IntRange(0, 19).Draw(e.t, "what") {
	case 0:
		return []fact{{kind: "clear"}}
	case 1, 2, 3, 4, 5:
		if s, ok := e.drawSpot(); ok {
			return []fact{{kind: "remove", group: s.group, medium: s.medium, chain: []text{s.text}}}
		}
	case 6, 7:
		if s, ok := e.drawSpot(); ok {
			return []fact{{kind: "repeat", group: s.group, medium: "CPU", chain: []text{s.text}}}
		}
	case 8, 9, 10:
		if s, ok := e.drawSpot(); ok {
			if chain := e.prefix(s); len(chain) > 0 {
				return []fact{{kind: "store", group: s.group, medium: s.medium, chain: chain}}
			}
		}
	}
	var at text
	if s, ok := e.drawSpot(); ok && rapid.Bool().Draw(e.t, "child") && len(s.text.tokens) < 3*blockTokens {
		at = s.text
	} else {
		at.lora = rapid.SampledFrom(adapters).Draw(e.t, "lora")
		at.salt = rapid.SampledFrom(salts).Draw(e.t, "salt")
	}
	var chain []text
	for range rapid.IntRange(1, 3).Draw(e.t, "blocks") {
		if len(at.tokens) == 4*blockTokens {
			break
		}
		c := rapid.SampledFrom(words).Draw(e.t, "word")
		at.tokens += c
		chain = append(chain, at)
	}
	var out []fact
	for g := range e.groups {
		if !e.holds(g, chain[0].parent()) {
			continue
		}
		if e.groups == 1 || rapid.IntRange(0, 5).Draw(e.t, "in group") > 0 {
			out = append(out, fact{kind: "store", group: g, medium: "GPU", chain: chain})
		}
	}
	return out
}

var (
	adapters = []string{"", "", "poet"}
	salts    = []string{"", "", "tenant-a", "poet"} // a salt may be called like an adapter
	words    = []string{"aa", "ab"}
)

// prefix is what the engine announces again when a request finds a block: all
// from the prompt's start to there, as far as it is held.
func (e *engine) prefix(s spot) []text {
	var out []text
	for x, n := s.text, blockTokens; n <= len(s.text.tokens); n += blockTokens {
		x.tokens = s.text.tokens[:n]
		if !e.cache[spot{s.group, s.medium, x}] {
			break
		}
		out = append(out, x)
	}
	return out
}

// holds reports whether a group has a block in any medium. A block without its
// parent is not stored.
func (e *engine) holds(g int, x text) bool {
	return x.root() || e.cache[spot{g, "GPU", x}] || e.cache[spot{g, "CPU", x}]
}

func (e *engine) drawSpot() (spot, bool) {
	if len(e.cache) == 0 {
		return spot{}, false
	}
	var all []spot
	for s := range e.cache {
		all = append(all, s)
	}
	sortSpots(all)
	return all[rapid.IntRange(0, len(all)-1).Draw(e.t, "spot")], true
}

func (e *engine) happen(f fact) {
	for _, x := range f.chain {
		s := spot{f.group, f.medium, x}
		if f.kind == "remove" {
			delete(e.cache, s)
		} else {
			e.cache[s] = true
		}
	}
	if f.kind == "clear" {
		clear(e.cache)
	}
}

// encode writes the event as a map or as an array, with absent, nil or present
// optional values.
func (e *engine) encode(f fact) any {
	asMap := rapid.Bool().Draw(e.t, "map")
	switch f.kind {
	case "clear":
		if asMap {
			return map[string]any{"type": "AllBlocksCleared"}
		}
		return []any{"AllBlocksCleared"}
	case "remove":
		if asMap {
			return map[string]any{"type": "BlockRemoved", "block_hashes": e.hashes(f.chain), "medium": f.medium, "group_idx": f.group}
		}
		return []any{"BlockRemoved", e.hashes(f.chain), f.medium, f.group}
	case "repeat":
		if asMap {
			return map[string]any{
				"type": "BlockStored", "block_hashes": e.hashes(f.chain), "parent_block_hash": nil, "token_ids": []any{},
				"block_size": 0, "lora_id": nil, "medium": f.medium, "lora_name": nil, "group_idx": f.group,
			}
		}
		return []any{"BlockStored", e.hashes(f.chain), nil, []any{}, 0, nil, f.medium, nil, nil, f.group}
	}
	first := f.chain[0]
	var parent, lora, keys any
	if !first.parent().root() {
		parent = e.hash(first.parent())
	}
	if first.lora != "" {
		lora = first.lora
	}
	if first.lora != "" || first.salt != "" {
		keys = e.extraKeys(f.chain)
	}
	var tokens []any
	for _, x := range f.chain {
		for _, c := range []byte(x.tokens[len(x.tokens)-blockTokens:]) {
			tokens = append(tokens, int(c))
		}
	}
	var medium any
	if f.medium != "GPU" || rapid.Bool().Draw(e.t, "medium") {
		medium = f.medium
	}
	if asMap {
		return map[string]any{
			"type": "BlockStored", "block_hashes": e.hashes(f.chain), "parent_block_hash": parent, "token_ids": tokens,
			"block_size": blockTokens, "lora_id": nil, "medium": medium, "lora_name": lora, "extra_keys": keys,
			"group_idx": f.group, "kv_cache_spec_kind": "full_attention", "session_id": "s", "locality": nil,
		}
	}
	return []any{"BlockStored", e.hashes(f.chain), parent, tokens, blockTokens, nil, medium, lora, keys, f.group, "full_attention", nil}
}

// extraKeys lists the adapter in every block, and the salt in the block at
// position 0 alone.
func (e *engine) extraKeys(chain []text) []any {
	var out []any
	for _, x := range chain {
		var keys []any
		if x.lora != "" {
			keys = append(keys, x.lora)
		}
		if x.salt != "" && x.parent().root() {
			keys = append(keys, x.salt)
		}
		if keys == nil {
			out = append(out, nil)
			continue
		}
		out = append(out, keys)
	}
	return out
}

func encode(v any) []byte {
	var buf bytes.Buffer
	enc := msgpack.NewEncoder(&buf)
	enc.UseCompactInts(true)
	if err := enc.Encode(v); err != nil {
		panic(fmt.Sprintf("BUG: cannot encode an event batch: %v", err))
	}
	return buf.Bytes()
}
