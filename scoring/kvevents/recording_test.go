package kvevents

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/sluicegate/sluice/scoring"
)

// The recordings are of a real vLLM 0.32.0. expected.json was derived from
// them with Python's msgpack by testdata/expect.py, so that a misreading of the
// format here can't confirm itself.

type expectedEvent struct {
	Type      string   `json:"type"`
	Hashes    []string `json:"hashes"`
	Parent    string   `json:"parent"`
	Tokens    int      `json:"tokens"`
	TokensCRC uint32   `json:"tokens_crc"`
	BlockSize int      `json:"block_size"`
	Group     int      `json:"group"`
	Medium    string   `json:"medium"`
	Salt      string   `json:"salt"`
}

type expectedFrame struct {
	Seq    uint64          `json:"seq"`
	TS     float64         `json:"ts"`
	Rank   int             `json:"rank"`
	Events []expectedEvent `json:"events"`
	Held   int             `json:"held"` // blocks in the cache after it
}

type expectedFile struct {
	Live, Replay []expectedFrame
}

func readJSON(t testing.TB, name string, v any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("cannot read %s: %v", name, err)
	}
}

// recordedLive returns the recorded live messages as their frames.
func recordedLive(t testing.TB) [][][]byte {
	t.Helper()
	var f struct {
		Frames []struct {
			Topic   string `json:"topic"`
			Seq     uint64 `json:"seq"`
			Payload []byte `json:"payload_b64"`
		} `json:"kv_event_frames"`
	}
	readJSON(t, "kv_events.json", &f)
	var all [][][]byte
	for _, r := range f.Frames {
		all = append(all, [][]byte{[]byte(r.Topic), binary.BigEndian.AppendUint64(nil, r.Seq), r.Payload})
	}
	return all
}

// recordedReplay returns the recorded replies, the end marker included.
func recordedReplay(t testing.TB) [][][]byte {
	t.Helper()
	var f struct {
		First [][]string `json:"reply_frames_b64_first_5"`
		Last  [][]string `json:"reply_frames_b64_last_2"`
	}
	readJSON(t, "kv_replay.json", &f)
	var all [][][]byte
	for _, reply := range append(f.First, f.Last...) {
		var frames [][]byte
		for _, text := range reply {
			frame, err := base64.StdEncoding.DecodeString(text)
			if err != nil {
				t.Fatal(err)
			}
			frames = append(frames, frame)
		}
		all = append(all, frames)
	}
	return all
}

func TestDecodeRecording(t *testing.T) {
	var want expectedFile
	readJSON(t, "expected.json", &want)
	live := recordedLive(t)
	if len(live) != 31 || len(want.Live) != 31 {
		t.Fatalf("%d frames, %d expected, want 31", len(live), len(want.Live))
	}
	var b Batch // one for all: reuse must not mix frames up
	totals := map[scoring.EventKind][2]int{}
	tokens := 0
	for i, frames := range live {
		checkFrame(t, &b, frames, want.Live[i])
		for _, ev := range b.Events {
			n := totals[ev.Kind]
			totals[ev.Kind] = [2]int{n[0] + 1, n[1] + len(ev.Hashes)}
			tokens += len(ev.Tokens)
		}
	}
	if got := fmt.Sprint(totals, tokens); got != "map[1:[31 529] 2:[19 19] 3:[1 0]] 16928" {
		t.Errorf("totals are %s", got)
	}
}

func TestDecodeRecordedReplay(t *testing.T) {
	var want expectedFile
	readJSON(t, "expected.json", &want)
	replies := recordedReplay(t)
	if len(replies) != len(want.Replay)+1 {
		t.Fatalf("%d replies, want %d and the end marker", len(replies), len(want.Replay))
	}
	var b Batch
	for i, w := range want.Replay {
		checkFrame(t, &b, replies[i], w)
	}
	m, err := ParseFrames(replies[len(replies)-1])
	if err != nil || !m.End {
		t.Errorf("last reply is %+v, %v, want the end marker", m, err)
	}
}

// The recording goes through a real fleet: after every batch its view holds as
// many blocks as Python's set does, and picks find them.
func TestRecordingInFleet(t *testing.T) {
	var want expectedFile
	readJSON(t, "expected.json", &want)
	fleet := scoring.NewFleet(scoring.DefaultConfig())
	now := time.Unix(1_796_000_000, 0)
	id, err := fleet.Add(now, scoring.WorkerSpec{Name: "w1", Pool: "p", Models: []string{"tiny"}})
	if err != nil {
		t.Fatal(err)
	}
	fleet.SetReady(now, id, true, "")
	fleet.SetCapacity(id, 32, 512)
	m := NewMachine(testMachineConfig())
	m.cfg.Replay = false
	var b Batch
	do := func(actions []Action) {
		for _, a := range actions {
			switch a.Kind {
			case ActApply:
				fleet.ApplyEvents(now, id, 0, a.Item.Batch.Events)
			case ActClear:
				fleet.ClearView(id, 0)
			case ActView:
				fleet.SetView(id, 0, a.View)
			}
		}
	}
	cached := func(tokens []uint32, salt string) int {
		t.Helper()
		// One token more: the engine computes at least the last one itself.
		r, err := fleet.Pick(now, &scoring.Request{
			Model: "tiny", Pools: []string{"p"}, Tokens: append(slices.Clip(tokens), 1), Salt: salt,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Done(now, scoring.NotSent)
		return r.Cached()
	}
	do(m.Connected(now))
	salted := 0
	for i, frames := range recordedLive(t) {
		msg, err := ParseFrames(frames)
		if err != nil {
			t.Fatal(err)
		}
		if err := Decode(msg.Payload, &b); err != nil {
			t.Fatal(err)
		}
		do(m.Live(now, Item{Seq: msg.Seq, TS: b.TS, Batch: &b}))
		view := fleet.Snapshot(now)[0].Views[0]
		// The first recorded batch continues a prompt from before and waits.
		if view.GPU != want.Live[i].Held || view.State != scoring.ViewPartial {
			t.Errorf("seq %d: view %+v, want %d blocks", msg.Seq, view, want.Live[i].Held)
		}
		last := b.Events[len(b.Events)-1]
		if last.Parent != "" {
			continue
		}
		if got := cached(last.Tokens, last.Salt); got != len(last.Tokens) {
			t.Errorf("seq %d: %d tokens found, want %d", msg.Seq, got, len(last.Tokens))
		}
		if last.Salt != "" {
			salted++
			if got := cached(last.Tokens, "tenant-b"); got != 0 {
				t.Errorf("seq %d: another tenant finds %d tokens", msg.Seq, got)
			}
		}
	}
	if salted != 1 || m.Stats().Applied != 31 || m.Stats().Gaps != 0 {
		t.Errorf("%d salted batches, machine %+v", salted, m.Stats())
	}
}

func checkFrame(t *testing.T, b *Batch, frames [][]byte, want expectedFrame) {
	t.Helper()
	m, err := ParseFrames(frames)
	if err != nil {
		t.Fatal(err)
	}
	if m.Seq != want.Seq || m.End || string(m.Topic) != "kv@w1@tiny" {
		t.Fatalf("message is %q %d, want kv@w1@tiny %d", m.Topic, m.Seq, want.Seq)
	}
	if err := Decode(m.Payload, b); err != nil {
		t.Fatalf("seq %d: %v", m.Seq, err)
	}
	if b.TS != want.TS || !b.HasRank || b.Rank != want.Rank || b.Skipped.Total() != 0 {
		t.Errorf("seq %d: ts %v rank %d skipped %v, want %v %d none", m.Seq, b.TS, b.Rank, b.Skipped, want.TS, want.Rank)
	}
	if len(b.Events) != len(want.Events) {
		t.Fatalf("seq %d: %d events, want %d", m.Seq, len(b.Events), len(want.Events))
	}
	for i, ev := range b.Events {
		if got := describe(ev); fmt.Sprint(got) != fmt.Sprint(want.Events[i]) {
			t.Errorf("seq %d event %d:\n got %v\nwant %v", m.Seq, i, got, want.Events[i])
		}
		if ev.Kind == scoring.BlockStored && ev.Usable != len(ev.Hashes) {
			t.Errorf("seq %d event %d: %d of %d blocks usable", m.Seq, i, ev.Usable, len(ev.Hashes))
		}
	}
}

func describe(ev scoring.Event) expectedEvent {
	out := expectedEvent{BlockSize: ev.BlockSize, Group: ev.Group, Salt: ev.Salt, Tokens: len(ev.Tokens), Hashes: []string{}}
	switch ev.Kind {
	case scoring.BlockStored:
		out.Type, out.Medium = "BlockStored", "GPU"
	case scoring.BlockRemoved:
		out.Type, out.Medium = "BlockRemoved", "GPU"
	case scoring.AllBlocksCleared:
		out.Type = "AllBlocksCleared"
	}
	for _, h := range ev.Hashes {
		out.Hashes = append(out.Hashes, fmt.Sprintf("%x", string(h)))
	}
	if ev.Parent != "" {
		out.Parent = fmt.Sprintf("%x", string(ev.Parent))
	}
	raw := make([]byte, 0, 4*len(ev.Tokens))
	for _, id := range ev.Tokens {
		raw = binary.LittleEndian.AppendUint32(raw, id)
	}
	out.TokensCRC = crc32.ChecksumIEEE(raw)
	return out
}
