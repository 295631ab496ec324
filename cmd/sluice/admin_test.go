package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
)

// adminToken is the token of a gateway's admin listener.
func adminToken(t testing.TB, a *app) string {
	t.Helper()
	token, err := readSecretText(a.cfg.adminTokenFile())
	if err != nil {
		t.Fatalf("the admin token: %v", err)
	}
	return token
}

// askAdmin asks the admin listener as its operator does.
func askAdmin(t testing.TB, a *app, method, path string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+a.admin.Addr().String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminToken(t, a))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// TestAdminListener: on a loopback address, and without a configured token, there is one all the same. It
// opens the pages and nothing else does; the metrics are open; and the listener answers to no name but its own.
func TestAdminListener(t *testing.T) {
	d, a := startStack(t)
	token := adminToken(t, a)
	if info, err := os.Stat(a.cfg.Ledger.Path + ".admin-token"); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the file of the token: %v %v", info, err)
	}
	address := a.admin.Addr().String()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, path, host string
		credentials        []string
		status             int
	}{
		{"GET", "/debug/workers", "", nil, 401},
		{"GET", "/debug/workers", "", []string{"Bearer " + token}, 200},
		{"GET", "/debug/predictions", "", []string{"bearer " + token}, 200},
		{"GET", "/debug/limits", "", []string{"Bearer " + token}, 200},
		{"POST", "/admin/reload", "", []string{"Bearer " + token}, 200},
		{"POST", "/admin/reload", "", nil, 401},
		{"GET", "/debug/workers", "", []string{token}, 401},
		{"GET", "/debug/workers", "", []string{"Basic " + token}, 401},
		{"GET", "/debug/workers", "", []string{"Bearer " + token[1:]}, 401},
		{"GET", "/debug/workers", "", []string{"Bearer  " + token}, 401},
		{"GET", "/debug/workers", "", []string{"Bearer " + token, "Bearer " + token}, 401},
		{"GET", "/debug/predictions", "", []string{"Bearer " + d.keys["acme"]}, 401},
		{"GET", "/metrics", "", nil, 200},
		{"GET", "/metrics", "localhost:" + port, nil, 200},
		{"GET", "/metrics", "[::1]:" + port, nil, 200},
		{"GET", "/metrics", "rebound.example:" + port, nil, 421},
		{"GET", "/debug/workers", "rebound.example", []string{"Bearer " + token}, 421},
		{"GET", "/metrics", "localhost.rebound.example", nil, 421},
		{"GET", "/v1/models", "", []string{"Bearer " + token}, 404},
		{"GET", "/healthz", "", nil, 404},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, "http://"+address+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = c.host
		for _, cred := range c.credentials {
			req.Header.Add("Authorization", cred)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%+v: got %d", c, resp.StatusCode)
		}
	}
	for _, line := range []string{`sluice_admin_refusals_total{reason="missing"} 2`, `sluice_admin_refusals_total{reason="wrong"} 6`, `sluice_admin_refusals_total{reason="host"} 3`} {
		if !strings.Contains(metricsText(t, a), "\n"+line+"\n") {
			t.Errorf("the metrics lack %s", line)
		}
	}
	// The data listener has none of it, whoever asks.
	for _, path := range []string{"/metrics", "/debug/workers", "/admin/reload"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.baseURL()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("the data listener answers %s with %d", path, resp.StatusCode)
		}
	}
}

// TestAdminTokenConfigured is used in place of one that is made.
func TestAdminTokenConfigured(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("open-sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, a := startStack(t, func(cfg *Config) { cfg.Listen.Admin.TokenFile = file })
	if token := adminToken(t, a); token != "open-sesame" {
		t.Errorf("the token is %q", token)
	}
	resp := askAdmin(t, a, http.MethodGet, "/debug/workers")
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("got %d", resp.StatusCode)
	}
	if _, err := os.Stat(a.cfg.Ledger.Path + ".admin-token"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("another one was made: %v", err)
	}
}

// TestMadeToken stays over a restart, and one that others can read is not used.
func TestMadeToken(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Ledger.Path = filepath.Join(t.TempDir(), "ledger.db")
	a := &app{cfg: &cfg, log: slog.New(slog.DiscardHandler)}
	first, err := a.adminCredential()
	if err != nil || len(first) < 40 {
		t.Fatalf("%q %v", first, err)
	}
	if again, err := a.adminCredential(); err != nil || again != first {
		t.Errorf("the next start has another token: %v", err)
	}
	file := cfg.adminTokenFile()
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := a.adminCredential(); err == nil || !strings.Contains(err.Error(), "can be read by others (mode 0640), should be 0600") || strings.Contains(err.Error(), first) {
		t.Errorf("a token that others can read: %v", err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.adminCredential(); err == nil || !strings.Contains(err.Error(), "empty") {
		t.Errorf("an empty file: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if fresh, err := a.adminCredential(); err != nil || fresh == first {
		t.Errorf("after the file's removal: %v", err)
	}
	cfg.Ledger.Path = filepath.Join(t.TempDir(), "nowhere", "ledger.db")
	if _, err := a.adminCredential(); err == nil {
		t.Error("a token was kept in a folder that is not there")
	}
}

// TestGuesses: whoever sends wrong tokens is not listened to for a while, and others are.
func TestGuesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newAdminGuard("secret", &AdminListenConfig{Address: "10.0.0.1:9090", Hosts: []string{"Sluice.example"}}, prometheus.NewRegistry())
		page := g.named(g.holders(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
		ask := func(from, token string) int {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/debug/workers", nil)
			r.Host, r.RemoteAddr = "sluice.example:9090", from
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
			w := httptest.NewRecorder()
			page.ServeHTTP(w, r)
			return w.Code
		}
		for i := range guessBurst {
			if got := ask("192.0.2.1:1000", fmt.Sprint("guess", i)); got != http.StatusUnauthorized {
				t.Fatalf("guess %d: got %d", i, got)
			}
		}
		for _, token := range []string{"guess", "secret"} {
			if got := ask("192.0.2.1:1001", token); got != http.StatusTooManyRequests {
				t.Errorf("one more: got %d", got)
			}
		}
		if got := ask("192.0.2.1:1002", ""); got != http.StatusUnauthorized {
			t.Errorf("without a token: got %d", got)
		}
		if got := ask("192.0.2.2:1000", "secret"); got != http.StatusOK {
			t.Errorf("from another address: got %d", got)
		}
		time.Sleep(time.Second / guessRate)
		if got := ask("192.0.2.1:1003", "secret"); got != http.StatusOK {
			t.Errorf("a moment later: got %d", got)
		}
		// Of an IPv6 network one is all.
		for i := range guessBurst {
			ask(fmt.Sprintf("[2001:db8::%d]:1000", i+1), "guess")
		}
		if got := ask("[2001:db8::ffff]:1000", "secret"); got != http.StatusTooManyRequests {
			t.Errorf("of the same network: got %d", got)
		}
		// However many guess, no more than so many are remembered, and those are forgotten.
		addr := netip.MustParseAddr("10.0.0.0")
		for range 2 * maxGuessers {
			addr = addr.Next()
			g.guesses.wrong(addr, time.Now())
		}
		if n := len(g.guesses.by); n > maxGuessers+1 {
			t.Errorf("%d addresses are remembered", n)
		}
		time.Sleep(time.Hour)
		g.guesses.wrong(addr, time.Now())
		if n := len(g.guesses.by); n > 2 {
			t.Errorf("%d addresses are remembered after an hour", n)
		}
	})
}

// TestAdminListenerIsBounded: large headers are refused, a connection too many is reset.
func TestAdminListenerIsBounded(t *testing.T) {
	_, a := startStack(t)
	address := a.admin.Addr().String()
	big := gatewaytest.Dial(t, address)
	_ = big.Write("GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Long: " + strings.Repeat("a", 2*adminHeaderBytes) + "\r\n\r\n")
	if resp := big.Head(); resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("large headers: got %d", resp.StatusCode)
	}
	http.DefaultClient.CloseIdleConnections()
	var held []net.Conn
	d := net.Dialer{Timeout: stackPatience, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}}
	connect := func() (net.Conn, error) {
		c, err := d.DialContext(t.Context(), "tcp", address)
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(stackPatience))
		if _, err := io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			return nil, err
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return nil, err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		return c, err
	}
	for range adminConnectionsPerAddress {
		c, err := connect()
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	if _, err := connect(); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("one connection more: %v", err)
	}
	held[0].Close()
	soon(t, "an end to make room", stackPatience, func() bool { c, err := connect(); return err == nil && c != nil })
}
