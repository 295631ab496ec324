package kvevents

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

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
