// Package ledgertest starts a PostgreSQL server of a test's own.
package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNotInstalled says that the server's programs are not on this machine.
var ErrNotInstalled = errors.New("PostgreSQL's initdb and postgres are not installed (Debian: postgresql)")

// Required reports whether a test without its server fails, as it does in CI, or
// is skipped.
func Required() bool { return os.Getenv("SLUICE_TEST_SERVICES") == "required" }

// Server is a PostgreSQL in a private folder, on a socket there. Its methods are
// for one goroutine at a time.
type Server struct {
	dir       string
	bin       string
	cred      *syscall.Credential
	cmd       *exec.Cmd
	databases atomic.Int64
}

// New makes a server and starts it. Stop ends it and removes its folder.
func New() (*Server, error) {
	s := &Server{bin: programs()}
	if s.bin == "" {
		return nil, ErrNotInstalled
	}
	if err := s.init(); err != nil {
		s.Stop()
		return nil, err
	}
	if err := s.Start(); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

func programs() string {
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path)
		}
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		return ""
	}
	return filepath.Dir(found[len(found)-1])
}

func (s *Server) init() (err error) {
	if s.dir, err = os.MkdirTemp("", "pg"); err != nil {
		return err
	}
	if os.Getuid() == 0 { // PostgreSQL refuses to be root
		u, err := user.Lookup("postgres")
		if err != nil {
			return err
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		s.cred = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(s.dir, uid, gid); err != nil {
			return err
		}
	}
	cmd := s.command("initdb", "-D", filepath.Join(s.dir, "data"), "-U", "sluice", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return nil
}

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred, Pdeathsig: syscall.SIGQUIT}
	return cmd
}

// Start starts a server that was killed, and returns when it answers.
func (s *Server) Start() error {
	if s.cmd != nil {
		return nil
	}
	cmd := s.command("postgres", "-D", filepath.Join(s.dir, "data"), "-k", s.dir, "-c", "listen_addresses=")
	if err := cmd.Start(); err != nil {
		return err
	}
	s.cmd = cmd
	deadline := time.Now().Add(2 * time.Minute) // it recovers first, on a machine that may be busy
	for {
		err := s.ping()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (s *Server) ping() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// Kill ends the server as a crash would.
func (s *Server) Kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Signal(syscall.SIGQUIT)
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// Stop kills the server and removes its folder.
func (s *Server) Stop() {
	s.Kill()
	os.RemoveAll(s.dir)
}

// Dump is all that a database holds, as pg_dump writes it.
func (s *Server) Dump(database string) ([]byte, error) {
	cmd := s.command("pg_dump", "-h", s.dir, "-U", "sluice", database)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("pg_dump: %w", err)
	}
	return out, nil
}

// DSN is the connection string of a database: one word.
func (s *Server) DSN(database string) string {
	q := url.Values{"host": {s.dir}, "user": {"sluice"}, "sslmode": {"disable"}}
	return "postgres:///" + database + "?" + q.Encode()
}

// Database makes an empty database and returns its connection string.
func (s *Server) Database() (dsn string, err error) {
	name := fmt.Sprint("t", s.databases.Add(1))
	return s.DSN(name), Exec(s.DSN("postgres"), "CREATE DATABASE "+name)
}

// Exec runs SQL in a database.
func Exec(dsn, text string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	_, err = conn.Exec(ctx, text)
	return err
}
