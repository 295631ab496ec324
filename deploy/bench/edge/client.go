package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// client is one kept connection. It reads answers only as far as the
// measurement needs: status, framing, the first event with text, the end.
type client struct {
	nc  net.Conn
	br  *bufio.Reader
	buf []byte
}

func dial(addr string, tlsConfig *tls.Config) (*client, error) {
	nc, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return nil, err
	}
	if tlsConfig != nil {
		tc := tls.Client(nc, tlsConfig)
		if err := tc.Handshake(); err != nil {
			return nil, errors.Join(err, nc.Close())
		}
		nc = tc
	}
	return &client{nc: nc, br: bufio.NewReaderSize(nc, 16<<10)}, nil
}

// answer is what came of one request.
type answer struct {
	status      int
	first, last time.Time // of a stream: the first event with text; the last byte
	stream      bool
	done        bool // a stream had its terminal mark
	closed      bool // the connection can't be used again
	bytes       int
}

// errNoEnd: a stream's body ended without its terminal mark.
var errNoEnd = errors.New("the stream has no [DONE]")

// do sends a request and reads its answer to the end. firstText, if not nil, is
// called at the first event with text.
func (c *client) do(request []byte, patience time.Duration, firstText func()) (a answer, err error) {
	if err := c.nc.SetDeadline(time.Now().Add(patience)); err != nil {
		return a, err
	}
	if _, err := c.nc.Write(request); err != nil {
		return a, err
	}
	length, err := c.readHead(&a)
	if err != nil {
		return a, err
	}
	if length >= 0 {
		a.bytes = length
		if _, err := c.br.Discard(length); err != nil {
			return a, fmt.Errorf("the body was cut: %w", err)
		}
		a.last = time.Now()
		return a, nil
	}
	for {
		n, err := c.chunk(&a, firstText)
		if err != nil {
			return a, err
		}
		if n == 0 {
			break
		}
	}
	a.last = time.Now()
	if a.stream && a.status == 200 && !a.done {
		return a, errNoEnd
	}
	return a, nil
}

// readHead reads the response's head; length is negative for a chunked body.
func (c *client) readHead(a *answer) (length int, err error) {
	line, err := c.br.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return 0, fmt.Errorf("unexpected status line %q", line)
	}
	if a.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, err
	}
	for {
		line, err := c.br.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		if len(line) <= 2 {
			return length, nil
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("content-length")):
			if length, err = strconv.Atoi(string(value)); err != nil {
				return 0, err
			}
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			length = -1
		case bytes.EqualFold(name, []byte("content-type")):
			a.stream = bytes.HasPrefix(value, []byte("text/event-stream"))
		case bytes.EqualFold(name, []byte("connection")):
			a.closed = bytes.EqualFold(value, []byte("close"))
		}
	}
}

// chunk reads one chunk and returns its size.
func (c *client) chunk(a *answer, firstText func()) (int, error) {
	line, err := c.br.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(bytes.TrimRight(line, "\r\n")), 16, 32)
	if err != nil {
		return 0, fmt.Errorf("cannot read a chunk's size: %w", err)
	}
	if cap(c.buf) < int(n)+2 {
		c.buf = make([]byte, n+2)
	}
	c.buf = c.buf[:n+2]
	if _, err := io.ReadFull(c.br, c.buf); err != nil {
		return 0, err
	}
	a.bytes += int(n)
	if a.first.IsZero() && bytes.Contains(c.buf, []byte(`"content":"l`)) {
		a.first = time.Now()
		if firstText != nil {
			firstText()
		}
	}
	if bytes.Contains(c.buf, []byte("data: [DONE]")) {
		a.done = true
	}
	return int(n), nil
}
