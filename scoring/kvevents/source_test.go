package kvevents

import (
	"net"
	"strings"
	"testing"
	"time"
)

// Only the configured peer may connect to an endpoint of ours.
func TestSubscriberRefusesStrangers(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	s := newSink()
	src := Source{Worker: 7, Rank: 1, Name: "w", Endpoint: "tcp://" + addr, Bind: true, From: "127.0.0.2"}
	sub, stop := run(t, src, s, testOptions())
	connect := func(from string) net.Conn {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		for {
			conn, err := d.Dial("tcp", addr)
			if err == nil {
				t.Cleanup(func() { conn.Close() })
				return conn
			}
			if !strings.Contains(err.Error(), "refused") {
				t.Fatal(err)
			}
			<-time.After(time.Millisecond) // it does not listen yet
		}
	}
	for range 3 {
		if n, err := connect("127.0.0.1").Read(make([]byte, 1)); err == nil {
			t.Fatalf("a stranger got %d bytes", n)
		}
	}
	sub.says(t, func(st Stats) bool { return st.Refused == 3 && st.Connects == 0 && st.ConnectErrors == 0 })
	if n, err := connect("127.0.0.2").Read(make([]byte, 1)); err != nil || n != 1 {
		t.Errorf("the worker got %d bytes, %v, want our greeting", n, err)
	}
	stop()
	checkGoroutines(t)
}

func TestSourceAdmits(t *testing.T) {
	f := func(from, peer, want string) {
		t.Helper()
		err := Source{Bind: true, From: from}.admits(t.Context(), &net.TCPAddr{IP: net.ParseIP(peer), Port: 9})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s from %q: %v, want %q", peer, from, err, want)
		}
	}
	f("", "10.0.0.5", "")
	f("10.0.0.5", "10.0.0.5", "")
	f("10.0.0.5", "::ffff:10.0.0.5", "")
	f("10.0.0.5", "10.0.0.6", `10.0.0.6 is not "10.0.0.5"`)
	f("10.0.0.0/8", "10.9.9.9", "")
	f("10.0.0.0/8", "11.0.0.1", "11.0.0.1 is not in 10.0.0.0/8")
	f("fd00::/16", "fd00::9", "")
	f("localhost", "127.0.0.1", "")
	f("localhost", "10.0.0.1", "is not")
	f("no host", "10.0.0.1", "cannot tell whether 10.0.0.1 may")
	if err := (Source{Bind: true, From: "10.0.0.5"}).admits(t.Context(), &net.UnixAddr{Name: "/run/kv"}); err != nil {
		t.Errorf("a Unix socket: %v", err)
	}
}
