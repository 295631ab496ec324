package gateway

import (
	"bytes"
	"errors"
	"slices"
)

// maxTrailer bounds the trailer of a body.
const maxTrailer = 16 << 10

// Errors of a chunked body. None quotes it.
var (
	errChunkFraming   = errors.New("the chunks of the body are not framed as they must be")
	errChunkLine      = errors.New("a line between the chunks of the body is longer than 4 KiB")
	errChunkExtension = errors.New("the chunk extensions of the body are longer than 16 KiB together")
	errTrailer        = errors.New("the trailer of the body is longer than 16 KiB")
)

// chunkDecoder takes the framing off a chunked body as its bytes come, however they
// are cut. It is strict: lines end in CR LF, sizes are hexadecimal digits and nothing
// else. Extensions and trailers are passed over. The zero value is ready to use.
type chunkDecoder struct {
	state      chunkState
	left       int64 // of the chunk's data; or the size, as it is read
	line       int   // length of the line under way
	extensions int
	trailer    int
	name       [len("transfer-encoding") + 1]byte // of the trailer's line under way, as far as it fits
}

type chunkState uint8

const (
	chunkSize      chunkState = iota // before the first digit
	chunkDigits                      // after a digit
	chunkSpace                       // white space before an extension
	chunkExtension                   // up to the CR
	chunkSizeEnd                     // LF is due
	chunkData
	chunkDataCR // CR is due
	chunkDataEnd
	trailerStart // at the beginning of a line of the trailer
	trailerName
	trailerValue
	trailerLineEnd
	trailerEnd // LF of the blank line is due
	chunksDone
)

// done reports whether the whole body has come.
func (d *chunkDecoder) done() bool { return d.state == chunksDone }

// decode takes the framing off p, which it changes. data is the body's bytes in it,
// a part of p; used is how much of p belongs to the body, less than all of it only
// once the body has ended. An error is final.
func (d *chunkDecoder) decode(p []byte) (data []byte, used int, err error) {
	for i := 0; i < len(p); {
		if d.state == chunkData {
			n := int(min(d.left, int64(len(p)-i)))
			data = join(p, data, i, n)
			i += n
			if d.left -= int64(n); d.left == 0 {
				d.state = chunkDataCR
			}
			continue
		}
		if d.state == chunksDone {
			return data, i, nil
		}
		if err := d.step(p[i]); err != nil {
			return data, i, err
		}
		i++
	}
	return data, len(p), nil
}

// join appends p[i:i+n] to data, which lies before it in p.
func join(p, data []byte, i, n int) []byte {
	if len(data) == 0 {
		return p[i : i+n]
	}
	return append(data, p[i:i+n]...) // data has room: what it overwrites is framing
}

// step takes one byte of what is not data.
func (d *chunkDecoder) step(c byte) error {
	switch d.state {
	case chunkSize, chunkDigits:
		return d.size(c)
	case chunkSpace, chunkExtension:
		return d.extension(c)
	case chunkSizeEnd:
		d.line = 0
		if d.left > 0 {
			return d.expect(c, '\n', chunkData)
		}
		return d.expect(c, '\n', trailerStart)
	case chunkDataCR:
		return d.expect(c, '\r', chunkDataEnd)
	case chunkDataEnd:
		return d.expect(c, '\n', chunkSize)
	case trailerStart, trailerName, trailerValue:
		return d.trailing(c)
	case trailerLineEnd:
		return d.expect(c, '\n', trailerStart)
	default: // trailerEnd
		return d.expect(c, '\n', chunksDone)
	}
}

func (d *chunkDecoder) expect(c, want byte, next chunkState) error {
	if c != want {
		return errChunkFraming
	}
	d.state = next
	return nil
}

// tooLong counts a byte of a line that is not its end.
func (d *chunkDecoder) tooLong(c byte) bool {
	if c == '\r' {
		return false
	}
	d.line++
	return d.line > maxChunkLine
}

// size reads a digit of a chunk's size, or what ends it.
func (d *chunkDecoder) size(c byte) error {
	if d.tooLong(c) {
		return errChunkLine
	}
	if v := hexDigit(c); v >= 0 {
		if d.state == chunkSize {
			d.left, d.state = 0, chunkDigits
		}
		if d.left >= 1<<58 {
			return errChunkFraming // no body is that long
		}
		d.left = d.left<<4 | int64(v)
		return nil
	}
	switch {
	case d.state == chunkSize:
		return errChunkFraming
	case c == '\r':
		d.state = chunkSizeEnd
	case c == ';':
		d.state = chunkExtension
	case c == ' ' || c == '\t':
		d.state = chunkSpace
	default:
		return errChunkFraming
	}
	return nil
}

// extension passes over a byte of an extension, or the white space before it.
func (d *chunkDecoder) extension(c byte) error {
	if d.tooLong(c) {
		return errChunkLine
	}
	if d.extensions++; d.extensions > maxExtensions {
		return errChunkExtension
	}
	switch {
	case c == '\r':
		d.state = chunkSizeEnd
	case d.state == chunkSpace && c == ';':
		d.state = chunkExtension
	case d.state == chunkSpace && c != ' ' && c != '\t':
		return errChunkFraming
	case !isValueByte(c):
		return errChunkFraming
	}
	return nil
}

// noTrailers are fields that mean something before a body only.
var noTrailers = [...]string{
	"content-length", "transfer-encoding", "host", "authorization", "connection", "expect", "te", "trailer", "content-type",
	"content-encoding", "content-range", "cookie", "x-api-key", "api-key",
}

// trailing passes over a byte of the trailer, and finds its end. A field that has no
// place there is refused: whoever believed it would see another request.
func (d *chunkDecoder) trailing(c byte) error {
	if d.trailer++; d.trailer > maxTrailer {
		return errTrailer
	}
	switch {
	case d.state == trailerStart && c == '\r':
		d.state = trailerEnd
	case d.state == trailerValue && c == '\r':
		d.state = trailerLineEnd
	case d.state == trailerValue:
		if !isValueByte(c) {
			return errChunkFraming
		}
	case d.state == trailerName && c == ':':
		if slices.Contains(noTrailers[:], string(bytes.ToLower(d.name[:min(d.line, len(d.name))]))) {
			return errChunkFraming
		}
		d.line, d.state = 0, trailerValue
	case !isToken(c):
		return errChunkFraming
	default:
		if d.line < len(d.name) {
			d.name[d.line] = c
		}
		d.line++
		d.state = trailerName
	}
	return nil
}
