package anthropic

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sluicegate/sluice/gateway/sse"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/gateway/wire/wiretest"
)

// observed is what an observer made of a stream.
type observed struct {
	events []string // each with its flags
	usage  wire.Usage
	deltas int64
	whole  bool
}

// observe feeds the pieces of a stream through the scanner to an observer.
func observe(t testing.TB, pieces ...[]byte) observed {
	t.Helper()
	s := sse.NewScanner(1 << 20)
	o := Codec{}.NewObserver(wire.Messages)
	var got observed
	for _, p := range pieces {
		s.Feed(p)
		for ev, ok := s.Next(); ok; ev, ok = s.Next() {
			got.events = append(got.events, string(ev.Raw)+o.Observe(ev.Name, ev.Data).String())
		}
	}
	if s.Err() != nil || len(s.Rest()) > 0 {
		t.Fatalf("%v, rest %q", s.Err(), s.Rest())
	}
	got.usage, got.deltas, got.whole = o.Usage(), o.ContentDeltas(), o.Complete()
	return got
}

func recordedStream(t testing.TB) []byte {
	t.Helper()
	b, err := os.ReadFile("../sse/testdata/messages_stream.sse")
	if err != nil {
		t.Fatal(err)
	}
	if string(b) != wiretest.Recordings(t)["messages_stream"].ResponseBody {
		t.Fatal("the two copies of the recorded stream differ")
	}
	return b
}

func TestRecordedStream(t *testing.T) {
	got := observe(t, recordedStream(t))
	var flags []string
	for _, e := range got.events {
		flags = append(flags, e[strings.LastIndex(e, "\n\n")+2:])
	}
	if want := "||first+content|content|content|content||usage+finish|done"; strings.Join(flags, "|") != want {
		t.Errorf("the events are %s, want %s", strings.Join(flags, "|"), want)
	}
	if want := (wire.Usage{Input: 10, Output: 4, Known: true}); got.usage != want || !got.whole || got.deltas != 4 {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// A stream cut into two at every byte gives the same events, usage and first
// token, also with the line ends that other servers write.
func TestRecordedStreamCutAnywhere(t *testing.T) {
	lf := recordedStream(t)
	for name, b := range map[string][]byte{
		"LF": lf, "CRLF": []byte(strings.ReplaceAll(string(lf), "\n", "\r\n")),
	} {
		want := fmt.Sprintf("%+v", observe(t, b))
		for i := range b {
			if got := fmt.Sprintf("%+v", observe(t, b[:i], b[i:])); got != want {
				t.Fatalf("%s cut at byte %d:\n got %s\nwant %s", name, i, got, want)
			}
		}
	}
}

// line is an event of the given type.
func line(kind, rest string) string {
	return "event: " + kind + "\ndata: {\"type\":\"" + kind + "\"" + rest + "}\n\n"
}

const startOf10 = `,"message":{"usage":{"input_tokens":10,"output_tokens":0}}`

func TestUsageOfAStream(t *testing.T) {
	f := func(want wire.Usage, whole bool, events ...string) {
		t.Helper()
		got := observe(t, []byte(strings.Join(events, "")))
		if got.usage != want || got.whole != whole {
			t.Errorf("%q\n got %+v, whole %v\nwant %+v, whole %v", events, got.usage, got.whole, want, whole)
		}
	}
	start, stop := line("message_start", startOf10), line("message_stop", "")
	text := line("content_block_delta", `,"delta":{"text":"a"}`)
	delta := func(usage string) string {
		return line("message_delta", `,"delta":{"stop_reason":"end_turn"},"usage":`+usage)
	}

	f(wire.Usage{}, false)
	f(wire.Usage{}, false, text)
	f(wire.Usage{Input: 10, Known: true}, false, start)
	f(wire.Usage{Input: 10, Output: 2, Known: true}, false, start, text, text)
	f(wire.Usage{Input: 10, Output: 7, Known: true}, true, start, text, delta(`{"output_tokens":7}`))
	f(wire.Usage{Input: 10, Output: 7, Known: true}, true, start, text, delta(`{"input_tokens":10,"output_tokens":7}`), stop)
	// The start does not know yet what came from the cache.
	f(wire.Usage{Input: 10, Cached: 6, Output: 7, CachedKnown: true, Known: true}, true,
		start, delta(`{"input_tokens":2,"output_tokens":7,"cache_creation_input_tokens":2,"cache_read_input_tokens":6}`), stop)
	f(wire.Usage{Input: 15, Cached: 5, Output: 7, CachedKnown: true, Known: true}, true,
		line("message_start", `,"message":{"usage":{"input_tokens":10,"cache_read_input_tokens":5,"output_tokens":1}}`), delta(`{"output_tokens":7}`))
	f(wire.Usage{Input: 10, Output: 9, Known: true}, true, start, delta(`{"output_tokens":7}`), delta(`{"output_tokens":9}`), stop)
	// Nulls are no counts.
	f(wire.Usage{Input: 10, Output: 7, Known: true}, true, start, delta(`{"input_tokens":null,"output_tokens":7,"cache_read_input_tokens":null}`))
	// A stream that ends without its usage has none: what was counted here is no
	// count of the worker's.
	f(wire.Usage{}, false, start, text, stop)
	f(wire.Usage{}, false, start, text, delta("null"), stop)
	f(wire.Usage{}, false, text, delta(`{"output_tokens":7}`), stop)
}

func TestObserve(t *testing.T) {
	f := func(name, data, want string) {
		t.Helper()
		if got := (Codec{}).NewObserver(wire.Messages).Observe([]byte(name), []byte(data)).String(); got != want {
			t.Errorf("%s %s: %q, want %q", name, data, got, want)
		}
	}
	// First tokens, and what is none.
	f("content_block_delta", `{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}`, "first+content")
	f("content_block_delta", `{"delta":{"thinking":"a"},"type":"content_block_delta"}`, "first+content")
	f("content_block_delta", `{"delta":{"partial_json":"{"},"type":"content_block_delta"}`, "first+content")
	f("content_block_start", `{"type":"content_block_start","content_block":{"type":"tool_use","input":{}}}`, "first+content")
	f("content_block_start", `{"type":"content_block_start","content_block":{"type":"text","text":""}}`, "")
	f("content_block_start", `{"type":"content_block_start","content_block":{"type":"thinking","thinking":""}}`, "")
	f("content_block_delta", `{"type":"content_block_delta","delta":{"text":""}}`, "")
	f("content_block_delta", `{"type":"content_block_delta","delta":{"signature":"abc"}}`, "")
	f("content_block_delta", `{"type":"content_block_delta","delta":null}`, "")
	f("ping", `{"type":"ping"}`, "")
	f("message_start", `{"type":"message_start"`+startOf10+`}`, "")

	// The type decides, and the name stands in for one that is not there.
	f("", `{"type":"message_stop"}`, "done")
	f("message_stop", `{}`, "done")
	f("message_stop", ` {"type":"ping"} `, "")
	f("message_stop", ``, "")

	f("error", `{"type":"error","error":{"type":"internal_error","message":"x"}}`, "error")
	f("", `{"type":"error"}`, "error")
	f("", `{"error":{"message":"x","type":"InternalServerError","code":500}}`, "error") // of another dialect
	f("content_block_delta", `{"error":{"message":"x"},"delta":{"text":"a"}}`, "error")
	f("message_stop", `{"type":"message_stop","error":null}`, "done")
	f("error", `nonsense`, "error")
	f("ping", `nonsense`, "malformed")
	f("ping", `[DONE]`, "malformed")
	f("content_block_delta", `{"type":"content_block_delta","delta":{"text":"a"`, "malformed")
	f("message_delta", `{"type":"message_delta"} x`, "malformed")
	f("message_delta", `{"type":"message_delta","usage":{"output_tokens":3}}`, "") // of an input that nobody knows
}

func TestStreamErrorIsRebuilt(t *testing.T) {
	var s Stream
	if _, failed := s.StreamError(); failed {
		t.Error("an error before there was one")
	}
	s.Observe([]byte("error"), []byte(`{"type":"error","error":{"type":"internal_error","message":"/opt/secret died"}}`))
	e, failed := s.StreamError()
	if !failed || e.Cause != wire.CauseFault || e.Status != 502 || e.Body.Code != "upstream_error" || strings.Contains(e.Body.Message, "secret") {
		t.Errorf("%+v, %v", e, failed)
	}
}

// FuzzStream checks that no stream upsets an observer, and that where it was cut
// does not matter.
func FuzzStream(f *testing.F) {
	f.Add(recordedStream(f), 100)
	f.Add([]byte(line("message_start", startOf10)+line("content_block_delta", `,"delta":{"partial_json":"{"}`)+line("error", "")), 3)
	f.Add([]byte("data: {\"type\":\"message_stop\"}\r\n\r\nevent: error\rdata: 1\r\r"), 20)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		s := sse.NewScanner(1 << 16)
		run := func(pieces ...[]byte) string {
			s.Reset()
			var o Stream
			var sb strings.Builder
			for _, p := range pieces {
				s.Feed(p)
				for ev, ok := s.Next(); ok; ev, ok = s.Next() {
					flags := o.Observe(ev.Name, ev.Data)
					fmt.Fprintf(&sb, "%q %v\n", ev.Raw, flags)
					if flags.Has(wire.Malformed) && ev.Data[0] == '{' && json.Valid(ev.Data) && utf8.Valid(ev.Data) && len(ev.Data) < 400 {
						t.Fatalf("%q is JSON, but malformed", ev.Data)
					}
				}
			}
			u := o.Usage()
			if u.Input < 0 || u.Output < 0 || u.Cached > u.Input || u.CachedKnown && !u.Known {
				t.Fatalf("usage %+v", u)
			}
			if _, failed := o.StreamError(); failed != o.seen.Has(wire.StreamError) {
				t.Fatal("an error that was not told")
			}
			fmt.Fprintf(&sb, "%+v %d %v", u, o.ContentDeltas(), o.Complete())
			return sb.String()
		}
		whole := run(b)
		if cut > 0 && cut < len(b) {
			if got := run(b[:cut], b[cut:]); got != whole {
				t.Fatalf("cut at %d:\n%s\nwhole:\n%s", cut, got, whole)
			}
		}
	})
}
