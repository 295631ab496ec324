package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluicegate/sluice/scoring/simworker"
	"github.com/sluicegate/sluice/tenancy/authn"
)

const (
	soakClients = 200
	// soakEvery is the time between two reloads, two revocations and two readings, or
	// an eighth of the whole.
	soakEvery = 10 * time.Second
	// soakJudged is the least time over which growth says something: caches fill, and
	// the heap breathes.
	soakJudged = 5 * time.Minute
)

// TestSoak has 200 clients ask a gateway for everything for a long time, while its
// workers fail in every way they know, its policies change and keys are revoked under
// running streams. Its books must be right to the token at the end, and its heap,
// goroutines and descriptors must not have grown from the first half of the time to
// the second. SLUICE_TEST_SECONDS says for how long; `make soak` takes half an hour.
func TestSoak(t *testing.T) {
	span := time.Duration(testNumber(t, "SLUICE_TEST_SECONDS", 4)) * time.Second
	s := startSoak(t, span)
	ctx, stop := context.WithTimeout(t.Context(), span)
	defer stop()
	var work sync.WaitGroup
	work.Go(func() {
		s.fail(ctx)
		s.heal() // else a worker that hangs keeps the last requests for their whole time-out
	})
	work.Go(func() { s.revoke(ctx) })
	work.Go(func() { s.reload(ctx) })
	work.Go(func() { s.read(ctx) })
	public, _, _ := s.child.addresses()
	a := s.books.askers[0]
	a.run(a.asMany(400, span), soakClients, "http://"+public)
	stop()
	work.Wait()
	a.run(a.asMany(a.next+50, 0), 8, "http://"+public) // and it serves as ever
	s.judge(span)
	s.child.stop(t)
	reader, err := fileReader(t.Context(), filepath.Join(s.d.dir, "ledger.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	s.books.check(reader)
	for _, word := range []string{"told whole", "told left", "row client_aborted", "told 502", "told an error in a stream", "row upstream_error", "told 401"} {
		if s.books.seen[word] == 0 && span >= time.Minute {
			t.Errorf("no request was %q: %v", word, s.books.seen)
		}
	}
	t.Logf("%v; %d faults, %d reloads, %d keys revoked", s.books.seen, s.faults, s.reloads, s.revoked)
}

// soak is a gateway in a process of its own before simulated workers that fail.
type soak struct {
	*testing.T
	d       *demo
	child   *child
	books   *books
	keys    []authn.Key // to be revoked
	pause   time.Duration
	samples []soakSample

	faults, reloads, revoked int
}

// soakSample is what may leak, at one time.
type soakSample struct{ heap, goroutines, files float64 }

func startSoak(t *testing.T, span time.Duration) *soak {
	t.Helper()
	seed := testSeed(t)
	s := &soak{T: t, books: &books{t: t, workers: newAccounts(), calm: true}, pause: min(soakEvery, span/8)}
	scale := 0.1
	if span >= time.Minute {
		scale = 1 // many at a time rather than many in all
	}
	var err error
	opts := demoOptions{public: "127.0.0.1:0", admin: "127.0.0.1:0", timeScale: scale, worker: s.books.workers.watch}
	if s.d, err = newDemo(opts, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.d.Close(); err != nil {
			t.Errorf("close the demo: %v", err)
		}
	})
	s.books.exact = s.d.native
	s.books.askers = []*askers{newAskers(s.d.keys, "asked", seed), newAskers(nil, "revoked", seed)}
	generous(s.d.dir)
	s.passingKeys(int(span/s.pause) + 1)
	file := filepath.Join(s.d.dir, "sluice.yaml")
	// Memory that a cache may take is taken at once, so that what grows after it is none.
	replaceIn(t, file, "level: warn", "level: info",
		"drain:", "keys: { cutRunning: true }\ntokens: { cacheBytes: 1MiB }\ndrain:")
	s.child = startChild(t, file)
	s.child.waitReady(t)
	return s
}

// passingKeys makes a tenant whose keys are there to be revoked.
func (s *soak) passingKeys(n int) {
	s.Helper()
	file := filepath.Join(s.d.dir, "tenants.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		s.Fatal(err)
	}
	text = append(text, "  - id: passing\n    team: search\n    tier: gold\n    keys:\n"...)
	for range n {
		key, err := authn.NewKey()
		if err != nil {
			s.Fatal(err)
		}
		key.Name, key.Created = "passing", time.Now()
		text = key.AppendYAML(text, 6)
		s.keys = append(s.keys, key)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		s.Fatal(err)
	}
}

// every calls f now and then until ctx ends.
func every(ctx context.Context, pause func() time.Duration, f func(n int)) {
	for n := 0; ; n++ {
		f(n)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause()):
		}
	}
}

func (s *soak) steadily() time.Duration { return s.pause }

// fail makes a worker fail in one way or another, and then the next.
func (s *soak) fail(ctx context.Context) {
	var names []string
	for name := range s.d.workers {
		names = append(names, name)
	}
	faults := []simworker.Fault{
		{Status: 500, Requests: 3}, {Status: 503, Requests: 20}, {Status: 429, Requests: 5},
		{HangHeaders: true, Requests: 5}, {FirstByteDelay: 300 * time.Millisecond, Requests: 20},
		{DropAfterEvents: -1, Requests: 2}, {DropAfterEvents: 3, Requests: 2}, {MalformedEvent: true, Requests: 10},
		{NoDone: true, Requests: 2}, {Stall: 200 * time.Millisecond}, {SlowFactor: 3}, {}, {},
	}
	every(ctx, func() time.Duration { return time.Duration(50+rand.IntN(500)) * time.Millisecond }, func(int) {
		s.d.workers[names[rand.IntN(len(names))]].SetFault(faults[rand.IntN(len(faults))])
		s.faults++
	})
}

// heal makes all workers well.
func (s *soak) heal() {
	for _, w := range s.d.workers {
		w.SetFault(simworker.Fault{})
	}
}

// reload changes the policies.
func (s *soak) reload(ctx context.Context) {
	every(ctx, s.steadily, func(n int) {
		write(s.T, s.d.dir, map[string]string{"next.yaml": quota(1_000_000, fmt.Sprintf("soak-%d", n))})
		rename(s.T, filepath.Join(s.d.dir, "next.yaml"), filepath.Join(s.d.dir, "policies/quota.yaml"))
		s.child.signal(s.T, syscall.SIGHUP)
		s.reloads++
	})
}

// revoke takes a key from a caller whose stream runs.
func (s *soak) revoke(ctx context.Context) {
	public, _, _ := s.child.addresses()
	a := s.books.askers[1]
	var streams sync.WaitGroup
	defer streams.Wait()
	every(ctx, s.steadily, func(n int) {
		key := s.keys[n%len(s.keys)]
		q := asking{id: fmt.Sprintf("revoked-%d", n), kind: "stream", leaveAfter: -1, body: map[string]any{
			"model": demoModel, "stream": true, "max_tokens": 800, "ignore_eos": true, "messages": []map[string]string{{"role": "user", "content": "a long story"}},
		}}
		streams.Go(func() {
			a.note(q.id, ask(context.Background(), &http.Transport{DisableKeepAlives: true}, "http://"+public, key.Reveal(), &q))
		})
		time.Sleep(200 * time.Millisecond) // it streams by then, or is about to, or has failed
		var errs bytes.Buffer
		args := []string{"keys", "revoke", "--tenants", filepath.Join(s.d.dir, "tenants.yaml"), key.ID}
		if code := execute(ctx, time.Now, args, strings.NewReader(""), io.Discard, &errs); code != exitOK && ctx.Err() == nil {
			s.Errorf("revoking a key: exit code %d\n%s", code, errs.String())
		}
		s.revoked++
	})
}

// read notes what may leak.
func (s *soak) read(ctx context.Context) {
	every(ctx, s.steadily, func(int) {
		s.samples = append(s.samples, soakSample{
			// The runtime aims at twice what was alive at the end of the last collection.
			heap:       s.child.metric(s.T, "go_memstats_next_gc_bytes") / 2,
			goroutines: s.child.metric(s.T, "go_goroutines"),
			files:      s.child.metric(s.T, "process_open_fds"),
		})
	})
}

// judge compares the two halves of the time after a tenth in which caches fill.
func (s *soak) judge(span time.Duration) {
	s.Helper()
	all := s.samples[len(s.samples)/10:]
	half := len(all) / 2
	for _, what := range []struct {
		name  string
		of    func(soakSample) float64
		slack float64 // what a few more requests at the time of reading make
	}{
		{"heap", func(x soakSample) float64 { return x.heap }, 2 << 20},
		{"goroutines", func(x soakSample) float64 { return x.goroutines }, 20},
		{"descriptors", func(x soakSample) float64 { return x.files }, 20},
	} {
		early, late := median(all[:half], what.of), median(all[half:], what.of)
		s.Logf("%s: %.0f in the first half, %.0f in the second, %d readings", what.name, early, late, len(all))
		if span >= soakJudged && late > 1.02*early+what.slack {
			s.Errorf("the %s have grown from %.0f to %.0f", what.name, early, late)
		}
	}
}

func median(list []soakSample, of func(soakSample) float64) float64 {
	if len(list) == 0 {
		return 0
	}
	values := make([]float64, len(list))
	for i, x := range list {
		values[i] = of(x)
	}
	slices.Sort(values)
	return values[len(values)/2]
}
