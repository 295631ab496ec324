package sse

import (
	"slices"
	"strings"
	"testing"
)

// FuzzScanner checks that events do not depend on reads, that no byte is lost
// and that the fields are those a line-by-line reader finds.
func FuzzScanner(f *testing.F) {
	for _, stream := range recordings(f) {
		f.Add([]byte(stream), uint16(97))
		f.Add([]byte(strings.ReplaceAll(stream, "\n", "\r\n")), uint16(3))
	}
	f.Add([]byte("\xef\xbb\xbfdata: a\r\r\ndata\n\r:c\n\n"), uint16(1))
	f.Fuzz(func(t *testing.T, stream []byte, seed uint16) {
		want, wantRest := scan(t, NewScanner(1000), stream)
		var pieces [][]byte
		for b, n := stream, uint32(seed); len(b) > 0; {
			n = n*1103515245 + 12345
			k := min(len(b), int(n>>16)%40)
			pieces = append(pieces, b[:k])
			b = b[k:]
		}
		got, rest := scan(t, NewScanner(1000), pieces...)
		if !slices.Equal(got, want) || rest != wantRest {
			t.Fatalf("cut in %d:\n got %+v, rest %q\nwant %+v, rest %q", len(pieces), got, rest, want, wantRest)
		}
		if got, rest := scanLent(t, NewScanner(1000), pieces...); !slices.Equal(got, want) || rest != wantRest {
			t.Fatalf("lent in %d:\n got %+v, rest %q\nwant %+v, rest %q", len(pieces), got, rest, want, wantRest)
		}
		s := NewScanner(1000)
		events, _ := scan(t, s, stream)
		whole := ""
		for i, ev := range events {
			whole += ev.raw
			head := i == 0
			if ref := reference(ev.raw, head); ref != ev {
				t.Fatalf("event %q reads as %+v, want %+v", ev.raw, ev, ref)
			}
		}
		if s.Err() == nil && whole != string(stream) {
			t.Fatalf("the events' bytes %q are not the stream %q", whole, stream)
		}
	})
}

// reference reads one event's fields the slow and plain way.
func reference(raw string, head bool) copied {
	ev := copied{raw: raw}
	text := raw
	if head {
		text = strings.TrimPrefix(text, "\ufeff")
	}
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n")
	var data []string
	for line := range strings.SplitSeq(text, "\n") {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "event":
			ev.name, ev.hasName = value, true
		case "data":
			data = append(data, value)
		}
	}
	ev.data, ev.hasData = strings.Join(data, "\n"), len(data) > 0
	return ev
}
