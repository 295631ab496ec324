package kvevents

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/scoring"
	"github.com/vmihailenco/msgpack/v5"
)

// object is a map with an order, to build events key by key.
type object []any

func (o object) EncodeMsgpack(e *msgpack.Encoder) error {
	if err := e.EncodeMapLen(len(o) / 2); err != nil {
		return err
	}
	return e.EncodeMulti(o...)
}

// wire is a value already encoded.
type wire string

func (w wire) EncodeMsgpack(e *msgpack.Encoder) error {
	_, err := e.Writer().Write([]byte(w))
	return err
}

type list = []any

func pack(t testing.TB, v any) []byte {
	t.Helper()
	var buf bytes.Buffer
	e := msgpack.NewEncoder(&buf)
	e.UseCompactInts(true)
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// stored is a minimal map event that overrides or adds the given keys.
func stored(overrides ...any) object {
	ev := object{
		"type", "BlockStored", "block_hashes", list{1, 2}, "parent_block_hash", nil,
		"token_ids", list{10, 11, 12, 13}, "block_size", 2, "lora_id", nil, "medium", "GPU", "lora_name", nil,
	}
	for i := 0; i < len(overrides); i += 2 {
		if at := slices.Index(ev, overrides[i]); at >= 0 {
			ev[at+1] = overrides[i+1]
		} else {
			ev = append(ev, overrides[i], overrides[i+1])
		}
	}
	return ev
}

func hashOf(v uint64) scoring.EngineHash {
	var b [8]byte
	for i := range b {
		b[i] = byte(v >> (56 - 8*i))
	}
	return scoring.EngineHash(b[:])
}

func decode(t *testing.T, events list, rest ...any) *Batch {
	t.Helper()
	var b Batch
	if err := Decode(pack(t, append(list{1.5, events}, rest...)), &b); err != nil {
		t.Fatal(err)
	}
	return &b
}

func TestDecodeForms(t *testing.T) {
	plain := scoring.Event{
		Kind: scoring.BlockStored, Hashes: []scoring.EngineHash{hashOf(1), hashOf(2)},
		Tokens: []uint32{10, 11, 12, 13}, BlockSize: 2, Usable: 2,
	}
	with := func(change func(*scoring.Event)) scoring.Event {
		ev := plain
		change(&ev)
		return ev
	}
	f := func(name string, in any, want scoring.Event) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			t.Helper()
			b := decode(t, list{in})
			if len(b.Events) != 1 || b.Skipped.Total() != 0 {
				t.Fatalf("%d events, skipped %v, want one event", len(b.Events), b.Skipped)
			}
			if got := b.Events[0]; !reflect.DeepEqual(got, want) {
				t.Errorf("\n got %+v\nwant %+v", got, want)
			}
		})
	}
	full := with(func(ev *scoring.Event) { ev.FullAttention = true })
	f("map", stored(), plain)
	f("map, tag last", append(stored()[2:], "type", "BlockStored"), plain)
	f("map, unknown keys", stored("ownership", list{object{"a", 1}}, "locality", "x", "session_id", nil), plain)
	f("array, shortest", list{"BlockStored", list{1, 2}, nil, list{10, 11, 12, 13}, 2}, plain)
	f("array, nil tail", list{"BlockStored", list{1, 2}, nil, list{10, 11, 12, 13}, 2, nil, nil, nil, nil, nil, nil}, plain)
	f("array, more elements than known",
		list{"BlockStored", list{1, 2}, nil, list{10, 11, 12, 13}, 2, nil, "GPU", nil, nil, 0, "full_attention", nil, list{1}, object{"x", 2}}, full)
	f("array, every field",
		list{"BlockStored", list{1, 2}, 7, list{10, 11, 12, 13}, 2, 3, "CPU", "tune", list{list{"tune"}, list{"tune"}}, 1, "mla_attention"},
		with(func(ev *scoring.Event) {
			ev.Parent, ev.Tier, ev.LoRA, ev.Group, ev.FullAttention = hashOf(7), scoring.TierCPU, "tune", 1, true
		}))
	f("full attention", stored("kv_cache_spec_kind", "full_attention"), full)
	f("latent attention", stored("kv_cache_spec_kind", "mla_attention"), full)
	f("sink attention", stored("kv_cache_spec_kind", "sink_full_attention"), full)
	f("kind is nil", stored("kv_cache_spec_kind", nil), plain)
	f("host memory, in lower case", stored("medium", "cpu"), with(func(ev *scoring.Event) { ev.Tier = scoring.TierCPU }))
	f("file system", stored("medium", "FS"), with(func(ev *scoring.Event) { ev.Tier = scoring.TierFile }))
	f("object store", stored("medium", "OBJ"), with(func(ev *scoring.Event) { ev.Tier = scoring.TierObject }))
	f("group", stored("group_idx", 5), with(func(ev *scoring.Event) { ev.Group = 5 }))
	f("group is nil", stored("group_idx", nil), plain)
	f("partial block", stored("block_hashes", list{1}, "token_ids", list{10, 11, 12}, "block_size", 3),
		with(func(ev *scoring.Event) {
			ev.Hashes, ev.Tokens, ev.BlockSize, ev.Usable = ev.Hashes[:1], ev.Tokens[:3], 3, 1
		}))
	f("storage", stored("medium", "STORAGE"), with(func(ev *scoring.Event) { ev.Tier = scoring.TierDisk }))
	f("no medium", stored("medium", nil), plain)
	f("offload without tokens", stored("medium", "CPU", "token_ids", list{}, "block_size", 0),
		with(func(ev *scoring.Event) { ev.Tier, ev.Tokens, ev.BlockSize = scoring.TierCPU, nil, 0 }))
	f("offload with nil tokens", stored("medium", "CPU", "token_ids", nil, "block_size", nil),
		with(func(ev *scoring.Event) { ev.Tier, ev.Tokens, ev.BlockSize = scoring.TierCPU, nil, 0 }))
	f("removed map", object{"type", "BlockRemoved", "block_hashes", list{5}, "medium", "CPU", "group_idx", 3},
		scoring.Event{Kind: scoring.BlockRemoved, Hashes: []scoring.EngineHash{hashOf(5)}, Tier: scoring.TierCPU, Group: 3})
	f("removed array", list{"BlockRemoved", list{5}},
		scoring.Event{Kind: scoring.BlockRemoved, Hashes: []scoring.EngineHash{hashOf(5)}})
	f("cleared map", object{"type", "AllBlocksCleared"}, scoring.Event{Kind: scoring.AllBlocksCleared})
	f("cleared map, further keys", object{"type", "AllBlocksCleared", "medium", 7, "block_hashes", object{"a", nil}},
		scoring.Event{Kind: scoring.AllBlocksCleared})
	f("cleared array, further elements", list{"AllBlocksCleared", "x", list{1}}, scoring.Event{Kind: scoring.AllBlocksCleared})
	f("cleared array", list{"AllBlocksCleared"}, scoring.Event{Kind: scoring.AllBlocksCleared})
	f("token ids of every width", stored("token_ids", list{wire("\x05"), wire("\xcc\xff"), wire("\xcd\xff\xff"), wire("\xce\xff\xff\xff\xff")}),
		with(func(ev *scoring.Event) { ev.Tokens = []uint32{5, 255, 65535, math.MaxUint32} }))
	f("token ids signed", stored("token_ids", list{wire("\xd0\x05"), wire("\xd1\x00\x05"), wire("\xd2\x00\x00\x00\x05"), wire("\xd3\x00\x00\x00\x00\x00\x00\x00\x05")}),
		with(func(ev *scoring.Event) { ev.Tokens = []uint32{5, 5, 5, 5} }))
}

func TestDecodeHashes(t *testing.T) {
	f := func(in any, want scoring.EngineHash) {
		t.Helper()
		b := decode(t, list{list{"BlockRemoved", list{in}}})
		if len(b.Events) != 1 || b.Events[0].Hashes[0] != want {
			t.Errorf("%v: got %+v, skipped %v, want %x", in, b.Events, b.Skipped, string(want))
		}
	}
	f(wire("\x01"), hashOf(1))
	f(wire("\xcc\x02"), hashOf(2))
	f(wire("\xcd\x00\x03"), hashOf(3))
	f(wire("\xce\x00\x00\x00\x03"), hashOf(3))
	f(wire("\xcf\x80\x00\x00\x00\x00\x00\x00\x00"), hashOf(1<<63))
	f(wire("\xcf\xff\xff\xff\xff\xff\xff\xff\xff"), hashOf(math.MaxUint64))
	f(wire("\xff"), hashOf(math.MaxUint64))
	f(wire("\xd0\xff"), hashOf(math.MaxUint64))
	f(wire("\xd1\xff\xff"), hashOf(math.MaxUint64))
	f(wire("\xd2\xff\xff\xff\xff"), hashOf(math.MaxUint64))
	f(wire("\xd3\xff\xff\xff\xff\xff\xff\xff\xfe"), hashOf(math.MaxUint64-1))
	f([]byte("\x00"), "\x00")
	f(bytes.Repeat([]byte{0xab}, 32), scoring.EngineHash(strings.Repeat("\xab", 32)))
	f(bytes.Repeat([]byte{1}, MaxHashBytes), scoring.EngineHash(strings.Repeat("\x01", MaxHashBytes)))
	f("text", "text")
}

// One bad event costs that event: it stands between two good ones here.
func TestDecodeSkips(t *testing.T) {
	long := strings.Repeat("x", MaxNameBytes+1)
	f := func(name string, in any, want SkipReason) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			t.Helper()
			b := decode(t, list{list{"BlockRemoved", list{1}}, in, stored()}, 4)
			var skipped SkipCounts
			skipped[want] = 1
			if b.Skipped != skipped {
				t.Errorf("skipped %v, want one %v", b.Skipped, want)
			}
			if len(b.Events) != 2 || b.Events[0].Kind != scoring.BlockRemoved || b.Events[1].Kind != scoring.BlockStored {
				t.Errorf("siblings are %+v", b.Events)
			}
			if !slices.Equal(b.Events[1].Tokens, []uint32{10, 11, 12, 13}) || b.Events[1].Hashes[1] != hashOf(2) {
				t.Errorf("sibling was damaged: %+v", b.Events[1])
			}
			if b.Rank != 4 {
				t.Errorf("rank after the events is %d, want 4", b.Rank)
			}
		})
	}
	f("unknown tag, map", object{"type", "BlockMoved", "to", list{list{1}}}, SkipUnknown)
	f("unknown tag, array", list{"BlockMoved", object{"a", list{1}}}, SkipUnknown)
	f("nil", nil, SkipMalformed)
	f("a number", 3, SkipMalformed)
	f("a string", "BlockStored", SkipMalformed)
	f("an extension", wire("\xd4\x01\x00"), SkipMalformed)
	f("empty array", list{}, SkipMalformed)
	f("empty map", object{}, SkipMalformed)
	f("no tag", stored()[2:], SkipMalformed)
	f("tag is nil", stored("type", nil), SkipMalformed)
	f("tag is a number", list{1, list{2}}, SkipMalformed)
	f("key is a number", append(stored(), 1, 2), SkipMalformed)
	f("key is nil", append(stored(), nil, 2), SkipMalformed)
	f("no hashes", object{"type", "BlockStored", "token_ids", list{}}, SkipMalformed)
	f("hashes are nil", stored("block_hashes", nil), SkipMalformed)
	f("hashes are a string", stored("block_hashes", "12"), SkipMalformed)
	f("zero hashes", stored("block_hashes", list{}, "token_ids", list{}), SkipEmpty)
	f("removal of nothing", list{"BlockRemoved", list{}}, SkipEmpty)
	f("hash is nil", stored("block_hashes", list{1, nil}), SkipMalformed)
	f("hash is a float", stored("block_hashes", list{1, 2.5}), SkipMalformed)
	f("hash is empty", stored("block_hashes", list{1, []byte{}}), SkipMalformed)
	f("hash is too long", stored("block_hashes", list{1, make([]byte, MaxHashBytes+1)}), SkipLimit)
	f("parent is a list", stored("parent_block_hash", list{1}), SkipMalformed)
	f("token is negative", stored("token_ids", list{10, -11, 12, 13}), SkipMalformed)
	f("token is too large", stored("token_ids", list{10, uint64(1 << 32), 12, 13}), SkipMalformed)
	f("token is nil", stored("token_ids", list{10, nil, 12, 13}), SkipMalformed)
	f("token is a pair", stored("token_ids", list{10, list{1, 2}, 12, 13}), SkipMalformed)
	f("tokens are a map", stored("token_ids", object{"a", 1}), SkipMalformed)
	f("block size is a string", stored("block_size", "2"), SkipMalformed)
	f("block size is negative", stored("block_size", -2), SkipMalformed)
	f("block size is too large", stored("block_size", MaxBlockSize+1), SkipLimit)
	f("block size 0 with tokens", stored("block_size", 0), SkipSparse)
	f("fewer hashes than tokens fill", stored("block_hashes", list{1}), SkipSparse)
	f("fewer tokens than blocks hold", stored("token_ids", list{10, 11, 12}), SkipSparse)
	f("sliding window", stored("kv_cache_spec_kind", "sliding_window"), SkipKind)
	f("mamba", stored("kv_cache_spec_kind", "mamba"), SkipKind)
	f("a kind to come", stored("kv_cache_spec_kind", "something_new"), SkipKind)
	f("sparse sliding window", stored("kv_cache_spec_kind", "sliding_window", "block_hashes", list{1}), SkipKind)
	f("unknown medium", stored("medium", "TAPE"), SkipMedium)
	f("medium is a number", stored("medium", 1), SkipMalformed)
	f("lora name is a number", stored("lora_name", 1), SkipMalformed)
	f("lora name is too long", stored("lora_name", long), SkipLimit)
	f("group is negative", stored("group_idx", -1), SkipMalformed)
	f("extra keys are a number", stored("extra_keys", 7), SkipMalformed)
	f("salt is too long", stored("extra_keys", list{list{long}, nil}), SkipLimit)
}

// A list that announces more than the payload holds ends the batch; what came
// before it stays, and nothing of the announced size is allocated.
func TestDecodeTruncated(t *testing.T) {
	good := list{"BlockRemoved", list{1}}
	f := func(name string, tail wire) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			t.Helper()
			payload := pack(t, list{1.5, list{good, good, tail}, 0})
			payload = payload[:len(payload)-1] // without the rank
			var b Batch
			allocs := testing.AllocsPerRun(5, func() {
				if err := Decode(payload, &b); err != nil {
					t.Fatal(err)
				}
			})
			if len(b.Events) != 2 || b.Skipped[SkipTruncated] != 1 || b.Skipped.Total() != 1 || b.HasRank {
				t.Errorf("%d events, skipped %v, want 2 and one truncated", len(b.Events), b.Skipped)
			}
			if allocs > 20 {
				t.Errorf("%v allocations", allocs)
			}
		})
	}
	f("nothing", "")
	f("hash list of 4 G", "\x92\xacBlockRemoved\xdd\xff\xff\xff\xff\x01")
	f("event array of 4 G", "\xdd\xff\xff\xff\xff\x01")
	f("event map of 4 G", "\xdf\xff\xff\xff\xff")
	f("string of 4 G", "\x81\xa4type\xdb\xff\xff\xff\xffBlockStored")
	f("bytes of 4 G", "\x92\xacBlockRemoved\x91\xc6\xff\xff\xff\xff\x00")
	f("extension of 4 G", "\x91\xc9\xff\xff\xff\xff\x01")
	f("half a hash", "\x92\xacBlockRemoved\x91\xcf\x00\x00")
	f("a code that does not exist", "\xc1")
	f("a deep nest", wire(strings.Repeat("\x91", 1<<18)))
}

func TestDecodeLimits(t *testing.T) {
	var b Batch
	many := make(list, MaxHashes+1)
	for i := range many {
		many[i] = i
	}
	got := decode(t, list{list{"BlockRemoved", many}, list{"BlockRemoved", many[1:]}})
	if got.Skipped[SkipLimit] != 1 || len(got.Events) != 1 || len(got.Events[0].Hashes) != MaxHashes {
		t.Errorf("skipped %v, %d events, want one over the limit and one at it", got.Skipped, len(got.Events))
	}
	// "AllBlocksCleared" as an array takes 18 bytes.
	cleared := strings.Repeat("\x91\xb0AllBlocksCleared", MaxEvents+3)
	payload := append([]byte("\x92\xcb\x00\x00\x00\x00\x00\x00\x00\x00\xdd\x00\x01\x00\x03"), cleared...)
	if err := Decode(payload, &b); err != nil {
		t.Fatal(err)
	}
	if len(b.Events) != MaxEvents || b.Skipped[SkipLimit] != 3 {
		t.Errorf("%d events, skipped %v, want %d and 3 over the limit", len(b.Events), b.Skipped, MaxEvents)
	}
	if err := Decode(make([]byte, MaxPayload+1), &b); !errors.Is(err, ErrBatch) || !strings.Contains(err.Error(), fmt.Sprint(MaxPayload)) {
		t.Errorf("payload over the limit: %v", err)
	}
	if err := Decode([]byte("\x92\x00\x90"), &b); err != nil || cap(b.Events) > keepScratch {
		t.Errorf("scratch of a giant batch stays: cap %d, %v", cap(b.Events), err)
	}
}

func TestDecodeBatchShape(t *testing.T) {
	f := func(name string, in any, wantTS float64, wantRank int, wantHas bool) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			t.Helper()
			var b Batch
			if err := Decode(pack(t, in), &b); err != nil {
				t.Fatal(err)
			}
			if b.TS != wantTS || b.Rank != wantRank || b.HasRank != wantHas || b.Skipped.Total() != 0 {
				t.Errorf("got %v %d %v, skipped %v, want %v %d %v", b.TS, b.Rank, b.HasRank, b.Skipped, wantTS, wantRank, wantHas)
			}
		})
	}
	f("no rank", list{2.5, list{}}, 2.5, 0, false)
	f("nil rank", list{2.5, list{}, nil}, 2.5, 0, false)
	f("rank", list{2.5, list{}, 3}, 2.5, 3, true)
	f("more elements", list{2.5, list{}, 3, "x", nil}, 2.5, 3, true)
	f("odd rank", list{2.5, list{}, "zero"}, 2.5, 0, false)
	f("negative rank", list{2.5, list{}, -1}, 2.5, 0, false)
	f("integer time", list{7, list{}}, 7, 0, false)
	f("single float", list{wire("\xca\x3f\x80\x00\x00"), list{}}, 1, 0, false)
	f("no time", list{nil, list{}}, 0, 0, false)

	bad := func(name string, payload []byte) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			t.Helper()
			b := Batch{Events: make([]scoring.Event, 1)}
			if err := Decode(payload, &b); !errors.Is(err, ErrBatch) {
				t.Errorf("got %v, want ErrBatch", err)
			}
			if len(b.Events) != 0 {
				t.Errorf("%d events left", len(b.Events))
			}
		})
	}
	bad("empty", nil)
	bad("a map", pack(t, object{"ts", 1}))
	bad("a number", pack(t, 1))
	bad("short", pack(t, list{1.5}))
	bad("time is text", pack(t, list{"now", list{}}))
	bad("events are nil", pack(t, list{1.5, nil}))
	bad("events are a map", pack(t, list{1.5, object{}}))
	bad("cut in the time", []byte("\x92\xcb\x00"))
	bad("garbage", []byte("GET / HTTP/1.1\r\n"))
}

func TestDecodeExtraKeys(t *testing.T) {
	f := func(name string, salt string, usable int, overrides ...any) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			t.Helper()
			b := decode(t, list{stored(overrides...)})
			if len(b.Events) != 1 {
				t.Fatalf("skipped %v", b.Skipped)
			}
			if ev := b.Events[0]; ev.Salt != salt || ev.Usable != usable || len(ev.Hashes) != 2 {
				t.Errorf("salt %q usable %d, want %q %d", ev.Salt, ev.Usable, salt, usable)
			}
		})
	}
	keys := func(entries ...any) any { return entries }
	f("nil", "", 2, "extra_keys", nil)
	f("empty", "", 2, "extra_keys", keys())
	f("nil entries", "", 2, "extra_keys", keys(nil, nil))
	f("empty entries", "", 2, "extra_keys", keys(list{}, list{}))
	f("salt", "tenant-a", 2, "extra_keys", keys(list{"tenant-a"}, nil))
	f("salt with a parent", "", 0, "extra_keys", keys(list{"tenant-a"}, nil), "parent_block_hash", 9)
	f("salt in a later block", "", 1, "extra_keys", keys(nil, list{"tenant-a"}))
	f("empty salt", "", 0, "extra_keys", keys(list{""}, nil))
	f("adapter", "", 2, "lora_name", "tune", "lora_id", 1, "extra_keys", keys(list{"tune"}, list{"tune"}))
	f("adapter and salt", "s", 2, "lora_name", "tune", "extra_keys", keys(list{"tune", "s"}, list{"tune"}))
	f("adapter and salt of one name", "tune", 2, "lora_name", "tune", "extra_keys", keys(list{"tune", "tune"}, list{"tune"}))
	f("adapter by number", "", 2, "lora_name", "tune", "lora_id", 4, "extra_keys", keys(list{4}, list{4}))
	f("another number", "", 0, "lora_name", "tune", "lora_id", 4, "extra_keys", keys(list{5}, list{4}))
	f("adapter without a name", "", 0, "lora_id", 1)
	f("keys before the name", "", 2, "extra_keys", keys(list{"tune"}, list{"tune"}), "lora_name", "tune")
	f("image in the first block", "", 0, "extra_keys", keys(list{list{"img", 0}}, nil))
	f("image in the second block", "", 1, "extra_keys", keys(nil, list{list{"img", -3}}))
	f("image and salt", "s", 0, "extra_keys", keys(list{list{"img", 0}, "s"}, nil))
	f("image and salt, image later", "s", 1, "extra_keys", keys(list{"s"}, list{list{"img", 2}}))
	f("image by name alone", "", 1, "extra_keys", keys(nil, list{"9f86d081884c7d65"}))
	f("two strings", "a", 0, "extra_keys", keys(list{"a", "b"}, nil))
	f("embeddings", "", 0, "extra_keys", keys(list{[]byte("digest")}, nil))
	f("a map as key", "", 1, "extra_keys", keys(nil, list{object{"a", 1}}))
	f("entry is a string", "", 0, "extra_keys", keys("tenant-a", nil))
	f("list is short", "", 1, "extra_keys", keys(nil))
	f("list is long", "", 2, "extra_keys", keys(nil, nil, list{[]byte("x")}))
	// Array form, where the keys come before nothing else that matters.
	b := decode(t, list{list{"BlockStored", list{1, 2}, nil, list{10, 11, 12, 13}, 2, nil, nil, nil, list{list{"s"}, nil}}})
	if len(b.Events) != 1 || b.Events[0].Salt != "s" || b.Events[0].Usable != 2 {
		t.Errorf("array form: %+v", b.Events)
	}
}

func TestSkipReasonNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range NumSkipReasons {
		name := r.String()
		if name == "other" || seen[name] {
			t.Errorf("reason %d has the name %q", r, name)
		}
		seen[name] = true
	}
	if NumSkipReasons.String() != "other" {
		t.Errorf("the count has the name of a reason")
	}
}

func FuzzDecode(f *testing.F) {
	for _, frames := range recordedLive(f) {
		f.Add(frames[2])
	}
	f.Add(pack(f, list{1.5, list{stored("lora_name", "a", "extra_keys", list{list{"a", "s"}, list{"a", []byte("x")}})}, 1}))
	f.Add(pack(f, list{1.5, list{list{"BlockStored", list{1, []byte("xyz")}, -1, list{1, 2}, 1, nil, "CPU", "l", list{nil}, 0, "mamba", 1}}}))
	var reused Batch
	f.Fuzz(func(t *testing.T, payload []byte) {
		var fresh Batch
		err := Decode(payload, &fresh)
		if err != nil && (!errors.Is(err, ErrBatch) || len(fresh.Events) != 0) {
			t.Fatalf("error %v with %d events", err, len(fresh.Events))
		}
		for _, ev := range fresh.Events {
			checkEvent(t, ev)
		}
		if len(fresh.hashes) > len(payload) || len(fresh.tokens) > len(payload) {
			t.Fatalf("%d hashes and %d tokens from %d bytes", len(fresh.hashes), len(fresh.tokens), len(payload))
		}
		err2 := Decode(payload, &reused)
		same := fmt.Sprint(err) == fmt.Sprint(err2) && math.Float64bits(fresh.TS) == math.Float64bits(reused.TS) &&
			fresh.Skipped == reused.Skipped && len(fresh.Events) == len(reused.Events)
		for i := range fresh.Events {
			same = same && fmt.Sprintf("%v", fresh.Events[i]) == fmt.Sprintf("%v", reused.Events[i])
		}
		if !same {
			t.Fatalf("a reused batch decodes differently:\n%+v\n%+v", fresh.Events, reused.Events)
		}
	})
}

// checkEvent checks what package scoring may rely on.
func checkEvent(t *testing.T, ev scoring.Event) {
	t.Helper()
	switch ev.Kind {
	case scoring.AllBlocksCleared:
		return
	case scoring.BlockStored, scoring.BlockRemoved:
	default:
		t.Fatalf("event of kind %d", ev.Kind)
	}
	if len(ev.Hashes) == 0 || slices.Contains(ev.Hashes, "") {
		t.Fatalf("event without a hash: %+v", ev)
	}
	if len(ev.Tokens) > 0 && len(ev.Tokens) != len(ev.Hashes)*ev.BlockSize {
		t.Fatalf("%d tokens in %d blocks of %d", len(ev.Tokens), len(ev.Hashes), ev.BlockSize)
	}
	if ev.Usable < 0 || ev.Usable > len(ev.Hashes) || ev.Salt != "" && ev.Parent != "" {
		t.Fatalf("usable %d salt %q parent %x", ev.Usable, ev.Salt, string(ev.Parent))
	}
}

func BenchmarkDecodeRecording(b *testing.B) {
	live := recordedLive(b)
	var batch Batch
	n := 0
	for b.Loop() {
		for _, frames := range live {
			if err := Decode(frames[2], &batch); err != nil {
				b.Fatal(err)
			}
		}
		n += len(live)
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "batches/s")
}
