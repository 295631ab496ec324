package ledger

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// crashPath, set in the environment, makes this test binary the child that gets
// killed.
const crashPath = "SLUICE_TEST_CRASH_LEDGER"

// crashEvery is its CommitEvery.
const crashEvery = "SLUICE_TEST_CRASH_EVERY"

func TestMain(m *testing.M) {
	if path := os.Getenv(crashPath); path != "" {
		crashChild(path)
		return
	}
	if path := os.Getenv(lockPath); path != "" {
		lockChild(path)
		return
	}
	code := m.Run()
	if theServer != nil {
		theServer.Stop()
	}
	os.Exit(code)
}

// crashChild serves requests until it is killed. It says on its output what a
// client would know: B id once a request may go to a worker, R id tokens once
// its row is acknowledged.
func crashChild(path string) {
	every, err := time.ParseDuration(os.Getenv(crashEvery))
	if err != nil {
		fmt.Println("E", err)
		return
	}
	l, err := Open(path, Options{CommitEvery: every})
	if err != nil {
		fmt.Println("E", err)
		return
	}
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf(format, args...)
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("%d-%d-%d", os.Getpid(), w, i)
				if err := l.Begin(context.Background(), intent(id)); err != nil {
					say("E %v\n", err)
					return
				}
				say("B %s\n", id)
				row := fullRow(id)
				row.OutputTokens = 50 + rand.Int64N(1000)
				if err := l.Record(context.Background(), row); err != nil {
					say("E %v\n", err)
					return
				}
				say("R %s %d\n", id, row.OutputTokens)
			}
		})
	}
	wg.Wait()
}

// known is what the clients of all killed children were told.
type known struct {
	every    time.Duration // their CommitEvery
	begun    map[string]bool
	recorded map[string]int64
}

// runAndKill runs a child for a while, kills it without warning, and reads what
// it said up to its last whole line.
func (k *known) runAndKill(t *testing.T, path string, lines int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashPath+"="+path, crashEvery+"="+k.every.String())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(out)
	for n := 0; ; n++ {
		line, err := in.ReadString('\n')
		if err != nil {
			break
		}
		if n == lines {
			// The rest of what it had said by then is still read.
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		var id string
		var tokens int64
		switch {
		case strings.HasPrefix(line, "B "):
			_, err = fmt.Sscanf(line, "B %s\n", &id)
			k.begun[id] = true
		case strings.HasPrefix(line, "R "):
			_, err = fmt.Sscanf(line, "R %s %d\n", &id, &tokens)
			k.recorded[id] = tokens
		default:
			err = fmt.Errorf("the child says %q", line)
		}
		if err != nil {
			t.Error(err)
		}
	}
	_ = cmd.Wait() // it was killed
}

// reconcile opens the ledger and holds it against what clients were told.
func (k *known) reconcile(t *testing.T, path string) {
	t.Helper()
	l, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	seen := make(map[string]bool)
	for _, row := range collect(t, l) {
		if seen[row.ID] {
			t.Errorf("request %s has two rows", row.ID)
		}
		seen[row.ID] = true
		tokens, recorded := k.recorded[row.ID]
		switch {
		case row.Outcome == tenancy.OutcomeLost && recorded:
			t.Errorf("request %s was acknowledged and is lost", row.ID)
		case row.Outcome == tenancy.OutcomeLost && row.Costs != (tenancy.Costs{}):
			t.Errorf("lost request %s costs something", row.ID)
		case recorded && row.OutputTokens != tokens:
			t.Errorf("request %s has %d tokens, %d were acknowledged", row.ID, row.OutputTokens, tokens)
		}
	}
	for id := range k.recorded {
		if !seen[id] {
			t.Errorf("request %s was acknowledged and is missing", id)
		}
	}
	for id := range k.begun {
		if !seen[id] {
			t.Errorf("request %s was in flight and left no trace", id)
		}
	}
	if names, err := intentFiles(path).files(); err != nil || len(names) != 1 {
		t.Errorf("journal files %v, %v; want the new one alone", names, err)
	}
}

// A process killed at any point loses nothing it has acknowledged, counts
// nothing twice, and leaves a trace of everything that was in flight.
func TestKilledAtRandomPoints(t *testing.T) {
	for name, every := range map[string]time.Duration{"at once": 0, "spool first": 5 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			const kills = 10
			path := tempPath(t)
			k := &known{every: every, begun: make(map[string]bool), recorded: make(map[string]int64)}
			rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
			for range kills {
				k.runAndKill(t, path, rng.IntN(600))
				k.reconcile(t, path)
			}
			if len(k.recorded) == 0 || len(k.begun) <= len(k.recorded) {
				t.Errorf("%d begun and %d recorded: the kills missed the work", len(k.begun), len(k.recorded))
			}
		})
	}
}
