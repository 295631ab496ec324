package gateway

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
)

// chunked is a body in one chunk.
func chunked(body string) string { return fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body) }

// TestFraming holds the head of a request to the contract: one answer, the
// connection's end, and nothing to a worker.
func TestFraming(t *testing.T) {
	const (
		post = "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway.test\r\nAuthorization: Bearer " + goodKey + "\r\nContent-Type: application/json\r\n"
		get  = "GET /v1/models HTTP/1.1\r\nHost: gateway.test\r\nAuthorization: Bearer " + goodKey + "\r\n"
		te   = "Transfer-Encoding: chunked\r\n"
	)
	length := fmt.Sprintf("Content-Length: %d\r\n", len(chatBody))
	for _, c := range []struct {
		name, text string
		status     int
		code       string
	}{
		{"length and coding", post + length + te + "\r\n" + chunked(chatBody), 400, "invalid_request"},
		{"coding and length", post + te + length + "\r\n" + chunked(chatBody), 400, "invalid_request"},
		{"two lengths", post + length + length + "\r\n" + chatBody, 400, "invalid_request"},
		{"list of lengths", post + "Content-Length: 5, 5\r\n\r\n" + chatBody, 400, "invalid_request"},
		{"signed length", post + "Content-Length: +5\r\n\r\n" + chatBody, 400, "invalid_request"},
		{"identity coding", post + "Transfer-Encoding: identity\r\n\r\n", 400, "invalid_request"},
		{"identity coding and length", post + "Transfer-Encoding: identity\r\n" + length + "\r\n" + chatBody, 400, "invalid_request"},
		{"two codings", post + te + te + "\r\n" + chunked(chatBody), 400, "invalid_request"},
		{"coding in HTTP/1.0", strings.Replace(post, "1.1", "1.0", 1) + te + "\r\n" + chunked(chatBody), 400, "invalid_request"},
		{"bad chunk size", post + te + "\r\nzz\r\n", 400, "invalid_request"},
		{"chunk without its end", post + te + "\r\n1\r\n{XX", 400, "invalid_request"},
		{"folded line", post + "X-A: b\r\n c\r\n" + length + "\r\n" + chatBody, 400, "invalid_request"},
		{"folded first line", "GET /healthz HTTP/1.1\r\n x: y\r\nHost: gateway.test\r\n\r\n", 400, "invalid_request"},
		{"space before the colon", post + "X-A : b\r\n" + length + "\r\n" + chatBody, 400, "invalid_request"},
		{"bare CR", post + "X-A: b\rc\r\n" + length + "\r\n" + chatBody, 400, "invalid_request"},
		{"bare LF", post + "X-A: b\n" + length + "\r\n" + chatBody, 400, "invalid_request"},
		{"NUL", post + "X-A: b\x00c\r\n" + length + "\r\n" + chatBody, 400, "invalid_request"},
		{"two spaces", strings.Replace(post, " /", "  /", 1) + length + "\r\n" + chatBody, 400, "invalid_request"},
		{"no host", "GET /healthz HTTP/1.1\r\n\r\n", 400, "invalid_request"},
		{"two hosts", "GET /healthz HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400, "invalid_request"},
		{"GET with a body", get + "Content-Length: 5\r\n\r\nhello", 400, "invalid_request"},
		{"GET with a byte", get + "Content-Length: 1\r\n\r\nh", 400, "invalid_request"},
		{"GET with chunks", get + te + "\r\n" + chunked("hello"), 400, "invalid_request"},
		{"OPTIONS with a body", "OPTIONS" + get[3:] + "Content-Length: 5\r\n\r\nhello", 400, "invalid_request"},
		{"HTTP/2.0", "GET /healthz HTTP/2.0\r\nHost: gateway.test\r\n\r\n", 505, "http_version"},
		{"expectation", post + "Expect: wonders\r\n" + length + "\r\n" + chatBody, 417, "expectation_failed"},
		{"101 headers", get + strings.Repeat("X-A: b\r\n", 99) + "\r\n", 431, "headers_too_large"},
		{"huge header", get + "X-A: " + strings.Repeat("a", 80<<10) + "\r\n\r\n", 431, "headers_too_large"},
		{"long request line", "GET /" + strings.Repeat("a", 9<<10) + " HTTP/1.1\r\nHost: gateway.test\r\n\r\n", 414, "uri_too_long"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
			r := newRig(t, []string{worker.URL()})
			conn := r.dial()
			// A request behind the bad one must never be read as one.
			if err := conn.Write(c.text + "GET /healthz HTTP/1.1\r\nHost: gateway.test\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			resp, body := conn.Answer()
			wantError(t, resp, body, c.status, c.code)
			if !resp.Close {
				t.Error("the answer does not announce the connection's end")
			}
			if rest := conn.Closed(); rest != "" {
				t.Errorf("more bytes after the answer: %q", rest)
			}
			if resp.Header.Get("x-should-retry") != map[bool]string{true: "false"}[c.status >= 500] {
				t.Errorf("headers %v", resp.Header)
			}
			if len(worker.Seen()) > 0 {
				t.Error("a worker was called")
			}
			r.idle()
		})
	}
}

// TestFramingThatIsRight is served.
func TestFramingThatIsRight(t *testing.T) {
	const post = "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway.test\r\nAuthorization: Bearer " + goodKey + "\r\nContent-Type: application/json\r\n"
	for name, text := range map[string]string{
		"chunks":              post + "Transfer-Encoding: chunked\r\n\r\n" + chunked(chatBody),
		"chunks and trailer":  post + "Transfer-Encoding: Chunked\r\n\r\n" + strings.Replace(chunked(chatBody), "0\r\n\r\n", "0;x=y\r\nX-Sum: 1\r\n\r\n", 1),
		"100 headers":         post + strings.Repeat("X-A: b\r\n", 96) + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(chatBody), chatBody),
		"HTTP/1.0":            strings.Replace(post, "1.1", "1.0", 1) + fmt.Sprintf("Expect: 100-continue\r\nContent-Length: %d\r\n\r\n%s", len(chatBody), chatBody),
		"absolute form":       strings.Replace(post, "/v1", "http://other.test/v1", 1) + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(chatBody), chatBody),
		"query and no length": "GET /healthz?a=b HTTP/1.1\r\nHost: gateway.test\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
			r := newRig(t, []string{worker.URL()})
			conn := r.dial()
			if err := conn.Write(text); err != nil {
				t.Fatal(err)
			}
			if resp, body := conn.Answer(); resp.StatusCode != 200 {
				t.Errorf("got %d %s", resp.StatusCode, body)
			}
			r.idle()
		})
	}
}

// TestRefusedBeforeTheBody answers requests that are refused for their header
// alone without a byte of their body, whatever frames it and whether it is
// waiting to be asked for.
func TestRefusedBeforeTheBody(t *testing.T) {
	auth := "Authorization: Bearer " + goodKey
	for _, c := range []struct {
		name, target string
		header       []string
		status       int
		code         string
		row          bool
	}{
		{"no route", "/v1/nothing", []string{auth, "Content-Type: application/json"}, 404, "unknown_url", false},
		{"method", "/v1/models", []string{auth, "Content-Type: application/json"}, 405, "method_not_allowed", false},
		{"no credential", "/v1/chat/completions", []string{"Content-Type: application/json"}, 401, "invalid_api_key", false},
		{"unknown credential", "/v1/chat/completions", []string{auth + "x", "Content-Type: application/json"}, 401, "invalid_api_key", false},
		{"media type", "/v1/chat/completions", []string{auth, "Content-Type: text/plain"}, 415, "unsupported_media_type", true},
		{"content coding", "/v1/chat/completions", []string{auth, "Content-Type: application/json", "Content-Encoding: br"}, 415, "unsupported_media_type", true},
		{"declared length", "/v1/chat/completions", []string{auth, "Content-Type: application/json"}, 413, "request_too_large", true},
	} {
		for _, framing := range []string{"Content-Length: 2000000", "Content-Length: 10", "Transfer-Encoding: chunked"} {
			if c.status == 413 && !strings.Contains(framing, "00") {
				continue
			}
			for _, expect := range []bool{false, true} {
				name := c.name + ", " + framing
				header := append([]string{framing}, c.header...)
				if expect {
					name += ", Expect"
					header = append(header, "Expect: 100-continue")
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					r := newRig(t, nil, withConfig(func(cfg *Config) { cfg.BodyBytes, cfg.BodyRead = 1<<20, time.Minute }))
					conn := r.dial()
					conn.Send("POST", c.target, "", header...)
					resp, body := conn.Answer()
					wantError(t, resp, body, c.status, c.code)
					if !resp.Close {
						t.Error("the answer does not announce the connection's end")
					}
					if got := resp.Header.Get("Accept-Encoding"); (got == "gzip, zstd") != (c.name == "content coding") {
						t.Errorf("Accept-Encoding is %q", got)
					}
					r.idle()
					if rows := r.ledger.all(); (len(rows) == 1) != c.row || len(rows) > 1 {
						t.Errorf("the ledger has %d rows, want one: %v", len(rows), c.row)
					}
				})
			}
		}
	}
}

// TestChunksOverTheLimit are refused like a declared length over it.
func TestChunksOverTheLimit(t *testing.T) {
	for _, expect := range []bool{false, true} {
		worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
		r := newRig(t, []string{worker.URL()}, withConfig(func(cfg *Config) { cfg.BodyBytes = 1000 }))
		conn := r.dial()
		header := []string{"Authorization: Bearer " + goodKey, "Content-Type: application/json", "Transfer-Encoding: chunked"}
		if expect {
			header = append(header, "Expect: 100-continue")
		}
		conn.Send("POST", "/v1/chat/completions", "", header...)
		if expect {
			if resp := conn.Head(); resp.StatusCode != 100 {
				t.Fatalf("got %d, want 100", resp.StatusCode)
			}
		}
		half := fmt.Sprintf("%x\r\n%s\r\n", 600, strings.Repeat(" ", 600))
		if err := conn.Write(half + half + "0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, body := conn.Answer()
		wantError(t, resp, body, 413, "request_too_large")
		if !resp.Close {
			t.Error("the answer does not announce the connection's end")
		}
		r.idle()
		if len(worker.Seen()) > 0 {
			t.Error("a worker was called")
		}
	}
}
