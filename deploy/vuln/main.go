// Command vuln looks for known vulnerabilities in what the gateway calls, with govulncheck.
//
// It fails when a module that Sluice uses has one. One in the standard library is a matter of the Go that
// builds it: it is told, with the release that has it no more, and fails under GOVULN=required, which is for
// those who build releases. So does a check that can't be made, of which it never says that it passed.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	govulncheck = "golang.org/x/vuln/cmd/govulncheck@v1.9.0"
	// database is asked first. Where it can't be reached, the same entries come as a module, by the way that
	// all modules come.
	databaseIndex  = "https://vuln.go.dev/index/db.json"
	databaseModule = "golang.org/x/vulndb@latest"
	// standard is the module that govulncheck finds the standard library in.
	standard = "stdlib"
)

func main() {
	if err := run(context.Background(), os.Stdout, os.Getenv("GOVULN") == "required"); err != nil {
		fmt.Fprintln(os.Stderr, "vuln:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, required bool) error {
	found, from, err := scan(ctx)
	if err != nil {
		fmt.Fprintf(out, "vulnerabilities: NOT CHECKED: %v\n", err)
		if required {
			return errors.New("GOVULN=required, and nothing was checked")
		}
		return nil
	}
	return found.report(out, from, required)
}

// scan returns what was found, and what was known by whoever looked.
func scan(ctx context.Context) (found findings, from string, err error) {
	args := []string{"run", govulncheck, "-format", "json"}
	from = "vuln.go.dev"
	if err := reachable(ctx); err != nil {
		dir, version, moduleErr := download(ctx)
		if moduleErr != nil {
			return nil, "", fmt.Errorf("the database of vulnerabilities can't be had: %w; nor as a module: %w", err, moduleErr)
		}
		args = append(args, "-db", "file://"+dir)
		from = "the module golang.org/x/vulndb " + version
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", append(args, "./...")...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, "", fmt.Errorf("govulncheck failed: %w: %s", err, lastLine(stderr.String()))
	}
	found, err = readFindings(&stdout)
	return found, from, err
}

// reachable asks for the smallest file of the database.
func reachable(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, databaseIndex, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers with status %d", databaseIndex, resp.StatusCode)
	}
	return nil
}

// download gets the database as a module and returns where its entries are.
func download(ctx context.Context) (dir, version string, err error) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", databaseModule)
	cmd.Dir, cmd.Stderr = os.TempDir(), &stderr // away from our own go.mod
	text, err := cmd.Output()
	var module struct{ Dir, Version, Error string }
	if jsonErr := json.Unmarshal(text, &module); err == nil {
		err = jsonErr
	}
	if err != nil {
		return "", "", fmt.Errorf("%w: %s", err, lastLine(module.Error+"\n"+stderr.String()))
	}
	dir = filepath.Join(module.Dir, "data", "osv")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) == 0 {
		return "", "", fmt.Errorf("the module has no entries: %w", err)
	}
	return dir, module.Version, nil
}

// findings are vulnerabilities that are called, by the module that has them and their id, with the version of
// it that has them no more (empty: none has).
type findings map[string]map[string]string

// readFindings reads what govulncheck writes: a sequence of JSON objects, of which some are findings. Those
// without a function in their first frame are of code that is not called.
func readFindings(r io.Reader) (findings, error) {
	found := make(findings)
	whole := false
	for dec := json.NewDecoder(r); ; {
		var m struct {
			SBOM    *struct{} `json:"SBOM"`
			Finding *struct {
				OSV          string `json:"osv"`
				FixedVersion string `json:"fixed_version"`
				Trace        []struct{ Module, Function string }
			}
		}
		switch err := dec.Decode(&m); {
		case errors.Is(err, io.EOF) && whole:
			return found, nil
		case errors.Is(err, io.EOF):
			return nil, errors.New("govulncheck said nothing of what it has looked at")
		case err != nil:
			return nil, fmt.Errorf("cannot read what govulncheck says: %w", err)
		}
		whole = whole || m.SBOM != nil
		f := m.Finding
		if f == nil || len(f.Trace) == 0 || f.Trace[0].Function == "" {
			continue
		}
		module := f.Trace[0].Module
		if found[module] == nil {
			found[module] = make(map[string]string)
		}
		found[module][f.OSV] = f.FixedVersion
	}
}

// report says what was found, and returns an error if that fails the check.
func (f findings) report(out io.Writer, from string, required bool) error {
	modules := 0
	for _, module := range slices.Sorted(maps.Keys(f)) {
		for _, id := range slices.Sorted(maps.Keys(f[module])) {
			fixed := "no version without it"
			if v := f[module][id]; v != "" {
				fixed = "fixed in " + v
			}
			fmt.Fprintf(out, "%s: %s, %s, https://pkg.go.dev/vuln/%s\n", module, id, fixed, id)
		}
		if module != standard {
			modules += len(f[module])
		}
	}
	std := len(f[standard])
	fmt.Fprintf(out, "vulnerabilities that are called: %d in modules, %d in this Go's standard library, by %s\n", modules, std, from)
	switch {
	case modules > 0:
		return errors.New("modules have vulnerabilities that are called; update them")
	case std > 0 && required:
		return errors.New("the standard library has vulnerabilities that are called; build with a later Go")
	case std > 0:
		fmt.Fprintln(out, "BUILD RELEASES WITH A LATER GO: what this one builds has those of its standard library")
	}
	return nil
}

// lastLine is the last line of a text that is not empty.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
