package coding

import (
	"bufio"
	"errors"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// zstdReader decodes Zstandard.
type zstdReader struct {
	frames frames
	z      *zstd.Decoder
}

// keptZstd is a decoder that is kept, with the window that it was made for.
type keptZstd struct {
	z      *zstd.Decoder
	window int64
}

// keptWindow is the largest window whose decoder is kept for other bodies.
const keptWindow = 1 << 20

var zstdReaders sync.Pool

func newZstd(in *bufio.Reader, lim Limits) *zstdReader {
	r := &zstdReader{frames: frames{in: in, lim: lim}}
	if kept, ok := zstdReaders.Get().(*keptZstd); ok && kept.window == lim.Window {
		r.z = kept.z
	} else {
		var err error
		// With a concurrency of one it decodes in Read and starts no goroutine. The frames
		// before it hold the window to the limit; its own are the second line.
		r.z, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(uint64(lim.Window)), zstd.WithDecoderMaxMemory(uint64(lim.Window)))
		if err != nil {
			panic("BUG: the options of a zstd decoder don't fit: " + err.Error())
		}
	}
	if err := r.z.Reset(&r.frames); err != nil {
		panic("BUG: a zstd decoder that is open can't be reset: " + err.Error())
	}
	return r
}

func (r *zstdReader) Read(p []byte) (int, error) {
	n, err := r.z.Read(p)
	if err == nil {
		return n, nil
	}
	switch ferr := r.frames.err; {
	case ferr != nil && !errors.Is(ferr, io.EOF):
		err = ferr // it knows better
	case ferr == nil || !errors.Is(err, io.EOF):
		err = ErrCorrupt // only one of the two has come to an end
	}
	return n, err
}

func (r *zstdReader) release() {
	if r.z.Reset(nil) == nil && r.frames.window <= keptWindow {
		zstdReaders.Put(&keptZstd{z: r.z, window: r.frames.lim.Window})
	}
}

// frames reads a sequence of Zstandard frames without decoding them, and passes on
// their bytes as long as they keep to the limits. The window that a frame declares is
// memory that its decoder takes at once, so it has to be known before the decoder
// sees it; and what follows the last frame must be told from its end.
type frames struct {
	in     *bufio.Reader
	lim    Limits
	parts  int
	window int64 // the largest so far
	left   int64 // bytes of the present piece that are passed on as they are
	inside bool  // within a frame, between its blocks
	sum    int64 // bytes of checksum behind the last block
	err    error
}

// maxFrameHeader is the longest header that a frame can have.
const maxFrameHeader = 18

func (f *frames) Read(p []byte) (int, error) {
	for f.left == 0 && f.err == nil {
		if f.inside {
			f.err = noEOF(f.block())
		} else {
			f.err = f.frame()
		}
	}
	if f.err != nil {
		return 0, f.err
	}
	n, err := f.in.Read(p[:min(int64(len(p)), f.left)])
	f.left -= int64(n)
	if n == 0 && err != nil { // an error that comes with bytes comes again
		f.err = noEOF(err)
	}
	return n, f.err
}

// frame begins the next frame, or returns io.EOF if there is none.
func (f *frames) frame() error {
	head, err := f.in.Peek(maxFrameHeader)
	if len(head) == 0 {
		if f.parts == 0 {
			return noEOF(err) // even an empty body is a frame
		}
		return err
	}
	if f.parts++; f.parts > f.lim.Parts {
		return ErrParts
	}
	var h zstd.Header
	if err := h.Decode(head); err != nil {
		return ErrCorrupt
	}
	f.left = int64(h.HeaderSize)
	if h.Skippable {
		f.left += int64(h.SkippableSize)
		return nil
	}
	window := int64(min(h.WindowSize, 1<<62))
	if h.SingleSegment {
		window = int64(min(h.FrameContentSize, 1<<62))
	}
	switch {
	case h.DictionaryID != 0:
		return ErrCorrupt // nobody has agreed on one
	case h.HasFCS && h.FrameContentSize > uint64(f.lim.Bytes):
		return ErrTooLarge
	case window > f.lim.Window:
		return ErrWindow
	}
	if more := window - f.window; more > 0 {
		if f.lim.Take != nil {
			if err := f.lim.Take(more); err != nil {
				return takeError{err}
			}
		}
		f.window = window
	}
	f.inside, f.sum = true, 0
	if h.HasCheckSum {
		f.sum = 4
	}
	return nil
}

// block begins the frame's next block.
func (f *frames) block() error {
	head, err := f.in.Peek(3)
	if err != nil {
		return err
	}
	bits := uint32(head[0]) | uint32(head[1])<<8 | uint32(head[2])<<16
	size := int64(bits >> 3)
	if kind := bits >> 1 & 3; kind == 1 {
		size = 1 // one byte, so many times
	}
	f.left = 3 + size
	if bits&1 != 0 {
		f.inside = false
		f.left += f.sum
	}
	return nil
}
