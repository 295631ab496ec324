//go:build cgo && !notokenizers

package main

import "testing"

// What `sluice tokens` prints, with the demo's own tokenizer.
func TestTokensScripts(t *testing.T) {
	playScripts(t, "testdata/script/native/*.txt", map[string]string{"model": "../../scoring/simworker/model"})
}
