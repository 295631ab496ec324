package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/policy"
)

// TestExcerpts: the caret stands under the column, whatever the line holds.
func TestExcerpts(t *testing.T) {
	dir := t.TempDir()
	f := func(name, text string, line, col int, want string) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		var x excerpts
		x.write(&out, policy.Error{File: file, Line: line, Col: col})
		if got := out.String(); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
	}
	f("first", "abc\ndef\n", 1, 2, "  1 | abc\n    |  ^\n")
	f("last without a line break", "abc\ndef", 2, 3, "  2 | def\n    |   ^\n")
	f("behind the end", "abc\n", 1, 4, "  1 | abc\n    |    ^\n")
	f("two digits", strings.Repeat("\n", 9)+"x: y\r\n", 10, 4, "  10 | x: y\n     |    ^\n")
	f("tab", "a:\tb", 1, 4, "  1 | a:\tb\n    |   \t^\n")
	f("wide", "a: 漢字 b", 1, 7, "  1 | a: 漢字 b\n    |         ^\n")
	f("combining", "e\u0301x", 1, 3, "  1 | e\u0301x\n    |  ^\n")
	f("control characters", "a\x1b[2Jb\u202ec", 1, 6, "  1 | a?[2Jb?c\n    |      ^\n")
	f("no such line", "abc\n", 3, 1, "")
	f("no place", "abc\n", 0, 0, "")
	f("no text", "\xff\n", 1, 1, "")
	long := strings.Repeat("x", 300) + "Y" + strings.Repeat("z", 300)
	f("long", long, 1, 301, "  1 | …"+strings.Repeat("x", 60)+"Y"+strings.Repeat("z", 59)+"…\n    |  "+strings.Repeat(" ", 60)+"^\n")
	f("long, at its start", long, 1, 2, "  1 | "+strings.Repeat("x", 120)+"…\n    |  ^\n")
	f("long, at its end", long, 1, 601, "  1 | …"+strings.Repeat("z", 120)+"\n    |  "+strings.Repeat(" ", 119)+"^\n")

	var out strings.Builder
	var x excerpts
	x.write(&out, policy.Error{File: filepath.Join(dir, "nowhere"), Line: 1, Col: 1})
	if out.Len() > 0 {
		t.Errorf("a file that is not there is quoted: %s", out.String())
	}
}
