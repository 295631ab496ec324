package model

import (
	"encoding/json"
	"io/fs"
	"testing"
)

// TestFiles: the binary carries the files, and they stay small.
func TestFiles(t *testing.T) {
	for name, limit := range map[string]int{"tokenizer.json": 300 << 10, "tokenizer_config.json": 4 << 10, "chat_template.jinja": 8 << 10} {
		data, err := fs.ReadFile(FS, name)
		if err != nil {
			t.Error(err)
			continue
		}
		if len(data) == 0 || len(data) > limit {
			t.Errorf("%s has %d bytes, want 1 to %d", name, len(data), limit)
		}
		if name != "chat_template.jinja" && !json.Valid(data) {
			t.Errorf("%s is not JSON", name)
		}
	}
}
