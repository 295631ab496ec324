package kvevents

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/sluicegate/sluice/scoring"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// This file holds the primitive values. The msgpack decoder reads from b.r, a
// reader over the whole payload, so positions are known, lengths can be
// checked against what is left, and strings can be looked at in place.

func isInt(c byte) bool {
	return msgpcode.IsFixedNum(c) || c >= msgpcode.Uint8 && c <= msgpcode.Int64
}

func isStr(c byte) bool {
	return msgpcode.IsFixedString(c) || c >= msgpcode.Str8 && c <= msgpcode.Str32
}

func isBin(c byte) bool { return c >= msgpcode.Bin8 && c <= msgpcode.Bin32 }

func isArray(c byte) bool {
	return msgpcode.IsFixedArray(c) || c == msgpcode.Array16 || c == msgpcode.Array32
}

func isMap(c byte) bool {
	return msgpcode.IsFixedMap(c) || c == msgpcode.Map16 || c == msgpcode.Map32
}

func (b *Batch) offset() int { return len(b.p) - b.r.Len() }

func (b *Batch) seek(offset int) {
	if _, err := b.r.Seek(int64(offset), io.SeekStart); err != nil {
		panic(fmt.Sprintf("BUG: cannot seek to offset %d of a batch: %v", offset, err))
	}
}

// peek returns the code of the next value.
func (b *Batch) peek() (byte, error) {
	if b.r.Len() == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	return b.p[b.offset()], nil
}

// skipValue steps over one whole value. It counts open values instead of
// recursing: the nesting depth is the publisher's choice.
func (b *Batch) skipValue() error {
	for open := 1; open > 0; open-- {
		c, err := b.peek()
		if err != nil {
			return err
		}
		switch {
		case isArray(c):
			n, err := b.dec.DecodeArrayLen()
			if err != nil {
				return err
			}
			open += n
		case isMap(c):
			n, err := b.dec.DecodeMapLen()
			if err != nil {
				return err
			}
			open += 2 * n
		case isStr(c), isBin(c):
			n, err := b.dec.DecodeBytesLen()
			if err != nil {
				return err
			}
			if n > b.r.Len() {
				return io.ErrUnexpectedEOF
			}
			b.seek(b.offset() + n)
		case msgpcode.IsExt(c):
			_, n, err := b.dec.DecodeExtHeader()
			if err != nil {
				return err
			}
			if n > b.r.Len() {
				return io.ErrUnexpectedEOF
			}
			b.seek(b.offset() + n)
		default:
			if err := b.dec.Skip(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *Batch) arrayLen() (int, error) {
	c, err := b.peek()
	if err != nil {
		return 0, err
	}
	if !isArray(c) {
		return 0, errMalformed
	}
	return b.dec.DecodeArrayLen()
}

// listLen opens a list that will be copied, so its length is bounded first: by
// limit, and by what is left, since every element takes a byte. ok is false for
// nil.
func (b *Batch) listLen(limit int) (n int, ok bool, err error) {
	c, err := b.peek()
	if err != nil {
		return 0, false, err
	}
	if c == msgpcode.Nil {
		return 0, false, b.skipValue()
	}
	if n, err = b.arrayLen(); err != nil {
		return 0, false, err
	}
	if n > limit {
		return 0, false, errLimit
	}
	if n > b.r.Len() {
		return 0, false, io.ErrUnexpectedEOF
	}
	return n, true, nil
}

// text reads a string without copying it: the result is a part of the payload.
// ok is false for nil.
func (b *Batch) text(limit int) (s []byte, ok bool, err error) {
	c, err := b.peek()
	if err != nil {
		return nil, false, err
	}
	if c == msgpcode.Nil {
		return nil, false, b.skipValue()
	}
	if !isStr(c) {
		return nil, false, errMalformed
	}
	s, err = b.raw(limit)
	return s, err == nil, err
}

// raw reads a string or bytes in place.
func (b *Batch) raw(limit int) ([]byte, error) {
	n, err := b.dec.DecodeBytesLen()
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, errLimit
	}
	if n > b.r.Len() {
		return nil, io.ErrUnexpectedEOF
	}
	start := b.offset()
	b.seek(start + n)
	return b.p[start : start+n], nil
}

func (b *Batch) optString() (string, error) {
	s, _, err := b.text(MaxNameBytes)
	return string(s), err
}

// hash reads a block hash: an integer of any width and sign, or bytes.
func (b *Batch) hash() (scoring.EngineHash, error) {
	c, err := b.peek()
	if err != nil {
		return "", err
	}
	switch {
	case isInt(c):
		v, err := b.dec.DecodeUint64()
		if err != nil {
			return "", err
		}
		var buf [8]byte
		binary.BigEndian.PutUint64(buf[:], v)
		return scoring.EngineHash(buf[:]), nil
	case isBin(c), isStr(c):
		s, err := b.raw(MaxHashBytes)
		if err != nil {
			return "", err
		}
		if len(s) == 0 {
			return "", errMalformed
		}
		return scoring.EngineHash(s), nil
	}
	return "", errMalformed
}

func (b *Batch) optHash() (scoring.EngineHash, error) {
	c, err := b.peek()
	if err != nil {
		return "", err
	}
	if c == msgpcode.Nil {
		return "", b.skipValue()
	}
	return b.hash()
}

// optInt reads a count between 0 and limit; nil is 0.
func (b *Batch) optInt(limit int64) (int, error) {
	c, err := b.peek()
	if err != nil {
		return 0, err
	}
	if c == msgpcode.Nil {
		return 0, b.skipValue()
	}
	if !isInt(c) {
		return 0, errMalformed
	}
	v, err := b.dec.DecodeInt64()
	switch {
	case err != nil:
		return 0, err
	case v < 0:
		return 0, errMalformed
	case v > limit:
		return 0, errLimit
	}
	return int(v), nil
}

// token reads one token id. Nearly all of a payload are token ids of one to
// four bytes without a sign, so these are read here; the rest goes the long way.
func (b *Batch) token() (uint32, error) {
	at := b.offset()
	rest := b.p[at:]
	if len(rest) == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	var v uint32
	n := 1
	switch c := rest[0]; {
	case c <= msgpcode.PosFixedNumHigh:
		v = uint32(c)
	case c == msgpcode.Uint16 && len(rest) > 2:
		v, n = uint32(binary.BigEndian.Uint16(rest[1:])), 3
	case c == msgpcode.Uint32 && len(rest) > 4:
		v, n = binary.BigEndian.Uint32(rest[1:]), 5
	case c == msgpcode.Uint8 && len(rest) > 1:
		v, n = uint32(rest[1]), 2
	case isInt(c):
		wide, err := b.dec.DecodeUint64()
		if err != nil {
			return 0, err
		}
		if wide > math.MaxUint32 {
			return 0, errMalformed
		}
		return uint32(wide), nil
	default:
		return 0, errMalformed
	}
	b.seek(at + n)
	return v, nil
}

// number reads a float or an integer; nil is 0.
func (b *Batch) number() (float64, error) {
	c, err := b.peek()
	if err != nil {
		return 0, err
	}
	if c == msgpcode.Nil {
		return 0, b.skipValue()
	}
	if c != msgpcode.Float && c != msgpcode.Double && !isInt(c) {
		return 0, errMalformed
	}
	return b.dec.DecodeFloat64()
}
