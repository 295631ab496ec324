package main

import (
	"path/filepath"
	"syscall"
	"testing"
)

// A pipe among the policies is not opened, which would wait for whoever writes to it.
func TestFingerprintOfAPipe(t *testing.T) {
	dir := t.TempDir()
	s := sources{folders: []string{dir}}
	before := s.fingerprint()
	if err := syscall.Mkfifo(filepath.Join(dir, "p.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s.fingerprint() == before {
		t.Error("the pipe makes no difference")
	}
}
