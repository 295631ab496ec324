//go:build linux && !race

package gateway

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
)

// streamsChild, set in the environment, makes TestMemoryOfStreams the gateway before
// the worker at that address.
const streamsChild = "SLUICE_TEST_STREAMS_WORKER"

// TestMemoryOfStreams: an open TLS stream takes at most 36 KiB of a process of its own
// that keeps no garbage: crypto/tls, stack, connections and all.
func TestMemoryOfStreams(t *testing.T) {
	if worker := os.Getenv(streamsChild); worker != "" {
		serveStreams(t, worker)
		return
	}
	const streams = 400
	worker := gatewaytest.NewWorker(t, gatewaytest.StallAfter(gatewaytest.RoleEvent, gatewaytest.ContentEvent("a", "")))
	cmd := exec.Command(os.Args[0], "-test.run", "^TestMemoryOfStreams$", "-test.timeout", "5m")
	cmd.Env = append(os.Environ(), streamsChild+"="+worker.URL())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		in.Close()
		_ = cmd.Wait()
	}()
	out := bufio.NewReader(pipe)
	line := func() string {
		for {
			text, err := out.ReadString('\n')
			if err != nil {
				t.Fatalf("the gateway ended: %v", err)
			}
			if after, ok := strings.CutPrefix(text, "> "); ok {
				return strings.TrimSpace(after)
			}
		}
	}
	addr := line()
	held := func() int {
		if _, err := io.WriteString(in, "collect\n"); err != nil {
			t.Fatal(err)
		}
		line()
		return anonymous(t, cmd.Process.Pid)
	}
	open := func(n int) {
		for range n {
			c := gatewaytest.DialTLS(t, addr, &tls.Config{InsecureSkipVerify: true})
			c.Send("POST", "/v1/chat/completions", streamBody, "Authorization: Bearer "+goodKey)
			if _, err := gatewaytest.NewEventReader(c.Head().Body).Next(); err != nil {
				t.Fatal(err)
			}
		}
	}
	open(20) // what is made once
	before := held()
	open(streams)
	each := (held() - before) / streams
	t.Logf("an open TLS stream takes %d bytes", each)
	if each > 36<<10 {
		t.Errorf("an open TLS stream takes %d bytes", each)
	}
}

// serveStreams is a gateway until its standard input ends. Every line of it has the
// garbage collected.
func serveStreams(t *testing.T, worker string) {
	r := newRig(t, []string{worker}, withTLS(), withConfig(func(c *Config) { c.StreamIdle = 5 * time.Minute }))
	fmt.Printf("> %s\n", r.addr)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		debug.FreeOSMemory()
		time.Sleep(50 * time.Millisecond) // stacks are given back in the background
		debug.FreeOSMemory()
		fmt.Println("> done")
	}
	r.shutdownAtOnce()
}

var rssAnon = regexp.MustCompile(`RssAnon:\s+(\d+) kB`)

// anonymous is the memory of a process that is of no file, in bytes.
func anonymous(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	m := rssAnon.FindSubmatch(status)
	if m == nil {
		t.Fatalf("no RssAnon in %s", status)
	}
	n, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}
