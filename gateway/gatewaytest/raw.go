package gatewaytest

import (
	"bytes"
	"crypto/tls"
	"net"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Raw accepts connections on a listener of its own and gives each to serve, on a
// goroutine of its own, and closes it when that returns. It returns the address; all
// ends with the test. It is for what goes wrong before there is a whole request. The
// connections' windows are small, so that a sender to whom nobody listens is soon stuck.
func Raw(t testing.TB, serve func(conn *net.TCPConn)) (addr string) {
	t.Helper()
	small := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10) })
	}}
	listener, err := small.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("cannot listen: %v", err)
	}
	var running sync.WaitGroup
	var mu sync.Mutex // protects conns and ended
	conns, ended := map[net.Conn]bool{}, false
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			if ended {
				conn.Close()
			}
			conns[conn] = true
			mu.Unlock()
			running.Go(func() {
				defer func() {
					conn.Close()
					mu.Lock()
					delete(conns, conn)
					mu.Unlock()
				}()
				serve(conn.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		mu.Lock()
		ended = true
		for conn := range conns {
			conn.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return listener.Addr().String()
}

// Ended is a Raw server that ends each connection as soon as it has come.
func Ended(how Close) func(*net.TCPConn) {
	return func(conn *net.TCPConn) {
		if how == RST {
			reset(conn)
		}
	}
}

// Untrusted is a Raw server that speaks TLS with a certificate that nobody trusts.
func Untrusted(t testing.TB) func(*net.TCPConn) {
	config := NewCertificate(t).Server
	return func(conn *net.TCPConn) {
		if tls.Server(conn, config).Handshake() == nil {
			readAll(conn)
		}
	}
}

// Silent is a Raw server that reads and never answers.
func Silent(conn *net.TCPConn) { readAll(conn) }

// Deaf is a Raw server that neither reads nor answers.
func Deaf(conn *net.TCPConn) {
	var b [1]byte
	for { // its end is seen by looking, for it reads nothing
		raw, err := conn.SyscallConn()
		if err != nil {
			return
		}
		var got error
		n := 0
		if raw.Control(func(fd uintptr) {
			n, _, got = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		}) != nil || got != nil && got != syscall.EAGAIN || got == nil && n == 0 {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Gibberish is a Raw server that answers each connection with bytes of no protocol.
func Gibberish(conn *net.TCPConn) {
	conn.Write([]byte("SSH-2.0-OpenSSH_9.9\r\n"))
	readAll(conn)
}

// AnswerEarly is a Raw server that answers once it has read the head of a request,
// without its body. With FIN it then ends its own side and waits for the other's end,
// with RST it ends all at once; with 0 it leaves the connection open and reads nothing
// more.
func AnswerEarly(status int, body string, how Close) func(*net.TCPConn) {
	return func(conn *net.TCPConn) {
		var got []byte
		buf := make([]byte, 512)
		for !bytes.Contains(got, []byte("\r\n\r\n")) {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			got = append(got, buf[:n]...)
		}
		conn.Write([]byte(head(status, "application/json", []string{"Content-Length: " + itoa(len(body)), "Connection: close"}) + body))
		switch how {
		case FIN:
			conn.CloseWrite()
			Deaf(conn)
		case RST:
			// What has not been read makes the kernel send RST behind the answer.
		default:
			Deaf(conn)
		}
	}
}

func itoa(n int) string { return strconv.Itoa(n) }

func readAll(conn *net.TCPConn) {
	buf := make([]byte, 4<<10)
	for {
		if _, err := conn.Read(buf); err != nil {
			return
		}
	}
}

// BlackHole is an address at which connecting neither works nor fails: a listener that
// accepts nothing and whose queue is full.
func BlackHole(t testing.TB) (addr string) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatalf("cannot make a socket: %v", err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatalf("cannot bind a socket: %v", err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatalf("cannot listen: %v", err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatalf("cannot name a socket: %v", err)
	}
	addr = net.JoinHostPort("127.0.0.1", itoa(name.(*syscall.SockaddrInet4).Port))
	for {
		conn, err := net.DialTimeout("tcp", addr, 100*time.Millisecond)
		if err != nil {
			return addr // full
		}
		t.Cleanup(func() { conn.Close() })
	}
}
