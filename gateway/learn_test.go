package gateway

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicegate/sluice/gateway/gatewaytest"
	"github.com/sluicegate/sluice/policy"
)

func TestLearnedLengths(t *testing.T) {
	var l lengths
	l.init()
	if _, ok := l.expect("t", "m"); ok {
		t.Fatal("something is expected of nothing")
	}
	for i := range leastLengthsSeen {
		if _, ok := l.expect("t", "m"); ok {
			t.Fatalf("%d answers are enough", i)
		}
		l.learn("t", "m", 100)
	}
	within := func(name string, least, most int64) {
		t.Helper()
		if n, ok := l.expect("t", "m"); !ok || n < least || n > most {
			t.Errorf("%s: %d (%t) expected, want %d to %d", name, n, ok, least, most)
		}
	}
	within("all have 100", 100, 126)
	l.learn("t", "m", 5000)
	within("one is longer", 100, 126)
	for range 20 {
		l.learn("t", "m", 5000)
	}
	within("many are longer", 5000, 6300)
	for range 1000 {
		l.learn("t", "m", 3)
	}
	within("the old are forgotten", leastLength, leastLength)
	for range 1000 {
		l.learn("t", "m", 1<<40)
	}
	within("beyond all bins", 1<<20, 1<<22)
	l.learn("t", "m", -1)
	if _, ok := l.expect("t", "other"); ok {
		t.Error("a model knows of another's answers")
	}
	if _, ok := l.expect("u", "m"); ok {
		t.Error("a tenant knows of another's answers")
	}
}

// An estimate is not below nine of ten of a steady stream of lengths, nor much
// above what it stands for.
func TestPropertyLearnedLengths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l lengths
		l.init()
		most := int64(0)
		each := rapid.SliceOfN(rapid.Int64Range(0, 200_000), 1, 8).Draw(t, "lengths")
		for i := range 2000 {
			n := each[i%len(each)]
			most = max(most, n)
			l.learn("t", "m", n)
		}
		got, ok := l.expect("t", "m")
		if !ok || got < most || float64(got) > max(leastLength, 1.27*float64(most)+1) {
			t.Fatalf("%d (%t) expected of %v", got, ok, each) // with 8 or fewer lengths the longest is in the last tenth
		}
	})
}

// TestLearnedLengthsAreBounded: pairs that nobody asks for make room.
func TestLearnedLengthsAreBounded(t *testing.T) {
	var l lengths
	l.init()
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range maxLengths / 2 {
				l.learn(fmt.Sprint("t", w, "-", i), "m", 10)
				if i%64 == 0 {
					for range leastLengthsSeen {
						l.learn("asked", "m", 10)
					}
					if _, ok := l.expect("asked", "m"); !ok {
						t.Error("a pair that is asked for was forgotten")
					}
				}
			}
		})
	}
	wg.Wait()
	held := 0
	for i := range l.shards {
		s := &l.shards[i]
		if len(s.known) != len(s.list) {
			t.Errorf("shard %d knows %d pairs and lists %d", i, len(s.known), len(s.list))
		}
		held += len(s.list)
	}
	if held > maxLengths || held < maxLengths/2 {
		t.Errorf("%d pairs are held, want at most %d", held, maxLengths)
	}
}

// TestAnswersAreLearned: whole answers to requests without max_tokens teach what
// the next one is estimated at; policies are told, and a max_tokens is respected.
func TestAnswersAreLearned(t *testing.T) {
	worker := gatewaytest.NewWorker(t, gatewaytest.Chat(strings.Split(strings.Repeat("a ", 40), " ")...))
	r := newRig(t, []string{worker.URL()})
	var last *policy.Decision
	var input policy.Input
	set := compile(t, bound("p", "Deny", "  limits:\n    - { name: out, unit: output_tokens, window: day, limit: 1000000, key: [] }\n"))
	r.decider.set(func(ctx context.Context, in *policy.Input) *policy.Decision {
		input, last = *in, set.Decide(ctx, in)
		return last
	})
	ask := func(body string) int64 {
		t.Helper()
		if resp, text := r.chat(body).Answer(); resp.StatusCode != 200 {
			t.Fatalf("got %d %s", resp.StatusCode, text)
		}
		r.idle()
		return last.Limits[0].Estimate
	}
	capped := strings.Replace(chatBody, `{"model"`, `{"max_tokens":90,"model"`, 1)
	for range leastLengthsSeen {
		if n := ask(capped); n != 90 || input.Request.LearnedOutput != nil {
			t.Fatalf("a request with max_tokens reserves %d", n)
		}
	}
	for range leastLengthsSeen {
		if n := ask(chatBody); n != 100 || input.Request.LearnedOutput != nil {
			t.Fatalf("%d are reserved before anything is known, want the default", n)
		}
	}
	if n := ask(chatBody); n < 41 || n > 52 || *input.Request.LearnedOutput != n || *last.MaxTokens != 100 {
		t.Errorf("%d are reserved for answers of 41 tokens, with the cap %d", n, *last.MaxTokens)
	}
	if n := ask(capped); n != 90 {
		t.Errorf("a request with max_tokens reserves %d", n)
	}
	if n := ask(strings.Replace(chatBody, `{"model"`, `{"n":3,"model"`, 1)); n < 3*41 || n > 3*52 {
		t.Errorf("three choices reserve %d", n)
	}
}
