package gatewaytest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Certificate is a certificate for the loopback that lasts for one test.
type Certificate struct {
	// CertFile and KeyFile are its PEM files.
	CertFile, KeyFile string
	// Server and Client are configurations that speak with each other.
	Server, Client *tls.Config
}

// NewCertificate makes a certificate for 127.0.0.1, ::1 and localhost.
func NewCertificate(t testing.TB) *Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("cannot make a key: %v", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA:         true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatalf("cannot make a certificate: %v", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatalf("cannot encode a key: %v", err)
	}
	c := &Certificate{
		CertFile: writePEM(t, "cert.pem", "CERTIFICATE", der),
		KeyFile:  writePEM(t, "key.pem", "PRIVATE KEY", keyDER),
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatalf("cannot read a certificate back: %v", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	c.Server = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	c.Client = &tls.Config{RootCAs: roots, ServerName: "localhost"}
	return c
}

func writePEM(t testing.TB, name, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatalf("cannot write %s: %v", name, err)
	}
	return path
}
