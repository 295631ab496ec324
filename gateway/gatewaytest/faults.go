package gatewaytest

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Encoded answers a chat request whole, as a stream or not, in gzip although nobody
// asked for it; bad cuts the data short.
func Encoded(bad bool, tokens ...string) Behaviour {
	return func(x *Exchange) {
		kind, text := "application/json", ChatBody(strings.Join(tokens, ""), Usage(10, len(tokens)))
		if x.WantsStream() {
			kind, text = EventStream, strings.Join(chatEvents(tokens), "")+DoneEvent
		}
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		if _, err := io.WriteString(w, text); err != nil {
			panic(fmt.Sprintf("BUG: a buffer refuses bytes: %v", err))
		}
		w.Close()
		data := packed.Bytes()
		if bad {
			data = data[:len(data)/2]
		}
		x.Respond(http.StatusOK, kind, string(data), "Content-Encoding: gzip")
	}
}

// Redirect sends the client elsewhere.
func Redirect(to string) Behaviour {
	return JSON(http.StatusTemporaryRedirect, "{}", "Location: "+to)
}

// Interim sends n interim responses, each with a header of its own, and then answers
// like then.
func Interim(n int, then Behaviour) Behaviour {
	return func(x *Exchange) {
		for i := range n {
			x.Raw(fmt.Sprintf("HTTP/1.1 103 Early Hints\r\nLink: </%d>\r\n\r\n", i))
		}
		then(x)
	}
}

// Switching says that it goes on in another protocol, and waits.
func Switching() Behaviour {
	return func(x *Exchange) {
		x.Raw("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
		x.WaitLeft()
	}
}

// HalfHead sends a part of a response's head and ends the connection.
func HalfHead(how Close) Behaviour {
	return func(x *Exchange) {
		x.Raw("HTTP/1.1 200 OK\r\nContent-Type: applicat")
		x.Drop(how)
	}
}

// SlowHead sends a part of a response's head and nothing more.
func SlowHead() Behaviour {
	return func(x *Exchange) {
		x.Raw("HTTP/1.1 200 OK\r\nContent-Type: applicat")
		x.WaitLeft()
	}
}

// Body answers 200 with the header lines and the bytes of a body as they are given,
// which must frame it, and ends the connection.
func Body(contentType, body string, header ...string) Behaviour {
	return func(x *Exchange) {
		x.Raw(head(http.StatusOK, contentType, header) + body)
		x.Drop(FIN)
	}
}

// TwoLengths answers with two lengths, neither of which is right.
func TwoLengths(contentType, body string) Behaviour {
	return Body(contentType, body, fmt.Sprintf("Content-Length: %d", len(body)+7), "Content-Length: 5")
}

// LengthAndChunks answers in chunks that never end, and with a length that ends in the
// middle of them.
func LengthAndChunks(contentType, body string) Behaviour {
	return Body(contentType, fmt.Sprintf("%x\r\n%s\r\n", len(body), body), fmt.Sprintf("Content-Length: %d", len(body)/2), "Transfer-Encoding: chunked")
}

// BadChunkSize answers in chunks of which the second has a size that is no number.
func BadChunkSize(contentType, body string) Behaviour {
	return Body(contentType, fmt.Sprintf("%x\r\n%s\r\nzz\r\nx\r\n", len(body), body), "Transfer-Encoding: chunked")
}

// ExtraBytes answers like then and writes bytes after it that nobody asked for, which
// look like an answer.
func ExtraBytes(then Behaviour) Behaviour {
	return func(x *Exchange) {
		then(x)
		x.Raw("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n[]")
	}
}

// UnaryTrickle answers with a body that comes in n pieces, gap after one another.
func UnaryTrickle(n int, gap time.Duration, body string) Behaviour {
	return func(x *Exchange) {
		x.Raw(head(http.StatusOK, "application/json", []string{fmt.Sprintf("Content-Length: %d", len(body))}))
		size := (len(body) + n - 1) / n
		for rest := body; len(rest) > 0; {
			k := min(size, len(rest))
			x.Raw(rest[:k])
			rest = rest[k:]
			if len(rest) > 0 && !x.Pause(gap) {
				return
			}
		}
		x.Finished()
	}
}

// HalfAndStall answers with half of a body and nothing more.
func HalfAndStall(body string) Behaviour {
	return func(x *Exchange) {
		x.Raw(head(http.StatusOK, "application/json", []string{fmt.Sprintf("Content-Length: %d", len(body))}))
		x.Raw(body[:len(body)/2])
		x.WaitLeft()
	}
}
