package gateway

import (
	"bytes"

	"github.com/valyala/fasthttp"
)

// maxHeaders bounds the number of a request's headers.
const maxHeaders = 100

// chunkedBody is the length of a body that comes in chunks.
const chunkedBody = -1

// framingFault judges what the library lets pass of a request's head, though
// two readers could understand it differently: that is how one request is
// smuggled inside another. rej is nil if there is nothing wrong; announced is
// then the length of the body.
func framingFault(h *fasthttp.RequestHeader) (announced int, rej *rejection) {
	if !bytes.HasPrefix(h.Protocol(), []byte("HTTP/1.")) {
		return 0, badVersion()
	}
	if bytes.ContainsAny(h.Host(), " \t\"#/<>?@\\^`{|}") {
		return 0, invalidFraming("the Host is none")
	}
	announced, rej = headerFault(h.RawHeaders())
	if rej != nil {
		return 0, rej
	}
	if announced != 0 && (h.IsGet() || h.IsHead() || h.IsDelete() || h.IsOptions()) {
		return 0, badFraming(fasthttp.StatusBadRequest, "invalid_request", "a request of this method can't have a body")
	}
	if !h.IsHTTP11() {
		return announced, nil
	}
	for _, v := range h.PeekAll("Expect") {
		if !bytes.EqualFold(v, []byte("100-continue")) {
			return 0, badFraming(fasthttp.StatusExpectationFailed, "expectation_failed", "the only expectation that can be met is 100-continue")
		}
	}
	return announced, nil
}

// headerFault looks at the header lines as they came.
func headerFault(raw []byte) (announced int, rej *rejection) {
	var length, coding bool
	for n := 0; len(raw) > 0; n++ {
		end := bytes.IndexByte(raw, '\n')
		if end < 1 || raw[end-1] != '\r' {
			return 0, invalidFraming("a header line doesn't end in CR LF")
		}
		line := raw[:end-1]
		raw = raw[end+1:]
		switch name, value, _ := bytes.Cut(line, []byte(":")); {
		case len(line) == 0:
		case n == maxHeaders:
			return 0, badFraming(fasthttp.StatusRequestHeaderFieldsTooLarge, "headers_too_large", "the request has more than 100 headers")
		case line[0] == ' ' || line[0] == '\t':
			return 0, invalidFraming("a header is folded over more than one line")
		case bytes.IndexByte(name, ' ') >= 0:
			return 0, invalidFraming("a header's name has a space in it")
		case bytes.EqualFold(name, []byte("Content-Length")):
			length = true
			var err error
			if announced, err = fasthttp.ParseUint(bytes.Trim(value, " \t")); err != nil {
				return 0, invalidFraming("the Content-Length is not a number")
			}
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			coding, announced = true, chunkedBody
			if !bytes.EqualFold(bytes.Trim(value, " \t"), []byte("chunked")) {
				return 0, invalidFraming("the only transfer coding is chunked")
			}
		}
	}
	if length && coding {
		return 0, invalidFraming("the request has both a Content-Length and a Transfer-Encoding")
	}
	return announced, nil
}

func badVersion() *rejection {
	rej := badFraming(fasthttp.StatusHTTPVersionNotSupported, "http_version", "the only version served is HTTP/1.1")
	rej.noRetry = true
	return rej
}

func uriTooLong() *rejection {
	return badFraming(fasthttp.StatusRequestURITooLong, "uri_too_long", "the request line is longer than 8 KiB")
}

func invalidFraming(message string) *rejection {
	return badFraming(fasthttp.StatusBadRequest, "invalid_request", message)
}

func badFraming(status int, code, message string) *rejection {
	return &rejection{status: status, kind: "invalid_request_error", code: code, message: message, closeConn: true}
}
