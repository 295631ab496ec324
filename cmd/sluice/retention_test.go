package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicegate/sluice/tenancy/ledger"
)

// sluice runs a command line and returns its exit code and what it prints.
func sluice(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = execute(t.Context(), time.Now, args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

func monthOf(year int, month time.Month) time.Time {
	return time.Date(year, month, 1, 0, 0, 0, 0, time.UTC)
}

// TestRetention: every hour, what is old enough and closed is archived; what is not
// closed stays, and is said once; what fails is tried again.
func TestRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		months := []ledger.Month{{First: monthOf(1999, 9), Closed: true}, {First: monthOf(1999, 10)}}
		var mu sync.Mutex // protects what the test changes and reads
		var archived []string
		fail := errors.New("the disk is full")
		r := &retention{
			months: 2, log: slog.New(slog.NewTextHandler(&log, nil)), warned: make(map[time.Time]bool),
			due: func(_ context.Context, before time.Time) ([]ledger.Month, error) {
				if !before.Equal(monthOf(1999, 11)) { // the clock begins on 1 January 2000
					t.Errorf("asked for months before %s", before)
				}
				mu.Lock()
				defer mu.Unlock()
				return slices.Clone(months), nil
			},
			archive: func(_ context.Context, month, now time.Time) (ledger.Archived, error) {
				mu.Lock()
				defer mu.Unlock()
				archived = append(archived, month.Format("2006-01"))
				return ledger.Archived{}, fail
			},
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		synctest.Wait()
		mu.Lock()
		if !r.failing.Load() || strings.Join(archived, " ") != "1999-09" {
			t.Errorf("at first: failing %v, archived %v", r.failing.Load(), archived)
		}
		fail, months[1].Closed = nil, true
		mu.Unlock()
		time.Sleep(retentionEvery)
		synctest.Wait()
		mu.Lock()
		if r.failing.Load() || strings.Join(archived, " ") != "1999-09 1999-09 1999-10" {
			t.Errorf("an hour later: failing %v, archived %v", r.failing.Load(), archived)
		}
		months[1].Closed = false
		mu.Unlock()
		for range 3 {
			time.Sleep(retentionEvery)
		}
		synctest.Wait()
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "is not closed"); n != 1 {
			t.Errorf("%d warnings:\n%s", n, log.String())
		}
	})
	if err := (&retention{}).Run(t.Context()); err != nil {
		t.Errorf("without a retention: %v", err)
	}
}

// TestRefusedCommand: refused rows are listed and put back, and what stays refused
// fails the command.
func TestRefusedCommand(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	makeLedger(t, path)
	run := func(want int, args ...string) string {
		t.Helper()
		code, out, errs := sluice(t, append([]string{"ledger", "refused", "--ledger", path}, args...)...)
		if code != want {
			t.Fatalf("exit code %d, want %d: %s%s", code, want, out, errs)
		}
		return out
	}
	if out := run(exitOK); out != "0 rows refused\n" {
		t.Errorf("got %s", out)
	}
	line := func(id string) string {
		return `{"At":"2026-11-20T00:00:00Z","Error":"the database refuses the row","Row":{"ID":"` + id +
			`","Tenant":"acme","Model":"tiny","Outcome":"completed","Start":"2026-11-19T10:00:00Z","Duration":1000000000,"InputTokens":5,"Currency":"USD","Costs":{"Input":7}}}` + "\n"
	}
	if err := os.WriteFile(path+"-refused", []byte(line("new")+line("r1")), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := run(exitOK); !strings.Contains(out, "2026-11-20T00:00:00Z  new  tenant acme, model tiny, ended 2026-11-19T10:00:01Z, 0.000007 USD: the database refuses the row\n") ||
		!strings.HasSuffix(out, "2 rows refused\n") {
		t.Errorf("got %s", out)
	}
	if out := run(exitFailed, "--put-back"); !strings.HasSuffix(out, "1 row put back, 0 there already, 1 still refused\n") || !strings.Contains(out, "  r1  ") {
		t.Errorf("got %s", out)
	}
	if err := os.WriteFile(path+"-refused", []byte(line("new")), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := run(exitOK, "--put-back"); out != "0 rows put back, 1 there already, 0 still refused\n" {
		t.Errorf("got %s", out)
	}
}

// TestRetentionOfALedger: a closed month of a ledger that a gateway has open moves
// into a file of its own; the one that is not closed stays.
func TestRetentionOfALedger(t *testing.T) {
	path, archive := filepath.Join(t.TempDir(), "ledger.db"), t.TempDir()
	makeLedger(t, path)
	late := func() time.Time { return time.Date(2027, 2, 10, 0, 0, 0, 0, time.UTC) }
	var out, errs bytes.Buffer
	args := []string{"chargeback", "close", "--ledger", path, "--period", "2026-11", "--by", "finance"}
	if code := execute(t.Context(), late, args, strings.NewReader(""), &out, &errs); code != exitOK {
		t.Fatalf("close: %d %s", code, errs.String())
	}
	l, err := ledger.Open(path, ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var log bytes.Buffer
	r := newRetention(&LedgerConfig{Path: path, Retention: RetentionConfig{Months: 1, Archive: archive}}, l, slog.New(slog.NewTextHandler(&log, nil)))
	for range 2 {
		r.look(t.Context(), late())
	}
	file := filepath.Join(archive, "ledger-2026-11.db")
	if !strings.Contains(log.String(), "a month of the ledger is archived") || !strings.Contains(log.String(), "month=2026-11 rows=5") || !r.failing.Load() {
		t.Errorf("failing %v, log:\n%s", r.failing.Load(), log.String())
	}
	if n := strings.Count(log.String(), "is not closed"); n != 1 || !strings.Contains(log.String(), "month=2026-12") {
		t.Errorf("%d warnings of December:\n%s", n, log.String())
	}
	kept, err := fileReader(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	if totals, err := kept.Totals(t.Context(), monthOf(2026, 11), monthOf(2026, 12)); err != nil || len(totals) != 2 {
		t.Errorf("the file has %+v, %v", totals, err)
	}
	if _, err := l.Totals(t.Context(), monthOf(2026, 11), monthOf(2026, 12)); !errors.Is(err, ledger.ErrArchived) {
		t.Errorf("the ledger has November: %v", err)
	}
	if totals, err := l.Totals(t.Context(), monthOf(2026, 12), monthOf(2027, 1)); err != nil || len(totals) != 1 {
		t.Errorf("December is gone: %+v, %v", totals, err)
	}
}
