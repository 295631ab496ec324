package simworker

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
)

// received is a live batch as a subscriber gets it.
type received struct {
	topic   string
	seq     uint64
	payload []byte
}

// subscriber is a SUB socket that is known to be subscribed.
type subscriber struct {
	t    *testing.T
	sock zmq4.Socket
	got  chan received
	done chan struct{}
}

// subscribe returns once the worker has seen the subscription.
func subscribe(t *testing.T, w *Worker, topic string) *subscriber {
	t.Helper()
	before := subscriptions(w)
	ctx, cancel := context.WithCancel(context.Background())
	s := &subscriber{t: t, sock: zmq4.NewSub(ctx), got: make(chan received, 1000), done: make(chan struct{})}
	if err := s.sock.Dial(w.EventsEndpoint()); err != nil {
		t.Fatal(err)
	}
	if err := s.sock.SetOption(zmq4.OptionSubscribe, topic); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.done)
		for {
			msg, err := s.sock.Recv()
			if err != nil {
				return
			}
			s.got <- received{string(msg.Frames[0]), binary.BigEndian.Uint64(msg.Frames[1]), msg.Frames[2]}
		}
	}()
	t.Cleanup(func() {
		cancel()
		_ = s.sock.Close()
		<-s.done
	})
	waitUntil(t, w, "subscription", func(Stats) bool { return subscriptions(w) == before+1 })
	return s
}

// subscriptions counts the topics of all peers.
func subscriptions(w *Worker) int {
	n := 0
	w.pub.pub.each(func(p *peer) {
		p.mu.Lock()
		n += len(p.topics)
		p.mu.Unlock()
	})
	return n
}

func (s *subscriber) next() received {
	s.t.Helper()
	select {
	case r := <-s.got:
		return r
	case <-time.After(waitTime):
		s.t.Fatal("no event came")
		return received{}
	}
}

// replay asks for batches from start on and returns every reply with the empty
// first frame cut off, the end marker too.
func replay(t *testing.T, w *Worker, start uint64) [][][]byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTime)
	defer cancel()
	sock := zmq4.NewDealer(ctx)
	defer sock.Close()
	if err := sock.Dial(w.ReplayEndpoint()); err != nil {
		t.Fatal(err)
	}
	if err := sock.Send(zmq4.NewMsgFrom(nil, binary.BigEndian.AppendUint64(nil, start))); err != nil {
		t.Fatal(err)
	}
	var replies [][][]byte
	for {
		msg, err := sock.Recv()
		if err != nil {
			t.Fatalf("after %d replies: %v", len(replies), err)
		}
		if len(msg.Frames) < 3 || len(msg.Frames[0]) != 0 {
			t.Fatalf("reply %q has no empty first frame", msg.Frames)
		}
		replies = append(replies, msg.Frames[1:])
		if len(msg.Frames[len(msg.Frames)-1]) == 0 {
			return replies
		}
	}
}

// longText gives a prompt of a little more than n tokens that starts with tag.
func longText(tag string, n int) string { return tag + strings.Repeat("x", n) }

func TestLiveBatchesAndReplayAgree(t *testing.T) {
	w := startWorker(t, nil)
	sub := subscribe(t, w, "")
	for i := range 3 {
		post(t, w, "/v1/chat/completions", chatBody(longText(fmt.Sprint(i), 100), `,"max_tokens":2`))
	}
	var live []received
	for i := range 3 {
		r := sub.next()
		live = append(live, r)
		if r.topic != "kv@w1@tiny" || r.seq != uint64(i) {
			t.Errorf("batch %d has topic %q and seq %d", i, r.topic, r.seq)
		}
		ts, list := decodeBatch(t, r.payload)
		if len(list) != 1 || list[0].Type != "BlockStored" || list[0].Size != 32 || len(list[0].Tokens) != 32*len(list[0].Hashes) {
			t.Errorf("batch %d: %+v", i, list)
		}
		if age := time.Since(time.UnixMicro(int64(ts * 1e6))); age < -time.Second || age > waitTime {
			t.Errorf("batch %d is %v old", i, age)
		}
	}
	replies := replay(t, w, 1)
	if len(replies) != 3 {
		t.Fatalf("%d replies from 1 on, want two batches and the end", len(replies))
	}
	for i, want := range live[1:] {
		got := replies[i]
		if string(got[0]) != want.topic || binary.BigEndian.Uint64(got[1]) != want.seq || !bytes.Equal(got[2], want.payload) {
			t.Errorf("replayed batch %d differs from the live one", want.seq)
		}
	}
	end := replies[2]
	if len(end) != 3 || len(end[0]) != 0 || !bytes.Equal(end[1], bytes.Repeat([]byte{0xff}, 8)) || len(end[2]) != 0 {
		t.Errorf("end marker %q, want empty, 8 x ff, empty", end)
	}
	if beyond := replay(t, w, 99); len(beyond) != 1 {
		t.Errorf("%d replies beyond the end, want the marker alone", len(beyond))
	}
}

func TestReplayIsFramedAsRecorded(t *testing.T) {
	rec := readJSON[struct {
		First [][]string `json:"reply_frames_b64_first_5"`
		Last  [][]string `json:"reply_frames_b64_last_2"`
	}](t, "testdata/vllm-0.32.0/kv_replay.json")
	w := startWorker(t, nil)
	post(t, w, "/v1/chat/completions", chatBody(longText("a", 100), `,"max_tokens":2`))
	replies := replay(t, w, 0)
	if len(replies) != 2 {
		t.Fatalf("%d replies, want a batch and the end", len(replies))
	}
	// The recording's first frame is the empty one, which replay cuts off.
	for i, want := range [][]string{rec.First[0], rec.Last[1]} {
		if len(replies[i]) != len(want)-1 {
			t.Errorf("reply %d has %d frames, recorded %d", i, len(replies[i]), len(want)-1)
			continue
		}
		if !bytes.Equal(replies[i][0], unbase64(t, want[1])) || !bytes.Equal(replies[i][1], unbase64(t, want[2])) {
			t.Errorf("reply %d: topic %q, seq %x; recorded %q, %x", i, replies[i][0], replies[i][1], unbase64(t, want[1]), unbase64(t, want[2]))
		}
	}
}

func TestOldReplayHasNoTopic(t *testing.T) {
	w := startWorker(t, func(c *Config) { c.OldReplay = true })
	post(t, w, "/v1/chat/completions", chatBody(longText("a", 100), `,"max_tokens":2`))
	replies := replay(t, w, 0)
	if len(replies) != 2 || len(replies[0]) != 2 || len(replies[1]) != 2 {
		t.Fatalf("replies %q, want two of two frames", replies)
	}
	if !bytes.Equal(replies[1][0], bytes.Repeat([]byte{0xff}, 8)) {
		t.Errorf("end marker %q", replies[1])
	}
}

func TestReplayBufferForgetsTheOldest(t *testing.T) {
	w := startWorker(t, func(c *Config) { c.BufferSteps = 3 })
	for i := range 8 {
		post(t, w, "/v1/chat/completions", chatBody(longText(fmt.Sprint(i), 40), `,"max_tokens":1`))
	}
	waitUntil(t, w, "eight batches", func(s Stats) bool { return s.Batches == 8 })
	var seqs []uint64
	for _, r := range replay(t, w, 0) {
		seqs = append(seqs, binary.BigEndian.Uint64(r[1]))
	}
	if want := []uint64{5, 6, 7, 1<<64 - 1}; !slices.Equal(seqs, want) {
		t.Errorf("replayed %d, want %d", seqs, want)
	}
}

func TestReplayRequestsInAnotherFormGetNoAnswer(t *testing.T) {
	w := startWorker(t, nil)
	ctx, cancel := context.WithTimeout(context.Background(), waitTime)
	defer cancel()
	sock := zmq4.NewDealer(ctx)
	defer sock.Close()
	if err := sock.Dial(w.ReplayEndpoint()); err != nil {
		t.Fatal(err)
	}
	seq := make([]byte, 8)
	ask := func(frames ...[]byte) {
		t.Helper()
		if err := sock.Send(zmq4.NewMsgFrom(frames...)); err != nil {
			t.Fatal(err)
		}
	}
	ask(seq)
	ask(nil, seq[:4])
	ask(nil, seq, nil)
	ask(nil, binary.BigEndian.AppendUint64(nil, 7))
	ask(nil, seq)
	// Had one of the first three been answered, there would be more than the
	// two markers before the batch that comes after them.
	kinds := make([]int, 0, 4)
	recv := func() {
		t.Helper()
		msg, err := sock.Recv()
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, len(msg.Frames[len(msg.Frames)-1]))
	}
	recv()
	recv()
	post(t, w, "/v1/chat/completions", chatBody(longText("a", 100), `,"max_tokens":1`))
	waitUntil(t, w, "batch", func(s Stats) bool { return s.Batches == 1 })
	ask(nil, seq)
	recv()
	if kinds[0] != 0 || kinds[1] != 0 || kinds[2] == 0 {
		t.Errorf("payload sizes %v, want two markers and then a batch", kinds)
	}
}

func TestSubscriptionsFilterByTopic(t *testing.T) {
	w := startWorker(t, nil)
	mine := subscribe(t, w, "kv@w1@")
	other := subscribe(t, w, "kv@w2@")
	post(t, w, "/v1/chat/completions", chatBody(longText("a", 100), `,"max_tokens":1`))
	mine.next()
	if len(other.got) != 0 {
		t.Error("a batch came for a topic that was not subscribed")
	}
}

func TestForms(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"maps":   func(*Config) {},
		"arrays": func(c *Config) { c.ArrayEvents = true },
		"bytes":  func(c *Config) { c.ByteHashes = true },
		"both":   func(c *Config) { c.ArrayEvents, c.ByteHashes = true, true },
	} {
		t.Run(name, func(t *testing.T) {
			w := startWorker(t, func(c *Config) { c.LoRAs = []string{"ad", "lib"}; change(c) })
			sub := subscribe(t, w, "")
			text := longText("a", 100)
			post(t, w, "/v1/chat/completions", chatBody(text, `,"max_tokens":1`))
			post(t, w, "/v1/chat/completions", chatBody(text, `,"max_tokens":1,"cache_salt":"tenant"`))
			post(t, w, "/v1/chat/completions", strings.Replace(chatBody(text, `,"max_tokens":1,"cache_salt":"tenant"`), "tiny", "lib", 1))
			if !w.ResetPrefixCache() {
				t.Fatal("reset fails")
			}
			post(t, w, "/v1/chat/completions", chatBody("short", `,"max_tokens":1`))
			want := []string{"[[] [] []]", "[[tenant] [] []]", "[[lib tenant] [lib] [lib]]"}
			var prompts [][]uint32
			for i, extra := range want {
				_, list := decodeBatch(t, sub.next().payload)
				if len(list) != 1 || len(list[0].Hashes) != 3 || fmt.Sprint(list[0].Extra) != extra {
					t.Fatalf("batch %d: %+v, want three blocks with keys %s", i, list, extra)
				}
				prompts = append(prompts, list[0].Tokens)
				if (list[0].LoRA == "lib") != (i == 2) {
					t.Errorf("batch %d has LoRA %q", i, list[0].LoRA)
				}
			}
			if !slices.Equal(prompts[0], prompts[1]) || !slices.Equal(prompts[0], prompts[2]) {
				t.Error("one text was published with different tokens")
			}
			_, list := decodeBatch(t, sub.next().payload)
			if len(list) != 1 || list[0].Type != "AllBlocksCleared" {
				t.Errorf("after the reset: %+v, want a clear", list)
			}
		})
	}
}

func TestEventFaults(t *testing.T) {
	w := startWorker(t, nil)
	sub := subscribe(t, w, "")
	n := 0
	serve := func() {
		n++
		post(t, w, "/v1/chat/completions", chatBody(longText(fmt.Sprint(n), 40), `,"max_tokens":1`))
		waitUntil(t, w, "batch", func(s Stats) bool { return s.Batches == uint64(n) })
	}
	w.SetEventFault(EventFault{Drop: 1, Lose: 1, Duplicate: 1, Corrupt: 1, BadEvent: 1})
	for range 6 {
		serve()
	}
	var seqs []uint64
	for range 5 {
		r := sub.next()
		seqs = append(seqs, r.seq)
		switch r.seq {
		case 3:
			if r.payload[0] != 0xc1 {
				t.Errorf("seq 3 is not corrupt: %x", r.payload)
			}
		case 4:
			if _, list := decodeBatchLoosely(t, r.payload); len(list) != 2 || list[0] != "BlockQuarantined" || list[1] != "BlockStored" {
				t.Errorf("seq 4 holds %v, want an unknown event before the true one", list)
			}
		}
	}
	if want := []uint64{2, 2, 3, 4, 5}; !slices.Equal(seqs, want) {
		t.Errorf("live %d, want %d", seqs, want)
	}
	seqs = nil
	for _, r := range replay(t, w, 0) {
		seqs = append(seqs, binary.BigEndian.Uint64(r[1]))
		if len(r[2]) > 0 && r[2][0] != 0x93 {
			t.Errorf("replayed payload of %d is corrupt", seqs[len(seqs)-1])
		}
	}
	if want := []uint64{0, 2, 3, 4, 5, 1<<64 - 1}; !slices.Equal(seqs, want) {
		t.Errorf("replayed %d, want all but the lost one: %d", seqs, want)
	}
}

func TestSlowSubscriberLosesBatchesBeyondItsQueue(t *testing.T) {
	p := &peer{hwm: 2, more: make(chan struct{}, 1)}
	for i := range 5 {
		p.send([]byte{byte(i)})
	}
	if len(p.queue) != 2 || p.queue[1].Frames[0][0] != 1 {
		t.Errorf("%d messages queued, want the first two", len(p.queue))
	}
}

func TestWorkerWithoutEvents(t *testing.T) {
	w := startWorker(t, func(c *Config) { c.EventsAddr, c.ReplayAddr = "", "" })
	if w.EventsEndpoint() != "" || w.ReplayEndpoint() != "" {
		t.Errorf("endpoints %q, %q; want none", w.EventsEndpoint(), w.ReplayEndpoint())
	}
	if _, body := get(t, w, "/kv_event_sources"); body != "{}" {
		t.Errorf("sources %s, want {}", body)
	}
	post(t, w, "/v1/chat/completions", chatBody(longText("a", 100), `,"max_tokens":1`))
	w = startWorker(t, func(c *Config) { c.ReplayAddr = "" })
	if _, body := get(t, w, "/kv_event_sources"); !strings.Contains(body, `"replay_endpoint":null`) {
		t.Errorf("sources %s, want a null replay endpoint", body)
	}
}

func TestPeersThatAreNoZMQAreDropped(t *testing.T) {
	w := startWorker(t, nil)
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.EventsEndpoint(), "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(waitTime))
	if _, err := conn.Write([]byte(strings.Repeat("GET / HTTP/1.1\r\n", 8))); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 256)
	for err == nil {
		_, err = conn.Read(buf) // the worker's own greeting, then the end
	}
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		t.Error("connection stays open")
	}
	subscribe(t, w, "")
}
