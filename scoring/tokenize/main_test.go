//go:build cgo && !notokenizers

package tokenize

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"testing/fstest"
)

// cacheDir is where testdata/fetch.sh puts the tokenizer files.
var cacheDir = filepath.Join("..", "..", ".cache", "tokenizers")

// TestMain fetches the tokenizer files that the tests measure against. Without
// them the package would prove nothing, so their absence is a failure.
func TestMain(m *testing.M) {
	cmd := exec.Command("bash", filepath.Join("testdata", "fetch.sh"))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		fmt.Fprintf(os.Stderr, "cannot fetch tokenizer files with testdata/fetch.sh: %v\n", err)
		os.Exit(1)
	}
	code := m.Run()
	closeShared()
	os.Exit(code)
}

// shared holds one tokenizer per model for all tests: loading takes a second.
var shared struct {
	mu     sync.Mutex
	byName map[string]*Tokenizer
}

// load returns the shared tokenizer of a model.
func load(tb testing.TB, name string) *Tokenizer {
	tb.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if t := shared.byName[name]; t != nil {
		return t
	}
	t, err := Load(filepath.Join(cacheDir, name), Options{})
	if err != nil {
		tb.Fatal(err)
	}
	if shared.byName == nil {
		shared.byName = map[string]*Tokenizer{}
	}
	shared.byName[name] = t
	return t
}

func closeShared() {
	for _, t := range shared.byName {
		_ = t.Close()
	}
}

// smallModel is the demo model's tokenizer under the settings of qwen3, so that
// templates can be tried without loading a large tokenizer for each.
func smallModel(tb testing.TB) fs.FS {
	tb.Helper()
	read := func(parts ...string) *fstest.MapFile {
		data, err := os.ReadFile(filepath.Join(parts...))
		if err != nil {
			tb.Fatal(err)
		}
		return &fstest.MapFile{Data: data}
	}
	return fstest.MapFS{
		"tokenizer.json":        read("..", "simworker", "model", "tokenizer.json"),
		"tokenizer_config.json": read(cacheDir, "qwen3", "tokenizer_config.json"),
	}
}
