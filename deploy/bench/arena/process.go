package main

import (
	"bytes"
	"context"
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

// process is a child with its output in a file.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // valid once done is closed
}

// startProcess starts a command. stdout may be nil; all other output goes to
// NAME.log in dir.
func startProcess(dir, name string, stdout io.Writer, env []string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	if stdout != nil {
		p.cmd.Stdout = stdout
	}
	p.cmd.Env = append(os.Environ(), env...)
	// A group of its own, so that children of its own end with it.
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

// stop ends the process: politely, then not.
func (p *process) stop() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(5 * time.Second):
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

// get fetches a URL and returns the body of a 200.
func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
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

// usage is what a process has used so far.
type usage struct {
	cpu time.Duration
	rss int64 // bytes, the most so far
}

// clockTick is the unit of CPU times in /proc, the same on every Linux that Go
// runs on.
const clockTick = 10 * time.Millisecond

// used reads a process's usage from /proc.
func used(pid int) (usage, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return usage{}, err
	}
	// The name, in parentheses, may hold anything; user and system time are the
	// 12th and 13th field after it.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return usage{}, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	var u usage
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return usage{}, err
		}
		u.cpu += time.Duration(n) * clockTick
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return usage{}, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				return usage{}, err
			}
			u.rss = kb << 10
		}
	}
	return u, nil
}

// machineBusy returns the CPU time that all processes of the machine have
// used, and all there was.
func machineBusy() (busy, all time.Duration, err error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	for i, f := range strings.Fields(line)[1:] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, 0, err
		}
		if i > 7 { // guest times are in user times already
			break
		}
		all += time.Duration(n) * clockTick
		if i != 3 && i != 4 { // idle, waiting for disks
			busy += time.Duration(n) * clockTick
		}
	}
	return busy, all, nil
}
