package simworker

import (
	"bytes"
	"slices"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/sluicegate/sluice/scoring/simworker/engine"
)

// encoder writes event batches as the engine does: an array of the time, the
// events and the rank; each event a map with its kind under "type", or, up to
// vLLM 0.23, an array that begins with it.
type encoder struct {
	blockSize int
	arrays    bool // events as arrays
	bytes     bool // hashes as 32 bytes
	loras     []string
}

// batchShape is what a test fault does to one batch.
type batchShape struct {
	unknownFirst bool // an event of an unknown kind comes first
}

// encode returns the payload of a batch.
func (e *encoder) encode(now time.Time, events []engine.Event, shape batchShape) ([]byte, error) {
	var buf bytes.Buffer
	w := &eventWriter{enc: msgpack.NewEncoder(&buf), arrays: e.arrays}
	n := len(events)
	if shape.unknownFirst {
		n++
	}
	w.array(3)
	w.float(float64(now.UnixMicro()) / 1e6)
	w.array(n)
	if shape.unknownFirst {
		w.begin("BlockQuarantined", 1)
		w.name("reason")
		w.string("simulated fault")
	}
	for i := range events {
		e.event(w, &events[i])
	}
	w.uint(0)
	return buf.Bytes(), w.err
}

// event writes one event. The order of the members is the recorded one.
func (e *encoder) event(w *eventWriter, ev *engine.Event) {
	switch ev.Kind {
	case engine.Cleared:
		w.begin("AllBlocksCleared", 0)
	case engine.Removed:
		w.begin("BlockRemoved", 3)
		w.name("block_hashes")
		e.hashes(w, ev.Hashes)
		w.name("medium")
		w.string("GPU")
		w.name("group_idx")
		w.uint(0)
	case engine.Stored:
		e.stored(w, ev)
	default:
		panic("BUG: event of an unknown kind")
	}
}

func (e *encoder) stored(w *eventWriter, ev *engine.Event) {
	w.begin("BlockStored", 10)
	w.name("block_hashes")
	e.hashes(w, ev.Hashes)
	w.name("parent_block_hash")
	if ev.Parent == nil {
		w.null()
	} else {
		e.hash(w, *ev.Parent)
	}
	w.name("token_ids")
	w.array(len(ev.Tokens))
	for _, t := range ev.Tokens {
		w.uint(uint64(t))
	}
	w.name("block_size")
	w.uint(uint64(e.blockSize))
	lora := slices.Index(e.loras, ev.LoRA)
	w.name("lora_id")
	if lora < 0 {
		w.null()
	} else {
		w.uint(uint64(lora) + 1)
	}
	w.name("medium")
	w.string("GPU")
	w.name("lora_name")
	w.stringOrNull(ev.LoRA)
	w.name("extra_keys")
	e.extraKeys(w, ev)
	w.name("group_idx")
	w.uint(0)
	w.name("kv_cache_spec_kind")
	w.string("full_attention")
}

// extraKeys writes, for each block, what besides its tokens names it: the LoRA
// name in every block, the salt in block 0.
func (e *encoder) extraKeys(w *eventWriter, ev *engine.Event) {
	w.array(len(ev.Hashes))
	for i := range ev.Hashes {
		var keys []string
		if ev.LoRA != "" {
			keys = append(keys, ev.LoRA)
		}
		if ev.Salt != "" && ev.First+i == 0 {
			keys = append(keys, ev.Salt)
		}
		if keys == nil {
			w.null()
			continue
		}
		w.array(len(keys))
		for _, k := range keys {
			w.string(k)
		}
	}
}

func (e *encoder) hashes(w *eventWriter, hashes []engine.Hash) {
	w.array(len(hashes))
	for _, h := range hashes {
		e.hash(w, h)
	}
}

func (e *encoder) hash(w *eventWriter, h engine.Hash) {
	if e.bytes {
		w.bytes(h[:])
	} else {
		w.uint(h.Low64())
	}
}

// eventWriter keeps the first error of a msgpack encoder. Integers take the
// fewest bytes they fit in, as in the recordings.
type eventWriter struct {
	enc    *msgpack.Encoder
	arrays bool
	err    error
}

func (w *eventWriter) keep(err error) {
	if w.err == nil {
		w.err = err
	}
}

// begin opens an event with n members after its kind.
func (w *eventWriter) begin(kind string, n int) {
	if w.arrays {
		w.array(n + 1)
	} else {
		w.keep(w.enc.EncodeMapLen(n + 1))
		w.string("type")
	}
	w.string(kind)
}

// name writes a member's name, which arrays do without.
func (w *eventWriter) name(s string) {
	if !w.arrays {
		w.string(s)
	}
}

func (w *eventWriter) array(n int)     { w.keep(w.enc.EncodeArrayLen(n)) }
func (w *eventWriter) float(v float64) { w.keep(w.enc.EncodeFloat64(v)) }
func (w *eventWriter) uint(v uint64)   { w.keep(w.enc.EncodeUint(v)) }
func (w *eventWriter) string(s string) { w.keep(w.enc.EncodeString(s)) }
func (w *eventWriter) bytes(b []byte)  { w.keep(w.enc.EncodeBytes(b)) }
func (w *eventWriter) null()           { w.keep(w.enc.EncodeNil()) }

func (w *eventWriter) stringOrNull(s string) {
	if s == "" {
		w.null()
	} else {
		w.string(s)
	}
}
