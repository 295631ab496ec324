package policy

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestLoadRefusesPipes: whoever opens a pipe waits for a writer, and a gateway would never reload again.
func TestLoadRefusesPipes(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "p.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(testConfig(), os.DirFS(dir))
	if want := "p.yaml: cannot read file: it is no regular file"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}
