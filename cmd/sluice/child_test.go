package main

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// childPatience bounds the start and the end of a child.
const childPatience = 60 * time.Second

// child is `sluice serve` in a process of its own.
type child struct {
	cmd   *exec.Cmd
	out   syncBuffer    // standard output and standard error
	ended chan struct{} // closed when the process has ended and out is whole
	// client and scheme reach the public listener.
	client *http.Client
	scheme string

	mu            sync.Mutex // protects what follows
	public, admin string     // addresses; empty until it serves
}

// startChild starts a gateway from a configuration file, whose log is in the form
// of text and has informative lines. The process ends with the test.
func startChild(t testing.TB, file string, env ...string) *child {
	t.Helper()
	return startCommand(t, exec.Command(os.Args[0], "serve", "-c", file), env...)
}

// startCommand is startChild with a command line that comes to the same in the end.
func startCommand(t testing.TB, cmd *exec.Cmd, env ...string) *child {
	t.Helper()
	c := &child{cmd: cmd, ended: make(chan struct{}), client: http.DefaultClient, scheme: "http"}
	c.cmd.Env = append(append(os.Environ(), asSluice+"=1"), env...)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.cmd.Stdout, c.cmd.Stderr = w, w
	err = c.cmd.Start()
	w.Close()
	if err != nil {
		r.Close()
		t.Fatal(err)
	}
	go c.listen(r)
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-c.ended
	})
	return c
}

var servingLine = regexp.MustCompile(`msg=serving public=(\S+) admin=(\S+) `)

// listen keeps what the process says, and learns its addresses from it.
func (c *child) listen(r *os.File) {
	defer close(c.ended)
	defer func() { _ = c.cmd.Wait() }() // most are killed
	defer r.Close()
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		_, _ = c.out.Write(line)
		if bytes.Contains(line, []byte("msg=serving ")) {
			if m := servingLine.FindSubmatch(line); m != nil {
				c.mu.Lock()
				c.public, c.admin = string(m[1]), string(m[2])
				c.mu.Unlock()
			}
		}
		if err != nil {
			return
		}
	}
}

// addresses are those of the two listeners, once it serves.
func (c *child) addresses() (public, admin string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.public, c.admin, c.public != ""
}

// waitReady waits until the gateway has a worker to send requests to.
func (c *child) waitReady(t testing.TB) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(2 * time.Millisecond) {
		if public, _, ok := c.addresses(); ok {
			if status, _ := fetch(c.client, c.scheme+"://"+public+"/readyz"); status == http.StatusOK {
				return
			}
		}
		select {
		case <-c.ended:
			t.Fatalf("the gateway ended by itself:\n%s", c.out.String())
		default:
		}
		if time.Since(start) > childPatience {
			t.Fatalf("the gateway is not ready after %v:\n%s", childPatience, c.out.String())
		}
	}
}

// kill ends the process without a warning and waits until it is gone.
func (c *child) kill() {
	_ = c.cmd.Process.Signal(syscall.SIGKILL)
	<-c.ended
}

// signal asks the process for something.
func (c *child) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		t.Error(err)
	}
}

// stop ends the process in an orderly way.
func (c *child) stop(t testing.TB) {
	t.Helper()
	c.signal(t, syscall.SIGTERM)
	select {
	case <-c.ended:
	case <-time.After(childPatience):
		t.Fatalf("the gateway has not drained within %v:\n%s", childPatience, c.out.String())
	}
	if code := c.cmd.ProcessState.ExitCode(); code != exitOK {
		t.Errorf("the gateway ended with code %d:\n%s", code, c.out.String())
	}
}

// metric is the sum of all series of a name.
func (c *child) metric(t testing.TB, name string) (sum float64) {
	t.Helper()
	_, admin, ok := c.addresses()
	if !ok {
		t.Fatal("the gateway does not serve yet")
	}
	status, text := fetch(http.DefaultClient, "http://"+admin+"/metrics")
	if status != http.StatusOK {
		t.Fatalf("the metrics: %d %s", status, text)
	}
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' ')+1:]), 64)
		if err != nil {
			t.Fatalf("the metrics: %q: %v", line, err)
		}
		sum += v
	}
	return sum
}

// fetch gets a page; the status is 0 if nobody answers.
func fetch(client *http.Client, url string) (status int, text string) {
	resp, err := client.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

// replaceIn edits a file.
func replaceIn(t testing.TB, file string, pairs ...string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if !bytes.Contains(text, []byte(pairs[i])) {
			t.Fatalf("%s has no %q", file, pairs[i])
		}
		text = bytes.Replace(text, []byte(pairs[i]), []byte(pairs[i+1]), 1)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}
