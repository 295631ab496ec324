package gateway

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
)

// TestAnnouncedBodiesTakeNoMemory: a client pays for what it occupies with
// bytes that it has sent, not with a number in a header.
func TestAnnouncedBodiesTakeNoMemory(t *testing.T) {
	const clients, announced = 50, 32 << 20
	r := newRig(t, nil)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	conns := make([]*gatewaytest.Client, clients)
	for i := range conns {
		conns[i] = r.dial()
		if err := conns[i].Write(strings.Replace(bodyHead, ": 100", fmt.Sprint(": ", announced), 1) + "{"); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the requests", func() bool { return r.g.InFlight() == clients })
	runtime.ReadMemStats(&after)
	if taken := after.TotalAlloc - before.TotalAlloc; taken > clients<<20 {
		t.Errorf("%d clients that have sent a byte each took %d MiB", clients, taken>>20)
	}
	for _, c := range conns {
		c.Leave(gatewaytest.FIN)
	}
	eventually(t, "the ends", func() bool { return r.g.InFlight() == 0 })
	if rows := r.ledger.all(); len(rows) != clients {
		t.Errorf("%d rows of %d", len(rows), clients)
	}
}

// TestBodiesThatFail have a row each: their caller is known.
func TestBodiesThatFail(t *testing.T) {
	chunks := strings.Replace(bodyHead, "Content-Length: 100", "Transfer-Encoding: chunked", 1)
	for _, c := range []struct {
		name, text string
		status     int
		code       string
		framing    bool
	}{
		{"stops", bodyHead + "{", 408, "request_timeout", true},
		{"bad chunk", chunks + "1\r\n{\r\nzz\r\n", 400, "invalid_request", true},
		{"chunk without its end", chunks + "1\r\n{XX", 400, "invalid_request", true},
		{"bad trailer", chunks + "1\r\n{\r\n0\r\nContent-Length: 5\r\n\r\n", 400, "invalid_request", true},
		{"chunks over the limit", chunks + "258\r\n" + strings.Repeat(" ", 600) + "\r\n258\r\n" + strings.Repeat(" ", 600) + "\r\n0\r\n\r\n", 413, "request_too_large", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, nil, withConfig(func(cfg *Config) { cfg.BodyBytes, cfg.BodyIdle = 1000, 200*time.Millisecond }))
			conn := r.dial()
			if err := conn.Write(c.text); err != nil {
				t.Fatal(err)
			}
			resp, body := conn.Answer()
			wantError(t, resp, body, c.status, c.code)
			if rest := conn.Closed(); rest != "" || !resp.Close {
				t.Errorf("the connection goes on: %q", rest)
			}
			row := r.row()
			if row.Status != c.status || row.ErrorCode != c.code || row.Tenant != "acme" || row.Phase != "read" {
				t.Errorf("row %+v", row)
			}
			if (len(r.meter.framing) == 1) != c.framing {
				t.Errorf("counted as bad framing: %v", r.meter.framing)
			}
		})
	}
}

// TestBodiesOfEverySize reach the worker whole, on one connection.
func TestBodiesOfEverySize(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	r := newRig(t, []string{worker.URL()})
	conn := r.dial()
	for i, size := range []int{0, firstBody - 100, firstBody, firstBody + 1, 3 * firstBody, keptBody + 1, 5 << 20, 1} {
		text := strings.Repeat("x", size)
		body := `{"model":"m","messages":[{"role":"user","content":"` + text + `"}]}`
		framing, sent := fmt.Sprint("Content-Length: ", len(body)), body
		if i%2 == 1 {
			framing, sent = "Transfer-Encoding: chunked", chunked(body)
		}
		if err := conn.Write("POST /v1/chat/completions HTTP/1.1\r\nHost: gateway.test\r\nAuthorization: Bearer " + goodKey +
			"\r\nContent-Type: application/json\r\n" + framing + "\r\n\r\n" + sent); err != nil {
			t.Fatal(err)
		}
		if resp, answer := conn.Answer(); resp.StatusCode != 200 {
			t.Fatalf("%d bytes: %d %s", size, resp.StatusCode, answer)
		}
		seen := worker.Seen()
		if got := seen[len(seen)-1].Body; !strings.Contains(string(got), `"`+text+`"`) {
			t.Errorf("a text of %d bytes did not arrive whole, in %d bytes", size, len(got))
		}
	}
}
