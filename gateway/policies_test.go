package gateway

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/sluicegate/sluice/gateway/wire"
	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/scoring"
)

// compile loads policies against the rig's model, in the pools p and q.
func compile(t testing.TB, text string) *policy.Set {
	t.Helper()
	set, err := policy.Load(policy.Config{
		Pools:  []policy.Pool{{Name: "p", Models: []string{"m"}, Salted: []string{"*"}}, {Name: "q", Models: []string{"m"}, Salted: []string{"*"}}},
		Models: map[string]policy.Model{"m": {DefaultMaxTokens: 100}},
	}, fstest.MapFS{"policies.yaml": &fstest.MapFile{Data: []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// bound is a policy and a binding of it to all requests. spec is indented by two.
func bound(name, actions, spec string) string {
	return "---\napiVersion: sluice/v1alpha1\nkind: AdmissionPolicy\nmetadata: { name: " + name + " }\nspec:\n" + strings.Trim(spec, "\n") +
		"\n---\napiVersion: sluice/v1alpha1\nkind: AdmissionPolicyBinding\nmetadata: { name: " + name + "-all }\nspec: { policyName: " + name + ", actions: [" + actions + "] }\n"
}

// withPolicies has the gateway decide by real policies.
func withPolicies(t testing.TB, text string) rigOption {
	set := compile(t, text)
	return withState(func(st *State) { st.Policies = set })
}

// addWorker adds a worker of the model to a pool.
func (r *rig) addWorker(pool, name, url string, ready bool) {
	r.t.Helper()
	now := time.Now()
	id, err := r.fleet.Add(now, scoring.WorkerSpec{Name: name, Pool: pool, Address: url, Models: []string{"m"}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.fleet.SetReady(now, id, ready, "")
}

// scanner is a Classifier that notes what it is given and finds what it is told to.
type scanner struct {
	finds policy.Content
	wait  chan struct{} // until it is closed, if it isn't nil

	mu     sync.Mutex
	bodies []string
}

// Classify implements Classifier.
func (s *scanner) Classify(ctx context.Context, r *ClassifyRequest) policy.Content {
	if s.wait != nil {
		select {
		case <-s.wait:
		case <-ctx.Done():
			return policy.Content{ScanStatus: "timeout"}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bodies = append(s.bodies, string(r.Body))
	return s.finds
}

func (s *scanner) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.bodies)
}

// askedTokenizer notes whom it would have shown a prompt.
type askedTokenizer struct {
	*fakeTokenizer
	local Tokens

	mu      sync.Mutex
	decided bool
	remote  [][]string // pools
	samples [][]string
	early   int // calls that would show a prompt before the decision
}

// Local implements Tokenizer.
func (a *askedTokenizer) Local(context.Context, []uint32, *Model, *wire.Request, []byte) Tokens {
	return a.local
}

// Remote implements Tokenizer.
func (a *askedTokenizer) Remote(_ context.Context, dst []uint32, _ *Model, pools []string, _ *wire.Request, _ []byte) Tokens {
	a.note(&a.remote, pools)
	return Tokens{IDs: append(dst, 1, 2, 3), Count: 3, Exact: true}
}

// Sample implements Tokenizer.
func (a *askedTokenizer) Sample(_ *Model, pools []string, _ *wire.Request, _ []byte) {
	a.note(&a.samples, pools)
}

func (a *askedTokenizer) note(to *[][]string, pools []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	*to = append(*to, slices.Clone(pools))
	if !a.decided {
		a.early++
	}
}

func (a *askedTokenizer) decides() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.decided = true
}

// decoding is a Tokenizer that says how many ids it decoded.
type decoding struct{ *fakeTokenizer }

// Decode implements Tokenizer.
func (decoding) Decode(_ *Model, ids []uint32) (string, bool) { return strconv.Itoa(len(ids)), true }

// asksFor is a Classifier that has ids decoded, and labels the body with what it got.
type asksFor int

// Classify implements Classifier.
func (n asksFor) Classify(_ context.Context, r *ClassifyRequest) policy.Content {
	text, ok := r.Decode(make([]uint32, n))
	return policy.Content{ScanStatus: strconv.FormatBool(ok), Labels: []string{text}}
}

// No more token ids are decoded for a scan than the model has room for: its worker refuses such a prompt, and
// a token can stand for a hundred bytes of text.
func TestTokenIDsBeyondTheContextAreNotDecoded(t *testing.T) {
	m := &Model{Name: "m", ContextLength: 100}
	for n, want := range map[asksFor]string{100: "100 true", 101: " false"} {
		st := &State{Classifier: n}
		got := st.classify(t.Context(), decoding{}, &route{operation: "completion"}, m, []byte("{}"))
		if text := got.Labels[0] + " " + got.ScanStatus; text != want {
			t.Errorf("%d ids: got %q, want %q", n, text, want)
		}
	}
}
