package gateway

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
)

// errFraming is what the server gets to read in place of a request that is at fault.
// The framer knows what to say about it.
var errFraming = errors.New("the request's framing is at fault")

// framed returns nc with a framer before its bytes. It stands above TLS, since that
// is where the bytes are a request's.
func framed(nc net.Conn) net.Conn {
	if tc, ok := nc.(*tls.Conn); ok {
		return &framedTLS{Conn: tc}
	}
	return &framedConn{Conn: nc}
}

// framedConn is a connection in clear, framedTLS one whose TLS the server must
// be able to see.
type (
	framedConn struct {
		net.Conn
		framer framer
	}
	framedTLS struct {
		*tls.Conn
		framer framer
	}
)

// Read implements net.Conn.
func (c *framedConn) Read(p []byte) (int, error) { return c.framer.read(c.Conn, p) }

// Read implements net.Conn.
func (c *framedTLS) Read(p []byte) (int, error) { return c.framer.read(c.Conn, p) }

// read reads from r what the server may have.
func (fr *framer) read(r io.Reader, p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for fr.fault == nil {
		n, err := r.Read(p)
		if kept := fr.pass(p[:n]); kept > 0 {
			if fr.fault != nil {
				err = nil // the fault comes first
			}
			return kept, err
		}
		if err != nil {
			return 0, err
		}
	}
	if !fr.passed {
		// The server answers nothing on a kept connection that fails before a request has
		// begun. So one does.
		fr.passed = true
		p[0] = 'X'
		return 1, nil
	}
	return 0, errFraming
}

// framerOf returns the framer of a connection that the server knows, or nil.
func framerOf(nc net.Conn) *framer {
	switch c := nc.(type) {
	case *framedConn:
		return &c.framer
	case *framedTLS:
		return &c.framer
	}
	return nil
}
