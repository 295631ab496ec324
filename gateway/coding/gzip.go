package coding

import (
	"bufio"
	"compress/gzip"
	"errors"
	"io"
	"sync"
)

// gzipReader decodes gzip, one member after another.
type gzipReader struct {
	in    *bufio.Reader
	z     *gzip.Reader
	parts int // that may still begin
	open  bool
}

var gzipReaders = sync.Pool{New: func() any { return new(gzip.Reader) }}

func newGzip(in *bufio.Reader, parts int) *gzipReader {
	return &gzipReader{in: in, z: gzipReaders.Get().(*gzip.Reader), parts: parts}
}

func (g *gzipReader) Read(p []byte) (int, error) {
	for {
		if !g.open {
			if g.parts--; g.parts < 0 {
				return 0, ErrParts
			}
			if err := g.z.Reset(g.in); err != nil {
				return 0, noEOF(err) // even an empty body is a member
			}
			g.z.Multistream(false)
			g.open = true
		}
		n, err := g.z.Read(p)
		if !errors.Is(err, io.EOF) {
			return n, err
		}
		g.open = false
		if _, err := g.in.Peek(1); err == io.EOF {
			return n, io.EOF
		}
		if n > 0 {
			return n, nil
		}
	}
}

func (g *gzipReader) release() { gzipReaders.Put(g.z) }

// noEOF turns an end where there must be none into what it is.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
