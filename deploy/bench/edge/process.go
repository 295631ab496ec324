package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a child in a group of its own, with its output in a file.
type process struct {
	name, log string
	cmd       *exec.Cmd
	done      chan struct{} // closed when it has ended
	err       error         // valid once done is closed
}

func startProcess(dir, name string, env []string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// stop ends the process and its children: politely, then not.
func (p *process) stop() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(8 * time.Second):
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
}

// tail returns the end of the log, for messages.
func (p *process) tail() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-2000):])
}

// waitFor asks until check is content, the process ends or patience does.
func (p *process) waitFor(ctx context.Context, patience time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended while starting: %w\n%s", p.name, errors.Join(p.err, err), p.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s was not ready within %v: %w\n%s", p.name, patience, err, p.tail())
		case <-tick.C:
		}
	}
}

// group is the process and all that it has started.
func (p *process) group() []int {
	root := p.cmd.Process.Pid
	var pids []int
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return []int{root}
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if pgid, err := syscall.Getpgid(pid); err == nil && pgid == root {
			pids = append(pids, pid)
		}
	}
	return pids
}

// clockTick is the unit of CPU times in /proc, the same on every Linux that Go
// runs on.
const clockTick = 10 * time.Millisecond

// cpu is the processor time that the process and its children have used.
func (p *process) cpu() time.Duration {
	var sum time.Duration
	for _, pid := range p.group() {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it has ended
		}
		// The name, in parentheses, may hold anything; user and system time are the
		// 12th and 13th field after it.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 13 {
			continue
		}
		for _, f := range fields[11:13] {
			if n, err := strconv.ParseInt(f, 10, 64); err == nil {
				sum += time.Duration(n) * clockTick
			}
		}
	}
	return sum
}

// rss is the memory that the process and its children hold, in bytes.
func (p *process) rss() int64 {
	var sum int64
	for _, pid := range p.group() {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(status)) {
			if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
				if kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64); err == nil {
					sum += kb << 10
				}
			}
		}
	}
	return sum
}

// get fetches a URL and returns the body of a 200.
func get(ctx context.Context, url, token string, tlsConfig *tls.Config) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	hc := http.Client{Transport: &http.Transport{TLSClientConfig: tlsConfig, DisableKeepAlives: true}}
	resp, err := hc.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: status %d", url, resp.StatusCode)
	}
	return body, err
}

// freePorts returns ports that were free a moment ago, for programs that
// cannot say which one they took.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer ln.Close()
		ports = append(ports, ln.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

func loopback(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
