package main

import (
	"context"
	"database/sql"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy/ledger"
	"github.com/sluicegate/sluice/tenancy/ledger/ledgertest"
)

// testNumber reads a number that the environment may set.
func testNumber(t testing.TB, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%q is not a number", name, text)
	}
	return n
}

// testSeed is what a test's random choices follow from.
func testSeed(t testing.TB) uint64 {
	t.Helper()
	seed := testNumber(t, "SLUICE_TEST_SEED", uint64(time.Now().UnixNano()))
	t.Logf("SLUICE_TEST_SEED=%d", seed)
	return seed
}

// TestKilledUnderLoad kills a whole gateway without warning, at random moments: as
// it serves, drains, starts, or keeps rows beside a database that is away. After
// each start its books are held against what its clients were told and what its
// workers counted. SLUICE_TEST_KILLS says how often; `make crash` does it a
// hundred times.
func TestKilledUnderLoad(t *testing.T) {
	for _, c := range []struct {
		name  string
		start func(*crashes)
		kills uint64
	}{
		{"sqlite", (*crashes).inFile, 4},
		{"postgres", (*crashes).inPostgres, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			kills := int(testNumber(t, "SLUICE_TEST_KILLS", c.kills))
			g := startCrashes(t, c.start)
			for g.kills < kills {
				g.round()
				if t.Failed() {
					t.Fatalf("after %d kills; the gateway says:\n%s", g.kills, g.child.out.String())
				}
			}
			g.end()
		})
	}
}

// crashes is a gateway that is killed again and again under load, and its books.
type crashes struct {
	*testing.T
	d      *demo
	rng    *rand.Rand
	file   string
	path   string             // of the ledger
	server *ledgertest.Server // nil: the ledger is a file
	dsn    string
	books  *books
	child  *child

	kills, starting, draining, outages int
}

// crashBudgets are limits of whole days and months that nobody reaches: what is
// charged to them must outlive every kill.
const crashBudgets = `apiVersion: sluice/v1alpha1
kind: AdmissionPolicy
metadata: { name: purse }
spec:
  limits:
    - { name: tokens-a-day, unit: tokens, window: day, limit: "1000000000", key: ["tenant.id"] }
    - { name: cost-a-month, unit: cost, window: month, limit: "1000000000000", key: ["tenant.team"] }
---
apiVersion: sluice/v1alpha1
kind: AdmissionPolicyBinding
metadata: { name: purse }
spec: { policyName: purse, actions: [Deny] }
`

func startCrashes(t *testing.T, place func(*crashes)) *crashes {
	t.Helper()
	seed := testSeed(t)
	g := &crashes{T: t, rng: rand.New(rand.NewPCG(seed, 0)), books: &books{t: t, workers: newAccounts(), budgets: 2}}
	var err error
	opts := demoOptions{public: "127.0.0.1:0", admin: "127.0.0.1:0", timeScale: 0.1, worker: g.books.workers.watch}
	if g.d, err = newDemo(opts, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.d.Close(); err != nil {
			t.Errorf("close the demo: %v", err)
		}
	})
	g.books.askers = []*askers{newAskers(g.d.keys, "asked", seed)}
	g.file, g.path = filepath.Join(g.d.dir, "sluice.yaml"), filepath.Join(g.d.dir, "ledger.db")
	replaceIn(t, g.file, "level: warn", "level: info")
	write(t, filepath.Join(g.d.dir, "policies"), map[string]string{"purse.yaml": crashBudgets})
	place(g)
	g.child = startChild(t, g.file)
	g.child.waitReady(t)
	return g
}

func (g *crashes) inFile() {}

func (g *crashes) inPostgres() {
	server, file := postgresLedger(g.T)
	text, err := os.ReadFile(file)
	if err != nil {
		g.Fatal(err)
	}
	g.server, g.dsn = server, string(text[:len(text)-1])
	replaceIn(g.T, g.file, "path: ledger.db", "path: ledger.db, postgresFile: "+file)
}

// between is a random time.
func (g *crashes) between(least, most time.Duration) time.Duration {
	return least + time.Duration(g.rng.Int64N(int64(most-least)))
}

// round puts the gateway under load, kills it, starts it again and reconciles.
func (g *crashes) round() {
	g.Helper()
	public, _, _ := g.child.addresses()
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		g.books.askers[0].run(func() bool { return true }, 32, "http://"+public)
	}()
	after := func() {}
	switch n := g.rng.IntN(10); {
	case n == 0:
		after = g.outage()
		time.Sleep(g.between(0, 2500*time.Millisecond)) // rows are spooled after a second
	case n == 1:
		time.Sleep(g.between(50*time.Millisecond, 300*time.Millisecond))
		g.draining++
		g.child.signal(g.T, syscall.SIGTERM)
		time.Sleep(g.between(0, 100*time.Millisecond))
	default:
		time.Sleep(g.between(0, 600*time.Millisecond))
	}
	g.child.kill()
	g.kills++
	<-loaded
	for g.rng.IntN(6) == 0 { // and again, before it serves
		g.child = startChild(g.T, g.file)
		time.Sleep(g.between(0, 700*time.Millisecond))
		g.child.kill()
		g.kills++
		g.starting++
	}
	g.restart(after)
	g.reconcile()
}

// outage takes the database away, and returns what brings it back.
func (g *crashes) outage() (end func()) {
	g.outages++
	if g.server != nil {
		g.server.Kill()
		return func() {
			if err := g.server.Start(); err != nil {
				g.Fatal(err)
			}
		}
	}
	// Another program holds the file, as a backup tool would.
	db, err := sql.Open("sqlite", g.path)
	if err != nil {
		g.Fatal(err)
	}
	conn, err := db.Conn(context.Background())
	if err != nil {
		g.Fatal(err)
	}
	if _, err := conn.ExecContext(context.Background(), "PRAGMA busy_timeout = 5000; BEGIN IMMEDIATE"); err != nil {
		g.Fatal(err)
	}
	return func() {
		_, err := conn.ExecContext(context.Background(), "ROLLBACK")
		if err != nil {
			g.Error(err)
		}
		conn.Close()
		db.Close()
	}
}

// restart starts the gateway; a server that is away comes back before or after.
func (g *crashes) restart(back func()) {
	late := g.server != nil && g.rng.IntN(2) == 0
	if !late {
		back()
	}
	g.child = startChild(g.T, g.file)
	g.child.waitReady(g.T)
	if late {
		back()
	}
	soon(g.T, "the spool to be empty", childPatience, func() bool {
		return g.child.metric(g.T, "sluice_ledger_spool_bytes") == 0 && g.child.metric(g.T, "sluice_ledger_failing") == 0
	})
}

func (g *crashes) reconcile() {
	g.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), childPatience)
	defer cancel()
	for name, w := range g.d.workers {
		if err := w.WaitIdle(ctx); err != nil {
			g.Fatalf("worker %s still has requests of a dead gateway: %v", name, err)
		}
	}
	reader, err := g.reader()
	if err != nil {
		g.Fatal(err)
	}
	defer reader.Close()
	g.books.check(reader)
	if bad := g.child.metric(g.T, "sluice_ledger_refused_rows_total"); bad != 0 {
		g.Errorf("the ledger has refused %v rows", bad)
	}
}

func (g *crashes) reader() (*ledger.Reader, error) {
	if g.server != nil {
		r, err := ledger.OpenPostgresReader(g.dsn)
		if err != nil {
			return nil, err
		}
		return caughtUp(g.Context(), r, g.path)
	}
	return fileReader(g.Context(), g.path)
}

// end lets a last load run to its end and stops the gateway as one should.
func (g *crashes) end() {
	g.Helper()
	public, _, _ := g.child.addresses()
	a := g.books.askers[0]
	a.run(a.asMany(a.next+200, 0), 16, "http://"+public)
	g.child.stop(g.T)
	reader, err := g.reader()
	if err != nil {
		g.Fatal(err)
	}
	defer reader.Close()
	g.books.check(reader)
	for _, word := range []string{"told whole", "told cut off", "told left", "row completed", "row client_aborted"} {
		if g.books.seen[word] == 0 {
			g.Errorf("no request was %q: the kills missed the work, or there was none: %v", word, g.books.seen)
		}
	}
	g.Logf("%d kills (%d while starting, %d while draining, %d with the database away): %v", g.kills, g.starting, g.draining, g.outages, g.books.seen)
}
