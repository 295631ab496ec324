package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/scoring"
)

// TestPoliciesSeeOnlyTheirHeaders: repeats are joined, what a client could forge
// is not there even if it is asked for, and labels are believed from listed
// principals only.
func TestPoliciesSeeOnlyTheirHeaders(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	for _, c := range []struct {
		name    string
		trusted []string
		header  string
		status  int
		labels  []string
	}{
		{"trusted", []string{"key:other", "key:test"}, "pii, secret,pii", 200, []string{"eu", "pii", "secret"}},
		{"not trusted", []string{"key:other"}, "pii", 200, []string{"eu"}},
		{"not trusted, malformed", nil, "Not A Label", 200, []string{"eu"}},
		{"trusted, malformed", []string{"key:test"}, "pii,Not A Label", 400, nil},
		{"trusted, empty", []string{"key:test"}, "pii,,secret", 400, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, []string{worker.URL()}, withState(func(st *State) {
				st.PolicyHeaders = []string{"x-team", "x-tenant-id", "x_user", "x-sluice-content-labels", "authorization", "x-absent"}
				st.LabelPrincipals = c.trusted
			}))
			r.tenant.ContentLabels = []string{"eu"}
			r.tokens.set(func(_ context.Context, dst []uint32, _ []byte) ([]uint32, error) {
				return append(dst, 1, 2, 3, 4, 5), nil
			})
			var headers map[string]string
			var labels []string
			r.decider.set(func(ctx context.Context, in *policy.Input) *policy.Decision {
				headers, labels = in.Request.Headers, in.DeclaredLabels
				if n, exact, err := in.Lazy.InputTokens(ctx); n != 5 || !exact || err != nil {
					t.Errorf("the prompt has %d tokens, %v, %v; want exactly 5", n, exact, err)
				}
				if content, err := in.Lazy.Content(ctx); content.ScanStatus != "unavailable" || err != nil {
					t.Errorf("content %+v, %v, want no scan without a detector", content, err)
				}
				return allow(in)
			})
			resp, body := r.chat(chatBody, "X-Team: a", "X-Tenant-Id: evil", "X_User: evil", "X-Team: b", "X-Sluice-Content-Labels: "+c.header).Answer()
			if resp.StatusCode != c.status {
				t.Fatalf("got %d %s, want %d", resp.StatusCode, body, c.status)
			}
			r.row()
			if c.status != 200 {
				return
			}
			if !maps.Equal(headers, map[string]string{"x-team": "a, b"}) {
				t.Errorf("policies saw the headers %v", headers)
			}
			if !slices.Equal(labels, c.labels) {
				t.Errorf("policies saw the labels %v, want %v", labels, c.labels)
			}
		})
	}
}

// notedPicks remembers what is asked of a router.
type notedPicks struct {
	Router
	mu  sync.Mutex
	all []scoring.Request
}

func (n *notedPicks) Pick(now time.Time, req *scoring.Request) (*scoring.Reservation, error) {
	n.mu.Lock()
	noted := *req
	noted.Tokens, noted.Exclude = slices.Clone(req.Tokens), slices.Clone(req.Exclude)
	n.all = append(n.all, noted)
	n.mu.Unlock()
	return n.Router.Pick(now, req)
}

// TestScorerKnowsWhatTheWorkerGets: the pick is made for the very prompt and
// salt that are sent, and the first token comes back to it.
func TestScorerKnowsWhatTheWorkerGets(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a", "b"))
	picks := &notedPicks{}
	r := newRig(t, []string{worker.URL()}, withParts(func(p *Parts) { picks.Router, p.Router = p.Router, picks }))
	r.tokens.set(func(_ context.Context, dst []uint32, _ []byte) ([]uint32, error) { return append(dst, 7, 8, 9), nil })
	for i, body := range []string{chatBody, streamBody} {
		if resp, text := r.chat(body).Answer(); resp.StatusCode != 200 {
			t.Fatalf("got %d %s", resp.StatusCode, text)
		}
		var sent struct {
			Salt   string `json:"cache_salt"`
			Stream bool
		}
		if err := json.Unmarshal(worker.Next(t).Body, &sent); err != nil {
			t.Fatal(err)
		}
		p := picks.all[i]
		if p.Salt == "" || p.Salt != sent.Salt {
			t.Errorf("the pick has the salt %q, the worker got %q", p.Salt, sent.Salt)
		}
		if !slices.Equal(p.Tokens, []uint32{7, 8, 9}) || p.Unary == sent.Stream || p.Model != "m" || !slices.Equal(p.Pools, []string{"p"}) {
			t.Errorf("the pick was made for %+v", p)
		}
	}
	r.idle()
	if n := r.fleet.Stats().FirstTokens; n != 1 {
		t.Errorf("the scorer saw %d first tokens, want that of the stream", n)
	}
}

// tokensOf is a Tokenizer that always finds the same.
type tokensOf struct {
	*fakeTokenizer
	Tokens
}

// Local implements Tokenizer.
func (k tokensOf) Local(_ context.Context, dst []uint32, _ *Model, _ *wire.Request, _ []byte) Tokens {
	return Tokens{IDs: append(dst, k.IDs...), Count: k.Count, Exact: k.Exact}
}

// TestScorerKnowsWhatIsKnown: the pick is made for the ids that there are and
// for the best count of the rest, while policies are told an exact count or the
// configured estimate, and nothing in between.
func TestScorerKnowsWhatIsKnown(t *testing.T) {
	for _, c := range []struct {
		name     string
		tokens   Tokens
		ids      []uint32
		estimate int
		told     int64
		exact    bool
	}{
		{"nothing", Tokens{}, nil, 3, 3, false},
		{"an estimate", Tokens{Count: 7}, nil, 7, 3, false},
		{"the beginning", Tokens{IDs: []uint32{1, 2}, Count: 600}, []uint32{1, 2}, 600, 3, false},
		{"one of several prompts", Tokens{IDs: []uint32{1, 2}, Count: 5, Exact: true}, []uint32{1, 2}, 5, 5, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
			picks := &notedPicks{}
			r := newRig(t, []string{worker.URL()}, withParts(func(p *Parts) {
				picks.Router, p.Router = p.Router, picks
				p.Tokenizer = tokensOf{Tokens: c.tokens}
			}))
			r.decider.set(func(ctx context.Context, in *policy.Input) *policy.Decision {
				if n, exact, err := in.Lazy.InputTokens(ctx); n != c.told || exact != c.exact || err != nil {
					t.Errorf("policies are told %d tokens, %v, %v; want %d, %v", n, exact, err, c.told, c.exact)
				}
				return allow(in)
			})
			if resp, text := r.chat(`{"model":"m","messages":[{"role":"user","content":"123456789"}]}`).Answer(); resp.StatusCode != 200 {
				t.Fatalf("got %d %s", resp.StatusCode, text)
			}
			p := picks.all[0]
			if !slices.Equal(p.Tokens, c.ids) || p.Estimate != c.estimate {
				t.Errorf("the pick was made for %v and %d tokens, want %v and %d", p.Tokens, p.Estimate, c.ids, c.estimate)
			}
			r.idle()
			if s := r.meter.last(); s.RoutedTokens != len(c.ids) || s.Tokens.Count != c.tokens.Count || s.Tokens.IDs != nil || s.TextBytes != 9 || !s.PlainText {
				t.Errorf("the summary says %+v, %d routed tokens, %d bytes, plain text %v", s.Tokens, s.RoutedTokens, s.TextBytes, s.PlainText)
			}
		})
	}
}

// TestWorkersOverTLS checks a worker's certificate against the configured roots.
func TestWorkersOverTLS(t *testing.T) {
	worker := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, gatewaytest.ChatBody("a", gatewaytest.Usage(10, 1)))
	}))
	defer worker.Close()
	roots := x509.NewCertPool()
	roots.AddCert(worker.Certificate())
	r := newRig(t, []string{worker.URL}, withConfig(func(cfg *Config) { cfg.WorkerTLS = &tls.Config{RootCAs: roots} }))
	if resp, body := r.chat(chatBody).Answer(); resp.StatusCode != 200 {
		t.Errorf("a worker with a known certificate: %d %s", resp.StatusCode, body)
	}
	r.row()
	stranger := newRig(t, []string{worker.URL})
	resp, body := stranger.chat(chatBody).Answer()
	wantError(t, resp, body, 502, "upstream_error")
	stranger.row()
}

// TestCapsReachTheWorker: what a policy lowers is lowered in the body that is
// sent, and a body that needs no change keeps its numbers.
func TestCapsReachTheWorker(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat("a"))
	for _, c := range []struct {
		name      string
		maxTokens int64
		n         int64
		want      string
	}{
		{"nothing is capped", 0, 0, `{"max_tokens":500,"n":3}`},
		{"output", 20, 0, `{"max_tokens":20,"n":3}`},
		{"choices", 0, 1, `{"max_tokens":500,"n":1}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, []string{worker.URL()})
			r.decider.set(func(_ context.Context, in *policy.Input) *policy.Decision {
				d := allow(in)
				d.MaxTokens = in.Request.MaxTokens
				if c.maxTokens > 0 {
					d.MaxTokens, d.MaxTokensChanged = &c.maxTokens, true
				}
				if c.n > 0 {
					d.N, d.NChanged = c.n, true
				}
				return d
			})
			resp, body := r.chat(`{"model":"m","messages":[{"role":"user","content":"hello"}],"max_tokens":500,"n":3}`).Answer()
			if resp.StatusCode != 200 {
				t.Fatalf("got %d %s", resp.StatusCode, body)
			}
			var sent struct {
				MaxTokens int `json:"max_tokens"`
				N         int `json:"n"`
			}
			if err := json.Unmarshal(worker.Next(t).Body, &sent); err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprintf(`{"max_tokens":%d,"n":%d}`, sent.MaxTokens, sent.N); got != c.want {
				t.Errorf("the worker got %s, want %s", got, c.want)
			}
		})
	}
}
