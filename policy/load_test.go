package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

const validations = `
  validations: [{ name: v, expression: "true" }]`

func TestLoadFiles(t *testing.T) {
	one := policyText("one", validations, "Deny")
	test := "apiVersion: sluice/v1alpha1\nkind: PolicyTest\nmetadata: { name: t }\nspec: { anything: [goes] }\n"
	s, err := Load(testConfig(), fsOf(map[string]string{
		"a.yaml": one, "deep/er/b.yml": "# a comment\n---\n---\n" + policyText("two", validations, "Deny") + "...\n# end\n",
		"deep/tests.yaml": test, "readme.md": "not yaml: [", "c.yaml.bak": "not: [",
	}))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.policies) != 2 || len(s.live) != 2 {
		t.Errorf("%d policies and %d bindings, want 2 and 2", len(s.policies), len(s.live))
	}
}

func TestLoadErrorsNameEveryFault(t *testing.T) {
	_, err := Load(testConfig(), fsOf(map[string]string{
		"b.yaml": policyText("b", "\n  validations: [{ name: v, expression: request.strem }]", "Deny"),
		"a.yaml": policyText("a", "\n  validations: [{ name: v, expression: request.n }, { name: w, expression: tenant.tire }]", "Dny"),
	}))
	want := `a.yaml:6:40: AdmissionPolicy/a.spec.validations[0].expression: the result is int, it must be bool
a.yaml:6:76: AdmissionPolicy/a.spec.validations[1].expression: unknown name "tenant.tire"; did you mean "tenant.tier"?
a.yaml:11:34: AdmissionPolicyBinding/a-b.spec.actions[0]: unknown value "Dny"; did you mean "Deny"?: use Deny, Warn, Audit
b.yaml:6:40: AdmissionPolicy/b.spec.validations[0].expression: unknown name "request.strem"; did you mean "request.stream"?`
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
}

func TestLoadEmptySet(t *testing.T) {
	for _, files := range []map[string]string{{}, {"a.yaml": "# nothing\n"}, {"a.txt": "x"}} {
		_, err := Load(testConfig(), fsOf(files))
		if err == nil || err.Error() != "no policy was found: check the directory, or allow an empty set with policy.allowEmpty: true" {
			t.Errorf("%v: got %v", files, err)
		}
		cfg := testConfig()
		cfg.AllowEmpty = true
		s, err := Load(cfg, fsOf(files))
		if err != nil {
			t.Fatalf("%v: %v", files, err)
		}
		if d := s.Decide(t.Context(), testInput()); !d.Allow || len(d.Pools) != 3 || d.Class != "standard" || d.CacheIsolation != "tenant" {
			t.Errorf("an empty set decides %+v", d)
		}
	}
}

type brokenFS struct{ fs.FS }

func (brokenFS) Open(string) (fs.File, error) { return nil, errors.New("disk on fire") }

func TestLoadUnreadable(t *testing.T) {
	f := func(fsys fs.FS, files []string, want string) {
		t.Helper()
		_, err := LoadFiles(testConfig(), fsys, files)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	f(brokenFS{}, []string{"x.yaml"}, "x.yaml: cannot read file: disk on fire")
	f(fsOf(nil), []string{"x.yaml"}, "x.yaml: cannot read file: open x.yaml: file does not exist")
	f(fsOf(map[string]string{"x.yaml": strings.Repeat("# padding\n", 120_000)}), []string{"x.yaml"}, "1200000 bytes, at most 1048576 are allowed: split it")
	f(fsOf(map[string]string{"x.yaml": "a: \xff\n"}), []string{"x.yaml"}, "x.yaml:1:1: the file is not UTF-8")
	if _, err := Load(testConfig(), brokenFS{}); err == nil || !strings.Contains(err.Error(), "cannot list the policy files: disk on fire") {
		t.Errorf("got %v", err)
	}
}

func TestLoadMaxima(t *testing.T) {
	var many strings.Builder
	for i := range maxPolicies + 1 {
		fmt.Fprintf(&many, "apiVersion: sluice/v1alpha1\nkind: AdmissionPolicy\nmetadata: { name: p%d }\nspec: { auditAnnotations: [{ key: k, valueExpression: \"'x'\" }] }\n---\n", i)
	}
	if _, err := load(testConfig(), many.String()); err == nil || err.Error() != "257 policies, at most 256 are allowed" {
		t.Errorf("got %v", err)
	}
	many.Reset()
	many.WriteString(policyText("p", validations, "Deny"))
	for i := range maxBindings {
		fmt.Fprintf(&many, "apiVersion: sluice/v1alpha1\nkind: AdmissionPolicyBinding\nmetadata: { name: b%d }\nspec: { policyName: p, actions: [Deny] }\n---\n", i)
	}
	if _, err := load(testConfig(), many.String()); err == nil || err.Error() != "1025 bindings, at most 1024 are allowed" {
		t.Errorf("got %v", err)
	}
}

// TestLoadWindowsText: line ends and a byte order mark do not matter.
func TestLoadWindowsText(t *testing.T) {
	text := policyText("p", "\n  validations:\n    - name: v\n      expression: |\n        request.stream\n          && request.strem", "Deny")
	_, err := load(testConfig(), "\ufeff"+strings.ReplaceAll(text, "\n", "\r\n"))
	want := `p.yaml:10:14: AdmissionPolicy/p.spec.validations[0].expression: unknown name "request.strem"; did you mean "request.stream"?`
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
}

// TestAcceptedDocuments: what looks odd and is allowed.
func TestAcceptedDocuments(t *testing.T) {
	for name, spec := range map[string]string{
		"unquoted true":       "\n  validations: [{ name: v, expression: true }]",
		"unquoted number":     "\n  limits: [{ name: l, unit: requests, window: 1m, limit: 10, key: [] }]",
		"counted repetition":  "\n  validations: [{ name: v, expression: \"request.model.matches('^a{2}$') || true\" }]",
		"global matches":      "\n  validations: [{ name: v, expression: \"matches(request.model, '^a{2}$') || true\" }]",
		"optional annotation": "\n  auditAnnotations: [{ key: k, valueExpression: \"request.stream ? optional.of('a') : optional.none()\" }]",
		"has on map keys":     "\n  validations: [{ name: v, expression: \"has(request.headers.host) || has(tenant.labels.env)\" }]",
		"comments everywhere": " # c\n  # c\n  validations: # c\n    # c\n    - name: v # c\n      expression: request.stream # c",
		"mixed format list":   "\n  validations: [{ name: v, expression: \"true\", messageExpression: \"'%s %d'.format([tenant.id, request.n])\" }]",
	} {
		t.Run(name, func(t *testing.T) { mustLoad(t, testConfig(), policyText("p", spec, "Deny")) })
	}
}

func TestConfigFaults(t *testing.T) {
	cfg := testConfig()
	cfg.Classes = []string{"high", "high", "Low"}
	cfg.DefaultClass = "hgh"
	cfg.DefaultIsolation = "all"
	cfg.DefaultMaxTokens = -1
	cfg.Models = map[string]Model{"m": {DefaultMaxTokens: -1}}
	cfg.Prices = map[string]Price{"m": {Input: -1}}
	cfg.Claims = map[string]string{"a-b": "int", "c": "bytes", "d": "list(list(int))"}
	cfg.Pools = []Pool{{Name: ""}, {Name: "x"}, {Name: "x"}}
	_, err := load(cfg, policyText("p", validations, "Deny"))
	want := `policy.claims: claim c: unknown type "bytes": use string, int, double, bool or list(T)
policy.claims: claim d: unknown type "list(list(int))": use string, int, double, bool or list of one
policy.claims: claim name "a-b" is no CEL identifier
policy.classes: class "Low" is not allowed: give each class once, as 1 to 63 of a-z, 0-9 and -
policy.classes: class "high" is not allowed: give each class once, as 1 to 63 of a-z, 0-9 and -
policy.defaultClass: "hgh" is no class; did you mean "high"?
policy.defaultIsolation: "all" is no scope: use none, tenant or principal
policy.defaultMaxTokens: -1 is below 1
policy.models: model "m": defaultMaxTokens -1 is below 0
policy.pools: a pool has no name
policy.pools: the pool "x" is given twice
policy.prices: model "m": a price is below 0`
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
}

func TestConfigIsCopied(t *testing.T) {
	cfg := testConfig()
	s := mustLoad(t, cfg, policyText("p", validations, "Deny"))
	cfg.Pools[0].Models[0] = "other"
	cfg.Pools[1].Name = "changed"
	if d := s.Decide(t.Context(), testInput()); strings.Join(d.Pools, " ") != "a b c" {
		t.Errorf("pools %v follow the caller's configuration", d.Pools)
	}
}

func TestRevision(t *testing.T) {
	base := policyText("p", `
  failurePolicy: Fail
  limits: [{ name: l, unit: requests, window: 1m, limit: 10, key: [tenant.id] }]`, "Deny")
	first := mustLoad(t, testConfig(), base).Revision()
	if !strings.HasPrefix(first, "sha256:") || len(first) != len("sha256:")+64 {
		t.Errorf("revision %q", first)
	}
	same := map[string]string{
		"comment":  "# hello\n" + base,
		"layout":   strings.Replace(base, "{ name: p }", "{\n    name: \"p\" }", 1),
		"quoting":  strings.Replace(base, "limit: 10", "limit: \"10\"", 1),
		"key":      strings.Replace(base, "[tenant.id]", "['tenant.id']", 1),
		"new file": "---\n" + base,
	}
	for name, text := range same {
		if got := mustLoad(t, testConfig(), text).Revision(); got != first {
			t.Errorf("%s changes the revision", name)
		}
	}
	swapped := strings.Split(base, "---\n")
	if got := mustLoad(t, testConfig(), swapped[1]+"---\n"+swapped[0]).Revision(); got != first {
		t.Error("the order of documents changes the revision")
	}
	differs := map[string]string{
		"expression": strings.Replace(base, "limit: 10", "limit: 11", 1),
		"action":     strings.Replace(base, "[Deny]", "[Warn]", 1),
		"name":       strings.ReplaceAll(base, "name: l", "name: k"),
	}
	for name, text := range differs {
		if mustLoad(t, testConfig(), text).Revision() == first {
			t.Errorf("another %s leaves the revision", name)
		}
	}
	cfg := testConfig()
	cfg.Claims = map[string]string{"clearance": "string"}
	if mustLoad(t, cfg, base).Revision() == first {
		t.Error("another claim type leaves the revision")
	}
}

// TestLoadSkipsHiddenFiles: a mounted ConfigMap holds its versions in hidden
// directories beside links to the current one, and editors leave copies.
func TestLoadSkipsHiddenFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	one := policyText("one", validations, "Deny")
	write("..2026_03_10_12_00_00.123/one.yaml", one)
	write("..2026_03_09_12_00_00.122/one.yaml", one)
	link("..2026_03_10_12_00_00.123", "..data")
	link("..data/one.yaml", "one.yaml")
	write(".git/config.yaml", "not: [yaml")
	write("sub/.two.yaml.swp", "x")
	write("sub/.#two.yaml", "not: [yaml")
	write("sub/two.yaml", policyText("two", validations, "Deny"))
	s, err := Load(testConfig(), os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.policies) != 2 || len(s.live) != 2 {
		t.Errorf("%d policies, %d bindings, want 2 and 2", len(s.policies), len(s.live))
	}
}

// TestLoadFollowsLinkedFolders: Kubernetes mounts a folder of a volume as a link, and a rule that is left out
// in silence is an open door. Links that lead round in a circle are refused.
func TestLoadFollowsLinkedFolders(t *testing.T) {
	dir := t.TempDir()
	inner := filepath.Join(dir, "..2026_03_10_12_00_00.123", "team", "deeper")
	if err := errors.Join(
		os.MkdirAll(inner, 0o755),
		os.WriteFile(filepath.Join(inner, "one.yaml"), []byte(policyText("one", validations, "Deny")), 0o644),
		os.WriteFile(filepath.Join(dir, "two.yaml"), []byte(policyText("two", validations, "Deny")), 0o644),
		os.Symlink("..2026_03_10_12_00_00.123", filepath.Join(dir, "..data")),
		os.Symlink("..data/team", filepath.Join(dir, "team")),
	); err != nil {
		t.Fatal(err)
	}
	s, err := Load(testConfig(), os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.policies) != 2 || len(s.live) != 2 {
		t.Errorf("%d policies, %d bindings, want 2 and 2", len(s.policies), len(s.live))
	}
	if err := os.Symlink(".", filepath.Join(dir, "loop")); err != nil {
		t.Fatal(err)
	}
	_, err = Load(testConfig(), os.DirFS(dir))
	want := "cannot list the policy files: loop/loop is a link to a folder inside a linked folder, and only one such link is followed: put the policies there themselves"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestLoadBounds: a directory that holds more than policies could need is
// refused before it is read whole.
func TestLoadBounds(t *testing.T) {
	files := map[string]string{}
	for i := range maxFiles + 1 {
		files[fmt.Sprintf("f%d.yaml", i)] = "# nothing\n"
	}
	if _, err := Load(testConfig(), fsOf(files)); err == nil || err.Error() != "2049 files, at most 2048 are read: keep other YAML elsewhere" {
		t.Errorf("got %v", err)
	}
	files = map[string]string{}
	for i := range maxTotalSize/maxFileSize + 1 {
		files[fmt.Sprintf("f%02d.yaml", i)] = strings.Repeat("#", maxFileSize)
	}
	if _, err := Load(testConfig(), fsOf(files)); err == nil || err.Error() != "f16.yaml: the files up to this one have more than 16777216 bytes together: remove what is no policy" {
		t.Errorf("got %v", err)
	}
}

// TestLoadIrregularFile: a pipe or a device with the name of a policy file is
// refused at once. To read it would wait for a writer, or take memory for ever.
func TestLoadIrregularFile(t *testing.T) {
	for name, mode := range map[string]fs.FileMode{"pipe": fs.ModeNamedPipe, "device": fs.ModeDevice | fs.ModeCharDevice, "socket": fs.ModeSocket} {
		fsys := fstest.MapFS{"p.yaml": {Data: []byte("# nothing\n"), Mode: mode | 0o600}}
		if _, err := Load(testConfig(), fsys); err == nil || err.Error() != "p.yaml: cannot read file: it is no regular file" {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestLoadDearYAML: what the YAML library would take minutes for is refused
// before, and what is just below the bounds is read.
func TestLoadDearYAML(t *testing.T) {
	entries := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	const few = "p.yaml:1:1: field kind is missing: use AdmissionPolicy, AdmissionPolicyBinding or PolicyTest"
	for name, c := range map[string]struct{ text, want string }{
		"blank lines":            {"x: |\n" + strings.Repeat("\n", 1_000_000), "p.yaml:102:1: more than 100 blank lines in a row: remove them"},
		"lines of spaces":        {"# a\n---\nx: >\n\n" + strings.Repeat("  \n", 300_000), "p.yaml:104:1: more than 100 blank lines in a row: remove them"},
		"a mapping of lines":     {entries(90_000, "a%d: 1\n"), "p.yaml:50001:7: more than 100000 brackets, commas, quotes and other signs: split the file"},
		"a mapping too long":     {entries(16_000, "a%d: 1\n"), "p.yaml:10001:1: a mapping has at most 10000 entries"},
		"a mapping in one line":  {"{" + entries(30_000, "a%d: 1,") + "}", "a document has at most 50000 words and signs: split it"},
		"many documents":         {strings.Repeat("--- ["+strings.Repeat("[],", 1000)+"]\n", 100), "p.yaml: the file has more than 250000 brackets, commas, quotes and other signs: split it"},
		"nested brackets":        {strings.Repeat("[", 1<<20), "p.yaml: the file has more than 250000"},
		"half as many brackets":  {strings.Repeat("[", 90_000), "p.yaml:1:50001: a document has at most 50000 words"},
		"fewer brackets":         {strings.Repeat("[", 40_000), "p.yaml:1:129: values are nested deeper than 128 levels"},
		"tabs":                   {"x: \"" + strings.Repeat("\t", 1<<19) + "\"", "p.yaml:1:105: more than 100 tabs in a line: use spaces"},
		"signs <":                {"x: a" + strings.Repeat("<", 1<<19), "p.yaml:1:105: more than 100 signs < in a row: remove them"},
		"long keys":              {strings.Repeat("k", 500_000) + ": {" + entries(10_000, "a%d: 1,") + "}", "the keys are too long for how many and how deep they are"},
		"as many blank lines":    {"x: |\n a\n" + strings.Repeat("\n", 99), few},
		"a mapping that is long": {entries(6000, "a%d: 1\n"), few},
	} {
		_, err := Load(testConfig(), fsOf(map[string]string{"p.yaml": c.text}))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %.200v, want %s", name, err, c.want)
		}
	}
}

// TestLoadMaximaOfOnePolicy: each list of a policy has its maximum, which is
// admitted, while one more is refused.
func TestLoadMaximaOfOnePolicy(t *testing.T) {
	entries := func(n int, format string) string {
		out := make([]string, n)
		for i := range out {
			out[i] = fmt.Sprintf(format, i)
		}
		return strings.Join(out, ", ")
	}
	for name, c := range map[string]struct {
		most        int
		field, each string
		text        string
	}{
		"matchConditions":  {64, "spec.matchConditions", "{ name: m%d, expression: request.stream }", "%s"},
		"variables":        {64, "spec.variables", "{ name: x%d, expression: request.n }", "%s"},
		"validations":      {64, "spec.validations", "{ name: v%d, expression: request.stream }", "%s"},
		"effects":          {64, "spec.effects", "{ name: e%d, addLabels: [x] }", "%s"},
		"limits":           {16, "spec.limits", "{ name: l%d, unit: requests, window: 1m, limit: 5, key: [] }", "%s"},
		"auditAnnotations": {16, "spec.auditAnnotations", "{ key: k%d, valueExpression: tenant.id }", "%s"},
		"key":              {16, "spec.limits[0].key", "\"'part%d'\"", "{ name: l, unit: requests, window: 1m, limit: 5, key: [%s] }"},
		"addLabels":        {64, "spec.effects[0].addLabels", "l%d", "{ name: e, addLabels: [%s] }"},
	} {
		list := map[string]string{"key": "limits", "addLabels": "effects"}[name]
		if list == "" {
			list = name
		}
		spec := func(n int) string {
			text := "\n  " + list + ": [" + fmt.Sprintf(c.text, entries(n, c.each)) + "]"
			if list != "validations" {
				text += "\n  validations: [{ name: last, expression: request.stream }]"
			}
			return policyText("p", text, "Deny")
		}
		if _, err := load(testConfig(), spec(c.most)); err != nil {
			t.Errorf("%s: %d are refused: %v", name, c.most, err)
		}
		_, err := load(testConfig(), spec(c.most+1))
		if err == nil || !strings.Contains(err.Error(), c.field+": ") || !strings.Contains(err.Error(), fmt.Sprintf("%d %s, at most %d are allowed", c.most+1, map[bool]string{true: "labels", false: "entries"}[name == "addLabels"], c.most)) {
			t.Errorf("%s: %d give %v", name, c.most+1, err)
		}
	}
}

// TestAddedLabelsAreChecked: where the configuration lists labels, addLabels
// may name those alone.
func TestAddedLabelsAreChecked(t *testing.T) {
	cfg := testConfig()
	cfg.Labels = []string{"pii", "restricted"}
	spec := "\n  effects: [{ name: e, addLabels: [pii, restrictd, %s] }]"
	_, err := load(cfg, policyText("p", fmt.Sprintf(spec, "restricted"), "Deny"))
	want := `p.yaml:6:41: AdmissionPolicy/p.spec.effects[0].addLabels[1]: the configuration has no label "restrictd"; did you mean "restricted"?`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	cfg.Labels = nil
	mustLoad(t, cfg, policyText("p", fmt.Sprintf(spec, "anything"), "Deny"))
	if _, err := load(cfg, policyText("p", fmt.Sprintf(spec, "No-Label"), "Deny")); err == nil || !strings.Contains(err.Error(), `label "No-Label" is not allowed`) {
		t.Errorf("got %v", err)
	}
	cfg.Labels = []string{}
	if _, err := load(cfg, policyText("p", fmt.Sprintf(spec, "x"), "Deny")); err == nil || strings.Count(err.Error(), "the configuration has no label") != 3 {
		t.Errorf("a configuration without a label: %v", err)
	}
}

// TestFaultOfTheCompiler: a panic of the library while it compiles is a fault
// of the expression, and the load goes on.
func TestFaultOfTheCompiler(t *testing.T) {
	p := &problems{}
	c := &compiler{p: p, policy: &policyDoc{name: "p"}, vars: map[string]variable{}} // without an environment the library panics
	x := exprDoc{scalar: scalar{text: "true", file: "f.yaml", line: 3, col: 7}, path: "spec.x", set: true}
	if got := c.compile(x, scopeAll); got != nil {
		t.Errorf("compiled to %+v", got)
	}
	if len(p.list) != 1 || p.list[0].Error() != "f.yaml:3:7: spec.x: cannot compile: the evaluator failed on this expression" {
		t.Errorf("%+v", p.list)
	}
}

// TestOneSetFromAdmissionToSettlement: a decision settles by the set that made
// it, whatever has been loaded since.
func TestOneSetFromAdmissionToSettlement(t *testing.T) {
	text := func(charge string) string {
		return policyText("p", "\n  limits: [{ name: l, unit: tokens, window: 1m, limit: 5000, key: [], charge: "+charge+" }]", "Deny")
	}
	old := mustLoad(t, testConfig(), text("usage.output_tokens"))
	d := old.Decide(t.Context(), testInput())
	current := mustLoad(t, testConfig(), text("\"1\""))
	if current.Revision() == old.Revision() || d.Revision != old.Revision() {
		t.Errorf("revision %s of %s and %s", d.Revision, old.Revision(), current.Revision())
	}
	if got := d.Charges(Usage{OutputTokens: 42}); got[0] != 42 {
		t.Errorf("charged %d", got[0])
	}
	if got := current.Decide(t.Context(), testInput()).Charges(Usage{OutputTokens: 42}); got[0] != 1 {
		t.Errorf("the new set charges %d", got[0])
	}
}

// TestRevisionIsADigest: the revision can be computed from the documents, the
// claims and the evaluator's version by anyone who knows the format.
func TestRevisionIsADigest(t *testing.T) {
	cfg := testConfig()
	cfg.Claims = map[string]string{"dept": "string"}
	s := mustLoad(t, cfg, "# a comment\n"+policyText("p", "\n  validations: [{ expression: request.n < 3, name: v }]", "Deny"))
	canonical := `{"claims":{"dept":"string"},"documents":[` +
		`{"apiVersion":"sluice/v1alpha1","kind":"AdmissionPolicy","metadata":{"name":"p"},"spec":{"validations":[{"expression":"request.n < 3","name":"v"}]}},` +
		`{"apiVersion":"sluice/v1alpha1","kind":"AdmissionPolicyBinding","metadata":{"name":"p-b"},"spec":{"actions":["Deny"],"policyName":"p"}}],` +
		`"evaluator":"github.com/google/cel-go v0.31.0"}` + "\n"
	sum := sha256.Sum256([]byte(canonical))
	if want := "sha256:" + hex.EncodeToString(sum[:]); s.Revision() != want {
		t.Errorf("revision %s, want %s", s.Revision(), want)
	}
}
