package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http/httputil"
	"strings"
	"testing"
)

// unchunk decodes a body that comes in pieces of at most n bytes, and returns what
// follows it as well.
func unchunk(body []byte, n int) (data, rest []byte, whole bool, err error) {
	var d chunkDecoder
	for len(body) > 0 && !d.done() {
		piece := bytes.Clone(body[:min(n, len(body))])
		got, used, err := d.decode(piece)
		data = append(data, got...)
		if err != nil {
			return data, nil, false, err
		}
		body = body[used:]
	}
	return data, body, d.done(), nil
}

func TestChunks(t *testing.T) {
	long := strings.Repeat("x", 4<<10)
	for _, c := range []struct {
		name, body, data, rest string
		err                    error
	}{
		{name: "one", body: "5\r\nhello\r\n0\r\n\r\n", data: "hello"},
		{name: "two, and another request", body: "3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\nGET /", data: "hello", rest: "GET /"},
		{name: "none", body: "0\r\n\r\nx", rest: "x"},
		{name: "zeros and capitals", body: "00A\r\n0123456789\r\n000\r\n\r\n", data: "0123456789"},
		{name: "line ends inside", body: "4\r\n\r\n\r\n\r\n0\r\n\r\n", data: "\r\n\r\n"},
		{name: "extension", body: "1;a=b;c=\"d e\"\r\nx\r\n0;z\r\n\r\n", data: "x"},
		{name: "space before an extension", body: "1 \t;a\r\nx\r\n0\r\n\r\n", data: "x"},
		{name: "space after the size", body: "1 \r\nx\r\n0 \r\n\r\n", data: "x"},
		{name: "trailer", body: "1\r\nx\r\n0\r\nX-A: b\r\nX-B:\r\n\r\nrest", data: "x", rest: "rest"},
		{name: "longest line", body: "1;" + long[:4<<10-2] + "\r\nx\r\n0\r\n\r\n", data: "x"},

		{name: "no digit", body: "\r\nx\r\n", err: errChunkFraming},
		{name: "no hexadecimal digit", body: "g\r\n", err: errChunkFraming},
		{name: "prefix", body: "0x1\r\nx\r\n", err: errChunkFraming},
		{name: "sign", body: "+1\r\nx\r\n", err: errChunkFraming},
		{name: "space before the size", body: " 1\r\nx\r\n", err: errChunkFraming},
		{name: "text after the size", body: "1 x\r\nx\r\n", err: errChunkFraming},
		{name: "overflow", body: "1" + strings.Repeat("0", 16) + "\r\n", err: errChunkFraming},
		{name: "almost an overflow", body: "3" + strings.Repeat("f", 14) + "\r\n", err: nil},
		{name: "bare LF after the size", body: "1\nx\r\n", err: errChunkFraming},
		{name: "bare LF in an extension", body: "1;a\nx\r\n", err: errChunkFraming},
		{name: "bare CR after the size", body: "1\rx\r\n", err: errChunkFraming},
		{name: "NUL in an extension", body: "1;\x00\r\nx\r\n", err: errChunkFraming},
		{name: "data too long", body: "1\r\nxy\r\n", data: "x", err: errChunkFraming},
		{name: "bare LF after the data", body: "1\r\nx\n0\r\n\r\n", data: "x", err: errChunkFraming},
		{name: "line too long", body: "1;" + long[:4<<10-1] + "\r\nx\r\n", err: errChunkLine},
		{name: "many zeros", body: strings.Repeat("0", 4<<10+1), err: errChunkLine},
		{name: "extensions too long", body: strings.Repeat("1;"+long[:4000]+"\r\nx\r\n", 5), data: "xxxx", err: errChunkExtension},
		{name: "trailer too long", body: "0\r\n" + strings.Repeat("A: "+long+"\r\n", 5), err: errTrailer},
		{name: "length in the trailer", body: "0\r\nContent-Length: 5\r\n\r\n", err: errChunkFraming},
		{name: "coding in the trailer", body: "0\r\nA: b\r\ntransfer-Encoding: chunked\r\n\r\n", err: errChunkFraming},
		{name: "host in the trailer", body: "0\r\nHOST: a\r\n\r\n", err: errChunkFraming},
		{name: "folded trailer", body: "0\r\nA: b\r\n c\r\n\r\n", err: errChunkFraming},
		{name: "trailer without a colon", body: "0\r\nA\r\n\r\n", err: errChunkFraming},
		{name: "bare LF in the trailer", body: "0\r\nA: b\n\r\n", err: errChunkFraming},
		{name: "bare LF at the end", body: "0\r\n\n", err: errChunkFraming},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, n := range []int{1, 2, 3, 7, len(c.body)} {
				data, rest, whole, err := unchunk([]byte(c.body), n)
				if !errors.Is(err, c.err) || string(data) != c.data || string(rest) != c.rest && c.err == nil {
					t.Fatalf("in pieces of %d: got %q and %q, %v; want %q and %q, %v", n, data, rest, err, c.data, c.rest, c.err)
				}
				if wantWhole := c.err == nil && !strings.HasPrefix(c.name, "almost"); whole != wantWhole {
					t.Errorf("in pieces of %d: whole is %v", n, whole)
				}
			}
		})
	}
}

// FuzzChunks: however a body is cut, it is decoded alike, and what is taken for whole
// is so for the standard library, with the same data and the same end.
func FuzzChunks(f *testing.F) {
	for _, s := range []string{
		"5\r\nhello\r\n0\r\n\r\nGET / HTTP/1.1\r\n", "1;a=b\r\nx\r\n0;c\r\nA: b\r\n\r\n", "a\r\n0123456789\r\n1\r\nx\r\n00\r\n\r\n", "1\nx\r\n0\r\n\r\n", "ffffffffffffffff\r\n",
	} {
		f.Add([]byte(s), uint8(3))
	}
	f.Fuzz(func(t *testing.T, body []byte, n uint8) {
		data, rest, whole, err := unchunk(body, len(body)+1)
		data2, rest2, whole2, err2 := unchunk(body, int(n)+1)
		if !bytes.Equal(data, data2) || !bytes.Equal(rest, rest2) || whole != whole2 || !errors.Is(err, err2) {
			t.Fatalf("whole: %q %q %v %v; in pieces of %d: %q %q %v %v", data, rest, whole, err, int(n)+1, data2, rest2, whole2, err2)
		}
		if !whole {
			return
		}
		in := bytes.NewReader(body[:len(body)-len(rest)])
		want, err := io.ReadAll(httputil.NewChunkedReader(in))
		if err != nil || !bytes.Equal(want, data) {
			t.Fatalf("got %q, the standard library %q, %v", data, want, err)
		}
	})
}

// FuzzChunksRoundTrip: what is framed is got back, and so is what follows.
func FuzzChunksRoundTrip(f *testing.F) {
	f.Add([]byte("hello, world"), uint8(5), uint8(3))
	f.Fuzz(func(t *testing.T, data []byte, size, n uint8) {
		var body bytes.Buffer
		for left := data; len(left) > 0; {
			k := min(int(size)+1, len(left))
			fmt.Fprintf(&body, "%x\r\n%s\r\n", k, left[:k])
			left = left[k:]
		}
		body.WriteString("0\r\n\r\nrest")
		got, rest, whole, err := unchunk(body.Bytes(), int(n)+1)
		if err != nil || !whole || !bytes.Equal(got, data) || string(rest) != "rest" {
			t.Fatalf("got %q and %q, %v, %v", got, rest, whole, err)
		}
	})
}
