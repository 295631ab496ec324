package gateway

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/tenancy"
)

// panicky judges credentials with a bug.
type panicky struct{ early, late bool }

func (p panicky) Refuses(*tenancy.Credentials, time.Time) bool {
	if p.early {
		panic("a bug")
	}
	return false
}

func (p panicky) Identify(context.Context, *tenancy.Credentials, time.Time) (*tenancy.Principal, error) {
	if p.late {
		panic("a bug")
	}
	return &tenancy.Principal{Kind: "api_key", ID: "key:test", KeyID: "test", Tenant: &tenancy.Tenant{ID: "acme", Models: []string{"*"}}}, nil
}

// TestPanicBeforeTheHandler: what judges a request before its body is read may have a
// bug as well, and that is one request's trouble, too.
func TestPanicBeforeTheHandler(t *testing.T) {
	for _, c := range []struct {
		name   string
		bug    panicky
		expect string
		status int
	}{
		{"before the body", panicky{early: true}, "", 200},
		{"in the handler", panicky{late: true}, "", 500},
		{"before the body of an Expect", panicky{early: true}, "Expect: 100-continue", 200},
		{"at an Expect", panicky{late: true}, "Expect: 100-continue", 500},
		{"everywhere", panicky{true, true}, "Expect: 100-continue", 500},
	} {
		t.Run(c.name, func(t *testing.T) {
			worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
			r := newRig(t, []string{worker.URL()}, withState(func(st *State) { st.Identifier = c.bug }))
			var header []string
			if c.expect != "" {
				header = append(header, c.expect)
			}
			client := r.chat(chatBody, header...)
			resp, body := client.Answer()
			if resp.StatusCode == 100 {
				resp, body = client.Answer()
			}
			if resp.StatusCode != c.status || c.status == 500 && !strings.Contains(body, `"code":"internal_error"`) {
				t.Errorf("got %d %s, want %d", resp.StatusCode, body, c.status)
			}
			if c.status == 500 && c.expect != "" && !resp.Close {
				t.Error("the connection is kept although its body may be on its way")
			}
			r.idle()
			again := r.dial()
			again.Send("GET", "/healthz", "")
			if resp, body := again.Answer(); resp.StatusCode != 200 {
				t.Errorf("the next request got %d %s", resp.StatusCode, body)
			}
		})
	}
}

// faultyFraming is a meter with a bug.
type faultyFraming struct {
	Meter
	once sync.Once
}

func (m *faultyFraming) FramingRejected(string) { m.once.Do(func() { panic("a bug") }) }

// TestPanicAtAnUnreadableRequest ends that connection and nothing else.
func TestPanicAtAnUnreadableRequest(t *testing.T) {
	r := newRig(t, nil, withParts(func(p *Parts) { p.Meter = &faultyFraming{Meter: p.Meter} }))
	bad := r.dial()
	if err := bad.Write("GET / HTTP/1.1\r\nHost: a\r\nHost : b\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if got := bad.Closed(); !strings.HasPrefix(got, "HTTP/1.1 500") {
		t.Errorf("got %q", got)
	}
	eventually(t, "the connection's end", func() bool { return r.g.Connections() == 0 })
	again := r.dial()
	if err := again.Write("GET / HTTP/1.1\r\nHost: a\r\nHost : b\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if got := again.Closed(); !strings.HasPrefix(got, "HTTP/1.1 400") {
		t.Errorf("the next one got %q", got)
	}
	eventually(t, "no request in flight", func() bool { return r.g.InFlight() == 0 })
}
