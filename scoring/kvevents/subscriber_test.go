package kvevents

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/sluicegate/sluice/scoring"
)

func testOptions() Options {
	return Options{
		Backoff: 2 * time.Millisecond, BackoffMax: 20 * time.Millisecond,
		ConfirmAfter: 50 * time.Millisecond,
	}
}

// run starts a subscriber and returns what stops it and waits.
func run(t *testing.T, src Source, s Sink, opts Options) (*Subscriber, func()) {
	t.Helper()
	sub := NewSubscriber(src, s, slog.New(slog.DiscardHandler), opts)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sub.Run(ctx) }()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run returned %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("Run does not return")
		}
	}
	t.Cleanup(stop)
	return sub, stop
}

// says waits until the statistics are as they should be: they follow what the sink sees.
func (s *Subscriber) says(t *testing.T, ok func(Stats) bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(s.Stats()); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("stats are %+v", s.Stats())
			return
		}
	}
}

func TestSubscriberFollows(t *testing.T) {
	for name, old := range map[string]bool{"replay framing before 0.26": true, "replay framing from 0.26": false} {
		t.Run(name, func(t *testing.T) {
			p := startPublisher(t, "", "", old)
			p.step(false, storeEvent(1), storeEvent(2))
			p.step(false, removeEvent(1), storeEvent(3))
			s := newSink()
			sub, stop := run(t, p.source(), s, testOptions())
			s.wait(t, scoring.ViewLive, 2, 3)

			p.step(false, storeEvent(4))
			s.wait(t, scoring.ViewLive, 2, 3, 4)

			// A gap: the missing batch removes a block.
			p.step(true, removeEvent(2))
			p.step(false, storeEvent(5))
			s.wait(t, scoring.ViewLive, 3, 4, 5)

			// Another process at the same address, already past our position.
			p.stop()
			p2 := startPublisher(t, p.endpoint, p.replayAt, old)
			for i := range 8 {
				p2.step(false, storeEvent(100+i))
			}
			s.wait(t, scoring.ViewLive, 100, 101, 102, 103, 104, 105, 106, 107)

			sub.says(t, func(st Stats) bool {
				return st.Machine.Gaps == 1 && st.Machine.Restarts > 0 && st.Connects > 1 && st.Next == 8 && st.Connected && st.View == scoring.ViewLive &&
					st.BadMessages+st.BadBatches+st.Skipped.Total()+st.Machine.Holes+st.Machine.GaveUp == 0
			})
			stop()
			s.wait(t, scoring.ViewNotReporting)
			checkGoroutines(t)
		})
	}
}

func TestSubscriberWithoutReplay(t *testing.T) {
	p := startPublisher(t, "", "", false)
	src := p.source()
	src.Replay = ""
	s := newSink()
	sub, _ := run(t, src, s, testOptions())
	eventually(t, "the subscription arrives", func() bool { return len(p.pub.(zmq4.Topics).Topics()) > 0 })
	p.step(false, storeEvent(1))
	s.wait(t, scoring.ViewLive, 1)
	p.step(true, removeEvent(1))
	p.step(false, storeEvent(2))
	s.wait(t, scoring.ViewPartial, 2)
	sub.says(t, func(st Stats) bool { return st.Machine.Replays == 0 && st.Machine.Gaps == 1 })
}

// The publisher connects to us, as vLLM's does for a plain host.
func TestSubscriberBinds(t *testing.T) {
	p := startPublisher(t, "", "", false)
	p.step(false, storeEvent(1))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := "tcp://" + ln.Addr().String()
	ln.Close()
	src := p.source()
	src.Endpoint, src.Bind = addr, true
	s := newSink()
	opts := testOptions()
	opts.StaleAfter = 30 * time.Millisecond
	sub, stop := run(t, src, s, opts)

	dial := func() zmq4.Socket {
		t.Helper()
		pub := zmq4.NewPub(context.Background(), quiet(), zmq4.WithDialerRetry(5*time.Millisecond), zmq4.WithDialerMaxRetries(1000))
		if err := pub.Dial(addr); err != nil {
			t.Fatal(err)
		}
		return pub
	}
	old := p.pub
	p.pub = dial()
	s.wait(t, scoring.ViewLive, 1)
	eventually(t, "the subscription arrives", func() bool { return len(p.pub.(zmq4.Topics).Topics()) > 0 })
	p.step(false, storeEvent(2))
	s.wait(t, scoring.ViewLive, 1, 2)

	// It goes, the view gets stale although nobody connects, and it comes back.
	p.pub.Close()
	s.wait(t, scoring.ViewNotReporting)
	p.pub = dial()
	s.wait(t, scoring.ViewLive, 1, 2)
	sub.says(t, func(st Stats) bool { return st.ConnectErrors == 0 && st.Connects == 2 })
	p.pub.Close()
	p.pub = old
	stop()
	checkGoroutines(t)
}

// Bad messages cost themselves, never the connection.
func TestSubscriberBadMessages(t *testing.T) {
	p := startPublisher(t, "", "", false)
	p.step(false, storeEvent(1))
	s := newSink()
	sub, _ := run(t, p.source(), s, testOptions())
	s.wait(t, scoring.ViewLive, 1)
	eventually(t, "the subscription arrives", func() bool { return len(p.pub.(zmq4.Topics).Topics()) > 0 })

	topic := []byte("t")
	p.send(topic)
	p.send(topic, []byte("short"), pack(t, list{1.0, list{storeEvent(50)}}))
	p.send(topic, topic, topic, topic, topic)
	p.send(topic, binary.BigEndian.AppendUint64(nil, endSeq), nil)
	p.payload(false, nil)
	p.payload(false, []byte("garbage"))
	p.step(false, storeEvent(2), list{"BlockStored", "x"}, list{"NewThing"}, removeEvent(1))
	s.wait(t, scoring.ViewLive, 2)
	sub.says(t, func(st Stats) bool {
		return st.Connects == 1 && st.BadMessages == 4 && st.BadBatches == 2 && st.Skipped.Total() == 2 && st.Machine.Gaps == 0 &&
			st.OtherRank > 0 && st.Events == 3 && !st.LastBatch.IsZero()
	})
}

// A replay without its end marker must not keep live batches waiting for ever.
func TestSubscriberReplayWithoutEnd(t *testing.T) {
	p := startPublisher(t, "", "", false)
	p.mute = true
	p.step(false, storeEvent(1))
	s := newSink()
	opts := testOptions()
	opts.ReplayIdle, opts.ReplayAttempts = 20*time.Millisecond, 2
	sub, _ := run(t, p.source(), s, opts)
	s.wait(t, scoring.ViewLive, 1)
	eventually(t, "the subscription arrives", func() bool { return len(p.pub.(zmq4.Topics).Topics()) > 0 })
	p.step(false, storeEvent(2))
	s.wait(t, scoring.ViewLive, 1, 2)
	sub.says(t, func(st Stats) bool { return st.Machine.GaveUp > 0 })
}

// A replay endpoint where nobody listens leaves the view incomplete, not empty.
func TestSubscriberDeadReplayEndpoint(t *testing.T) {
	p := startPublisher(t, "", "", false)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	src := p.source()
	src.Replay = "tcp://" + ln.Addr().String()
	ln.Close()
	p.step(true, storeEvent(1))
	s := newSink()
	opts := testOptions()
	opts.ReplayAttempts = 3
	sub, _ := run(t, src, s, opts)
	s.wait(t, scoring.ViewPartial)
	eventually(t, "the subscription arrives", func() bool { return len(p.pub.(zmq4.Topics).Topics()) > 0 })
	p.step(false, storeEvent(2))
	s.wait(t, scoring.ViewPartial, 2)
	sub.says(t, func(st Stats) bool {
		return st.Machine.GaveUp == 1 && strings.Contains(st.Err, "cannot connect to replay endpoint")
	})
}

func TestSubscriberOverIPC(t *testing.T) {
	dir := t.TempDir()
	p := startPublisher(t, "ipc://"+filepath.Join(dir, "kv"), "ipc://"+filepath.Join(dir, "replay"), false)
	src := p.source()
	src.Endpoint, src.Replay = "ipc://"+filepath.Join(dir, "kv"), "ipc://"+filepath.Join(dir, "replay")
	p.step(false, storeEvent(1))
	s := newSink()
	run(t, src, s, testOptions())
	s.wait(t, scoring.ViewLive, 1)
}

func TestSubscriberStale(t *testing.T) {
	p := startPublisher(t, "", "", false)
	p.step(false, storeEvent(1))
	s := newSink()
	opts := testOptions()
	opts.StaleAfter = 30 * time.Millisecond
	lost := make(chan struct{}, 1)
	opts.OnLost = func() { lost <- struct{}{} }
	sub, _ := run(t, p.source(), s, opts)
	s.wait(t, scoring.ViewLive, 1)
	p.stop()
	<-lost
	s.wait(t, scoring.ViewNotReporting)
	eventually(t, "an error is shown", func() bool { return sub.Stats().ConnectErrors > 0 })
	sub.says(t, func(st Stats) bool { return !st.Connected && strings.Contains(st.Err, "refused") })
}

// Ten thousand buffered batches, read by an index that is much slower than the
// publisher: all of them arrive, with the end marker.
func TestSubscriberLongReplay(t *testing.T) {
	p := startPublisher(t, "", "", false)
	const n = 10_000
	tokens, hashes := make(list, 512), make(list, 32)
	for i := range tokens {
		tokens[i] = 70_000 + i
	}
	for i := range hashes {
		hashes[i] = 1<<40 + i
	}
	payload := pack(t, list{1.5, list{list{"BlockStored", hashes, nil, tokens, 16}, list{"BlockRemoved", hashes}}, 0})
	for i := range n {
		own := slices.Clone(payload)
		binary.BigEndian.PutUint64(own[2:], math.Float64bits(float64(i))) // its time stamp
		p.payload(true, own)
	}
	p.step(true, storeEvent(1))
	s := newSink()
	sub, stop := run(t, p.source(), s, testOptions())
	eventually(t, "the replay is under way", func() bool { return sub.Stats().Machine.Applied > 100 })
	s.wait(t, scoring.ViewLive, 1)
	sub.says(t, func(st Stats) bool {
		return st.Machine.Applied == n+1 && st.Machine.Holes+st.Machine.Truncated+st.Machine.GaveUp == 0
	})
	stop()
	checkGoroutines(t)
}

// A stalled index neither loses batches nor keeps goroutines alive after Run.
func TestSubscriberStopsUnderLoad(t *testing.T) {
	p := startPublisher(t, "", "", false)
	s := newSink()
	s.delay = time.Millisecond
	sub, stop := run(t, p.source(), s, testOptions())
	eventually(t, "the subscription arrives", func() bool { return len(p.pub.(zmq4.Topics).Topics()) > 0 })
	for i := range 3000 {
		p.step(false, storeEvent(i))
	}
	eventually(t, "batches arrive", func() bool { return sub.Stats().Machine.Applied > 10 })
	stop()
	checkGoroutines(t)
	s.wait(t, scoring.ViewNotReporting)
}

func TestSubscriberRefusesBadEndpoints(t *testing.T) {
	f := func(src Source, want string) {
		t.Helper()
		src.Name = "w"
		err := NewSubscriber(src, newSink(), slog.New(slog.DiscardHandler), Options{}).Run(context.Background())
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"w"`) {
			t.Errorf("%+v: %v, want %q", src, err, want)
		}
	}
	f(Source{}, "no endpoint")
	f(Source{Endpoint: "127.0.0.1:5557"}, "tcp://host:port")
	f(Source{Endpoint: "tcp://*:5557"}, `put the worker's address in place of "*"`)
	f(Source{Endpoint: "tcp://h"}, "tcp://host:port")
	f(Source{Endpoint: "tcp://::1:5557"}, "around an IPv6 address")
	f(Source{Endpoint: "tcp://h:99999"}, "65535")
	f(Source{Endpoint: "inproc://x"}, "inproc")
	f(Source{Endpoint: "tcp://h:1", Replay: "tcp://*:2"}, "replay endpoint")
	f(Source{Endpoint: "tcp://h:1", From: "h"}, "not bound")
	for _, src := range []Source{
		{Endpoint: "tcp://*:5557", Bind: true}, {Endpoint: "tcp://[::1]:5557", Replay: "tcp://h:1"}, {Endpoint: "ipc:///run/kv"},
	} {
		if err := src.Validate(); err != nil {
			t.Errorf("%+v: %v", src, err)
		}
	}
}

// peer is a raw ZMTP publisher, to send what no library would.
type peer struct {
	conn net.Conn
	zmtp *zmq4.Conn
}

func (p *peer) frame(t *testing.T, flags byte, body []byte) {
	t.Helper()
	h := make([]byte, 9)
	h[0] = flags | flagLong
	binary.BigEndian.PutUint64(h[1:], uint64(len(body)))
	if _, err := p.conn.Write(append(h, body...)); err != nil {
		t.Error(err)
	}
}

// linkPair returns a link and its raw peer, after the handshake.
func linkPair(t *testing.T) (*link, *peer) {
	t.Helper()
	a, b := socketPair(t)
	type result struct {
		z   *zmq4.Conn
		err error
	}
	opened := make(chan result, 1)
	go func() {
		z, err := openZMTP(b, zmq4.Pub, true)
		opened <- result{z, err}
	}()
	l, err := newLink(context.Background(), a, zmq4.Sub, false, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	r := <-opened
	if r.err != nil {
		t.Fatal(r.err)
	}
	return l, &peer{b, r.z}
}

func socketPair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := ln.Accept()
		accepted <- c
	}()
	if client, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	server = <-accepted
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func TestLinkMessages(t *testing.T) {
	l, p := linkPair(t)
	l.limit = 1000
	big := bytes.Repeat([]byte("x"), 600)

	go func() {
		p.frame(t, flagMore, []byte("a"))
		p.frame(t, flagMore, nil)
		p.frame(t, 0, big)
		// Over the size limit in one frame, in two, and by their number.
		p.frame(t, 0, append(big, big...))
		p.frame(t, flagMore, big)
		p.frame(t, flagMore, big)
		p.frame(t, 0, []byte("z"))
		for range 20 {
			p.frame(t, flagMore, []byte("y"))
		}
		p.frame(t, 0, nil)
		p.frame(t, flagCommand, []byte("\x04PING\x00\x0actx"))
		p.frame(t, flagCommand, []byte("\x05OTHER"))
		p.frame(t, 0, []byte("last"))
	}()
	frames, err := l.recv()
	if err != nil || len(frames) != 3 || string(frames[0]) != "a" || len(frames[1]) != 0 || !bytes.Equal(frames[2], big) {
		t.Fatalf("got %q, %v", frames, err)
	}
	for range 3 {
		if _, err := l.recv(); !errors.Is(err, errOversize) {
			t.Fatalf("got %v, want the message dropped", err)
		}
	}
	frames, err = l.recv()
	if err != nil || len(frames) != 1 || string(frames[0]) != "last" {
		t.Fatalf("got %q, %v", frames, err)
	}
	// The ping before it was answered with its context.
	cmd, err := p.zmtp.RecvCmd()
	if err != nil || cmd.Name != zmq4.CmdPong || string(cmd.Body) != "ctx" {
		t.Errorf("answer to the ping is %+v, %v", cmd, err)
	}
}

func TestLinkBreaks(t *testing.T) {
	f := func(name, send, want string) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			t.Helper()
			l, p := linkPair(t)
			if _, err := p.conn.Write([]byte(send)); err != nil {
				t.Fatal(err)
			}
			p.conn.Close()
			if _, err := l.recv(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
	f("end", "", "EOF")
	f("half a header", "\x02\x00", "EOF")
	f("half a frame", "\x00\x05abc", "EOF")
	f("a frame of 8 EiB", "\x02\x7f\xff\xff\xff\xff\xff\xff\xff", "the limit is")
	f("a command of 1 GiB", "\x06\x00\x00\x00\x00\x40\x00\x00\x00", "the limit is")
	f("a frame announced, not sent", "\x02\x00\x00\x00\x00\x00\xff\xff\xff", "EOF")
}

// A peer that is no ZeroMQ publisher, or a hostile one, costs its connection.
func TestLinkHandshake(t *testing.T) {
	greeting := "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL" + strings.Repeat("\x00", 48)
	f := func(name, send, want string) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			t.Helper()
			a, b := socketPair(t)
			if _, err := io.WriteString(b, send); err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = io.Copy(io.Discard, b) }()
			patience := time.Minute
			if want == "timeout" {
				patience = 100 * time.Millisecond
			}
			_, err := newLink(context.Background(), a, zmq4.Sub, false, patience)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
			if _, err := a.Write([]byte("x")); err == nil {
				t.Error("the connection is still open")
			}
		})
	}
	f("silence", "", "timeout")
	f("silence after the greeting", greeting, "timeout")
	f("HTTP", "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n", "greeting")
	f("a frame of 8 EiB", greeting+"\x06\x7f\xff\xff\xff\xff\xff\xff\xff", "the limit is")
	f("a frame of 2 KiB", greeting+"\x06\x00\x00\x00\x00\x00\x00\x08\x00", "the limit is")
	f("metadata longer than its frame", greeting+"\x04\x08\x05READY\x02X", "malformed")
	f("endless frames", greeting+strings.Repeat("\x05\x01\x00", 10), "too many frames")
	f("another socket type", greeting+"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03REP", "not compatible")

	a, _ := socketPair(t)
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := newLink(ctx, a, zmq4.Sub, false, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled handshake: %v", err)
	}
}
