package gateway

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"strings"
)

// Reasons of TLS handshakes that fail, a fixed list.
const (
	handshakeNoTLS       = "no_tls"       // what came is no TLS: clear text, most often
	handshakeVersion     = "version"      // no version of TLS that both speak
	handshakeProtocol    = "protocol"     // no application protocol that both speak
	handshakeCipher      = "cipher"       // no cipher suite, curve or signature that both know
	handshakeCertificate = "certificate"  // the client's certificate is missing or refused
	handshakeAlert       = "client_alert" // the client ended it: it doesn't trust our certificate, most often
	handshakeTimeout     = "timeout"
	handshakeOther       = "other"
)

// HandshakeReasons lists every reason that Meter.HandshakeFailed may be told.
func HandshakeReasons() []string {
	return []string{
		handshakeNoTLS, handshakeVersion, handshakeProtocol, handshakeCipher, handshakeCertificate, handshakeAlert, handshakeTimeout, handshakeOther,
	}
}

// handshakeFailed counts a connection on which TLS was never spoken.
func (g *Gateway) handshakeFailed(c *conn, err error) {
	reason := handshakeReason(err)
	g.parts.Meter.HandshakeFailed(reason)
	g.log.Debug("TLS handshake failed", slog.String("reason", reason), slog.String("peer", c.RemoteAddr().String()))
}

// handshakeReason names what a handshake failed for. The library has no other
// way to tell most of them apart than its texts.
func handshakeReason(err error) string {
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return handshakeNoTLS
	}
	if isTimeout(err) {
		return handshakeTimeout
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return handshakeCertificate
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" {
		return handshakeAlert
	}
	text := err.Error()
	for _, c := range [...]struct{ part, reason string }{
		{"unsupported versions", handshakeVersion}, {"protocol version", handshakeVersion},
		{"application protocol", handshakeProtocol},
		{"certificate", handshakeCertificate},
		{"cipher suite", handshakeCipher}, {"curve", handshakeCipher}, {"signature", handshakeCipher}, {"key exchange", handshakeCipher},
	} {
		if strings.Contains(text, c.part) {
			return c.reason
		}
	}
	return handshakeOther
}

// tlsOf returns the TLS of a connection that fasthttp serves; nil if it is in
// clear text.
func tlsOf(nc net.Conn) *tls.Conn {
	switch c := nc.(type) {
	case *tls.Conn:
		return c
	case *framedTLS:
		return c.Conn
	}
	return nil
}
