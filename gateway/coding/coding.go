// Package coding decodes the content codings of request bodies, within bounds that
// hold whatever a body says of itself: on its size, on how much of it a byte may
// expand to, on the memory that decoding it takes, and on the number of its parts.
package coding

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"sync"
)

// Coding is a content coding.
type Coding uint8

// The codings that are known.
const (
	Identity Coding = iota
	Gzip
	Zstd
)

// Accepted lists the codings for an Accept-Encoding header.
const Accepted = "gzip, zstd"

// Parse returns the coding of a Content-Encoding header's value, in any case; an empty
// one is Identity. It reports false for a list and for any other coding.
func Parse(value []byte) (Coding, bool) {
	switch value = bytes.Trim(value, " \t"); {
	case len(value) == 0, bytes.EqualFold(value, []byte("identity")):
		return Identity, true
	case bytes.EqualFold(value, []byte("gzip")):
		return Gzip, true
	case bytes.EqualFold(value, []byte("zstd")):
		return Zstd, true
	}
	return Identity, false
}

// Limits bound what a Reader does. All are needed.
type Limits struct {
	// Bytes bounds the decoded size.
	Bytes int64
	// Ratio bounds the decoded bytes for each byte that came, once RatioFrom bytes are
	// decoded.
	Ratio, RatioFrom int64
	// Window bounds how far back a body may refer, which is memory that has to be held.
	Window int64
	// Parts bounds the gzip members or zstd frames, since each costs time even if it is
	// empty.
	Parts int
	// Take, unless nil, is asked before memory is taken for a window; its error is the
	// Reader's. The caller gives the memory back when the Reader is closed.
	Take func(bytes int64) error
}

// DefaultLimits returns the HTTP contract's limits for bodies of at most so many bytes.
func DefaultLimits(size int64) Limits {
	return Limits{Bytes: size, Ratio: 100, RatioFrom: 1 << 20, Window: 8 << 20, Parts: 1000}
}

// Errors of a Reader, beside those of its source, which it returns as they are.
var (
	// ErrTooLarge says that a body decodes to more than Limits.Bytes.
	ErrTooLarge = errors.New("the body is too large when decoded")
	// ErrRatio says that a body expands to more than Limits.Ratio times its size.
	ErrRatio = errors.New("the body expands too much when decoded")
	// ErrWindow says that decoding a body takes a larger window than Limits.Window.
	ErrWindow = errors.New("decoding the body takes too large a window")
	// ErrParts says that a body has more than Limits.Parts parts.
	ErrParts = errors.New("the coded body has too many parts")
	// ErrCorrupt says that a body is not of its coding, is cut short, or goes on behind
	// its end.
	ErrCorrupt = errors.New("the body is not validly coded")
)

// Reader decodes a body. It reads the source to its end, and not beyond what it needs
// to find out that a limit is passed. It starts no goroutines.
type Reader struct {
	coding  Coding
	lim     Limits
	src     source
	in      *bufio.Reader // over src
	dec     decoder
	decoded int64
	err     error
}

// decoder decodes one coding. Read returns io.EOF only at the end of a whole part
// behind which the input ends.
type decoder interface {
	io.Reader
	// release ends the decoder's use.
	release()
}

// takeError is why there is no memory for a window.
type takeError struct{ error }

// source counts what comes, and remembers how it ended.
type source struct {
	r   io.Reader
	n   int64
	err error
}

func (s *source) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.r.Read(p)
	s.n += int64(n)
	s.err = err
	return n, err
}

var inputs = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 4<<10) }}

// NewReader returns a Reader of what src holds in coding c, which is Gzip or Zstd.
// Close ends its use; the source stays the caller's.
func NewReader(c Coding, src io.Reader, lim Limits) *Reader {
	r := &Reader{coding: c, lim: lim, src: source{r: src}, in: inputs.Get().(*bufio.Reader)}
	r.in.Reset(&r.src)
	switch c {
	case Gzip:
		r.dec = newGzip(r.in, lim.Parts)
	case Zstd:
		r.dec = newZstd(r.in, lim)
	default:
		panic("BUG: a body without a coding needs no decoding")
	}
	return r
}

// Read implements io.Reader. What it returns with an error is not to be used.
func (r *Reader) Read(p []byte) (int, error) {
	if r.err != nil || len(p) == 0 {
		return 0, r.err
	}
	// One byte more than allowed tells a body that is too large from one that fits.
	p = p[:min(int64(len(p)), r.lim.Bytes+1-r.decoded)]
	n, err := r.dec.Read(p)
	r.decoded += int64(n)
	switch {
	case r.decoded > r.lim.Bytes:
		r.err = ErrTooLarge
	case r.decoded > r.lim.RatioFrom && r.decoded/r.lim.Ratio > r.src.n:
		r.err = ErrRatio
	case err != nil:
		r.err = r.judge(err)
	}
	return n, r.err
}

// judge turns a decoder's error into one of the Reader's. The source's own comes
// first: what a decoder makes of it can look like the end of a body.
func (r *Reader) judge(err error) error {
	switch {
	case r.src.err != nil && !errors.Is(r.src.err, io.EOF):
		return r.src.err
	case errors.Is(err, io.EOF):
		return io.EOF
	case errors.Is(err, ErrWindow), errors.Is(err, ErrParts), errors.Is(err, ErrTooLarge):
		return err
	}
	if t, ok := errors.AsType[takeError](err); ok {
		return t.error
	}
	return ErrCorrupt
}

// Received returns how many bytes of the source have been read.
func (r *Reader) Received() int64 { return r.src.n }

// Close gives the memory back. The Reader can't be used any more.
func (r *Reader) Close() {
	if r.in == nil {
		return
	}
	r.dec.release()
	r.in.Reset(nil)
	inputs.Put(r.in)
	r.in, r.dec, r.err = nil, nil, io.ErrClosedPipe
}
