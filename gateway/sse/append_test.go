package sse

import "testing"

func TestAppendEvent(t *testing.T) {
	f := func(name, data, want, read string) {
		t.Helper()
		got := AppendEvent([]byte("before "), name, []byte(data))
		if string(got) != "before "+want {
			t.Errorf("AppendEvent(%q, %q) = %q, want %q", name, data, got, want)
		}
		events, rest := scan(t, &Scanner{}, []byte(want))
		if len(events) != 1 || rest != "" || events[0].name != name || events[0].data != read {
			t.Errorf("%q reads back as %+v, rest %q", want, events, rest)
		}
	}
	f("", "{}", "data: {}\n\n", "{}")
	f("error", "{}", "event: error\ndata: {}\n\n", "{}")
	f("", "", "data: \n\n", "")
	f("", " a", "data:  a\n\n", " a")
	f("", "a\nb", "data: a\ndata: b\n\n", "a\nb")
	f("", "a\r\nb\rc", "data: a\ndata: b\ndata: c\n\n", "a\nb\nc")
	f("", "a\n", "data: a\ndata: \n\n", "a\n")
	f("", "\n\n", "data: \ndata: \ndata: \n\n", "\n\n")
}

func TestAppendComment(t *testing.T) {
	got := AppendComment(nil, "keep-alive")
	if string(got) != ": keep-alive\n\n" {
		t.Errorf("AppendComment gives %q", got)
	}
	events, rest := scan(t, &Scanner{}, got)
	if len(events) != 1 || events[0].hasData || events[0].hasName || rest != "" {
		t.Errorf("it reads back as %+v, rest %q", events, rest)
	}
}

func TestAppendRefusesLineEnds(t *testing.T) {
	f := func(call func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Error("a line end is accepted")
			}
		}()
		call()
	}
	f(func() { AppendEvent(nil, "a\nb", nil) })
	f(func() { AppendComment(nil, "a\rb") })
}
