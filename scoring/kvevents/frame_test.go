package kvevents

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

func TestParseFrames(t *testing.T) {
	seq := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
	p := []byte("payload")
	ok := func(name string, want Message, frames ...[]byte) {
		t.Helper()
		got, err := ParseFrames(frames)
		if err != nil || got.Seq != want.Seq || got.End != want.End ||
			!bytes.Equal(got.Topic, want.Topic) || !bytes.Equal(got.Payload, want.Payload) {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, want)
		}
	}
	ok("no topic", Message{Seq: 5, Payload: p}, seq(5), p)
	ok("live", Message{Topic: []byte("kv@w"), Seq: 5, Payload: p}, []byte("kv@w"), seq(5), p)
	ok("live, empty topic", Message{Seq: 5, Payload: p}, nil, seq(5), p)
	ok("live, topic of 8 bytes", Message{Topic: []byte("12345678"), Seq: 5, Payload: p}, []byte("12345678"), seq(5), p)
	ok("replayed", Message{Topic: []byte("kv@w"), Seq: 1 << 40, Payload: p}, nil, []byte("kv@w"), seq(1<<40), p)
	ok("empty payload", Message{Seq: 5}, nil, seq(5), nil)
	ok("end, old", Message{Seq: endSeq, End: true}, nil, seq(endSeq), nil)
	ok("end, new", Message{Seq: endSeq, End: true}, nil, nil, seq(endSeq), nil)

	bad := func(name string, want error, frames ...[]byte) {
		t.Helper()
		if got, err := ParseFrames(frames); !errors.Is(err, want) {
			t.Errorf("%s: got %+v, %v, want %v", name, got, err, want)
		}
	}
	bad("nothing", ErrFrames)
	bad("one frame", ErrFrames, p)
	bad("five frames", ErrFrames, nil, nil, nil, seq(1), p)
	bad("short seq", ErrSeq, nil, seq(1)[1:], p)
	bad("empty seq", ErrSeq, nil, nil, p)
	bad("long seq", ErrSeq, nil, append(seq(1), 0), p)
	bad("topic in place of seq", ErrSeq, []byte("kv"), p)
	bad("end with a payload", ErrFrames, nil, seq(endSeq), p)
}

func FuzzParseFrames(f *testing.F) {
	f.Add([]byte("topic"), []byte("12345678"), []byte("payload"), 3)
	f.Add([]byte(nil), []byte("\xff\xff\xff\xff\xff\xff\xff\xff"), []byte(nil), 4)
	f.Fuzz(func(t *testing.T, a, b, c []byte, n int) {
		frames := [][]byte{nil, a, b, c, a, b}
		if n < 0 || n > len(frames) {
			return
		}
		m, err := ParseFrames(frames[len(frames)-n:])
		if err != nil {
			if m.Seq != 0 || m.Payload != nil || m.End {
				t.Fatalf("an error with %+v", m)
			}
			return
		}
		if m.End != (m.Seq == endSeq) || m.End && len(m.Payload) != 0 {
			t.Fatalf("%+v", m)
		}
	})
}
