//go:build !cgo || notokenizers

package tokenize

import (
	"errors"
	"testing"
	"testing/fstest"
)

// TestNoNative: a build without the native library says so.
func TestNoNative(t *testing.T) {
	if _, err := Load(".", Options{}); !errors.Is(err, ErrNoNative) {
		t.Errorf("Load: got %v", err)
	}
	if _, err := LoadFS(fstest.MapFS{}, Options{}); !errors.Is(err, ErrNoNative) {
		t.Errorf("LoadFS: got %v", err)
	}
}
