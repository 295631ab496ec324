// Package rig is what the load drivers of this folder stand on: processes of
// their own, simulated workers, the gateway as one would run it, prompts of a
// known length, and requests whose streams are timed.
package rig

import (
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
	"syscall"
	"time"
)

// Process is a child in a group of its own, with its output in a file. It dies
// with the driver.
type Process struct {
	Name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // valid once done is closed
}

// Start starts a command. stdout may be nil; all other output goes to NAME.log
// in dir. env is added to the driver's own. The caller ends it with Stop.
func Start(dir, name string, stdout io.Writer, env []string, args ...string) (*Process, error) {
	p := &Process{Name: name, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", name, err)
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

// Stop ends the process and its children: politely, then not.
func (p *Process) Stop() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(8 * time.Second):
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
}

// Tail returns the end of the log, for messages.
func (p *Process) Tail() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-2000):])
}

// WaitFor asks until check is content, the process ends or patience does.
func (p *Process) WaitFor(ctx context.Context, patience time.Duration, check func(context.Context) error) error {
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
			return fmt.Errorf("%s ended while starting: %w\n%s", p.Name, errors.Join(p.err, err), p.Tail())
		case <-ctx.Done():
			return fmt.Errorf("%s was not ready within %v: %w\n%s", p.Name, patience, err, p.Tail())
		case <-tick.C:
		}
	}
}

// Get fetches a URL and returns the body of a 200. token and tlsConfig may be
// empty.
func Get(ctx context.Context, url, token string, tlsConfig *tls.Config) ([]byte, error) {
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

// FreePorts returns addresses on loopback that were free a moment ago, for
// programs that cannot say which port they took.
func FreePorts(n int) ([]string, error) {
	var addrs []string
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("cannot find a free port: %w", err)
		}
		defer ln.Close()
		addrs = append(addrs, ln.Addr().String())
	}
	return addrs, nil
}

// Port returns the port of an address.
func Port(addr string) string {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		panic("BUG: " + strconv.Quote(addr) + " is no address with a port")
	}
	return port
}
