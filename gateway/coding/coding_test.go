package coding

import (
	"bytes"
	stdgzip "compress/gzip"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"
)

// Bodies as the commands gzip and zstd make them of the text of vectorText.
var vectors = []struct {
	name   string
	coding Coding
	hex    string
	err    error
}{
	{"gzip -9", Gzip, "1f8b080890a60d6b0203636861742e6a736f6e00ab56cacd4f49cd51b25250ca55d20112a9c5c589e9a9c54081e86aa5a2fc9c54905469716a114836393faf2435af0424e45e7478cfe1f9a90a89a5c50a29a9b90ae1a9c540293d8551f151f151f1c12fae541b5b0b00044ff62dfd030000", nil},
	{"zstd -1", Zstd, "28b52ffd64fd029d02005245121ab0a5399025b3c4c9d526e74d4c1bc91e566899458c364a3216116dd05ce25ce503c597e622bda1381409e09ed5b93a88e00ea7e772cf372899097ace1748e6d11d46f76c5e109a05010051e9ad6614ee42e54e", nil},
	{"zstd -3 of a stream", Zstd, "28b52ffd04589d02005245121ab0a5399025b3c4c9d526e74d4c1bc91e566899458c364a3216116dd05ce25ce503c597e622bda1381409e09ed5b93a88e00ea7e772cf372899097ace1748e6d11d46f76c5e109a05010051e9ad6614ee42e54e", nil},
	{"zstd -19", Zstd, "28b52ffd64fd0285020052851115b0eb60896360d0125c5b934c880874804609a6a202d4d073681d6113669d18cac35dafbd6f9cc563ebd81c3a83bf86f22cdecbbdcfc2e2b0d581b0d9199c9dc55727c73e03010051e9ad6614ee42e54e", nil},
	{"zstd -22 of a file", Zstd, "28b52ffd60fd0285020052851115b0eb60896360d0125c5b934c880874804609a6a202d4d073681d6113669d18cac35dafbd6f9cc563ebd81c3a83bf86f22cdecbbdcfc2e2b0d581b0d9199c9dc55727c73e03010051e9ad6614", nil},
	{"zstd -22 of a stream, with a window of 128 MiB", Zstd, "28b52ffd048885020052851115b0eb60896360d0125c5b934c880874804609a6a202d4d073681d6113669d18cac35dafbd6f9cc563ebd81c3a83bf86f22cdecbbdcfc2e2b0d581b0d9199c9dc55727c73e03010051e9ad6614ee42e54e", ErrWindow},
}

var vectorText = `{"model": "m", "messages": [{"role": "user", "content": "` + strings.Repeat("Grüße aus dem Westen. ", 40) + `"}]}`

// both are the codings that decode.
var both = []Coding{Gzip, Zstd}

func (c Coding) name() string { return [...]string{"identity", "gzip", "zstd"}[c] }

// encode returns text in a coding, in one part.
func encode(t testing.TB, c Coding, text []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser = stdgzip.NewWriter(&out)
	if c == Zstd {
		var err error
		if w, err = zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20), zstd.WithEncoderCRC(len(text)%2 == 0 || len(text) < 1<<16)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func decode(c Coding, src io.Reader, lim Limits) ([]byte, error) {
	r := NewReader(c, src, lim)
	defer r.Close()
	return io.ReadAll(r)
}

// withEnd is a source that tells its end with its last bytes, as many as are asked for.
type withEnd struct{ rest []byte }

func (w *withEnd) Read(p []byte) (int, error) {
	n := copy(p, w.rest)
	if w.rest = w.rest[n:]; len(w.rest) == 0 {
		return n, io.EOF
	}
	return n, nil
}

func TestVectors(t *testing.T) {
	for _, v := range vectors {
		coded, err := hex.DecodeString(v.hex)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decode(v.coding, bytes.NewReader(coded), DefaultLimits(1<<20))
		if !errors.Is(err, v.err) || v.err == nil && string(got) != vectorText {
			t.Errorf("%s: got %q, %v", v.name, got, err)
		}
	}
}

func TestParse(t *testing.T) {
	for value, want := range map[string]Coding{"": Identity, " ": Identity, "identity": Identity, "IDENTITY": Identity, "gzip": Gzip, " GZip\t": Gzip, "zstd": Zstd, "ZSTD": Zstd} {
		if got, ok := Parse([]byte(value)); got != want || !ok {
			t.Errorf("%q: got %v, %v", value, got, ok)
		}
	}
	for _, value := range []string{"br", "deflate", "x-gzip", "compress", "gzip, gzip", "identity, gzip", "gzip,", ",", "gzip;q=1", "zstd gzip", "gzıp", "\x00"} {
		if got, ok := Parse([]byte(value)); ok {
			t.Errorf("%q: got %v, want none", value, got)
		}
	}
}

// TestSizes decodes bodies of many sizes, in one part and in several, however their
// bytes come.
func TestSizes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range both {
		for i, size := range []int{0, 1, 100, 4 << 10, 128 << 10, 128<<10 + 1, 3 << 20, 300_001} {
			text := make([]byte, size)
			for at := range text {
				text[at] = "abcdefgh"[rng.IntN(8)]
				if i%2 == 1 {
					text[at] = byte(rng.Uint32()) // can't be compressed
				}
			}
			one := encode(t, c, text)
			parts := bytes.Join([][]byte{encode(t, c, text[:size/3]), encode(t, c, nil), encode(t, c, text[size/3:])}, nil)
			for name, coded := range map[string][]byte{"one part": one, "three parts": parts} {
				for how, src := range map[string]io.Reader{
					"at once": bytes.NewReader(coded), "in halves": iotest.HalfReader(bytes.NewReader(coded)),
					"with its end": &withEnd{coded}, "byte by byte": iotest.OneByteReader(bytes.NewReader(coded)),
				} {
					if got, err := decode(c, src, DefaultLimits(int64(size))); err != nil || !bytes.Equal(got, text) {
						t.Errorf("%s of %d bytes in %s, %s: %d bytes, %v", c.name(), size, name, how, len(got), err)
					}
				}
			}
		}
	}
}

// TestCut: a body that stops anywhere but behind a part is refused, and one whose
// source fails fails with the source's error, wherever that is.
func TestCut(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range both {
		first := encode(t, c, []byte(vectorText))
		coded := append(bytes.Clone(first), encode(t, c, []byte("more"))...)
		for n := range coded {
			want := ErrCorrupt
			if n == len(first) {
				want = nil
			}
			if _, err := decode(c, bytes.NewReader(coded[:n]), DefaultLimits(1<<20)); !errors.Is(err, want) {
				t.Errorf("%s cut at %d of %d: %v, want %v", c.name(), n, len(coded), err, want)
			}
			for _, fault := range []error{broken, io.ErrUnexpectedEOF} {
				src := io.MultiReader(bytes.NewReader(coded[:n]), iotest.ErrReader(fault))
				if _, err := decode(c, src, DefaultLimits(1<<20)); !errors.Is(err, fault) {
					t.Errorf("%s whose source fails at %d of %d: %v, want %v", c.name(), n, len(coded), err, fault)
				}
			}
		}
	}
}

// TestTrailing: nothing may follow the last part.
func TestTrailing(t *testing.T) {
	for _, c := range both {
		for _, rest := range []string{"\x00", "\x00\x00\x00\x00\x00\x00\x00\x00", "x", "{}", "\n", "GET /", "\x1f", "\x1f\x8b", "\x28\xb5\x2f", "\x50\x2a\x4d\x18\x09\x00\x00\x00short"} {
			coded := append(encode(t, c, []byte(vectorText)), rest...)
			if _, err := decode(c, bytes.NewReader(coded), DefaultLimits(1<<20)); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s and %q: %v", c.name(), rest, err)
			}
		}
	}
}

// TestFlipped: a body with a bit wrong is refused or, where nothing vouches for the
// bit, decodes to something of its size. It never decodes to more than is allowed.
func TestFlipped(t *testing.T) {
	for _, c := range both {
		coded := encode(t, c, []byte(vectorText))
		wrong := 0
		for i := range coded {
			for bit := range 8 {
				bad := bytes.Clone(coded)
				bad[i] ^= 1 << bit
				got, err := decode(c, bytes.NewReader(bad), DefaultLimits(1<<20))
				if err == nil && string(got) != vectorText {
					t.Errorf("%s with bit %d of byte %d wrong decodes to %d bytes", c.name(), bit, i, len(got))
				}
				if err != nil {
					wrong++
				}
			}
		}
		if wrong < len(coded)*6 {
			t.Errorf("%s: only %d wrong bits were noticed", c.name(), wrong)
		}
	}
}

// window returns a frame that declares a window, with one byte of content.
func window(descriptor byte) []byte {
	return []byte{0x28, 0xb5, 0x2f, 0xfd, 0, descriptor, 1 | 1<<3, 0, 0, 'x'}
}

func TestBounds(t *testing.T) {
	zeros := make([]byte, 33<<20)
	mixed := bytes.Repeat([]byte(vectorText), 40)
	skippable := []byte("\x50\x2a\x4d\x18\x03\x00\x00\x00abc")
	single := []byte{0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0x90, 0, 1 | 1<<3, 0, 0, 'x'} // 9 MiB in one piece
	for _, v := range []struct {
		name  string
		c     Coding
		coded []byte
		lim   Limits
		err   error
	}{
		{"gzip of just the size", Gzip, encode(t, Gzip, mixed), DefaultLimits(int64(len(mixed))), nil},
		{"gzip over the size", Gzip, encode(t, Gzip, mixed), DefaultLimits(int64(len(mixed) - 1)), ErrTooLarge},
		{"zstd of just the size", Zstd, encode(t, Zstd, mixed), DefaultLimits(int64(len(mixed))), nil},
		{"zstd over the size", Zstd, encode(t, Zstd, mixed), DefaultLimits(int64(len(mixed) - 1)), ErrTooLarge},
		{"gzip bomb", Gzip, encode(t, Gzip, zeros), DefaultLimits(32 << 20), ErrRatio},
		{"zstd bomb", Zstd, encode(t, Zstd, zeros), DefaultLimits(32 << 20), ErrRatio},
		{"zeros under a megabyte", Gzip, encode(t, Gzip, zeros[:1<<20]), DefaultLimits(32 << 20), nil},
		{"zeros over it", Gzip, encode(t, Gzip, zeros[:1<<20+1]), DefaultLimits(32 << 20), ErrRatio},
		{"zstd zeros under a megabyte", Zstd, encode(t, Zstd, zeros[:1<<20]), DefaultLimits(32 << 20), nil},
		{"nested", Gzip, encode(t, Gzip, encode(t, Gzip, zeros)), DefaultLimits(32 << 20), nil}, // what it holds is no JSON
		{"window of 8 MiB", Zstd, window(13 << 3), DefaultLimits(1 << 20), nil},
		{"window of 9 MiB", Zstd, window(13<<3 | 1), DefaultLimits(1 << 20), ErrWindow},
		{"window of 3.75 TiB", Zstd, window(31<<3 | 7), DefaultLimits(1 << 20), ErrWindow},
		{"small window, then 9 MiB", Zstd, append(window(0), window(13<<3|1)...), DefaultLimits(1 << 20), ErrWindow},
		{"one piece of 9 MiB", Zstd, single, DefaultLimits(32 << 20), ErrWindow},
		{"one piece of 9 MiB where a megabyte is allowed", Zstd, single, DefaultLimits(1 << 20), ErrTooLarge},
		{"a dictionary", Zstd, []byte{0x28, 0xb5, 0x2f, 0xfd, 1, 0, 7, 1 | 1<<3, 0, 0, 'x'}, DefaultLimits(1 << 20), ErrCorrupt},
		{"a reserved block", Zstd, []byte{0x28, 0xb5, 0x2f, 0xfd, 0, 0, 1 | 3<<1 | 1<<3, 0, 0, 'x'}, DefaultLimits(1 << 20), ErrCorrupt},
		{"a content size that lies", Zstd, []byte{0x28, 0xb5, 0x2f, 0xfd, 0x20, 2, 1 | 1<<3, 0, 0, 'x'}, DefaultLimits(1 << 20), ErrCorrupt},
		{"skippable frames", Zstd, bytes.Join([][]byte{skippable, window(0), skippable}, nil), DefaultLimits(1 << 20), nil},
		{"a thousand frames", Zstd, bytes.Repeat(window(0), 1000), DefaultLimits(1 << 20), nil},
		{"ten thousand frames", Zstd, bytes.Repeat(window(0), 10000), DefaultLimits(1 << 20), ErrParts},
		{"ten thousand skippable frames", Zstd, bytes.Repeat(skippable, 10000), DefaultLimits(1 << 20), ErrParts},
		{"ten thousand members", Gzip, bytes.Repeat(encode(t, Gzip, nil), 10000), DefaultLimits(1 << 20), ErrParts},
		{"nothing in gzip", Gzip, nil, DefaultLimits(1 << 20), ErrCorrupt},
		{"nothing in zstd", Zstd, nil, DefaultLimits(1 << 20), ErrCorrupt},
		{"plain text as gzip", Gzip, []byte(vectorText), DefaultLimits(1 << 20), ErrCorrupt},
		{"plain text as zstd", Zstd, []byte(vectorText), DefaultLimits(1 << 20), ErrCorrupt},
		{"zstd as gzip", Gzip, encode(t, Zstd, mixed), DefaultLimits(1 << 20), ErrCorrupt},
		{"gzip as zstd", Zstd, encode(t, Gzip, mixed), DefaultLimits(1 << 20), ErrCorrupt},
	} {
		if got, err := decode(v.c, bytes.NewReader(v.coded), v.lim); !errors.Is(err, v.err) || int64(len(got)) > v.lim.Bytes+1 {
			t.Errorf("%s: %d bytes, %v, want %v", v.name, len(got), err, v.err)
		}
	}
}

// TestBombsTakeNoMemory: a bomb is refused for little more memory than its decoder
// takes, and reads little of its source.
func TestBombsTakeNoMemory(t *testing.T) {
	zeros := make([]byte, 64<<20)
	for _, c := range both {
		coded := encode(t, c, zeros)
		buf := make([]byte, 16<<10)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for range 10 {
			r := NewReader(c, bytes.NewReader(coded), DefaultLimits(32<<20))
			var err error
			for err == nil {
				_, err = r.Read(buf)
			}
			if !errors.Is(err, ErrRatio) || r.Received() > 16<<10+(1<<20)/100 {
				t.Errorf("%s: %v after %d bytes", c.name(), err, r.Received())
			}
			r.Close()
		}
		runtime.ReadMemStats(&after)
		if taken := after.TotalAlloc - before.TotalAlloc; taken > 40<<20 {
			t.Errorf("%s: ten bombs took %d MiB", c.name(), taken>>20)
		}
	}
}

// TestDecodersAreReused, whatever the last body did to them.
func TestDecodersAreReused(t *testing.T) {
	for _, c := range both {
		good, bad := encode(t, c, []byte(vectorText)), []byte("\x28\xb5\x2f\xfd\x1f\x8b\x08 nothing of it")
		read := func(coded []byte) ([]byte, error) {
			return decode(c, bytes.NewReader(coded), DefaultLimits(1<<20))
		}
		for i := range 20 {
			if _, err := read(bad); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%s: %v", c.name(), err)
			}
			if _, err := read(good[:len(good)/2]); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%s: %v", c.name(), err)
			}
			if got, err := read(good); err != nil || string(got) != vectorText {
				t.Fatalf("%s, time %d: %q, %v", c.name(), i, got, err)
			}
		}
	}
}

// TestClosedReader gives nothing any more, and may be closed again.
func TestClosedReader(t *testing.T) {
	r := NewReader(Gzip, bytes.NewReader(encode(t, Gzip, []byte("x"))), DefaultLimits(10))
	r.Close()
	r.Close()
	if n, err := r.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("got %d, %v", n, err)
	}
}

// FuzzCoding: what is decoded is what the libraries make of it without bounds, it
// keeps to them, and it doesn't depend on how the bytes come.
func FuzzCoding(f *testing.F) {
	for _, v := range vectors {
		coded, err := hex.DecodeString(v.hex)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(coded, v.coding == Zstd)
	}
	f.Add(bytes.Repeat(window(0), 3), true)
	f.Add([]byte("\x50\x2a\x4d\x18\x03\x00\x00\x00abc"), true)
	f.Fuzz(func(t *testing.T, coded []byte, isZstd bool) {
		c := Gzip
		if isZstd {
			c = Zstd
		}
		lim := Limits{Bytes: 1 << 16, Ratio: 20, RatioFrom: 1 << 12, Window: 1 << 20, Parts: 10}
		got, err := decode(c, bytes.NewReader(coded), lim)
		again, errAgain := decode(c, iotest.OneByteReader(bytes.NewReader(coded)), lim)
		if fmt.Sprint(err) != fmt.Sprint(errAgain) && !errors.Is(err, ErrRatio) && !errors.Is(errAgain, ErrRatio) {
			t.Fatalf("at once %v, byte by byte %v", err, errAgain)
		}
		if int64(len(got)) > lim.Bytes+1 {
			t.Fatalf("%d bytes were decoded", len(got))
		}
		if err != nil {
			return
		}
		want, err := reference(c, coded)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("got %q, want %q, %v", got, want, err)
		}
		if errAgain == nil && !bytes.Equal(again, got) {
			t.Fatalf("at once %q, byte by byte %q", got, again)
		}
	})
}

// reference decodes with the libraries alone.
func reference(c Coding, coded []byte) ([]byte, error) {
	if c == Gzip {
		z, err := stdgzip.NewReader(bytes.NewReader(coded))
		if err != nil {
			return nil, err
		}
		return io.ReadAll(z)
	}
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	return z.DecodeAll(coded, nil)
}

func BenchmarkDecode(b *testing.B) {
	text := bytes.Repeat([]byte(vectorText), 200)
	for _, c := range both {
		coded := encode(b, c, text)
		b.Run(c.name(), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				r := NewReader(c, bytes.NewReader(coded), DefaultLimits(32<<20))
				if n, err := io.Copy(io.Discard, r); err != nil || n != int64(len(text)) {
					b.Fatal(n, err)
				}
				r.Close()
			}
		})
	}
}
