package main

import (
	"bytes"
	"strings"
	"testing"
)

const scanned = `{"config": {"scanner_name": "govulncheck"}}
{"SBOM": {"go_version": "go1.26.8"}}
{"osv": {"id": "GO-1", "summary": "…"}}
{"finding": {"osv": "GO-1", "fixed_version": "v1.26.9", "trace": [{"module": "stdlib", "version": "v1.26.8"}]}}
{"finding": {"osv": "GO-2", "fixed_version": "v1.26.9", "trace": [{"module": "stdlib", "package": "net/http"}]}}
`

const called = `{"finding": {"osv": "GO-2", "fixed_version": "v1.26.9", "trace": [{"module": "stdlib", "package": "net/http", "function": "Serve"}, {"module": "ours"}]}}
{"finding": {"osv": "GO-2", "fixed_version": "v1.26.9", "trace": [{"module": "stdlib", "package": "net/http", "function": "Close"}]}}
`

const inModule = `{"finding": {"osv": "GO-3", "trace": [{"module": "example.com/m", "package": "example.com/m", "function": "F"}]}}
`

// TestReport: what is not called is no finding, what a module has fails, what the standard library has fails those
// who build releases, and what was not looked at is never told as clean.
func TestReport(t *testing.T) {
	for _, c := range []struct {
		name, text     string
		required, fail bool
		says           []string
	}{
		{"nothing called", scanned, true, false, []string{"0 in modules, 0 in this Go's standard library, by db"}},
		{"standard library", scanned + called, false, false, []string{
			"stdlib: GO-2, fixed in v1.26.9, https://pkg.go.dev/vuln/GO-2", "0 in modules, 1 in this Go's", "BUILD RELEASES WITH A LATER GO",
		}},
		{"standard library of a release", scanned + called, true, true, []string{"0 in modules, 1 in this Go's"}},
		{"a module", scanned + inModule, false, true, []string{"example.com/m: GO-3, no version without it", "1 in modules, 0 in this Go's"}},
	} {
		found, err := readFindings(strings.NewReader(c.text))
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		var out bytes.Buffer
		if err := found.report(&out, "db", c.required); (err != nil) != c.fail {
			t.Errorf("%s: %v", c.name, err)
		}
		for _, line := range c.says {
			if !strings.Contains(out.String(), line) {
				t.Errorf("%s: %q lacks %q", c.name, out.String(), line)
			}
		}
	}
	for _, text := range []string{"", `{"config": {}}`, scanned + "{", "nonsense"} {
		if found, err := readFindings(strings.NewReader(text)); err == nil {
			t.Errorf("%q was taken for a scan that found %v", text, found)
		}
	}
}
