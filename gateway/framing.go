package gateway

import (
	"bytes"

	"github.com/valyala/fasthttp"
)

// maxHeaders bounds the number of a request's headers.
const maxHeaders = 100

// framingFault judges what the library lets pass of a request's head, though
// two readers could understand it differently: that is how one request is
// smuggled inside another. It returns nil if there is nothing wrong.
func framingFault(h *fasthttp.RequestHeader) *rejection {
	if !bytes.HasPrefix(h.Protocol(), []byte("HTTP/1.")) {
		rej := badFraming(fasthttp.StatusHTTPVersionNotSupported, "http_version", "the only version served is HTTP/1.1")
		rej.noRetry = true
		return rej
	}
	if rej := headerFault(h.RawHeaders()); rej != nil {
		return rej
	}
	if n := h.ContentLength(); (n > 0 || n == -1) && (h.IsGet() || h.IsHead() || h.IsDelete() || h.IsOptions()) {
		return badFraming(fasthttp.StatusBadRequest, "invalid_request", "a request of this method can't have a body")
	}
	if !h.IsHTTP11() {
		return nil
	}
	for _, v := range h.PeekAll("Expect") {
		if !bytes.EqualFold(v, []byte("100-continue")) {
			return badFraming(fasthttp.StatusExpectationFailed, "expectation_failed", "the only expectation that can be met is 100-continue")
		}
	}
	return nil
}

// headerFault looks at the header lines as they came.
func headerFault(raw []byte) *rejection {
	var length, coding bool
	for n := 0; len(raw) > 0; n++ {
		end := bytes.IndexByte(raw, '\n')
		if end < 1 || raw[end-1] != '\r' {
			return badFraming(fasthttp.StatusBadRequest, "invalid_request", "a header line doesn't end in CR LF")
		}
		line := raw[:end-1]
		raw = raw[end+1:]
		switch name, value, _ := bytes.Cut(line, []byte(":")); {
		case len(line) == 0:
		case n == maxHeaders:
			return badFraming(fasthttp.StatusRequestHeaderFieldsTooLarge, "headers_too_large", "the request has more than 100 headers")
		case line[0] == ' ' || line[0] == '\t':
			return badFraming(fasthttp.StatusBadRequest, "invalid_request", "a header is folded over more than one line")
		case bytes.EqualFold(name, []byte("Content-Length")):
			length = true
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			coding = true
			if !bytes.EqualFold(bytes.Trim(value, " \t"), []byte("chunked")) {
				return badFraming(fasthttp.StatusBadRequest, "invalid_request", "the only transfer coding is chunked")
			}
		}
	}
	if length && coding {
		return badFraming(fasthttp.StatusBadRequest, "invalid_request", "the request has both a Content-Length and a Transfer-Encoding")
	}
	return nil
}

func badFraming(status int, code, message string) *rejection {
	return &rejection{status: status, kind: "invalid_request_error", code: code, message: message, closeConn: true}
}
