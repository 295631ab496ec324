package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sluicegate/sluice/gateway"
)

// demoWork is the header by which a request of the demo says that it can wait.
const demoWork = "x-work"

// demoClasses is the policy of the demo by which work that can wait is of the class batch.
const demoClasses = `apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: demo-classes }
spec:
  description: Work that its caller calls batch is of the class batch.
  effects:
    - { name: batch, when: "request.headers[?'` + demoWork + `'].orValue('') == 'batch'", qos: { class: batch } }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: demo-classes }
spec: { policyName: demo-classes, actions: [Deny] }
`

// demoBatchQueue is how many requests of batch work may wait in the demo: less than a burst of it has.
const demoBatchQueue = 12

// A burst is batch work of so many callers at once, with a few urgent requests behind them.
const (
	burstCallers = 40
	burstUrgent  = 4
	burstTokens  = 1500
)

// overload sends more batch work at once than may wait, and then a few urgent requests: those overtake what
// waits, and what finds no room to wait is told at once when to come again.
func (t *tour) overload(ctx context.Context) (string, error) {
	// On a machine that has much else to do the requests may come too slowly for anybody to wait: then again, with
	// more work in each.
	for attempt := 1; ; attempt++ {
		b := burst{tour: t, began: time.Now(), seed: 100_000 * attempt, tokens: burstTokens * attempt}
		b.play(ctx)
		saw, err := b.saw()
		if err == nil || attempt == 4 {
			return saw, err
		}
	}
}

// burst is one try of an overload.
type burst struct {
	*tour
	began        time.Time
	seed, tokens int

	mu            sync.Mutex // protects what follows
	batch, urgent []burstAnswer
	waited        int // how many waited when the urgent requests were sent
	asked         int
	failed        error
}

// burstAnswer is one answer, when it was asked for and when it came, from the beginning of the burst.
type burstAnswer struct {
	*answer
	sent, came time.Duration
}

func (b *burst) play(ctx context.Context) {
	var all sync.WaitGroup
	for range burstCallers {
		all.Go(func() { b.send(ctx, &b.batch, b.next(), b.tokens, demoWork, "batch") })
	}
	if b.waited = b.waiting(ctx); b.waited > 0 {
		for range burstUrgent {
			all.Go(func() { b.send(ctx, &b.urgent, b.next(), 100) })
		}
	}
	all.Wait()
}

// over says whether all batch work has been answered.
func (b *burst) over() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed != nil || len(b.batch) == burstCallers
}

// next is the seed of another prompt.
func (b *burst) next() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked++
	return b.seed + b.asked
}

func (b *burst) send(ctx context.Context, into *[]burstAnswer, seed, tokens int, header ...string) {
	sent := time.Since(b.began)
	a, err := b.ask(ctx, "acme", user(b.long(seed, tokens)), header...)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.failed = err
		return
	}
	*into = append(*into, burstAnswer{a, sent, time.Since(b.began)})
}

// waiting returns how many requests wait as soon as some do, or 0 if none has until all are answered.
func (b *burst) waiting(ctx context.Context) int {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !b.over() && ctx.Err() == nil {
		var s gateway.QueueState
		if b.a.gateway.QueueState(&s) && s.Waiting > 0 {
			return s.Waiting
		}
		<-tick.C
	}
	return 0
}

// saw judges a burst: urgent work before batch work that waited, and refusals that say when to come again.
func (b *burst) saw() (string, error) {
	if b.failed != nil {
		return "", b.failed
	}
	if b.waited == 0 {
		return "", errors.New("nothing waited")
	}
	var first, last time.Duration // of the urgent ones: when the first was sent, and the last answered
	for i, a := range b.urgent {
		if err := a.want(200, ""); err != nil {
			return "", fmt.Errorf("an urgent request: %w", err)
		}
		if i == 0 || a.sent < first {
			first = a.sent
		}
		last = max(last, a.came)
	}
	overtaken, served, told := 0, 0, []int(nil)
	for _, a := range b.batch {
		if a.status == http.StatusOK {
			served++
			if a.sent < first && a.came > last {
				overtaken++
			}
			continue
		}
		after, err := strconv.Atoi(a.header.Get("Retry-After"))
		if (a.status != http.StatusTooManyRequests && a.status != http.StatusServiceUnavailable) || a.code != "overloaded" || err != nil || after < 1 {
			return "", fmt.Errorf("batch work got %d %q with Retry-After %q: %s", a.status, a.code, a.header.Get("Retry-After"), a.message)
		}
		told = append(told, after)
	}
	switch {
	case overtaken == 0:
		return "", errors.New("urgent work overtook no batch work")
	case len(told) == 0:
		return "", errors.New("no batch work was refused")
	}
	return fmt.Sprintf("%d batch requests at once: %d urgent ones overtook %d; %d were served, %d refused, Retry-After %d s",
		len(b.batch), len(b.urgent), overtaken, served, len(told), slices.Min(told)), nil
}
