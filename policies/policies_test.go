package policies

import (
	"context"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/policy"
	"github.com/sluicegate/sluice/policy/policytest"
)

// config is a gateway that the whole library fits: the tenants, pools, models,
// prices and claims that its policies and bindings name.
func config() policy.Config {
	models, salted := []string{"qwen3-8b", "qwen3-32b"}, []string{"chat", "completion"}
	price := policy.Price{Input: 200_000, CachedInput: 20_000, Output: 600_000}
	return policy.Config{
		Tenants: []policy.TenantInfo{
			{ID: "acme", Team: "search", Tier: "gold", Labels: map[string]string{"data-residency": "any", "scan": "required", "tools": "allowed"}},
			{ID: "nightly", Team: "records", Tier: "silver", Labels: map[string]string{"workload": "batch"}},
			{ID: "crawler", Team: "campus", Tier: "bronze", Labels: map[string]string{"workload": "trickle"}},
			{ID: "break-glass", Tier: "gold"},
		},
		Claims: map[string]string{"incident": "string"},
		Pools: []policy.Pool{
			{Name: "general", Models: models, Labels: map[string]string{"zone": "eu"}, Salted: salted},
			{Name: "restricted", Models: models[1:], Labels: map[string]string{"zone": "eu"}, Salted: salted},
			{Name: "overseas", Models: models, Labels: map[string]string{"zone": "us"}, Salted: salted},
		},
		Prices: map[string]policy.Price{"qwen3-8b": price, "qwen3-32b": price},
	}
}

// folders lists the library, and fails the test if there is nothing in it.
func folders(t *testing.T) []string {
	t.Helper()
	entries, err := fs.ReadDir(FS, ".")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	if len(out) < 8 {
		t.Fatalf("only %d folders: %v", len(out), out)
	}
	return out
}

// report fails the test for every failed PolicyTest and every outcome that none
// has seen.
func report(t *testing.T, r *policytest.Result) {
	t.Helper()
	for _, test := range r.Tests {
		for _, f := range test.Failures {
			t.Errorf("%s:%d: %s: %s", test.At.File, test.At.Line, test.Name, f)
		}
	}
	for _, m := range r.Coverage.Missing() {
		t.Errorf("%s:%d: no test shows %s %s %s", m.At.File, m.At.Line, m.Kind, m.Rule, m.Outcome)
	}
}

// The tests of the whole library pass, its policies in force together included.
func TestLibrary(t *testing.T) {
	r, err := policytest.Run(FS, []string{"."}, policytest.Options{Orders: 10, Operands: true})
	if err != nil {
		t.Fatal(err)
	}
	report(t, r)
}

// Each folder can be copied by itself: its own tests pass and see every outcome
// of its own policies.
func TestFoldersByThemselves(t *testing.T) {
	for _, folder := range folders(t) {
		t.Run(folder, func(t *testing.T) {
			sub, err := fs.Sub(FS, folder)
			if err != nil {
				t.Fatal(err)
			}
			r, err := policytest.Run(sub, []string{"."}, policytest.Options{Operands: true})
			if err != nil {
				t.Fatal(err)
			}
			report(t, r)
			set, err := policy.Load(config(), sub)
			if err != nil {
				t.Fatalf("the folder does not load alone: %v", err)
			}
			checkWarnings(t, set)
		})
	}
}

// TestLoadsAsOneSet: a gateway with the documented pools and claims loads the
// whole library.
func TestLoadsAsOneSet(t *testing.T) {
	set, err := policy.Load(config(), FS)
	if err != nil {
		t.Fatal(err)
	}
	checkWarnings(t, set)
}

// checkWarnings admits the ways up that the library means to make, the rules that
// a binding's parameters are there to switch off, and no other finding of a
// review.
func checkWarnings(t *testing.T, set *policy.Set) {
	t.Helper()
	meant := map[policy.WarningKind][]string{
		// A parameter of one binding switches a rule off that another one has.
		policy.WarnDecided:  {"restricted-data", "office-hours-batch"},
		policy.WarnRaise:    {"qos-tiers"},
		policy.WarnOverride: {"break-glass"},
	}
	for _, w := range set.Warnings() {
		if !slices.ContainsFunc(meant[w.Kind], func(name string) bool { return strings.Contains(w.Path, "/"+name+".") }) {
			t.Errorf("%s: %s", w.Kind, w.Error.Error())
		}
	}
}

// The starter set loads by itself with two pools and no labels, as in the demo.
func TestStarterIsEnough(t *testing.T) {
	pools := []policy.Pool{{Name: "general", Models: []string{"m"}, Salted: []string{"*"}}, {Name: "restricted", Models: []string{"m"}, Salted: []string{"*"}}}
	set, err := policy.Load(policy.Config{Pools: pools}, Starter())
	if err != nil {
		t.Fatal(err)
	}
	d := set.Decide(context.Background(), &policy.Input{
		Request: policy.RequestInput{Operation: "chat", Model: "m", N: 1},
		Tenant:  policy.TenantInput{ID: "acme", Tier: "gold"},
		Lazy:    content{},
	})
	if !d.Allow || len(d.Limits) != 3 || d.Class != "interactive" {
		t.Errorf("an ordinary request: %+v, errors %+v", d, d.Errors)
	}
}

// content is a gateway without detectors.
type content struct{}

func (content) InputTokens(context.Context) (int64, bool, error) { return 10, false, nil }

func (content) Content(context.Context) (policy.Content, error) {
	return policy.Content{ScanStatus: "unavailable"}, nil
}

// Every policy has a page that shows its binding as it is, and the index names
// the page.
func TestPages(t *testing.T) {
	index, err := os.ReadFile("../docs/policy-library.md")
	if err != nil {
		t.Fatal(err)
	}
	set, err := policy.Load(config(), FS)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, r := range set.Rules() {
		name, _, _ := strings.Cut(r.Rule, "/")
		names[name] = true
		page, err := os.ReadFile("../docs/policies/" + name + ".md")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(page), "`"+path.Base(r.Rule)+"`") {
			t.Errorf("docs/policies/%s.md does not name the %s %s", name, r.Kind, r.Rule)
		}
	}
	for name := range names {
		if !strings.Contains(string(index), "](policies/"+name+".md)") {
			t.Errorf("docs/policy-library.md has no link to the page of %s", name)
		}
	}
	checkExamples(t)
}

// checkExamples compares the YAML of the pages with the library: a block that
// begins with a comment naming a file is a part of that file.
func checkExamples(t *testing.T) {
	t.Helper()
	pages, err := fs.Glob(os.DirFS("../docs"), "policies/*.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	for _, page := range pages {
		text, err := os.ReadFile("../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range strings.Split(string(text), "```yaml\n# policies/")[1:] {
			block, _, _ = strings.Cut(block, "```")
			file, part, _ := strings.Cut(block, "\n")
			have, err := fs.ReadFile(FS, file)
			if err != nil {
				t.Errorf("%s: %v", page, err)
				continue
			}
			shown++
			if !strings.Contains(string(have), part) {
				t.Errorf("%s shows what is not in %s:\n%s", page, file, part)
			}
		}
	}
	if shown < len(pages) {
		t.Errorf("%d pages show %d parts of the library", len(pages), shown)
	}
}
