package sse

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// copied is an event that outlives the scanner's buffers.
type copied struct {
	raw, name, data  string
	hasName, hasData bool
}

func copyOf(ev Event) copied {
	return copied{
		raw: string(ev.Raw), name: string(ev.Name), data: string(ev.Data),
		hasName: ev.Name != nil, hasData: ev.Data != nil,
	}
}

// scan feeds the pieces and returns all events, what End gives included.
func scan(t testing.TB, s *Scanner, pieces ...[]byte) (events []copied, rest string) {
	t.Helper()
	for _, p := range pieces {
		s.Feed(p)
		for ev, ok := s.Next(); ok; ev, ok = s.Next() {
			events = append(events, copyOf(ev))
		}
	}
	if s.Err() != nil {
		return events, ""
	}
	rest = string(s.Rest())
	if s.Pending() != len(rest) {
		t.Fatalf("Pending is %d, Rest has %d bytes", s.Pending(), len(rest))
	}
	if ev, ok := s.End(); ok {
		if string(ev.Raw) != rest {
			t.Fatalf("End gives %q, Rest gave %q", ev.Raw, rest)
		}
		events = append(events, copyOf(ev))
	}
	return events, rest
}

// scanLent is scan with memory that is lent to the scanner and used for something else
// afterwards.
func scanLent(t testing.TB, s *Scanner, pieces ...[]byte) (events []copied, rest string) {
	t.Helper()
	for _, p := range pieces {
		p = bytes.Clone(p)
		s.Lend(p)
		for ev, ok := s.Next(); ok; ev, ok = s.Next() {
			events = append(events, copyOf(ev))
		}
		s.Keep()
		for i := range p {
			p[i] = 'X'
		}
	}
	more, rest := scan(t, s)
	return append(events, more...), rest
}

func TestScannerFraming(t *testing.T) {
	data := func(raw, data string) copied { return copied{raw: raw, data: data, hasData: true} }
	none := func(raw string) copied { return copied{raw: raw} }
	named := func(raw, name, data string) copied {
		return copied{raw: raw, name: name, data: data, hasName: true, hasData: true}
	}
	f := func(name, stream string, rest string, want ...copied) {
		t.Run(name, func(t *testing.T) {
			t.Helper()
			got, gotRest := scan(t, &Scanner{}, []byte(stream))
			if !slices.Equal(got, want) {
				t.Errorf("events of %q:\n got %+v\nwant %+v", stream, got, want)
			}
			if gotRest != rest {
				t.Errorf("rest of %q is %q, want %q", stream, gotRest, rest)
			}
			sameAtEveryCut(t, stream)
		})
	}
	f("nothing", "", "")
	f("LF", "data: a\n\ndata: b\n\n", "", data("data: a\n\n", "a"), data("data: b\n\n", "b"))
	f("CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", "", data("data: a\r\n\r\n", "a"), data("data: b\r\n\r\n", "b"))
	f("CR", "data: a\r\rdata: b\r\r", "", data("data: a\r\r", "a"), data("data: b\r\r", "b"))
	f("LF then CRLF", "data: a\n\r\ndata: b\n\n", "", data("data: a\n\r\n", "a"), data("data: b\n\n", "b"))
	f("CRLF then LF", "data: a\r\n\ndata: b\n\n", "", data("data: a\r\n\n", "a"), data("data: b\n\n", "b"))
	f("CRLF then CR", "data: a\r\n\rdata: b\n\n", "", data("data: a\r\n\r", "a"), data("data: b\n\n", "b"))
	f("LF then CR", "data: a\n\rdata: b\n\n", "", data("data: a\n\r", "a"), data("data: b\n\n", "b"))
	f("CR then CRLF", "data: a\r\r\ndata: b\n\n", "", data("data: a\r\r", "a"), data("\ndata: b\n\n", "b"))
	f("CR then CRLF at the end", "data: a\r\r\n", "\n", data("data: a\r\r", "a"), none("\n"))
	f("a held CR", "data: [DONE]\r\n\r", "data: [DONE]\r\n\r", data("data: [DONE]\r\n\r", "[DONE]"))
	f("several data lines", "data: a\ndata:b\ndata:  c\n\n", "", data("data: a\ndata:b\ndata:  c\n\n", "a\nb\n c"))
	f("several data lines twice", "data: a\ndata: b\n\ndata: c\ndata: d\n\n", "",
		data("data: a\ndata: b\n\n", "a\nb"), data("data: c\ndata: d\n\n", "c\nd"))
	f("data without a colon", "data\ndata\n\n", "", data("data\ndata\n\n", "\n"))
	f("empty data", "data:\n\n", "", data("data:\n\n", ""))
	f("a comment", ": keep-alive\n\n", "", none(": keep-alive\n\n"))
	f("a comment inside", ":x\ndata: a\n:y\n\n", "", data(":x\ndata: a\n:y\n\n", "a"))
	f("a name", "event: message_stop\ndata: {}\n\n", "", named("event: message_stop\ndata: {}\n\n", "message_stop", "{}"))
	f("the last name", "event: a\ndata: x\nevent: b\n\n", "", named("event: a\ndata: x\nevent: b\n\n", "b", "x"))
	f("a name alone", "event: a\n\n", "", copied{raw: "event: a\n\n", name: "a", hasName: true})
	f("unknown fields", "id: 7\nretry: 10\ndatum: x\ndata: a\n\n", "", data("id: 7\nretry: 10\ndatum: x\ndata: a\n\n", "a"))
	f("colons in the value", "data: a:b: c\n\n", "", data("data: a:b: c\n\n", "a:b: c"))
	f("blank lines alone", "\n\r\ndata: a\n\n", "", none("\n"), none("\r\n"), data("data: a\n\n", "a"))
	f("a mark at the head", "\xef\xbb\xbfdata: a\n\ndata: b\n\n", "", data("\xef\xbb\xbfdata: a\n\n", "a"), data("data: b\n\n", "b"))
	f("a mark and a blank line", "\xef\xbb\xbf\ndata: a\n\n", "", none("\xef\xbb\xbf\n"), data("data: a\n\n", "a"))
	f("a mark alone", "\xef\xbb\xbf", "\xef\xbb\xbf", none("\xef\xbb\xbf"))
	f("a mark later", "data: a\n\n\xef\xbb\xbfdata: b\n\n", "", data("data: a\n\n", "a"), none("\xef\xbb\xbfdata: b\n\n"))
	f("half an event", "data: a\n\ndata: b\n", "data: b\n", data("data: a\n\n", "a"), data("data: b\n", "b"))
	f("half a line", "data: a\n\nda", "da", data("data: a\n\n", "a"), none("da"))
	f("not UTF-8", "data: \xff\xfe\n\n", "", data("data: \xff\xfe\n\n", "\xff\xfe"))
	f("NUL", "data: a\x00b\n\n", "", data("data: a\x00b\n\n", "a\x00b"))
}

// Views hold until the next Feed, not only until the next Next.
func TestScannerViewsHold(t *testing.T) {
	var s Scanner
	s.Feed([]byte("data: a\ndata: b\n\nevent: n\ndata: c\n\ndata: d\ndata: e\n\n" + strings.Repeat("data: f\ndata: g\n\n", 100)))
	var views []Event
	var early []copied
	for ev, ok := s.Next(); ok; ev, ok = s.Next() {
		views = append(views, ev)
		early = append(early, copyOf(ev))
	}
	if len(views) != 103 {
		t.Fatalf("%d events, want 103", len(views))
	}
	for i, ev := range views {
		if copyOf(ev) != early[i] {
			t.Errorf("event %d changed before the next Feed: %+v, then %+v", i, early[i], copyOf(ev))
		}
	}
}

// A stream may last for days: what it needs must not grow with it.
func TestScannerMemoryIsBounded(t *testing.T) {
	var s Scanner
	for range 10000 {
		s.Feed([]byte("data: a\ndata: b\n\ndata: c\ndata: d\n\ndata: ha"))
		for _, ok := s.Next(); ok; _, ok = s.Next() {
		}
		s.Feed([]byte("lf\n\n"))
		for _, ok := s.Next(); ok; _, ok = s.Next() {
		}
	}
	if cap(s.buf) > 200 || cap(s.join) > 200 {
		t.Errorf("after 30000 events the buffers hold %d and %d bytes", cap(s.buf), cap(s.join))
	}
}

// sameAtEveryCut checks that the events do not depend on the reads: the stream
// cut in two at every offset, and cut into pieces of every size up to 9.
func sameAtEveryCut(t testing.TB, stream string) {
	t.Helper()
	b := []byte(stream)
	want, wantRest := scan(t, &Scanner{}, b)
	check := func(how string, pieces ...[]byte) {
		t.Helper()
		got, rest := scan(t, &Scanner{}, pieces...)
		if !slices.Equal(got, want) || rest != wantRest {
			t.Fatalf("%s:\n got %+v, rest %q\nwant %+v, rest %q", how, got, rest, want, wantRest)
		}
	}
	for i := range b {
		check(fmt.Sprintf("cut at %d", i), b[:i], b[i:])
	}
	for size := 1; size < 10; size++ {
		check(fmt.Sprintf("pieces of %d", size), append(slices.Collect(slices.Chunk(b, size)), nil)...)
	}
}

func recordings(t testing.TB) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.sse")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no recorded streams (%v)", err)
	}
	streams := map[string]string{}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		streams[filepath.Base(path)] = string(b)
	}
	return streams
}

func TestScannerRecordings(t *testing.T) {
	wantEvents := map[string]int{
		"chat_stream_nousage.sse": 8, "chat_stream_usage.sse": 9, "chat_stream_continuous.sse": 9,
		"chat_n2_logprobs.sse": 9, "completions_ids_stream.sse": 6, "messages_stream.sse": 9, "responses_stream.sse": 12,
	}
	for name, stream := range recordings(t) {
		for ending, to := range map[string]string{"LF": "\n", "CRLF": "\r\n", "CR": "\r"} {
			t.Run(name+" "+ending, func(t *testing.T) {
				stream := strings.ReplaceAll(stream, "\n", to)
				events, rest := scan(t, &Scanner{}, []byte(stream))
				if len(events) != wantEvents[name] || rest != "" {
					t.Errorf("%d events and rest %q, want %d and none", len(events), rest, wantEvents[name])
				}
				whole := ""
				for _, ev := range events {
					whole += ev.raw
					if !ev.hasData || !strings.HasSuffix(ev.raw, to+to) {
						t.Errorf("event %+v has no data or no blank line", ev)
					}
				}
				if whole != stream {
					t.Error("the events' bytes are not the stream's")
				}
				if ending == "LF" || len(stream) < 2000 {
					sameAtEveryCut(t, stream)
				}
			})
		}
	}
}

// A client that reads CRLF must get both bytes of the blank line at once, and
// one that reads CR must not wait for a byte that does not come.
func TestScannerHandsOutAtOnce(t *testing.T) {
	f := func(feed string, events int) {
		t.Helper()
		var s Scanner
		s.Feed([]byte(feed))
		got := 0
		for _, ok := s.Next(); ok; _, ok = s.Next() {
			got++
		}
		if got != events {
			t.Errorf("%q gives %d events at once, want %d", feed, got, events)
		}
	}
	f("data: a\n\n", 1)
	f("data: a\r\n\r\n", 1)
	f("data: a\r\r", 1)
	f("data: a\r\n\r", 0)
	f("data: a\n\r", 0)
}

func TestScannerLimit(t *testing.T) {
	event := "data: " + strings.Repeat("x", 100) + "\n\n"
	f := func(name, stream string, events int, tooLarge bool) {
		t.Run(name, func(t *testing.T) {
			t.Helper()
			for cut := range stream {
				s := NewScanner(len(event))
				got, _ := scan(t, s, []byte(stream[:cut]), []byte(stream[cut:]))
				var large *TooLargeError
				if errors.As(s.Err(), &large) != tooLarge {
					t.Fatalf("cut at %d: error %v", cut, s.Err())
				}
				if tooLarge && (large.Limit != len(event) || !strings.Contains(large.Error(), "108 bytes")) {
					t.Fatalf("the error is %v", large)
				}
				if len(got) != events {
					t.Fatalf("cut at %d: %d events, want %d", cut, len(got), events)
				}
			}
		})
	}
	f("fits", event+event, 2, false)
	f("one byte over", event+"data: x"+event, 1, true)
	f("never ends", event+strings.Repeat("y", len(event)+1), 1, true)
	f("ends within", event+strings.Repeat("y", len(event)), 2, false)
	f("many comments", strings.Repeat(":\n", len(event)), 0, true)
}

func TestScannerDefaultLimit(t *testing.T) {
	var s Scanner
	block := bytes.Repeat([]byte{'x'}, 1<<20)
	for range 16 {
		s.Feed(block)
		if _, ok := s.Next(); ok || s.Err() != nil {
			t.Fatalf("event %v, error %v within the limit", ok, s.Err())
		}
	}
	s.Feed([]byte("y"))
	if _, ok := s.Next(); ok || s.Err() == nil {
		t.Fatal("an event over 16 MiB is accepted")
	}
	if _, ok := s.End(); ok {
		t.Fatal("an event over 16 MiB is handed out at the end")
	}
}

func TestScannerReset(t *testing.T) {
	s := NewScanner(20)
	scan(t, s, []byte("data: a\r\r"), bytes.Repeat([]byte{'x'}, 30))
	if s.Err() == nil {
		t.Fatal("no error before the reset")
	}
	s.Reset()
	got, rest := scan(t, s, []byte("\xef\xbb\xbf\n"), []byte("data: b\n\n"))
	want := []copied{{raw: "\xef\xbb\xbf\n"}, {raw: "data: b\n\n", data: "b", hasData: true}}
	if !slices.Equal(got, want) || rest != "" || s.Err() != nil {
		t.Errorf("after a reset: %+v, rest %q, error %v", got, rest, s.Err())
	}
	s.Reset()
	if scan(t, s, bytes.Repeat([]byte{'x'}, 30)); s.Err() == nil {
		t.Error("a reset forgets the limit")
	}
	s.Feed(bytes.Repeat([]byte{'x'}, maxKept+1))
	if s.Reset(); cap(s.buf) != 0 {
		t.Errorf("a reset keeps a buffer of %d bytes", cap(s.buf))
	}
}
