package ledger

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/tenancy"
)

// powerCut is a ledger at two moments. What it had acknowledged by the first is on
// the disk; of what it has written since, a loss of power leaves anything.
type powerCut struct {
	*testing.T
	every         time.Duration // CommitEvery
	rng           *rand.Rand
	rows          map[string]bool // requests with a row, true for those of the first moment
	open          map[string]bool // requests in flight, likewise
	before, after map[string][]byte
}

// TestLossOfPower cuts and garbles what was not flushed, at random, in every file
// of a ledger at once, and opens what is left: what was acknowledged before is all
// there, unharmed, and what came after is whole or not there.
func TestLossOfPower(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, c := range []struct {
		outage bool
		every  time.Duration
	}{{false, 0}, {true, 0}, {false, time.Hour}} {
		whole, cut := 0, 0
		for range 5 {
			p := &powerCut{T: t, rng: rng, every: c.every, rows: make(map[string]bool), open: make(map[string]bool)}
			if !p.run(c.outage) {
				t.Fatal("the files have changed elsewhere than at their ends")
			}
			for range 5 {
				kept := p.check(p.torn())
				if t.Failed() {
					return
				}
				if kept {
					whole++
				} else {
					cut++
				}
			}
		}
		if cut == 0 {
			t.Errorf("%+v: nothing was ever lost, in %d cuts", c, whole)
		}
	}
}

// run writes a ledger and keeps its files at both moments. It reports whether all
// that came after the first is at the ends of files.
func (p *powerCut) run(outage bool) bool {
	path := tempPath(p.T)
	opts := impatient()
	opts.SyncIntents, opts.CommitEvery = true, p.every
	l := mustOpen(p.T, path, opts)
	n := 0
	work := func(durable bool) {
		for range 1 + p.rng.IntN(12) {
			n++
			id := fmt.Sprint("request ", n)
			if p.rng.IntN(4) > 0 {
				if err := serve(p.T, l, id); err != nil {
					p.Fatal(err)
				}
				p.rows[id] = durable
				continue
			}
			if err := l.Begin(p.Context(), intent(id)); err != nil {
				p.Fatal(err)
			}
			p.open[id] = durable
		}
	}
	work(true)
	if outage {
		release := hold(p.T, path)
		defer release()
		work(true)
	}
	p.before = p.files(path)
	work(false)
	p.after = p.files(path)
	for name, old := range p.before {
		if fresh, ok := p.after[name]; name != "-shm" && (!ok || !bytes.HasPrefix(fresh, old)) {
			return false
		}
	}
	return true
}

// files reads those of a ledger, by what their names have behind its own.
func (p *powerCut) files(path string) map[string][]byte {
	copied := copyLedger(p.T, path)
	names, err := filepath.Glob(copied + "*")
	if err != nil {
		p.Fatal(err)
	}
	files := make(map[string][]byte)
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			p.Fatal(err)
		}
		files[strings.TrimPrefix(name, copied)] = text
	}
	return files
}

// torn writes what a loss of power may leave, and returns the ledger's path.
func (p *powerCut) torn() string {
	path := tempPath(p.T)
	for name, text := range p.after {
		old, known := p.before[name]
		switch {
		case name == "-shm": // never flushed, and made anew
			continue
		case !known && p.rng.IntN(3) == 0: // nor is its name
			continue
		}
		tail := p.tail(text[len(old):])
		if err := os.WriteFile(path+name, slices.Concat(old, tail), 0o600); err != nil {
			p.Fatal(err)
		}
	}
	return path
}

// tail is what may be left of bytes that were not flushed: a part of them, and of
// that some sectors, while others are empty or have something of others.
func (p *powerCut) tail(text []byte) []byte {
	const sector = 512
	left := bytes.Clone(text[:p.rng.IntN(len(text)+1)])
	if p.rng.IntN(2) == 0 {
		return left
	}
	for at := 0; at < len(left); at += sector {
		part := left[at:min(at+sector, len(left))]
		switch p.rng.IntN(4) {
		case 0:
			clear(part)
		case 1:
			for i := range part {
				part[i] = byte(p.rng.Uint32())
			}
		}
	}
	return left
}

// check opens what is left. It reports whether nothing was lost.
func (p *powerCut) check(path string) (whole bool) {
	p.Helper()
	l, err := Open(path, Options{})
	if err != nil {
		p.Errorf("after a loss of power: %v", err)
		return false
	}
	defer l.Close()
	rows, lost := make(map[string]bool), make(map[string]bool)
	for _, row := range collect(p.T, l) {
		if rows[row.ID] || lost[row.ID] {
			p.Errorf("%s is there twice", row.ID)
		}
		switch _, known := p.rows[row.ID]; {
		case row.Outcome == tenancy.OutcomeLost:
			lost[row.ID] = true
			if _, begun := p.open[row.ID]; !known && !begun {
				p.Errorf("%s was never announced", row.ID)
			}
		case !known:
			p.Errorf("%s has a row that nobody has written", row.ID)
		case !equalRows(row, fullRow(row.ID)):
			p.Errorf("%s has changed: %+v", row.ID, row)
		default:
			rows[row.ID] = true
		}
	}
	whole = true
	for id, durable := range p.rows {
		if durable && !rows[id] {
			p.Errorf("%s was acknowledged before the loss of power, and has no row", id)
		}
		whole = whole && rows[id]
	}
	for id, durable := range p.open {
		if durable && !lost[id] {
			p.Errorf("%s was in flight before the loss of power, and has left no trace", id)
		}
		whole = whole && lost[id]
	}
	if err := serve(p.T, l, "afterwards"); err != nil {
		p.Errorf("after a loss of power nothing can be recorded: %v", err)
	}
	return whole
}
