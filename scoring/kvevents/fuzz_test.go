package kvevents

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/sluicegate/sluice/scoring"
	"github.com/vmihailenco/msgpack/v5"
)

// sent keeps what a link sends.
type sent struct{ pongs [][]byte }

func (s *sent) SendMsg(zmq4.Msg) error { return nil }

func (s *sent) SendCmd(_ string, body []byte) error {
	s.pongs = append(s.pongs, slices.Clone(body))
	return nil
}

// linkOver returns a link that reads from r and whose messages have at most
// limit bytes.
func linkOver(r io.Reader, limit int) (*link, *sent) {
	var s sent
	return &link{zmtp: &s, br: bufio.NewReaderSize(r, 64<<10), limit: limit}, &s
}

// frame is one ZMTP frame in its short or long form.
func frame(flags byte, body string) string {
	if len(body) < 256 {
		return string([]byte{flags, byte(len(body))}) + body
	}
	return string(binary.BigEndian.AppendUint64([]byte{flags | flagLong}, uint64(len(body)))) + body
}

// FuzzLink: whatever bytes a peer sends, however they are cut into packets, the
// same messages come out, none over the limit, and no announced size decides how
// much memory is taken.
func FuzzLink(f *testing.F) {
	f.Add([]byte(frame(flagMore, "topic") + frame(flagMore, "12345678") + frame(0, strings.Repeat("p", 300))))
	f.Add([]byte(frame(flagCommand, "\x04PING\x00\x0actx") + frame(0, "")))
	f.Add([]byte(frame(flagMore, strings.Repeat("x", 900)) + frame(0, strings.Repeat("x", 900)) + frame(0, "next")))
	f.Add([]byte("\x02\x00\x00\x00\x00\x3f\xff\xff\xff"))
	f.Add([]byte(strings.Repeat(frame(flagMore, ""), 20) + frame(0, "")))
	const limit = 1000
	read := func(t *testing.T, r io.Reader, n int) (messages []string, pongs int, err error) {
		l, s := linkOver(r, limit)
		for {
			frames, err := l.recv()
			if cap(l.buf) > 2*(n+64<<10) {
				t.Fatalf("a buffer of %d bytes for %d", cap(l.buf), n)
			}
			if errors.Is(err, errOversize) {
				messages = append(messages, "oversize")
				continue
			}
			if err != nil {
				return messages, len(s.pongs), err
			}
			size := 0
			for _, f := range frames {
				size += len(f)
			}
			if size > limit || len(frames) == 0 || len(frames) > maxFrames {
				t.Fatalf("a message of %d frames and %d bytes", len(frames), size)
			}
			messages = append(messages, string(bytes.Join(frames, []byte("|"))))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, pongs, err := read(t, bytes.NewReader(data), len(data))
		b, pongs2, err2 := read(t, iotest.OneByteReader(bytes.NewReader(data)), len(data))
		if !slices.Equal(a, b) || pongs != pongs2 || err.Error() != err2.Error() {
			t.Fatalf("the same bytes in other packets:\n%q %d %v\n%q %d %v", a, pongs, err, b, pongs2, err2)
		}
	})
}

// bytesConn is a connection whose peer sends some bytes and hears nothing.
type bytesConn struct {
	net.Conn
	r *bytes.Reader
}

func (c *bytesConn) Read(p []byte) (int, error)       { return c.r.Read(p) }
func (c *bytesConn) Write(p []byte) (int, error)      { return len(p), nil }
func (c *bytesConn) Close() error                     { return nil }
func (c *bytesConn) SetDeadline(time.Time) error      { return nil }
func (c *bytesConn) SetReadDeadline(time.Time) error  { return nil }
func (c *bytesConn) SetWriteDeadline(time.Time) error { return nil }

// FuzzHandshake: a peer's greeting and metadata cost at most its connection.
func FuzzHandshake(f *testing.F) {
	greeting := "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL" + strings.Repeat("\x00", 48)
	f.Add([]byte(greeting+"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"), false)
	f.Add([]byte(greeting+"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x04DEAL"), true)
	f.Add([]byte(greeting+"\x04\x08\x05READY\x02X"), true)
	f.Add([]byte(greeting+"\x06\x7f\xff\xff\xff\xff\xff\xff\xff"), false)
	f.Fuzz(func(t *testing.T, data []byte, server bool) {
		l, err := newLink(t.Context(), &bytesConn{r: bytes.NewReader(data)}, zmq4.Sub, server, time.Second)
		if (l == nil) == (err == nil) {
			t.Fatalf("link %v with the error %v", l, err)
		}
		if err == nil && !bytes.Contains(data, []byte("PUB")) {
			t.Fatalf("a peer that is no publisher was accepted: %q", data)
		}
	})
}

// FuzzReplies: what a publisher answers to a request for a replay, in either
// framing and with anything in between, ends with the marker and with nothing
// else, and every message before it is passed on once.
func FuzzReplies(f *testing.F) {
	seq := func(n uint64) string { return string(binary.BigEndian.AppendUint64(nil, n)) }
	reply := func(frames ...string) string {
		out := ""
		for i, b := range frames {
			flags := byte(flagMore)
			if i == len(frames)-1 {
				flags = 0
			}
			out += frame(flags, b)
		}
		return out
	}
	batch := string(pack(f, list{1.5, list{stored()}, 0}))
	f.Add([]byte(reply("", "kv", seq(0), batch) + reply("", "kv", seq(1), batch) + reply("", "", seq(endSeq), "")))
	f.Add([]byte(reply("", seq(0), batch) + reply("", seq(endSeq), "")))
	f.Add([]byte(reply("", seq(4), batch) + reply("", "bad") + reply("", seq(9), "") + reply("", "kv", seq(endSeq), "x")))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, _ := linkOver(bytes.NewReader(data), 1<<20)
		q := newByteQueue(1 << 30)
		err := readReplies(t.Context(), l, q)
		q.close(err)
		m, want := NewMachine(testMachineConfig()), 0
		m.Connected(time.Unix(0, 0))
		var out []Action
		free := newBatchPool(1)
		for {
			r, qerr := q.pop()
			if qerr != nil {
				if !errors.Is(qerr, err) {
					t.Fatalf("the queue ends with %v, the reading with %v", qerr, err)
				}
				break
			}
			if r.bad {
				continue
			}
			want++
			d := decodeMessage(r.seq, r.payload, free)
			out = append(out, m.Replayed(time.Unix(0, 0), 1, d.item)...)
		}
		marker := bytes.Contains(data, bytes.Repeat([]byte{0xff}, 8))
		if over := errors.Is(err, errOver); over && !marker {
			t.Fatal("over without a marker")
		}
		got := 0
		for _, a := range out {
			if a.Kind == ActApply || a.Kind == ActDiscard {
				got++
			}
		}
		if got != want {
			t.Fatalf("%d batches went in and %d came back", want, got)
		}
	})
}

// FuzzExtraKeys: whatever one event's extra keys are, its sibling is kept, no
// block beyond the first unknown key is usable, and a salt is only ever taken
// from a chain's first block.
func FuzzExtraKeys(f *testing.F) {
	for _, v := range []any{
		nil, list{}, list{nil, nil}, list{list{"tune"}, list{"tune"}}, list{list{"tune", "s"}, list{"tune"}}, list{list{"s"}, nil},
		list{list{list{"img", 3}}, nil}, list{nil, list{[]byte("digest")}}, list{list{7}, list{7}}, 3, "x", object{"a", 1},
	} {
		f.Add(pack(f, v), "tune", false)
		f.Add(pack(f, v), "", true)
	}
	f.Fuzz(func(t *testing.T, keys []byte, lora string, child bool) {
		r := bytes.NewReader(keys)
		if msgpack.NewDecoder(r).Skip() != nil || r.Len() > 0 || len(lora) > MaxNameBytes {
			return // not one value
		}
		ev := stored("lora_name", lora, "extra_keys", wire(keys))
		if child {
			ev = stored("lora_name", lora, "extra_keys", wire(keys), "parent_block_hash", 9)
		}
		b := decode(t, list{ev, list{"BlockRemoved", list{5}}}, 4)
		last := len(b.Events) - 1
		if last < 0 || b.Events[last].Kind != scoring.BlockRemoved || b.Rank != 4 || b.Skipped.Total()+uint64(len(b.Events)) != 2 {
			t.Fatalf("%d events, skipped %v, rank %d", len(b.Events), b.Skipped, b.Rank)
		}
		if last == 0 {
			return
		}
		got := b.Events[0]
		checkEvent(t, got)
		if got.LoRA != lora || len(got.Hashes) != 2 || child && got.Salt != "" {
			t.Fatalf("got %+v", got)
		}
		if got.Salt != "" && !bytes.Contains(keys, []byte(got.Salt)) {
			t.Fatalf("the salt %q is not among the keys %q", got.Salt, keys)
		}
	})
}

// FuzzParseEndpoint: what is accepted can be handed to package net, and names
// a host when it is to be dialled.
func FuzzParseEndpoint(f *testing.F) {
	for _, s := range []string{"tcp://10.0.0.5:5557", "tcp://*:5557", "tcp://[fd00::5]:1", "ipc:///run/kv", "inproc://x", "tcp://h:99999", "tcp://:1", "://"} {
		f.Add(s, false)
		f.Add(s, true)
	}
	f.Fuzz(func(t *testing.T, endpoint string, bind bool) {
		network, addr, err := parseEndpoint(endpoint, bind)
		if err != nil {
			if network != "" || addr != "" {
				t.Fatalf("%q: %q %q with the error %v", endpoint, network, addr, err)
			}
			return
		}
		if network == "unix" {
			if addr == "" {
				t.Fatalf("%q: no path", endpoint)
			}
			return
		}
		host, port, err := net.SplitHostPort(addr)
		if network != "tcp" || err != nil || port == "" || host == "" && !bind || host == "*" {
			t.Fatalf("%q: %q %q, %v", endpoint, network, addr, err)
		}
	})
}
