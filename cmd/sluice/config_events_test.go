package main

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/scoring/discovery"
)

func TestEventKeysReachTheWorker(t *testing.T) {
	template := discovery.Worker{Pool: "p", Models: []string{"m"}}
	got := describeWorkers(template, []WorkerConfig{
		{Name: "a", URL: "http://10.0.0.5:8000", Events: EventsAuto, EventsBind: "tcp://*:6001", EventsFrom: "10.0.0.0/8", Replay: "tcp://10.0.0.5:5558", Ranks: 2},
		{Name: "b", URL: "http://10.0.0.6:8000", Events: "tcp://10.0.0.6:5557", Ranks: 3},
	})
	if w := got[0]; w.Events != "tcp://*:6001" || !w.Bind || w.From != "10.0.0.0/8" || w.Replay != "tcp://10.0.0.5:5558" || w.Ranks != 2 {
		t.Errorf("the worker that connects is %+v", w)
	}
	if w := got[1]; w.Events != "tcp://10.0.0.6:5557" || w.Bind || w.From != "" || w.Ranks != 3 {
		t.Errorf("the worker that listens is %+v", w)
	}
	for _, w := range got {
		if err := w.Validate(); err != nil {
			t.Error(err)
		}
	}
}

// Whoever may say what a worker has cached is named when everyone may.
func TestOpenEventsEndpointIsWarnedOf(t *testing.T) {
	text, err := os.ReadFile("testdata/config/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata/config", fmt.Sprintf("open-%d.yaml", os.Getpid()))
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), "eventsFrom: 127.0.0.0/8", "eventsFrom: 0.0.0.0/0", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(file)
	_, warnings, err := LoadConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range warnings {
		if w.Path == "pools[0].workers[2].eventsFrom" && strings.Contains(w.Text, `everyone who reaches tcp://*:6001 can say what "w3" has cached`) {
			return
		}
	}
	t.Errorf("got the warnings %v", warnings)
}

// TestSubscriptionsListen: each rank's endpoint is listened on, for the worker
// alone, and no longer once its subscriptions end.
func TestSubscriptionsListen(t *testing.T) {
	fleet := scoring.NewFleet(scoring.DefaultConfig())
	id, err := fleet.Add(time.Now(), scoring.WorkerSpec{Name: "w", Pool: "p", Address: "http://127.0.0.2:1", Models: []string{"m"}})
	if err != nil {
		t.Fatal(err)
	}
	subs := newSubscriptions(fleet, slog.New(slog.DiscardHandler))
	subs.doubt = func(scoring.WorkerID) {}
	info := scoring.WorkerInfo{ID: id, Name: "w", Pool: "p"}
	addrs := []string{freeAddr(t), freeAddr(t)}
	var sources []discovery.EventSource
	for r, addr := range addrs {
		sources = append(sources, discovery.EventSource{Rank: r, Endpoint: "tcp://" + addr, Bind: true, From: "127.0.0.2"})
	}
	subs.set(info, sources)
	for _, addr := range addrs {
		for from, want := range map[string]string{"127.0.0.1": "", "127.0.0.2": "\xff"} {
			if got := greeting(t, from, addr); got != want {
				t.Errorf("%s hears %q at %s, want %q", from, got, addr, want)
			}
		}
	}
	soon(t, "the stranger to be counted", stackPatience, func() bool {
		refused := 0
		for _, s := range subs.stats() {
			refused += int(s.incidents()["refused"])
		}
		return refused == len(addrs)
	})
	subs.set(info, nil)
	for _, addr := range addrs {
		if conn, err := net.Dial("tcp", addr); err == nil {
			conn.Close()
			t.Errorf("%s is still listened on", addr)
		}
	}
}

func freeAddr(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// greeting is the first byte that a peer from an address hears; empty when it
// is turned away.
func greeting(t *testing.T, from, addr string) string {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	var conn net.Conn
	soon(t, "the endpoint to be listened on", stackPatience, func() (ok bool) {
		var err error
		conn, err = d.Dial("tcp", addr)
		return err == nil
	})
	defer conn.Close()
	b, err := bufio.NewReader(io.LimitReader(conn, 1)).ReadByte()
	if err != nil {
		return ""
	}
	return string([]byte{b})
}
