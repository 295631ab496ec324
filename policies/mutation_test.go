package policies

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/sluicegate/sluice/policy/policytest"
)

// A mutation is one small thing that an author could get wrong: every match of
// find is replaced in turn.
type mutation struct {
	find *regexp.Regexp
	with string
}

func mutate(find, with string) mutation { return mutation{regexp.MustCompile(find), with} }

// mutations are tried on policies and bindings. Numbers and lists of a binding
// are left alone: they are there to be changed.
var mutations = []mutation{
	mutate(`==`, "!="),
	mutate(`!=`, "=="),
	mutate(`&&`, "||"),
	mutate(`\|\|`, "&&"),
	mutate(`>=`, ">"),
	mutate(`<=`, "<"),
	mutate(` > `, " >= "),
	mutate(` < `, " <= "),
	mutate(`!([a-z(])`, "$1"),
	mutate(` \+ `, " - "),
	mutate(` - u`, " + u"),
	mutate(` \* `, " + "),
	mutate(` / 10`, " / 11"),
	mutate(`orValue\(0\)`, "orValue(1)"),
	mutate(`orValue\(1\)`, "orValue(2)"),
	mutate(`'[a-z*:$_-]+'`, "'zz'"),
	mutate(`, '[a-z_]+'`, ""),
	mutate(`tenant\.id`, "tenant.team"),
	mutate(`tenant\.team`, "tenant.id"),
	mutate(`principal\.id`, "tenant.id"),
	mutate(`content\.labels`, "content.declared_labels"),
	mutate(`effective\.max_tokens`, "0"),
	mutate(`, principal\.id`, ""),
	mutate(`\(params\.time_zone\)`, "('UTC')"),
	mutate(`(?m)^      (route|qos|mutate|cacheIsolation|addLabels|when|charge|reason): .*\n`, ""),
	mutate(`, override: true`, ""),
	mutate(`allowPools`, "denyPools"),
	mutate(`denyPools`, "allowPools"),
	mutate(`(?m)^  selector: .*\n`, ""),
	mutate(`actions: \[(Deny|Warn)`, "actions: [Audit"),
	mutate(`unit: (tokens|cost)`, "unit: requests"),
	// A whole match condition, validation, effect, limit or annotation.
	mutate(`(?m)^    - (name|key): .*\n((      .*|    )\n)+`, ""),
}

// harmless are mutations after which the policy decides as before: what is put
// into which line of which file, and why nobody can tell.
var harmless = []struct{ file, line, after, because string }{
	{"max-context/policy.yaml", "unit:", "unit: requests", "estimate and charge are written out, so the unit shows in headers alone"},
	{"max-context/policy.yaml", "request.input_tokens", "orValue(1)", "a class without a context is refused before its estimate counts"},
	{"office-hours-batch/policy.yaml", "getDayOfWeek", "('UTC')", "in the binding's zone, the day differs from UTC at night only"},
	{"starter/qos-tiers.yaml", "params.requests_per_minute", "orValue(1)", "known-tier has refused by then"},
	{"starter/qos-tiers.yaml", "params.concurrency", "orValue(1)", "known-tier has refused by then"},
	{"starter/qos-tiers.yaml", "params.max_output", "orValue(2)", "known-tier has refused by then"},
}

// The tests notice what can go wrong in a policy: every mutation of one refuses
// to load or makes a test of its folder fail or, where it shows only beside
// other policies, of the whole library.
func TestTestsNoticeMutations(t *testing.T) {
	whole := fstest.MapFS{}
	err := fs.WalkDir(FS, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(FS, name)
		whole[name] = &fstest.MapFile{Data: text}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	excused := map[int]bool{}
	for _, name := range slices.Sorted(maps.Keys(whole)) {
		text := string(whole[name].Data)
		if strings.Contains(text, "kind: PolicyTest") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			list := mutants(text)
			for _, m := range list {
				mutant := maps.Clone(whole)
				mutant[name] = &fstest.MapFile{Data: []byte(m.text)}
				if noticed(mutant, path.Dir(name)) || noticed(mutant, "tests.yaml") {
					continue
				}
				if i := excuse(name, m); i >= 0 {
					excused[i] = true
				} else {
					t.Errorf("%s:%d: no test notices %q in place of %q", name, m.line, m.after, m.before)
				}
			}
			t.Logf("%d mutations", len(list))
			if len(list) == 0 {
				t.Error("there is nothing to mutate")
			}
		})
	}
	for i, h := range harmless {
		if !excused[i] {
			t.Errorf("%q in %s is noticed after all, though %s: remove it from the list", h.after, h.file, h.because)
		}
	}
}

// noticed reports whether the tests under a path fail.
func noticed(fsys fs.FS, at string) bool {
	r, err := policytest.Run(fsys, []string{at}, policytest.Options{Orders: 1})
	return err != nil || !r.Passed()
}

// excuse finds a mutation among the harmless ones, or says -1.
func excuse(file string, m mutant) int {
	for i, h := range harmless {
		if h.file == file && h.after == m.after && strings.Contains(m.on, h.line) {
			return i
		}
	}
	return -1
}

type mutant struct {
	line          int
	on            string // the line
	before, after string
	text          string // the document
}

// mutants makes every single mutation of a document.
func mutants(text string) []mutant {
	var out []mutant
	for _, m := range mutations {
		for _, at := range m.find.FindAllStringSubmatchIndex(text, -1) {
			start := strings.LastIndexByte(text[:at[0]], '\n') + 1
			line, _, _ := strings.Cut(text[start:], "\n")
			if !mutable(line) {
				continue
			}
			after := string(m.find.ExpandString(nil, m.with, text, at))
			out = append(out, mutant{
				line: strings.Count(text[:at[0]], "\n") + 1, on: line, before: text[at[0]:at[1]], after: after,
				text: fmt.Sprint(text[:at[0]], after, text[at[1]:]),
			})
		}
	}
	return out
}

// mutable reports whether a line can change a decision: comments, descriptions
// and the schema of parameters can't.
func mutable(line string) bool {
	line = strings.TrimSpace(line)
	for _, prefix := range []string{"#", "annotations:", "description:", "metadata:"} {
		if strings.HasPrefix(line, prefix) {
			return false
		}
	}
	return !strings.Contains(line, "{ type: ")
}
