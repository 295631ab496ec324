package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/sluicegate/sluice/scoring"
	"github.com/sluicegate/sluice/scoring/kvevents"
)

// configKeys returns every key of the configuration, as documentation writes it, with its default in
// text; the default is empty where the zero value stands for "none", "required" or another key's value.
func configKeys() map[string]string {
	keys := make(map[string]string)
	var walk func(v reflect.Value, path string)
	walk = func(v reflect.Value, path string) {
		switch {
		case v.Kind() == reflect.Struct:
			for sf, field := range v.Fields() {
				walk(field, joinPath(path, sf.Tag.Get("yaml")))
			}
		case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
			elem := reflect.New(v.Type().Elem())
			if def, ok := reflect.TypeAssert[defaulter](elem); ok {
				def.setDefaults()
			}
			walk(elem.Elem(), path+"[]")
		case v.Kind() == reflect.Map && v.Type().Elem().Kind() == reflect.Struct:
			walk(reflect.New(v.Type().Elem()).Elem(), path+".NAME")
		case v.Kind() == reflect.Slice:
			keys[path] = strings.Join(v.Interface().([]string), ", ")
		case v.Kind() == reflect.Bool:
			keys[path] = fmt.Sprint(v.Bool())
		case v.IsZero():
			keys[path] = ""
		default:
			keys[path] = fmt.Sprint(v.Interface())
		}
	}
	walk(reflect.ValueOf(DefaultConfig()), "")
	return keys
}

// The documentation has a row for every key, with its true default, and for no other.
func TestConfigurationIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	keys := configKeys()
	row := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (.*?) \\|")
	documented := make(map[string]string)
	ofConfig, _, _ := strings.Cut(string(text), "\n## The tenants file")
	for _, m := range row.FindAllStringSubmatch(ofConfig, -1) {
		documented[m[1]] = m[2]
	}
	for key, def := range keys {
		got, ok := documented[key]
		if !ok {
			t.Errorf("%s is not documented", key)
		} else if def != "" && got != "`"+def+"`" {
			t.Errorf("%s: the default is documented as %s, but it is `%s`", key, got, def)
		} else if def == "" && strings.HasPrefix(got, "`") && got != "`policy.defaultMaxTokens`" {
			t.Errorf("%s: the default is documented as %s, but there is none", key, got)
		}
	}
	for key := range documented {
		if _, ok := keys[key]; !ok {
			t.Errorf("%s is documented, but not a key", key)
		}
	}
}

// smallTokenizer is a tokenizer.json that loads.
func smallTokenizer(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/script/files/tokenizer/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// The annotated example is what `check` accepts, once the files that its first lines speak of are there.
func TestDeployExample(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"deploy", "policies"} {
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS("../../"+name)); err != nil {
			t.Fatal(err)
		}
	}
	tokenizer := filepath.Join(dir, "deploy/tokenizers/qwen3-32b")
	if err := os.MkdirAll(tokenizer, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		filepath.Join(dir, "deploy/cache.key"):     make([]byte, minKeyBytes),
		filepath.Join(tokenizer, "tokenizer.json"): smallTokenizer(t),
	} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	code := execute(t.Context(), scriptNow, []string{"check", "-c", filepath.Join(dir, "deploy/sluice.yaml")}, strings.NewReader(""), &out, &out)
	if code != exitOK || strings.Contains(out.String(), "unknown") {
		t.Errorf("exit code %d:\n%s", code, out.String())
	}
}

// The index of the documentation names every page.
func TestDocumentationIndex(t *testing.T) {
	index, err := os.ReadFile("../../docs/README.md")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		name := filepath.Base(page)
		if name != "README.md" && !strings.Contains(string(index), "]("+name+")") {
			t.Errorf("docs/README.md does not name %s", name)
		}
	}
	for _, m := range regexp.MustCompile(`\]\(([^):]+\.md)\)`).FindAllStringSubmatch(string(index), -1) {
		if _, err := os.Stat(filepath.Join("../../docs", m[1])); err != nil {
			t.Errorf("docs/README.md names a page that is not there: %s", m[1])
		}
	}
}

// Every series of the cache events is explained to operators, with the values of its labels.
func TestEventSeriesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := strings.ReplaceAll(string(text), "`_", "`sluice_kv_index_")
	want := []string{"frames", "payload"}
	for _, f := range metricFamilies() {
		if strings.HasPrefix(f.name, "sluice_kv_") {
			want = append(want, f.name)
		}
	}
	for s := scoring.ViewNotReporting; s.String() != "invalid"; s++ {
		want = append(want, s.String())
	}
	for r := range kvevents.NumSkipReasons {
		want = append(want, r.String())
	}
	for incident := range new(kvSource).incidents() {
		want = append(want, incident)
	}
	for change := range indexChanges(scoring.ApplyStats{}) {
		want = append(want, change)
	}
	if n := len(indexChanges(scoring.ApplyStats{})); n != fixedLabels["change"] {
		t.Errorf("%d changes are exported, %d are counted", n, fixedLabels["change"])
	}
	if n := len(new(kvSource).incidents()); n != fixedLabels["incident"] {
		t.Errorf("%d incidents are exported, %d are counted", n, fixedLabels["incident"])
	}
	for _, name := range want {
		if !strings.Contains(doc, "`"+name+"`") {
			t.Errorf("docs/operations.md does not explain `%s`", name)
		}
	}
}
