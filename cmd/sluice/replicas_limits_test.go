package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicegate/sluice/ratelimit/redis"
	"github.com/sluicegate/sluice/tenancy/ledger"
)

// The limits that replicas share in these tests. Prompts are counted as the workers
// count them and answers have a cap, so that no request uses more than it reserves.
const (
	sharedRequests = 40     // of globex, a minute
	sharedTokens   = 80_000 // of acme, a minute
	sharedDay      = 10_000 // tokens of globex, a day
	sharedSlots    = 24     // of everybody together
)

var sharedPolicy = fmt.Sprintf(`apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: shared }
spec:
  limits:
    - { name: requests, unit: requests, window: 1m, limit: "tenant.id == 'globex' ? %d : 1000000000", key: ["tenant.id"], onStoreError: Deny }
    - { name: tokens, unit: tokens, window: 1m, limit: "tenant.id == 'acme' ? %d : 1000000000", key: ["tenant.id"], onStoreError: Deny }
    - { name: day, unit: tokens, window: day, limit: "tenant.id == 'globex' ? %d : 1000000000", key: ["tenant.id"], onStoreError: Deny }
    - { name: slots, unit: concurrency, limit: "%d", key: ["'all'"], onStoreError: Deny }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: shared }
spec: { policyName: shared, actions: [Deny] }
`, sharedRequests, sharedTokens, sharedDay, sharedSlots)

// usedOf is what the rows of a tenant say was used.
type usedOf struct{ requests, tokens int64 }

// TestReplicasShareLimits: 200 clients before two gateways that share a ledger and,
// through a Redis, their limits. No limit gives more than its own plus what is stated
// in docs/0024, the ledger has what the workers counted, and all that stays so when
// the Redis is killed and comes back without its data. A revoked key is refused by
// both.
func TestReplicasShareLimits(t *testing.T) {
	beforeMidnight(t)
	store := ownRedis(t, marked("redis-password"))
	r := startReplicas(t, 2, generous, func(dir string) {
		write(t, dir, map[string]string{"policies/shared.yaml": sharedPolicy, "redis.password": marked("redis-password")})
		editConfig(dir, "store: { redis: { addresses: ["+store.Socket()+"], passwordFile: redis.password, timeout: 1s } }\n")
	})
	r.books.budgets = 1
	storeIsUp := func() bool {
		for _, a := range r.apps {
			if a.shared.Stats().State != redis.StateUp {
				return false
			}
		}
		return true
	}
	soon(t, "the store", childPatience, storeIsUp)
	start, seconds := time.Now(), time.Duration(testNumber(t, "SLUICE_TEST_SECONDS", 2))*time.Second

	most := 0
	for tries := 0; most < sharedSlots/2 && tries < 5; tries++ { // a busy machine keeps clients from asking
		most = max(most, r.watchSlots(func() { r.load(200, 300, seconds/2, "unary", "stream") }))
	}
	if most > sharedSlots || most < sharedSlots/2 {
		t.Errorf("workers had up to %d requests at a time, should be close to %d and no more", most, sharedSlots)
	}
	r.load(200, 600, seconds)
	r.withinLimits(start, 1)
	if n := r.books.seen["told 429"]; n == 0 {
		t.Errorf("no request was limited: %v", r.books.seen)
	}

	// What the store knew is lost; at most another limit's worth is granted.
	killed := time.AfterFunc(seconds/4, store.Kill)
	defer killed.Stop()
	r.load(200, 400, seconds)
	if storeIsUp() {
		t.Error("both gateways take the store for well, which was killed")
	}
	if text := readyText(t, r.apps[0]); !strings.Contains(text, "limit_store_down") {
		t.Errorf("/readyz says %s", text)
	}
	if err := store.Start(); err != nil {
		t.Fatal(err)
	}
	soon(t, "the store to be found again", childPatience, storeIsUp)
	r.load(200, 400, seconds/2)
	r.withinLimits(start, 2)
	if r.books.seen["told 503"] == 0 || r.books.seen["told whole"] == 0 {
		t.Errorf("without the store nothing was refused, or nothing was answered at all: %v", r.books.seen)
	}
	t.Logf("%v; up to %d at a time", r.books.seen, most)
	r.revoked()
}

// watchSlots returns how many requests the workers' engines had at most while work
// ran.
func (r *replicas) watchSlots(work func()) (most int) {
	var over atomic.Bool
	watched := make(chan int)
	go func() {
		most := 0
		for !over.Load() {
			most = max(most, busy(r.d))
			time.Sleep(200 * time.Microsecond)
		}
		watched <- most
	}()
	work()
	over.Store(true)
	return <-watched
}

// withinLimits reconciles, and holds what was used since start against the limits.
// times is how often the store may have granted everything: once, and once more for
// each loss of its data.
func (r *replicas) withinLimits(start time.Time, times int64) {
	r.Helper()
	took := time.Since(start)
	r.reconcile()
	reader, err := ledger.OpenPostgresReader(r.dsn)
	if err != nil {
		r.Fatal(err)
	}
	defer reader.Close()
	used := make(map[string]usedOf)
	for row, err := range reader.Rows(context.Background(), start.Add(-time.Hour), start.Add(24*time.Hour)) {
		if err != nil {
			r.Fatal(err)
		}
		u := used[row.Tenant]
		u.tokens += row.InputTokens + row.OutputTokens
		if row.Attempts > 0 {
			u.requests++
		}
		used[row.Tenant] = u
	}
	bucket := func(limit int64) int64 { return times*limit + limit*took.Milliseconds()/60_000 + 1 }
	for _, c := range []struct {
		what        string
		used, limit int64
	}{
		{"requests of globex a minute", used["globex"].requests, bucket(sharedRequests)},
		{"tokens of acme a minute", used["acme"].tokens, bucket(sharedTokens)},
		{"tokens of globex a day", used["globex"].tokens, times * sharedDay},
	} {
		r.Logf("%s: %d of %d within %v", c.what, c.used, c.limit, took.Round(time.Millisecond))
		if c.used > c.limit {
			r.Errorf("%s: %d were let in within %v, should be %d at most", c.what, c.used, took, c.limit)
		}
	}
}

// revoked revokes a key of the shared file and waits until all gateways refuse it.
func (r *replicas) revoked() {
	r.Helper()
	key := r.d.keys["acme"]
	for _, a := range r.apps {
		if got := statusOf(r.T, a, key); got != http.StatusOK {
			r.Fatalf("before it is revoked a key is answered with %d", got)
		}
	}
	var out bytes.Buffer
	args := []string{"keys", "revoke", "-c", filepath.Join(r.d.dir, "sluice.yaml"), keyIDIn(r.T, key), "--reason", "a test"}
	if code := execute(r.Context(), time.Now, args, strings.NewReader(""), &out, &out); code != exitOK {
		r.Fatal(out.String())
	}
	until(r.T, time.Now(), http.StatusUnauthorized, key, r.apps...)
}
