package main

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// Every link of the documentation to a file of the repository, or to a heading
// of one, leads somewhere.
func TestDocumentationLinks(t *testing.T) {
	root := os.DirFS("../..")
	pages := []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md"}
	err := fs.WalkDir(root, "docs", func(name string, _ fs.DirEntry, err error) error {
		if path.Ext(name) == ".md" {
			pages = append(pages, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	link, seen := regexp.MustCompile(`\]\(([^()\s]+)\)`), 0
	for _, page := range pages {
		text, err := fs.ReadFile(root, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			target, heading, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			seen++
			file := page
			if target != "" {
				file = path.Join(path.Dir(page), target)
			}
			if _, err := fs.Stat(root, file); err != nil {
				t.Errorf("%s: the link %s leads nowhere", page, m[1])
			} else if heading != "" && !hasHeading(t, root, file, heading) {
				t.Errorf("%s: %s has no heading #%s", page, file, heading)
			}
		}
	}
	if seen < 50 {
		t.Errorf("only %d links were found in %d pages", seen, len(pages))
	}
}

// hasHeading reports whether a page has a heading with the given anchor: its
// words in lower case, joined by hyphens, without punctuation.
func hasHeading(t *testing.T, root fs.FS, file, anchor string) bool {
	t.Helper()
	text, err := fs.ReadFile(root, file)
	if err != nil {
		t.Fatal(err)
	}
	drop := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for line := range strings.SplitSeq(string(text), "\n") {
		title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		if !ok || !strings.HasPrefix(line, "#") {
			continue
		}
		if strings.ReplaceAll(drop.ReplaceAllString(strings.ToLower(title), ""), " ", "-") == anchor {
			return true
		}
	}
	return false
}

// The guide for authors explains every warning that a review of policies gives.
func TestWarningsAreDocumented(t *testing.T) {
	source, err := os.ReadFile("../../policy/warnings.go")
	if err != nil {
		t.Fatal(err)
	}
	guide, err := os.ReadFile("../../docs/policies.md")
	if err != nil {
		t.Fatal(err)
	}
	kinds := regexp.MustCompile(`WarningKind += "([a-z-]+)"`).FindAllStringSubmatch(string(source), -1)
	if len(kinds) < 15 {
		t.Fatalf("only %d kinds of warnings were found", len(kinds))
	}
	for _, kind := range kinds {
		if !strings.Contains(string(guide), "`"+kind[1]+"`") {
			t.Errorf("docs/policies.md does not explain the warning %s", kind[1])
		}
	}
}
