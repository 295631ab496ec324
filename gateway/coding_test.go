package gateway

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
)

// gzipped is text in gzip.
func gzipped(text string) string {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = io.WriteString(w, text) // a buffer takes all
	_ = w.Close()
	return out.String()
}

// zstdFramed is text in a frame of Zstandard whose blocks are not compressed.
func zstdFramed(text string) string {
	out := binary.LittleEndian.AppendUint32([]byte("\x28\xb5\x2f\xfd\x80\x68"), uint32(len(text))) // a window of 8 MiB
	for last := false; !last; {
		block := text[:min(len(text), 100<<10)]
		text = text[len(block):]
		last = text == ""
		bits := uint32(len(block)) << 3
		if last {
			bits |= 1
		}
		out = append(out, byte(bits), byte(bits>>8), byte(bits>>16))
		out = append(out, block...)
	}
	return string(out)
}

// zstdSpaces is a frame that decodes to n times 128 KiB of spaces.
func zstdSpaces(n int) string {
	const bits = 128<<10<<3 | 1<<1
	block := string([]byte{bits & 0xff, bits >> 8 & 0xff, bits >> 16, ' '})
	return "\x28\xb5\x2f\xfd\x00\x68" + strings.Repeat(block, n) + "\x01\x00\x00"
}

// unsalted is a body as the client sent it, without the salt that the worker gets.
func unsalted(body []byte) string {
	sent, _, _ := strings.Cut(string(body), `,"cache_salt":`)
	return sent + "}"
}

// codedRequest is a chat request whose body is in a coding.
func codedRequest(coding, body string, chunks bool) string {
	head := "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway.test\r\nAuthorization: Bearer " + goodKey + "\r\nContent-Type: application/json\r\n"
	if coding != "" {
		head += "Content-Encoding: " + coding + "\r\n"
	}
	if chunks && body == "" {
		return head + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
	}
	if chunks {
		return head + "Transfer-Encoding: chunked\r\n\r\n" + chunked(body)
	}
	return head + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
}

// TestCodedBodies: policies, labels and the worker have the body as it is when
// decoded, and the next request on the connection is served.
func TestCodedBodies(t *testing.T) {
	plain := strings.Replace(chatBody, "hello", strings.Repeat("häll\\u006f ", 20000), 1)
	var judged, labelled atomic.Int64
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := newRig(t, []string{worker.URL()}, withState(func(st *State) {
		st.Classifier = classifierFunc(func(req *ClassifyRequest) policy.Content {
			labelled.Store(int64(len(req.Body)))
			return policy.Content{ScanStatus: "complete"}
		})
	}))
	r.decider.set(func(ctx context.Context, in *policy.Input) *policy.Decision {
		judged.Store(in.Request.BodyBytes)
		_, _ = in.Lazy.Content(ctx) // the classifier keeps what it saw
		return allow(in)
	})
	conn := r.dial()
	half := len(plain) / 2
	for _, c := range []struct{ name, coding, body string }{
		{"identity", "identity", plain},
		{"an empty coding", " ", plain},
		{"gzip", "gzip", gzipped(plain)},
		{"gzip in capitals", "GZIP", gzipped(plain)},
		{"two members", "gzip", gzipped(plain[:half]) + gzipped(plain[half:])},
		{"zstd", "zstd", zstdFramed(plain)},
		{"two frames", "zstd", zstdFramed(plain[:half]) + zstdFramed(plain[half:])},
	} {
		for _, chunks := range []bool{false, true} {
			judged.Store(0)
			labelled.Store(0)
			if err := conn.Write(codedRequest(c.coding, c.body, chunks)); err != nil {
				t.Fatal(err)
			}
			if resp, answer := conn.Answer(); resp.StatusCode != 200 {
				t.Fatalf("%s: %d %s", c.name, resp.StatusCode, answer)
			}
			seen := worker.Next(t)
			if unsalted(seen.Body) != plain || seen.Header.Get("Content-Length") != fmt.Sprint(len(seen.Body)) || seen.Header.Get("Content-Encoding") != "" {
				t.Errorf("%s: the worker has %d bytes of %d and %v", c.name, len(seen.Body), len(plain), seen.Header)
			}
			if judged.Load() != int64(len(plain)) || labelled.Load() != int64(len(plain)) {
				t.Errorf("%s: policies saw %d bytes and detectors %d of %d", c.name, judged.Load(), labelled.Load(), len(plain))
			}
		}
	}
	r.idle()
}

// TestBadCodings are refused, each with its status, and reach nobody.
func TestBadCodings(t *testing.T) {
	zipped := gzipped(chatBody)
	for _, c := range []struct {
		name, coding, body string
		status             int
		code               string
	}{
		{"another coding", "br", chatBody, 415, "unsupported_media_type"},
		{"an old name", "x-gzip", zipped, 415, "unsupported_media_type"},
		{"a list", "gzip, gzip", gzipped(zipped), 415, "unsupported_media_type"},
		{"a list with identity", "identity, gzip", zipped, 415, "unsupported_media_type"},
		{"two lines", "gzip\r\nContent-Encoding: gzip", gzipped(zipped), 415, "unsupported_media_type"},
		{"identity and gzip in two lines", "identity\r\nContent-Encoding: gzip", zipped, 415, "unsupported_media_type"},
		{"two empty lines", "\r\nContent-Encoding:", chatBody, 415, "unsupported_media_type"},
		{"plain text", "gzip", chatBody, 400, "invalid_request"},
		{"the other coding", "zstd", zipped, 400, "invalid_request"},
		{"cut short", "gzip", zipped[:len(zipped)-1], 400, "invalid_request"},
		{"cut short in the middle", "gzip", zipped[:len(zipped)/2], 400, "invalid_request"},
		{"a wrong checksum", "gzip", zipped[:len(zipped)-8] + "12345678", 400, "invalid_request"},
		{"a byte behind", "gzip", zipped + "\x00", 400, "invalid_request"},
		{"a request behind", "gzip", zipped + "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", 400, "invalid_request"},
		{"zstd cut short", "zstd", zstdFramed(chatBody)[:30], 400, "invalid_request"},
		{"a byte behind zstd", "zstd", zstdFramed(chatBody) + "\x00", 400, "invalid_request"},
		{"nothing", "gzip", "", 400, "invalid_request"},
		{"nothing when decoded", "gzip", gzipped(""), 400, "invalid_json"},
		{"no JSON when decoded", "gzip", gzipped(zipped), 400, "invalid_json"},
		{"too large when decoded", "gzip", gzipped(strings.Repeat(`{"a":"`+goodKey+`"},`, 100000)), 413, "request_too_large"},
		{"zstd too large when decoded", "zstd", zstdFramed(strings.Repeat(" ", 1<<20+1)), 413, "request_too_large"},
		{"a bomb", "gzip", gzipped(strings.Repeat(" ", 64<<20)), 413, "request_too_large"},
		{"a bomb in zstd", "zstd", zstdSpaces(1000), 413, "request_too_large"},
		{"a window of 9 MiB", "zstd", "\x28\xb5\x2f\xfd\x00\x69\x09\x00\x00{", 413, "request_too_large"},
		{"ten thousand members", "gzip", strings.Repeat(gzipped(""), 10000), 413, "request_too_large"},
	} {
		for _, chunks := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, chunks %v", c.name, chunks), func(t *testing.T) {
				t.Parallel()
				worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
				r := newRig(t, []string{worker.URL()}, withConfig(func(cfg *Config) { cfg.BodyBytes = 1 << 20 }))
				conn := r.dial()
				// What is refused before its end is reached may end the connection early.
				_ = conn.Write(codedRequest(c.coding, c.body, chunks))
				resp, answer := conn.Answer()
				wantError(t, resp, answer, c.status, c.code)
				if got := resp.Header.Get("Accept-Encoding"); (got == "gzip, zstd") != (c.status == 415) {
					t.Errorf("Accept-Encoding is %q", got)
				}
				if row := r.row(); row.Status != c.status || row.Tenant != "acme" {
					t.Errorf("row %+v", row)
				}
				if len(worker.Seen()) > 0 || len(r.meter.framing) > 0 {
					t.Errorf("a worker was called, or this counts as bad framing: %v", r.meter.framing)
				}
			})
		}
	}
}

// TestMediaTypeTwice: which of two types counts must not be a question.
func TestMediaTypeTwice(t *testing.T) {
	for _, second := range []string{"application/json", "text/plain"} {
		r := newRig(t, nil)
		conn := r.dial()
		text := strings.Replace(codedRequest("", chatBody, false), "Content-Type: application/json", "Content-Type: "+second+"\r\ncontent-type: application/json", 1)
		if err := conn.Write(text); err != nil {
			t.Fatal(err)
		}
		resp, answer := conn.Answer()
		wantError(t, resp, answer, 415, "unsupported_media_type")
	}
}

// TestCodedBodyIsAskedFor like another.
func TestCodedBodyIsAskedFor(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := newRig(t, []string{worker.URL()})
	conn := r.dial()
	head, body, _ := strings.Cut(codedRequest("gzip", gzipped(chatBody), false), "\r\n\r\n")
	if err := conn.Write(head + "\r\nExpect: 100-continue\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if resp := conn.Head(); resp.StatusCode != 100 {
		t.Fatalf("got %d, want 100", resp.StatusCode)
	}
	if err := conn.Write(body); err != nil {
		t.Fatal(err)
	}
	if resp, answer := conn.Answer(); resp.StatusCode != 200 {
		t.Fatalf("got %d %s", resp.StatusCode, answer)
	}
	if got := unsalted(worker.Next(t).Body); got != chatBody {
		t.Errorf("the worker has %q", got)
	}
}

// TestCodedBodyStops: a coded body has the time of another, and a client that leaves
// within it is one that left.
func TestCodedBodyStops(t *testing.T) {
	for _, coding := range []string{"gzip", "zstd"} {
		for _, leaves := range []bool{false, true} {
			r := newRig(t, nil, withConfig(func(cfg *Config) { cfg.BodyIdle = 200 * time.Millisecond }))
			conn := r.dial()
			body := map[string]string{"gzip": gzipped(chatBody), "zstd": zstdFramed(chatBody)}[coding]
			text := codedRequest(coding, body, false)
			if err := conn.Write(text[:len(text)-5]); err != nil {
				t.Fatal(err)
			}
			status := 408
			if leaves {
				eventually(t, "the request", func() bool { return r.g.InFlight() == 1 })
				conn.Leave(gatewaytest.FIN)
				status = 499
			} else {
				resp, answer := conn.Answer()
				wantError(t, resp, answer, 408, "request_timeout")
			}
			if row := r.row(); row.Status != status {
				t.Errorf("%s, leaves %v: row %+v", coding, leaves, row)
			}
		}
	}
}

// TestBombsAtTheEdge take little memory, many at once.
func TestBombsAtTheEdge(t *testing.T) {
	const clients = 32
	for name, body := range map[string]string{"gzip": gzipped(strings.Repeat(" ", 64<<20)), "zstd": zstdSpaces(512)} {
		r := newRig(t, nil)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		conns := make([]*gatewaytest.Client, clients)
		for i := range conns {
			conns[i] = r.dial()
			if err := conns[i].Write(codedRequest(name, body, false)); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range conns {
			resp, answer := c.Answer()
			wantError(t, resp, answer, 413, "request_too_large")
		}
		runtime.ReadMemStats(&after)
		// The buffer that a body may fill before the ratio counts, and zstd's window.
		if taken := after.TotalAlloc - before.TotalAlloc; taken > clients*13<<20 {
			t.Errorf("%d bombs of %s took %d MiB", clients, name, taken>>20)
		}
		r.idle()
	}
}

type classifierFunc func(*ClassifyRequest) policy.Content

func (f classifierFunc) Classify(_ context.Context, req *ClassifyRequest) policy.Content {
	return f(req)
}
