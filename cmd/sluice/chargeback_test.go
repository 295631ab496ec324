package main

import (
	"bytes"
	"encoding/csv"
	"os"
	"strings"
	"testing"
)

// The export on standard output and in a file are the same bytes, their costs sum to what the command
// says, and the file takes its place whole.
func TestChargebackExport(t *testing.T) {
	t.Chdir(t.TempDir())
	makeLedger(t, "ledger.db")
	export := func(args ...string) (stdout, stderr string) {
		t.Helper()
		var out, errs bytes.Buffer
		args = append([]string{"chargeback", "export", "--ledger", "ledger.db", "--period", "2026-11", "--open"}, args...)
		if code := execute(t.Context(), scriptNow, args, strings.NewReader(""), &out, &errs); code != exitOK {
			t.Fatalf("exit code %d: %s", code, errs.String())
		}
		return out.String(), errs.String()
	}
	if err := os.WriteFile("november.csv", []byte("last month's"), 0o600); err != nil {
		t.Fatal(err)
	}
	printed, said := export()
	if out, _ := export("-o", "november.csv"); out != "" {
		t.Errorf("with -o, standard output holds %q", out)
	}
	if st, err := os.Stat("november.csv"); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the file that was private is %v, %v", st.Mode(), err)
	}
	written, err := os.ReadFile("november.csv")
	if err != nil {
		t.Fatal(err)
	}
	if string(written) != printed {
		t.Error("the file and standard output differ")
	}
	if left, err := os.ReadDir("."); err != nil || len(left) > 5 {
		t.Errorf("files left behind: %v, %v", left, err)
	}
	records, err := csv.NewReader(strings.NewReader(printed)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	billed := -1
	for i, name := range records[0] {
		if name == "BilledCost" {
			billed = i
		}
	}
	if billed < 0 {
		t.Fatalf("no BilledCost among %v", records[0])
	}
	var micro int64
	for _, rec := range records[1:] {
		whole, fraction, _ := strings.Cut(rec[billed], ".")
		if len(fraction) != 6 {
			t.Fatalf("cost %q has no six decimals", rec[billed])
		}
		var n int64
		for _, d := range whole + fraction {
			n = 10*n + int64(d-'0')
		}
		micro += n
	}
	if want := formatMicro(micro) + " USD"; !strings.Contains(said, want) {
		t.Errorf("the lines sum to %s, the command says %s", want, said)
	}
}

func TestFormatMicro(t *testing.T) {
	for micro, want := range map[int64]string{0: "0.000000", 1: "0.000001", 1_500_000: "1.500000", -2_000_001: "-2.000001"} {
		if got := formatMicro(micro); got != want {
			t.Errorf("formatMicro(%d) = %s, want %s", micro, got, want)
		}
	}
}
