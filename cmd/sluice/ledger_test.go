package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// An archived month exports the same bytes from its own file, and the ledger says
// where it is.
func TestLedgerArchive(t *testing.T) {
	t.Chdir(t.TempDir())
	makeLedger(t, "ledger.db")
	if err := os.Mkdir("archive", 0o700); err != nil {
		t.Fatal(err)
	}
	date := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	run := func(args ...string) (code int, stdout, stderr string) {
		var out, diag bytes.Buffer
		code = execute(context.Background(), func() time.Time { return date }, args, strings.NewReader(""), &out, &diag)
		return code, out.String(), diag.String()
	}
	export := func(file string) (int, string, string) {
		return run("chargeback", "export", "--ledger", file, "--period", "2026-11")
	}
	code, before, diag := export("ledger.db")
	if code != exitOK {
		t.Fatal(diag)
	}
	move := []string{"ledger", "archive", "--ledger", "ledger.db", "--period", "2026-11", "--to"}
	if code, _, diag := run(append(move, "none")...); code != exitFailed || !strings.Contains(diag, "make it first") {
		t.Errorf("into no folder: %d %s", code, diag)
	}
	code, out, diag := run(append(move, "archive")...)
	want := regexp.MustCompile(`^2026-11: 5 rows moved, 5 are in /.*/archive/ledger-2026-11\.db\nsha256 [0-9a-f]{64}\n$`)
	if code != exitOK || !want.MatchString(out) || diag != "" {
		t.Fatalf("%d %s%s", code, out, diag)
	}
	if code, after, diag := export(filepath.Join("archive", "ledger-2026-11.db")); code != exitOK || after != before {
		t.Errorf("the archive exports otherwise: %d %s\n%s", code, diag, after)
	}
	if code, out, diag := export("ledger.db"); code != exitFailed || out != "" || !strings.Contains(diag, "the rows of 2026-11 are in ") {
		t.Errorf("the ledger of an archived month: %d %s %s", code, out, diag)
	}
	date = time.Date(2026, 12, 2, 0, 0, 0, 0, time.UTC)
	if code, _, diag := run(append(move, "archive")...); code != exitFailed || !strings.Contains(diag, "try again on 2026-12-08") {
		t.Errorf("a month just over: %d %s", code, diag)
	}
}
