//go:build unix

package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A pipe where a file should be is named and refused, and waits for nobody; a device that never ends is not
// read either. The gateway reloads again once it is gone.
func TestReloadWithoutOrdinaryFiles(t *testing.T) {
	r := startReloading(t, unwatched)
	pipe := func(t *testing.T, path string) {
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	endless := func(t *testing.T, path string) { link(t, "/dev/zero", path) }
	for _, c := range []struct {
		name, file string
		put        func(t *testing.T, path string)
		want       string
	}{
		{"a pipe among the policies", "policies/more.yaml", pipe, "it is no regular file"},
		{"a device among the policies", "policies/more.yaml", endless, "it is no regular file"},
		{"a pipe of tenants", "tenants.yaml", pipe, "tenants.yaml: it is a pipe"},
		{"a pipe of prices", "prices.yaml", pipe, "prices.yaml: it is a pipe"},
		{"prices without end", "prices.yaml", endless, "prices.yaml: it is a pipe"},
		{"a pipe for the key", "cache.key", pipe, "cache.key: it is a pipe"},
		{"a pipe of configuration", "sluice.yaml", pipe, "sluice.yaml: it is a pipe"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(r.d.dir, c.file)
			aside := filepath.Join(r.d.dir, "aside")
			_, err := os.Stat(file)
			there := err == nil
			if there {
				rename(t, file, aside)
			}
			c.put(t, file)
			status, page := r.reload()
			if errs := strings.Join(page.Errors, "\n"); status != http.StatusConflict || !strings.Contains(errs, c.want) {
				t.Errorf("got %d %s, want an error with %s", status, errs, c.want)
			}
			mustRemove(t, file)
			if there {
				rename(t, aside, file)
			}
			if status, page := r.reload(); status != http.StatusOK {
				t.Errorf("mended: got %d %+v", status, page)
			}
		})
	}
}
