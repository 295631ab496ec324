// Package redistest starts a Redis server of a test's own.
package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// ErrNotInstalled says that the server's program is not on this machine.
var ErrNotInstalled = errors.New("redis-server is not installed (Debian: redis-server)")

// Required reports whether a test without its server fails, as it does in CI, or
// is skipped.
func Required() bool { return os.Getenv("SLUICE_TEST_SERVICES") == "required" }

// Server is a Redis in a private folder, on a socket there. Its methods are for one
// goroutine at a time.
type Server struct {
	dir     string
	program string
	args    []string
	cmd     *exec.Cmd
}

// New makes a server and starts it, with these lines of configuration beside its
// own, as command line options: "--appendonly", "yes". Stop ends it and removes its
// folder.
func New(options ...string) (*Server, error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, ErrNotInstalled
	}
	s := &Server{program: program}
	if s.dir, err = os.MkdirTemp("", "redis"); err != nil {
		return nil, err
	}
	s.args = append([]string{
		"--port", "0", "--unixsocket", s.Socket(), "--dir", s.dir, "--save", "", "--appendonly", "no",
		"--logfile", filepath.Join(s.dir, "log"), "--daemonize", "no",
	}, options...)
	if err := s.Start(); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// Socket is the path of the server's socket.
func (s *Server) Socket() string { return filepath.Join(s.dir, "redis.sock") }

// Start starts a server that was killed, and returns when it answers.
func (s *Server) Start() error {
	if s.cmd != nil {
		return nil
	}
	cmd := exec.Command(s.program, s.args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.cmd = cmd
	deadline := time.Now().Add(20 * time.Second)
	for {
		answer, err := s.Do("PING")
		if err == nil || strings.Contains(answer, "NOAUTH") {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("redis-server does not answer: %w", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Kill ends the server at once.
func (s *Server) Kill() { s.end(syscall.SIGKILL) }

// Shutdown ends the server in its own way, saving what it is configured to save.
func (s *Server) Shutdown() { s.end(syscall.SIGTERM) }

func (s *Server) end(sig syscall.Signal) {
	if s.cmd != nil {
		_ = s.cmd.Process.Signal(sig)
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// Pause stops the server's process; connections stay. Resume has it go on.
func (s *Server) Pause() { _ = s.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume has a paused server go on.
func (s *Server) Resume() { _ = s.cmd.Process.Signal(syscall.SIGCONT) }

// Stop kills the server and removes its folder.
func (s *Server) Stop() {
	s.Kill()
	os.RemoveAll(s.dir)
}

// Do runs one command of words and returns the first line of the answer.
func (s *Server) Do(words ...string) (string, error) { return ask("unix", s.Socket(), words...) }

func ask(network, address string, words ...string) (string, error) {
	conn, err := net.DialTimeout(network, address, time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(w), w)
	}
	if _, err := conn.Write([]byte(b.String())); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	line = strings.TrimSpace(line)
	if err == nil && strings.HasPrefix(line, "-") {
		err = errors.New(line[1:])
	}
	return line, err
}
