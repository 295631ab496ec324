package ledger

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// pgServer is a PostgreSQL of the tests' own, in a private folder and on a
// socket there.
type pgServer struct {
	dir       string
	bin       string
	cred      *syscall.Credential
	cmd       *exec.Cmd
	databases atomic.Int64
}

var (
	theServer   *pgServer
	startServer sync.Once
)

// postgresServer is shared by the tests of this package, which run one after
// the other. TestMain stops it.
func postgresServer(t testing.TB) *pgServer {
	t.Helper()
	bin := postgresPrograms()
	if bin == "" {
		const why = "PostgreSQL's initdb and postgres are not installed (Debian: postgresql)"
		if os.Getenv("SLUICE_TEST_SERVICES") == "required" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	startServer.Do(func() {
		s := &pgServer{bin: bin}
		if err := s.init(); err != nil {
			t.Fatal(err)
		}
		theServer = s
	})
	if theServer == nil {
		t.Fatal("the server did not start")
	}
	if theServer.cmd == nil {
		theServer.start(t)
	}
	return theServer
}

func postgresPrograms() string {
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

func (s *pgServer) init() (err error) {
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

func (s *pgServer) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred, Pdeathsig: syscall.SIGQUIT}
	return cmd
}

func (s *pgServer) start(t testing.TB) {
	t.Helper()
	s.cmd = s.command("postgres", "-D", filepath.Join(s.dir, "data"), "-k", s.dir, "-c", "listen_addresses=")
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "PostgreSQL to start", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, s.dsn("postgres"))
		if err != nil {
			return false
		}
		return conn.Close(ctx) == nil
	})
}

// kill ends the server as a crash would.
func (s *pgServer) kill(t testing.TB) {
	t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	_ = s.cmd.Wait()
	s.cmd = nil
}

func (s *pgServer) stop() {
	if s.cmd != nil {
		_ = s.cmd.Process.Signal(syscall.SIGQUIT)
		_ = s.cmd.Wait()
	}
	os.RemoveAll(s.dir)
}

func (s *pgServer) dsn(database string) string {
	return fmt.Sprintf("host=%s user=sluice dbname=%s sslmode=disable", s.dir, database)
}

// database makes an empty one and returns its connection string.
func (s *pgServer) database(t testing.TB) string {
	t.Helper()
	name := fmt.Sprint("t", s.databases.Add(1))
	pgExec(t, s.dsn("postgres"), "CREATE DATABASE "+name)
	return s.dsn(name)
}

func pgExec(t testing.TB, dsn, text string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), text); err != nil {
		t.Fatal(err)
	}
}
