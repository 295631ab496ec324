package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/scoring/simworker"
)

// pair is a certificate of localhost by itself, and its key, in PEM.
type pair struct {
	cert, key []byte
	leaf      *x509.Certificate
}

func newPair(t testing.TB, from, to time.Time) pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, DNSNames: []string{"localhost"}, NotBefore: from, NotAfter: to, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return pair{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), leaf,
	}
}

// validPair is a pair that is valid now.
func validPair(t testing.TB) pair {
	return newPair(t, time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour))
}

// put takes the place of a file at once, as an operator's tools do.
func put(t testing.TB, file string, text []byte) {
	t.Helper()
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

func TestLoadCertificates(t *testing.T) {
	now := time.Now()
	dir := t.TempDir()
	good, other := validPair(t), validPair(t)
	ended, future := newPair(t, now.Add(-48*time.Hour), now.Add(-time.Hour)), newPair(t, now.Add(time.Hour), now.Add(2*time.Hour))
	load := func(cert, key []byte, old certificates) (certificates, error) {
		cfg := DefaultConfig()
		cfg.Listen.Public.TLS.CertFile, cfg.Listen.Public.TLS.KeyFile = filepath.Join(dir, "c"), filepath.Join(dir, "k")
		put(t, cfg.Listen.Public.TLS.CertFile, cert)
		put(t, cfg.Listen.Public.TLS.KeyFile, key)
		return loadCertificates(&cfg, old, now)
	}
	first, err := load(good.cert, good.key, certificates{})
	if err != nil || !first.public.Leaf.Equal(good.leaf) || first.admin != nil {
		t.Fatalf("%+v %v", first, err)
	}
	if _, err := load(ended.cert, ended.key, certificates{}); err != nil {
		t.Errorf("a start with a certificate that has ended: %v", err)
	}
	for name, c := range map[string]struct {
		cert, key []byte
		want      string
	}{
		"another's key":  {good.cert, other.key, "private key does not match public key"},
		"no PEM":         {[]byte("nonsense"), good.key, "failed to find any PEM data"},
		"empty":          {nil, nil, "failed to find any PEM data"},
		"half a key":     {good.cert, good.key[:60], "failed to find any PEM data in key input"},
		"ended":          {ended.cert, ended.key, "ended on " + ended.leaf.NotAfter.UTC().Format(time.DateTime)},
		"not valid yet":  {future.cert, future.key, "begins on "},
		"key and no key": {good.key, good.key, "certificate"},
	} {
		if _, err := load(c.cert, c.key, first); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "listen.public.tls") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		} else if bytes.Contains([]byte(err.Error()), good.key[40:80]) {
			t.Errorf("%s: the error shows the key", name)
		}
	}
	if second, err := load(other.cert, other.key, first); err != nil || !second.public.Leaf.Equal(other.leaf) {
		t.Errorf("another pair: %v", err)
	}
}

// TestTLSTurnedOff needs a restart, though other files for it don't.
func TestTLSTurnedOff(t *testing.T) {
	on := DefaultConfig()
	on.Listen.Public.TLS.CertFile, on.Listen.Public.TLS.KeyFile = "c", "k"
	moved, off := on, on
	moved.Listen.Public.TLS.CertFile = "elsewhere"
	off.Listen.Public.TLS.CertFile, off.Listen.Public.TLS.KeyFile = "", ""
	if keys := needsRestart(&on, &moved); len(keys) > 0 {
		t.Errorf("another file needs a restart: %v", keys)
	}
	for _, c := range [][2]*Config{{&on, &off}, {&off, &on}} {
		if keys := needsRestart(c[0], c[1]); len(keys) != 2 {
			t.Errorf("turning TLS on or off needs a restart of %v", keys)
		}
	}
}

// TestTLSVersionsAndProtocols: what is below TLS 1.2, or speaks no HTTP/1.1, is refused.
func TestTLSVersionsAndProtocols(t *testing.T) {
	cert := gatewaytest.NewCertificate(t)
	_, a := startStack(t, func(cfg *Config) {
		cfg.Listen.Public.TLS = TLSConfig{CertFile: cert.CertFile, KeyFile: cert.KeyFile, MinVersion: "1.2"}
		cfg.Listen.Admin.TLS = TLSConfig{CertFile: cert.CertFile, KeyFile: cert.KeyFile, MinVersion: "1.2"}
	})
	for _, address := range []string{a.public.Addr().String(), a.admin.Addr().String()} {
		f := func(name string, ok bool, change func(*tls.Config)) {
			t.Helper()
			cfg := cert.Client.Clone()
			change(cfg)
			c, err := tls.DialWithDialer(&net.Dialer{Timeout: stackPatience}, "tcp", address, cfg)
			if err == nil {
				defer c.Close()
				// With TLS 1.3 a client has done before the server has.
				_ = c.SetDeadline(time.Now().Add(stackPatience))
				_, err = io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
				var answer []byte
				if err == nil {
					answer, err = io.ReadAll(c)
				}
				if err == nil && !bytes.HasPrefix(answer, []byte("HTTP/1.1 ")) {
					err = fmt.Errorf("got %q", answer)
				}
				if p := c.ConnectionState().NegotiatedProtocol; ok && len(cfg.NextProtos) > 0 && p != "http/1.1" {
					t.Errorf("%s: the protocol is %q", name, p)
				}
			}
			if (err == nil) != ok {
				t.Errorf("%s at %s: %v", name, address, err)
			}
		}
		f("TLS 1.3", true, func(c *tls.Config) { c.MinVersion = tls.VersionTLS13 })
		f("TLS 1.2", true, func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 })
		f("TLS 1.1", false, func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 })
		f("TLS 1.0", false, func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS10 })
		f("h2 or http/1.1", true, func(c *tls.Config) { c.NextProtos = []string{"h2", "http/1.1"} })
		f("h2 alone", false, func(c *tls.Config) { c.NextProtos = []string{"h2"} })
		f("h2 alone with TLS 1.2", false, func(c *tls.Config) { c.NextProtos, c.MaxVersion = []string{"h2"}, tls.VersionTLS12 })
	}
}

// TestCertificateSwapped changes the certificate of a gateway under handshakes and an open stream: no
// handshake fails, no stream is cut, a pair that doesn't fit is refused and the old one stays.
func TestCertificateSwapped(t *testing.T) {
	d, err := newDemo(demoOptions{public: "127.0.0.1:0", admin: "127.0.0.1:0", timeScale: 0.1}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	old, fresh := validPair(t), validPair(t)
	certFile, keyFile := filepath.Join(d.dir, "tls.crt"), filepath.Join(d.dir, "tls.key")
	put(t, certFile, old.cert)
	put(t, keyFile, old.key)
	file := filepath.Join(d.dir, "sluice.yaml")
	replaceIn(t, file, `public: { address: "127.0.0.1:0" }`, `public: { address: "127.0.0.1:0", tls: { certFile: tls.crt, keyFile: tls.key } }`, "level: warn", "level: info")
	roots := x509.NewCertPool()
	roots.AddCert(old.leaf)
	roots.AddCert(fresh.leaf)
	trust := &tls.Config{RootCAs: roots, ServerName: "localhost"}
	transport := &http.Transport{TLSClientConfig: trust}
	defer transport.CloseIdleConnections()
	c := startChild(t, file)
	c.client, c.scheme = &http.Client{Transport: transport, Timeout: childPatience}, "https"
	c.waitReady(t)
	public, _, _ := c.addresses()

	stream := gatewaytest.DialTLS(t, public, trust)
	stream.Send("POST", chatPath, `{"model":"demo-chat","stream":true,"ignore_eos":true,"max_tokens":200,"messages":[{"role":"user","content":"a story"}]}`,
		"Authorization: Bearer "+d.keys["acme"])
	events := gatewaytest.NewEventReader(stream.Head().Body)
	for range 3 {
		if _, err := events.Next(); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range d.workers {
		w.SetFault(simworker.Fault{Stall: -1})
	}

	ctx, stop := context.WithCancel(t.Context())
	var shakers sync.WaitGroup
	var shaken, seenFresh atomic.Int64
	for range 4 {
		shakers.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
				leaf, err := shake(public, trust)
				if err != nil {
					t.Errorf("a handshake: %v", err)
					return
				}
				shaken.Add(1)
				if leaf.Equal(fresh.leaf) {
					seenFresh.Add(1)
				}
			}
		})
	}
	defer shakers.Wait()
	defer stop()

	failures := func() float64 { return c.metric(t, `sluice_config_reloads_total{result="failure"}`) }
	soon(t, "handshakes", childPatience, func() bool { return shaken.Load() > 20 })
	put(t, certFile, fresh.cert) // whose key is not there yet
	soon(t, "the half of a pair to be refused", childPatience, func() bool { return failures() > 0 })
	if n := seenFresh.Load(); n > 0 {
		t.Errorf("%d handshakes had a certificate without its key", n)
	}
	if at := c.metric(t, "sluice_tls_certificate_expiry_timestamp_seconds"); int64(at) != old.leaf.NotAfter.Unix() {
		t.Errorf("the certificate in force ends at %f, want %d", at, old.leaf.NotAfter.Unix())
	}
	put(t, keyFile, fresh.key)
	soon(t, "the new certificate", childPatience, func() bool { return seenFresh.Load() > 20 })
	if leaf, err := shake(public, trust); err != nil || !leaf.Equal(fresh.leaf) {
		t.Errorf("a handshake has the old certificate after others had the new one: %v", err)
	}
	if at := c.metric(t, "sluice_tls_certificate_expiry_timestamp_seconds"); int64(at) != fresh.leaf.NotAfter.Unix() {
		t.Errorf("the certificate in force ends at %f, want %d", at, fresh.leaf.NotAfter.Unix())
	}
	stop()
	shakers.Wait()
	if n := c.metric(t, "sluice_tls_handshake_errors_total"); n > 0 {
		t.Errorf("%f handshakes are counted as failed", n)
	}

	for _, w := range d.workers {
		w.SetFault(simworker.Fault{})
	}
	rest, err := events.All()
	if err != nil || len(rest) < 100 || rest[len(rest)-1].Data != "[DONE]" {
		t.Errorf("the stream that was open meanwhile: %d events more, %v", len(rest), err)
	}
	c.stop(t)
}

// shake makes one handshake and returns what certificate the gateway has shown.
func shake(address string, trust *tls.Config) (*x509.Certificate, error) {
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: childPatience}, "tcp", address, trust)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0], nil
}
