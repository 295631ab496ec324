package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/scoring/simworker"
)

// startWorkers starts the demo's workers and writes its files.
func startWorkers(t *testing.T) *demo {
	t.Helper()
	d, err := newDemo(demoOptions{public: "127.0.0.1:0", admin: "127.0.0.1:0", timeScale: 0.1}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close the demo: %v", err)
		}
	})
	return d
}

// startPlatform starts the demo's workers and, from its files, a gateway as a process of its own. edit changes
// the configuration file before; limit, if not empty, is what the shell runs before the gateway.
func startPlatform(t *testing.T, limit string, edit ...string) (*demo, *child) {
	t.Helper()
	d := startWorkers(t)
	file := filepath.Join(d.dir, "sluice.yaml")
	replaceIn(t, file, append([]string{"level: warn", "level: info"}, edit...)...)
	cmd := exec.Command(os.Args[0], "serve", "-c", file)
	if limit != "" {
		cmd = exec.Command("sh", "-c", limit+` && exec "$0" serve -c "$1"`, os.Args[0], file)
	}
	c := startCommand(t, cmd)
	c.waitReady(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.out.String())
		}
	})
	return d, c
}

const storyBody = `{"model":"demo-chat","stream":true,"ignore_eos":true,"max_tokens":100,"messages":[{"role":"user","content":"a story"}]}`

// stall makes every worker's engine stand still, or go on.
func stall(d *demo, still bool) {
	var f simworker.Fault
	if still {
		f.Stall = -1
	}
	for _, w := range d.workers {
		w.SetFault(f)
	}
}

// readEvents reads n events of a stream.
func readEvents(t *testing.T, events *gatewaytest.EventReader, n int) {
	t.Helper()
	for range n {
		if _, err := events.Next(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTerminatedUnderLoad: a gateway that is told to end under load, before a balancer that asks whether it is
// ready, fails nobody. Streams that are open end whole after its listeners are closed; what comes on a
// connection that is still open then is sent elsewhere by a 503; the process ends with code 0, and every
// answer that was given is in the books.
func TestTerminatedUnderLoad(t *testing.T) {
	beforeMidnight(t) // the books are looked at by the month
	d, c := startPlatform(t, "", "drain: { delay: 0s, deadline: 5s }", "drain: { delay: 8s, deadline: 60s }")
	public, admin, _ := c.addresses()
	var open []*gatewaytest.EventReader
	for range 4 {
		s := gatewaytest.Dial(t, public)
		s.Send("POST", chatPath, storyBody, "Authorization: Bearer "+d.keys["acme"])
		events := gatewaytest.NewEventReader(s.Head().Body)
		readEvents(t, events, 3)
		open = append(open, events)
	}
	stall(d, true)
	late := gatewaytest.Dial(t, public)
	text := gatewaytest.RequestText("POST", chatPath, `{"model":"demo-chat","messages":[]}`, "Authorization: Bearer "+d.keys["acme"])
	if err := late.Write(text[:20]); err != nil {
		t.Fatal(err)
	}

	// The load is of requests that need no engine, each on a connection of many uses, until the balancer says
	// that no more should come here.
	var away atomic.Bool
	var good, told atomic.Int64
	var load sync.WaitGroup
	client := &http.Client{Timeout: childPatience}
	defer client.CloseIdleConnections()
	for range 8 {
		load.Go(func() {
			for !away.Load() {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+public+"/v1/models", nil)
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("Authorization", "Bearer "+d.keys["globex"])
				resp, err := client.Do(req)
				if err != nil {
					t.Errorf("a request under load: %v", err)
					return
				}
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusServiceUnavailable {
					t.Errorf("a request under load: %d %v", resp.StatusCode, err)
					return
				}
				good.Add(1)
				if resp.Close {
					told.Add(1)
				}
			}
		})
	}
	soon(t, "load", childPatience, func() bool { return good.Load() > 100 })
	c.signal(t, syscall.SIGTERM)
	soon(t, "readiness to end", childPatience, func() bool {
		status, text := fetch(http.DefaultClient, "http://"+public+"/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(text, "draining")
	})
	soon(t, "an answer that tells its client to leave the connection", childPatience, func() bool { return told.Load() > 0 })
	away.Store(true)
	load.Wait()
	soon(t, "the listener to close", childPatience, func() bool {
		conn, err := net.DialTimeout("tcp", public, childPatience)
		if err == nil {
			conn.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	if n := c.metric(t, "sluice_draining"); n != 1 {
		t.Errorf("sluice_draining is %f", n)
	}
	if err := late.Write(text[20:]); err != nil {
		t.Fatal(err)
	}
	if resp, body := late.Answer(); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, `"code":"unavailable"`) || !resp.Close || resp.Header.Get("Retry-After") == "" {
		t.Errorf("a request on a connection that was still open: %d %v %s", resp.StatusCode, resp.Header, body)
	}
	stall(d, false)
	for i, events := range open {
		rest, err := events.All()
		if err != nil || len(rest) < 50 || rest[len(rest)-1].Data != "[DONE]" {
			t.Errorf("stream %d that was open: %d events more, %v", i, len(rest), err)
		}
	}
	select {
	case <-c.ended:
	case <-time.After(childPatience):
		t.Fatalf("the gateway does not end although nothing runs; the admin listener was %s", admin)
	}
	if code := c.cmd.ProcessState.ExitCode(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if log := c.out.String(); !strings.Contains(log, "msg=drained") || strings.Contains(log, "level=ERROR") {
		t.Error("the log does not tell of an orderly end")
	}
	var books bytes.Buffer
	code := execute(t.Context(), time.Now, []string{"chargeback", "reconcile", "-c", filepath.Join(d.dir, "sluice.yaml"), "--period", time.Now().UTC().Format("2006-01")}, strings.NewReader(""), &books, &books)
	if code != exitOK {
		t.Errorf("the books don't agree afterwards, code %d:\n%s", code, books.String())
	}
}

// TestDrainDeadline: a stream that outlives the deadline ends with an error that clients try again on.
func TestDrainDeadline(t *testing.T) {
	d, c := startPlatform(t, "", "drain: { delay: 0s, deadline: 5s }", "drain: { delay: 0s, deadline: 1s }")
	public, _, _ := c.addresses()
	s := gatewaytest.Dial(t, public)
	s.Send("POST", chatPath, storyBody, "Authorization: Bearer "+d.keys["acme"])
	events := gatewaytest.NewEventReader(s.Head().Body)
	readEvents(t, events, 3)
	stall(d, true)
	defer stall(d, false)
	c.signal(t, syscall.SIGTERM)
	rest, err := events.All()
	if err != nil || len(rest) == 0 || !strings.Contains(rest[len(rest)-1].Data, `"code":"unavailable"`) {
		t.Errorf("the stream ended with %v, %v", rest, err)
	}
	select {
	case <-c.ended:
	case <-time.After(childPatience):
		t.Fatal("the gateway does not end")
	}
	if code := c.cmd.ProcessState.ExitCode(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// TestSecondSignal ends the process at once, with code 1, whatever runs.
func TestSecondSignal(t *testing.T) {
	d, c := startPlatform(t, "", "drain: { delay: 0s, deadline: 5s }", "drain: { delay: 1h, deadline: 1h }")
	public, _, _ := c.addresses()
	s := gatewaytest.Dial(t, public)
	s.Send("POST", chatPath, storyBody, "Authorization: Bearer "+d.keys["acme"])
	events := gatewaytest.NewEventReader(s.Head().Body)
	readEvents(t, events, 3)
	stall(d, true)
	defer stall(d, false)
	c.signal(t, syscall.SIGINT)
	soon(t, "the drain", childPatience, func() bool { return strings.Contains(c.out.String(), "msg=draining") })
	c.signal(t, syscall.SIGTERM)
	select {
	case <-c.ended:
	case <-time.After(childPatience):
		t.Fatal("the gateway does not end at a second signal")
	}
	if code := c.cmd.ProcessState.ExitCode(); code != exitFailed {
		t.Errorf("exit code %d, want %d", code, exitFailed)
	}
	if !strings.Contains(c.out.String(), "second signal, ending at once") {
		t.Error("the log does not say why")
	}
}

// TestStartOnATakenPort ends at once with code 1, says whose the port is, and has opened nothing.
func TestStartOnATakenPort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	d, err := newDemo(demoOptions{public: taken.Addr().String(), admin: taken.Addr().String(), timeScale: 0.1}, slog.New(slog.DiscardHandler))
	if err == nil {
		d.Close()
		t.Fatal("a configuration with one address for both listeners was taken")
	}
	if d, err = newDemo(demoOptions{public: taken.Addr().String(), admin: "127.0.0.1:0", timeScale: 0.1}, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c := startChild(t, filepath.Join(d.dir, "sluice.yaml"))
	select {
	case <-c.ended:
	case <-time.After(childPatience):
		t.Fatal("the gateway does not end")
	}
	if code := c.cmd.ProcessState.ExitCode(); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	for _, part := range []string{"cannot listen on listen.public.address", taken.Addr().String(), "address already in use", fmt.Sprintf("process %d (", os.Getpid())} {
		if !strings.Contains(c.out.String(), part) {
			t.Errorf("the error lacks %q: %s", part, c.out.String())
		}
	}
	if files, _ := filepath.Glob(filepath.Join(d.dir, "ledger.db*")); len(files) > 0 {
		t.Errorf("it has opened %v", files)
	}
}

// strangers open connections from an address of this machine, send a request without a credential on each, and
// hold it.
type strangers struct {
	addr string
	held []net.Conn
	// refused and answered count what came of them.
	refused, answered int
}

func (s *strangers) come(local string, n int) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}, Timeout: childPatience}
	for range n {
		c, err := d.DialContext(context.Background(), "tcp", s.addr)
		if err != nil {
			s.refused++
			continue
		}
		_ = c.SetDeadline(time.Now().Add(childPatience))
		_, err = io.WriteString(c, "GET /v1/models HTTP/1.1\r\nHost: gateway.test\r\n\r\n")
		var resp *http.Response
		if err == nil {
			resp, err = http.ReadResponse(bufio.NewReader(c), nil)
		}
		if err != nil {
			c.Close()
			s.refused++
			continue
		}
		if resp.StatusCode == http.StatusUnauthorized {
			s.answered++
		}
		s.held = append(s.held, c)
	}
}

func (s *strangers) leave() {
	for _, c := range s.held {
		c.Close()
	}
	s.held = nil
}

// TestDescriptorsExhausted: with 256 file descriptors, a thousand connections of strangers who have no key
// take none from a tenant, and no worker is blamed for what the gateway itself lacks.
func TestDescriptorsExhausted(t *testing.T) {
	d, c := startPlatform(t, "ulimit -n 256")
	public, _, _ := c.addresses()
	ask := func(client *gatewaytest.Client) {
		t.Helper()
		client.Send("POST", chatPath, `{"model":"demo-chat","max_tokens":4,"messages":[{"role":"user","content":"hello"}]}`, "Authorization: Bearer "+d.keys["acme"])
		if resp, body := client.Answer(); resp.StatusCode != http.StatusOK {
			t.Errorf("the tenant got %d %s", resp.StatusCode, body)
		}
	}
	kept := gatewaytest.DialFrom(t, "127.0.0.2", public, nil)
	ask(kept)
	s := &strangers{addr: public}
	defer s.leave()
	s.come("127.0.0.1", 500) // one address
	if s.answered == 0 || s.answered > 16 {
		t.Errorf("%d connections of one address were served, want at most 16", s.answered)
	}
	ask(kept)
	ask(gatewaytest.DialFrom(t, "127.0.0.3", public, nil))
	for i := range 50 { // and many
		s.come(fmt.Sprintf("127.0.1.%d", i+1), 10)
	}
	if s.answered > 64 {
		t.Errorf("%d connections were served, want at most 64", s.answered)
	}
	for range 5 {
		ask(kept)
	}
	if n := c.metric(t, "sluice_http_connections_refused_total"); n < 900 || s.refused < 900 {
		t.Errorf("%f refusals are counted, %d were seen", n, s.refused)
	}
	if !strings.Contains(c.out.String(), "connections are refused") {
		t.Error("the log does not tell of it")
	}
	for _, name := range []string{"sluice_worker_ejections_total", "sluice_worker_failures_total"} {
		if n := c.metric(t, name); n != 0 {
			t.Errorf("%s is %f", name, n)
		}
	}
	if n := c.metric(t, "sluice_worker_ready"); int(n) != len(d.workers) {
		t.Errorf("%f workers are ready", n)
	}
	s.leave()
	soon(t, "room for a new connection", childPatience, func() bool { return c.metric(t, "sluice_http_connections") < 10 })
	ask(gatewaytest.DialFrom(t, "127.0.0.4", public, nil))
	c.stop(t)
}

// TestDescriptorsGone: where an operator permits more connections than there are descriptors, and strangers
// take them all, that is no fault of any worker: none is set aside, and once the strangers have gone all is as
// before.
func TestDescriptorsGone(t *testing.T) {
	d, c := startPlatform(t, "ulimit -n 160", "log: {", "limits: { connections: 2000, connectionsPerAddress: 2000 }\nhealth: { interval: 100ms }\nlog: {")
	public, _, _ := c.addresses()
	if !strings.Contains(c.out.String(), "this process may have 160; raise its limit") {
		t.Error("the log does not tell that so many connections can't be had")
	}
	kept := gatewaytest.DialFrom(t, "127.0.0.2", public, nil)
	ask := func() (int, string) {
		kept.Send("POST", chatPath, `{"model":"demo-chat","max_tokens":4,"messages":[{"role":"user","content":"hello"}]}`, "Authorization: Bearer "+d.keys["acme"])
		resp, body := kept.Answer()
		return resp.StatusCode, body
	}
	if status, body := ask(); status != http.StatusOK {
		t.Fatalf("got %d %s", status, body)
	}
	var held []net.Conn
	defer func() {
		for _, conn := range held {
			conn.Close()
		}
	}()
	for range 300 {
		conn, err := net.DialTimeout("tcp", public, childPatience)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
	}
	soon(t, "the descriptors to run out", childPatience, func() bool { return strings.Contains(c.out.String(), "cannot accept connections at the moment") })
	// A kept connection to a worker may serve some of these; none of them may be put down to a worker, and
	// neither may the probes of the time.
	for begin := time.Now(); time.Since(begin) < 10*100*time.Millisecond; time.Sleep(20 * time.Millisecond) {
		if status, body := ask(); status != http.StatusOK && (status != http.StatusServiceUnavailable || !strings.Contains(body, `"code":"unavailable"`)) {
			t.Errorf("without descriptors: %d %s", status, body)
		}
	}
	for _, conn := range held {
		conn.Close()
	}
	held = nil
	soon(t, "the connections to end", childPatience, func() bool {
		status, _ := fetch(http.DefaultClient, "http://"+public+"/healthz")
		return status == http.StatusOK && c.metric(t, "sluice_http_connections") < 20
	})
	if status, body := ask(); status != http.StatusOK {
		t.Errorf("afterwards: %d %s", status, body)
	}
	for _, name := range []string{"sluice_worker_ejections_total", "sluice_worker_failures_total"} {
		if n := c.metric(t, name); n != 0 {
			t.Errorf("%s is %f", name, n)
		}
	}
	c.stop(t)
}
