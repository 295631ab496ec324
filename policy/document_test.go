package policy

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFaultyDocuments holds every fault to its golden text, to the column. A
// case is a file testdata/faulty/*.yaml whose first lines are comments with the
// expected errors, without the file's name. UPDATE_GOLDEN=1 rewrites them.
func TestFaultyDocuments(t *testing.T) {
	files, err := filepath.Glob("testdata/faulty/*.yaml")
	if err != nil || len(files) < 60 {
		t.Fatalf("%d faulty documents, want 60 and more (%v)", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text := string(raw)
			want := goldenErrors(text)
			_, err = Load(testConfig(), fsOf(map[string]string{"f.yaml": text}))
			if _, ok := errors.AsType[*LoadError](err); !ok {
				t.Fatalf("loaded, or another error: %v", err)
			}
			got := strings.ReplaceAll(err.Error(), "f.yaml:", "")
			if got == want {
				return
			}
			if os.Getenv("UPDATE_GOLDEN") != "" {
				rewriteGolden(t, file, text, got)
				return
			}
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		})
	}
}

const goldenMark = "#! "

func goldenErrors(text string) string {
	var want []string
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, goldenMark); ok {
			want = append(want, strings.TrimSuffix(rest, "\n"))
		}
	}
	return strings.Join(want, "\n")
}

// rewriteGolden replaces the expectations. Their number changes the lines of
// what follows, so a second run may be needed.
func rewriteGolden(t *testing.T, file, text, got string) {
	var b strings.Builder
	for line := range strings.Lines(got) {
		b.WriteString(goldenMark + strings.TrimSuffix(line, "\n") + "\n")
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, goldenMark) {
			b.WriteString(line)
		}
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
