package redistest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Group is a master, a replica of it, and a sentinel that makes the replica the
// master when the master is gone. They are on ports of the loopback address, since a
// sentinel knows no sockets.
type Group struct {
	Master, Replica *Server
	// Name is what the sentinel calls the master, Sentinel its address.
	Name, Sentinel string

	dir string
	cmd *exec.Cmd
}

// NewGroup starts a group. Stop ends it.
func NewGroup() (*Group, error) {
	g := &Group{Name: "limits"}
	var ports [3]string
	for i := range ports {
		var err error
		if ports[i], err = freePort(); err != nil {
			return nil, err
		}
	}
	if err := g.start(ports); err != nil {
		g.Stop()
		return nil, err
	}
	return g, nil
}

func (g *Group) start(ports [3]string) (err error) {
	if g.Master, err = New("--bind", "127.0.0.1", "--port", ports[0]); err != nil {
		return err
	}
	if g.Replica, err = New("--bind", "127.0.0.1", "--port", ports[1], "--replicaof", "127.0.0.1", ports[0]); err != nil {
		return err
	}
	if g.dir, err = os.MkdirTemp("", "sentinel"); err != nil {
		return err
	}
	file := filepath.Join(g.dir, "sentinel.conf")
	text := fmt.Sprintf("port %s\nbind 127.0.0.1\ndir %s\nlogfile %s\nsentinel monitor %s 127.0.0.1 %s 1\n"+
		"sentinel down-after-milliseconds %s 300\nsentinel failover-timeout %s 3000\n",
		ports[2], g.dir, filepath.Join(g.dir, "log"), g.Name, ports[0], g.Name, g.Name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	g.cmd = exec.Command(g.Master.program, file, "--sentinel")
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := g.cmd.Start(); err != nil {
		return err
	}
	g.Sentinel = "127.0.0.1:" + ports[2]
	return g.ready()
}

// ready waits until the sentinel knows the replica, without which it can't replace
// the master.
func (g *Group) ready() error {
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		answer, err := ask("tcp", g.Sentinel, "SENTINEL", "REPLICAS", g.Name)
		if err == nil && answer == "*1" {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the sentinel does not find the replica: %q, %w", answer, err)
		}
	}
}

// Stop kills all three.
func (g *Group) Stop() {
	if g.cmd != nil && g.cmd.Process != nil {
		_ = g.cmd.Process.Kill()
		_ = g.cmd.Wait()
	}
	if g.dir != "" {
		os.RemoveAll(g.dir)
	}
	for _, s := range []*Server{g.Replica, g.Master} {
		if s != nil {
			s.Stop()
		}
	}
}

// freePort is one that was free a moment ago.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}
