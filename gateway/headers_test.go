package gateway

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/sluicegate/sluice/gateway/coding"
	"github.com/sluicegate/sluice/tenancy"
)

// header makes a request header of name, value pairs.
func header(pairs ...string) *fasthttp.RequestHeader {
	h := new(fasthttp.RequestHeader)
	for i := 0; i+1 < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func TestTraceContext(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, c := range []struct{ parent, state, wantParent, wantState string }{
		{good, "a=b", good, "a=b"},
		{good, "a=\x01", good, ""},
		{good, strings.Repeat("a", 513), good, ""},
		{strings.ToUpper(good), "a=b", "", ""},
		{"ff" + good[2:], "a=b", "", ""},
		{good + "0", "a=b", "", ""},
		{good + "-more", "a=b", "", ""},
		{"01" + good[2:], "a=b", good, "a=b"},
		{"01" + good[2:] + "-more", "a=b", good, "a=b"},
		{"01" + good[2:] + "more", "a=b", "", ""},
		{"00-" + strings.Repeat("0", 32) + good[35:], "a=b", "", ""},
		{good[:36] + strings.Repeat("0", 16) + "-01", "a=b", "", ""},
		{good[:52], "a=b", "", ""},
		{"", "a=b", "", ""},
	} {
		h := header("tracestate", c.state)
		if c.parent != "" {
			h.Set("traceparent", c.parent)
		}
		parent, state := traceContext(h)
		if parent != c.wantParent || state != c.wantState {
			t.Errorf("%q %q: got %q, %q", c.parent, c.state, parent, state)
		}
	}
}

// TestTraceContextTwice: of two parents nobody knows which is meant; two lines of
// state are one list.
func TestTraceContextTwice(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if parent, state := traceContext(header("traceparent", good, "traceparent", good, "tracestate", "a=b")); parent != "" || state != "" {
		t.Errorf("two parents: got %q, %q", parent, state)
	}
	if parent, state := traceContext(header("traceparent", good, "tracestate", "a=b", "tracestate", "c=d")); parent != good || state != "a=b,c=d" {
		t.Errorf("two lines of state: got %q, %q", parent, state)
	}
}

// TestPolicyHeaders are joined where they repeat, and only those that are meant for
// more than the next hop.
func TestPolicyHeaders(t *testing.T) {
	st := &State{PolicyHeaders: []string{"x-team", "x-zone", "x-tenant-id"}}
	for _, c := range []struct {
		pairs []string
		want  string
	}{
		{nil, "map[]"},
		{[]string{"X-Team", "a", "X-Other", "b"}, "map[x-team:a]"},
		{[]string{"X-Team", "a", "x-team", "b"}, "map[x-team:a, b]"},
		{[]string{"X-Tenant-Id", "a"}, "map[]"},
		{[]string{"X-Team", "a", "X-Zone", "b", "Connection", "keep-alive, x-TEAM"}, "map[x-zone:b]"},
		{[]string{"X-Team", "a", "X-Zone", "b", "Connection", "close", "Connection", "X-Zone , upgrade"}, "map[x-team:a]"},
	} {
		if got := fmt.Sprint(st.policyHeaders(header(c.pairs...))); got != c.want {
			t.Errorf("%v: got %s, want %s", c.pairs, got, c.want)
		}
	}
}

// FuzzHeaders reads what arbitrary header lines say: whatever they are, what goes on
// to workers, logs and policies keeps to its form.
func FuzzHeaders(f *testing.F) {
	const good = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, lines := range []string{
		good + "\r\ntracestate: a=b\r\n", "X-Request-Id: a\r\nx-request-id: b\r\n", "Connection: x-team\r\nX-Team: a\r\n", "X-Team: a\r\nX_Team: b\r\n",
		"X-Forwarded-For: 203.0.113.9, 10.0.0.1\r\n", "Content-Type: application/json; charset=\"utf-8\"\r\nContent-Encoding: gzip\r\n",
		"Authorization: Bearer " + goodKey + "\r\n", "Authorization: bearer  x\r\nX-Api-Key: y\r\n", "X-Sluice-Identity: {}\r\nExpect: 100-continue\r\n",
		"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "X-Sluice-Content-Labels: pii, secret\r\n",
	} {
		f.Add("Host: a\r\n" + lines)
	}
	st := &State{PolicyHeaders: []string{"x-team", "x-tenant-id", "authorization", "user-agent"}}
	g := &Gateway{cfg: Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}
	parent := regexp.MustCompile(`^(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})?$`)
	f.Fuzz(func(t *testing.T, lines string) {
		var ctx fasthttp.RequestCtx
		ctx.Init(&fasthttp.Request{}, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}, nil)
		h := &ctx.Request.Header
		if err := h.Read(bufio.NewReader(strings.NewReader("POST /v1/chat/completions HTTP/1.1\r\n" + lines + "\r\n"))); err != nil {
			return
		}
		if p, s := traceContext(h); !parent.MatchString(p) || strings.ContainsAny(s, "\r\n\x00") || p == "" && s != "" {
			t.Errorf("trace context %q, %q", p, s)
		}
		if id := requestID(&ctx, "own"); !regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`).MatchString(id) {
			t.Errorf("request id %q", id)
		}
		for name := range st.policyHeaders(h) {
			if name != "x-team" && name != "user-agent" || listed(bytes.Join(h.PeekAll("Connection"), []byte(",")), name) {
				t.Errorf("policies see %q", name)
			}
		}
		if _, err := netip.ParseAddr(g.sourceIP(&ctx)); err != nil {
			t.Errorf("source: %v", err)
		}
		var c tenancy.Credentials
		if reason := headerCredentials(h, &c); reason == "" && (strings.ContainsAny(string(c.Bearer), " \r\n\x00") || c.Bearer != nil && len(c.Bearer) == 0) {
			t.Errorf("a credential of %d bytes has what none has", len(c.Bearer))
		}
		announced, rej := framingFault(h)
		if rej == nil && (announced < chunkedBody || announced == chunkedBody && bytes.Contains(bytes.ToLower(h.RawHeaders()), []byte("content-length:"))) {
			t.Errorf("a body of %d", announced)
		}
		if c, rej := mediaFault(h); rej == nil && c > coding.Zstd || rej != nil && rej.status != 415 {
			t.Errorf("coding %d, refused %+v", c, rej)
		}
	})
}

func TestRequestID(t *testing.T) {
	const own = "own"
	for _, c := range []struct {
		name  string
		pairs []string
		want  string
	}{
		{"none", nil, own},
		{"the client's", []string{"X-Request-Id", "a.b_C-1"}, "a.b_C-1"},
		{"beside a credential", []string{"X-Request-Id", "0123456789abcdef", "Authorization", "Bearer MarkedCredential0"}, "0123456789abcdef"},
		{"two", []string{"X-Request-Id", "a", "X-Request-Id", "b"}, own},
		{"odd bytes", []string{"X-Request-Id", "a b"}, own},
		{"too long", []string{"X-Request-Id", strings.Repeat("a", 129)}, own},
		{"a key", []string{"X-Request-Id", goodKey}, own},
		{"somebody's key", []string{"X-Request-Id", "id-slk_other_secret"}, own},
		{"the credential", []string{"X-Request-Id", "MarkedCredential0", "Authorization", "Bearer MarkedCredential0"}, own},
		{"a part of it", []string{"X-Request-Id", "MarkedCredential", "Api-Key", "MarkedCredential0"}, own},
		{"a proxy's word", []string{"X-Request-Id", "eyJzdWIiOiJ1MSJ9", "X-Sluice-Identity", "eyJzdWIiOiJ1MSJ9"}, own},
	} {
		var ctx fasthttp.RequestCtx
		header(c.pairs...).CopyTo(&ctx.Request.Header)
		if got := requestID(&ctx, own); got != c.want {
			t.Errorf("%s: got another id than wanted", c.name)
		}
	}
}

func TestIdentityHeaders(t *testing.T) {
	for name, want := range map[string]bool{
		"x-tenant-id": true, "x_tenant_id": true, "x-user": true, "x-sluice-worker": true, "x-forwarded-for": true,
		"forwarded": true, "x-real-ip": true, "x_real_ip": true, "authorization": true, "proxy-authorization": true, "cookie": true, "x-forwarded-client-cert": true,
		"x-team": false, "user-agent": false, "x-request-id": false,
	} {
		if identityHeader(name) != want {
			t.Errorf("%s: want %v", name, want)
		}
	}
}

func TestSourceIP(t *testing.T) {
	g := &Gateway{cfg: Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128")}}}
	for _, c := range []struct{ peer, forwarded, want string }{
		{"192.0.2.1", "203.0.113.9", "192.0.2.1"},
		{"10.0.0.1", "", "10.0.0.1"},
		{"10.0.0.1", "203.0.113.9", "203.0.113.9"},
		{"10.0.0.1", "198.51.100.7, 203.0.113.9, 10.1.1.1", "203.0.113.9"},
		{"10.0.0.1", "10.9.9.9, 10.1.1.1", "10.9.9.9"},
		{"10.0.0.1", "203.0.113.9, nonsense, 10.1.1.1", "10.1.1.1"},
		{"::1", "2001:db8::1", "2001:db8::1"},
		{"::ffff:192.0.2.1", "", "192.0.2.1"},
	} {
		var ctx fasthttp.RequestCtx
		ctx.Init(&fasthttp.Request{}, &net.TCPAddr{IP: net.ParseIP(c.peer)}, nil)
		if c.forwarded != "" {
			ctx.Request.Header.Set("X-Forwarded-For", c.forwarded)
		}
		if got := g.sourceIP(&ctx); got != c.want {
			t.Errorf("%s with %q: got %s, want %s", c.peer, c.forwarded, got, c.want)
		}
	}
}

func TestResetDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", -time.Second: "0s", time.Nanosecond: "1ms", 12 * time.Millisecond: "12ms", 999*time.Millisecond + 1: "1000ms",
		time.Second: "1s", 1500 * time.Millisecond: "2s", 6 * time.Minute: "6m0s", time.Hour: "1h0m0s",
	} {
		if got := resetDuration(d); got != want {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
	}
}

// TestCacheSalt pins what isolation rests on: who shares a salt with whom, and
// an alphabet that the engine takes.
func TestCacheSalt(t *testing.T) {
	key := []byte("0123456789abcdef0123456789abcdef")
	salt := func(scope, tenant, principal, client string) string {
		return cacheSalt(key, scope, tenant, principal, client)
	}
	if got := salt("none", "a", "p", ""); got != "" {
		t.Errorf("no isolation and no salt of the client's: got %q", got)
	}
	if salt("tenant", "a", "p", "") != salt("tenant", "a", "q", "") {
		t.Error("two principals of a tenant must share under tenant isolation")
	}
	distinct := []string{
		salt("tenant", "a", "p", ""), salt("tenant", "b", "p", ""), salt("principal", "a", "p", ""), salt("principal", "a", "q", ""),
		salt("tenant", "a", "p", "x"), salt("none", "a", "p", "x"), salt("none", "b", "p", "x"), salt("tenant", "ab", "", "c"), salt("tenant", "a", "", "bc"),
		salt("principal", "a", "bc", ""), salt("principal", "ab", "c", ""), cacheSalt([]byte("another key of thirty-two bytes!!"), "tenant", "a", "p", ""),
	}
	seen := make(map[string]int)
	for i, s := range distinct {
		if j, ok := seen[s]; ok {
			t.Errorf("cases %d and %d share a salt", j, i)
		}
		seen[s] = i
		if !regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`).MatchString(s) {
			t.Errorf("salt %q", s)
		}
	}
}

// TestCacheSaltVectors pins the formula to values that were computed apart from
// this code, since every replica and every version must agree on them.
func TestCacheSaltVectors(t *testing.T) {
	for _, c := range []struct{ scope, tenant, principal, client, want string }{
		{"tenant", "acme", "", "", "xAQVLA7_8qILRrd3X7vLaNx04nM4zWtuJBKTnMrSEig"},
		{"tenant", "acme", "", "mine", "2cHG56XIZVzY4v1eXYTU7Tkfhyr8RgtuQs1W4bl6Qh8"},
		{"principal", "acme", "key:k1", "", "CARMIZV52yXtihCwn7mQroUvdiwiq-0XU7i7jORjppo"},
		{"principal", "acme", "key:k1", "é@/", "QbokZ8R1vDN_22FxnYdbq31PfBmu7A0Pk2jR_36WF1s"},
		{"none", "acme", "key:k1", "mine", "H247SHQBT3ENo8YA59ncUiDEvZt3xfyu-MWSKu0IQQ0"},
	} {
		if got := cacheSalt([]byte("0123456789abcdef0123456789abcdef"), c.scope, c.tenant, c.principal, c.client); got != c.want {
			t.Errorf("%s %s %s %q: got %s, want %s", c.scope, c.tenant, c.principal, c.client, got, c.want)
		}
	}
}

var idPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// FuzzFindRoute holds route matching to plain equality of bytes.
func FuzzFindRoute(f *testing.F) {
	for _, s := range []string{
		"/v1/chat/completions", "/v1/chat/completions?x=1", "http://h/v1/models", "/v1/models/a%2Fb", "//v1/models", "/v1/models/", "*", "", "http://h", "/v1/messages",
		"HTTPS://H/v1/embeddings", "/v1/responses/resp_1", "/v1/responses/r-1/cancel?x", "/v1/responses/r/input_items", "/v1/responses/", "/v1/responses/a.b", "/v1/responses/r/x",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, target string) {
		path, _, _ := strings.Cut(target, "?")
		for _, scheme := range []string{"http://", "https://"} {
			if len(path) > len(scheme) && strings.EqualFold(path[:len(scheme)], scheme) {
				rest := path[len(scheme):]
				_, after, found := strings.Cut(rest, "/")
				path = "/"
				if found {
					path += after
				}
				break
			}
		}
		want := routes[path]
		if want == nil && strings.HasPrefix(path, "/v1/models/") && len(path) > len("/v1/models/") {
			want = routeModel
		}
		for _, r := range storedRoutes {
			id, ok := strings.CutPrefix(path, "/v1/responses/")
			id, ends := strings.CutSuffix(id, strings.TrimPrefix(r.template, "/v1/responses/{id}"))
			if ok && ends && idPattern.MatchString(id) {
				want = r
			}
		}
		if got, _ := findRoute([]byte(target)); got != want {
			t.Errorf("%q: got %v, want %v", target, got, want)
		}
	})
}
