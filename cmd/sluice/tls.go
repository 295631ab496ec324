package main

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// certificates are what the listeners show in one generation; nil where one speaks no TLS.
type certificates struct{ public, admin *tls.Certificate }

// loadCertificates reads the pairs that cfg names. One that is not valid now is no reason not to start, but
// it does not take the place of one that is: old is what is in force, with nils at a start.
func loadCertificates(cfg *Config, old certificates, now time.Time) (fresh certificates, err error) {
	var publicErr, adminErr error
	fresh.public, publicErr = loadCertificate("listen.public.tls", cfg.Listen.Public.TLS, old.public, now)
	fresh.admin, adminErr = loadCertificate("listen.admin.tls", cfg.Listen.Admin.TLS, old.admin, now)
	return fresh, errors.Join(publicErr, adminErr)
}

func loadCertificate(key string, t TLSConfig, old *tls.Certificate, now time.Time) (*tls.Certificate, error) {
	if !t.Enabled() {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("cannot use the certificate and the key of %s: %w", key, err)
	}
	if pair.Leaf == nil {
		if pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return nil, fmt.Errorf("cannot use the certificate of %s: %w", key, err)
		}
	}
	if fault := outOfTime(pair.Leaf, now); fault != "" && old != nil && outOfTime(old.Leaf, now) == "" {
		return nil, fmt.Errorf("cannot use the certificate of %s: it %s, and that in force is valid", key, fault)
	}
	return &pair, nil
}

// outOfTime says in words that a certificate is not valid now; it is empty for one that is.
func outOfTime(leaf *x509.Certificate, now time.Time) string {
	switch {
	case now.After(leaf.NotAfter):
		return "ended on " + leaf.NotAfter.UTC().Format(time.DateTime) + " UTC"
	case now.Before(leaf.NotBefore):
		return "begins on " + leaf.NotBefore.UTC().Format(time.DateTime) + " UTC"
	}
	return ""
}

// tell writes to the log which certificates are in force that old did not have.
func (c certificates) tell(log *slog.Logger, old certificates) {
	for _, l := range [...]struct {
		listener  string
		now, then *tls.Certificate
	}{{"public", c.public, old.public}, {"admin", c.admin, old.admin}} {
		if l.now == nil || l.then != nil && l.now.Leaf.Equal(l.then.Leaf) {
			continue
		}
		sum := sha256.Sum256(l.now.Leaf.Raw)
		log.Info("certificate", "listener", l.listener, "not_after", l.now.Leaf.NotAfter.UTC().Format(time.RFC3339), "sha256", hex.EncodeToString(sum[:8]))
	}
}

// tlsConfig returns a listener's TLS, or nil for clear text. The certificate is asked for at each handshake,
// so that a new one is shown from then on and no handshake under way has half of each.
func tlsConfig(t TLSConfig, certificate func() *tls.Certificate) *tls.Config {
	if !t.Enabled() {
		return nil
	}
	least := map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}[t.MinVersion]
	return &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate(), nil },
		MinVersion:     least, NextProtos: []string{"http/1.1"},
	}
}

// listenTLS is the public listener's TLS, or nil for clear text. What certificate it shows, and whether and by
// whom clients are vouched for, is what the generation in force says when they connect.
func (a *app) listenTLS() *tls.Config {
	base := tlsConfig(a.cfg.Listen.Public.TLS, func() *tls.Certificate { return a.reloads.generation().certificates.public })
	if base == nil {
		return nil
	}
	plain := base.Clone()
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return a.reloads.generation().identity.clientTLS(plain), nil
	}
	return base
}

// adminTLS is the admin listener's TLS, or nil for clear text.
func (a *app) adminTLS() *tls.Config {
	return tlsConfig(a.cfg.Listen.Admin.TLS, func() *tls.Certificate { return a.reloads.generation().certificates.admin })
}

// keepPair copies the files of a certificate from another configuration: they can be changed while a listener
// speaks TLS, but not whether it does.
func (t *TLSConfig) keepPair(from TLSConfig) {
	if t.Enabled() == from.Enabled() {
		t.CertFile, t.KeyFile = from.CertFile, from.KeyFile
	}
}

// sources are the files of a certificate.
func (t TLSConfig) sources() []string {
	if !t.Enabled() {
		return nil
	}
	return []string{t.CertFile, t.KeyFile}
}
