package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluicegate/sluice/gateway"
	"github.com/sluicegate/sluice/tenancy/chargeback"
)

const (
	rulesFile     = "../../deploy/prometheus/rules.yaml"
	rulesTests    = "../../deploy/prometheus/rules_test.yaml"
	dashboardFile = "../../deploy/grafana/sluice.json"
)

// ruleFile is what the tests read of rules.yaml.
type ruleFile struct {
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []struct {
			Record      string            `yaml:"record"`
			Alert       string            `yaml:"alert"`
			Expr        string            `yaml:"expr"`
			Labels      map[string]string `yaml:"labels"`
			Annotations map[string]string `yaml:"annotations"`
		} `yaml:"rules"`
	} `yaml:"groups"`
}

// dashboard is what the tests read of Grafana's JSON.
type dashboard struct {
	UID           string `json:"uid"`
	Title         string `json:"title"`
	SchemaVersion int    `json:"schemaVersion"`
	Templating    struct {
		List []struct {
			Name       string          `json:"name"`
			Type       string          `json:"type"`
			Definition string          `json:"definition"`
			Datasource json.RawMessage `json:"datasource"`
		} `json:"list"`
	} `json:"templating"`
	Panels []struct {
		ID          int    `json:"id"`
		Type        string `json:"type"`
		Title       string `json:"title"`
		Description string `json:"description"`
		GridPos     struct{ H, W, X, Y int }
		Datasource  struct{ Type, UID string }
		Targets     []struct {
			RefID      string `json:"refId"`
			Expr       string `json:"expr"`
			Datasource struct{ Type, UID string }
		} `json:"targets"`
	} `json:"panels"`
}

// exportedLabels returns the labels of every series that a gateway exports, by name as queries write it.
func exportedLabels(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{"up": {"job"}}
	for _, f := range metricFamilies() {
		if f.buckets == 0 {
			all[f.name] = f.labels
			continue
		}
		all[f.name+"_bucket"] = append(slices.Clone(f.labels), "le")
		all[f.name+"_sum"], all[f.name+"_count"] = f.labels, f.labels
	}
	tenants, err := chargeback.NewTenantMetrics(chargeback.MetricsConfig{})
	if err != nil {
		t.Fatal(err)
	}
	descs := make(chan *prometheus.Desc, 64)
	tenants.Describe(descs)
	close(descs)
	text := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([^}]*)\}`)
	for d := range descs {
		m := text.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("the test does not understand %s", d)
		}
		all[m[1]] = strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' || r == ' ' })
	}
	return all
}

var (
	quotedText = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	seriesUse  = regexp.MustCompile(`\b((?:sluice|vllm|go|process)[_:][\w:]*|up)\b(?:\{([^}]*)\})?`)
	labelUse   = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`)
	groupUse   = regexp.MustCompile(`\b(?:by|on|ignoring|without|group_left|group_right)\s*\(([^)]*)\)`)
	outerBy    = regexp.MustCompile(`^(?:sum|max|min|count|avg|histogram_quantile\([^,]*, sum) by \(([^)]*)\)`)
)

// checkQuery reports series and labels of a query that no gateway exports. Every target has an instance and a
// job beside its own labels.
func checkQuery(t *testing.T, where, query string, exported map[string][]string) {
	t.Helper()
	text := quotedText.ReplaceAllString(query, `""`) // what stands in quotes is no name
	uses := seriesUse.FindAllStringSubmatch(text, -1)
	if len(uses) == 0 {
		t.Errorf("%s: the query asks for no series: %s", where, query)
	}
	of := []string{"instance", "job"}
	for _, use := range uses {
		labels, ok := exported[use[1]]
		if !ok {
			t.Errorf("%s: no gateway exports %s", where, use[1])
			continue
		}
		of = append(of, labels...)
		for _, l := range labelUse.FindAllStringSubmatch(use[2], -1) {
			if !slices.Contains(labels, l[1]) && l[1] != "instance" && l[1] != "job" {
				t.Errorf("%s: %s has no label %s, but %v", where, use[1], l[1], labels)
			}
		}
	}
	for _, group := range groupUse.FindAllStringSubmatch(text, -1) {
		for _, l := range strings.FieldsFunc(group[1], func(r rune) bool { return r == ',' || r == ' ' }) {
			if !slices.Contains(of, l) {
				t.Errorf("%s: grouped by %s, which none of its series has: %s", where, l, query)
			}
		}
	}
}

// What rules and panels ask of the queue by word are words that the queue says: a misspelt one would be quiet for
// ever.
func TestWordsOfTheQueue(t *testing.T) {
	words := map[string][]string{"result": chargeback.ClassResults, "reason": gateway.QueueReasons()}
	use := regexp.MustCompile(`sluice_(?:tenant_)?(?:queue_refusals|class_requests)_total\{([^}]*)\}`)
	label := regexp.MustCompile(`(result|reason)[!=~]+\\?"([^"\\]*)`)
	seen := 0
	for _, file := range []string{rulesFile, rulesTests, dashboardFile} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, series := range use.FindAllStringSubmatch(string(text), -1) {
			for _, m := range label.FindAllStringSubmatch(series[1], -1) {
				for word := range strings.SplitSeq(m[2], "|") {
					if seen++; !slices.Contains(words[m[1]], word) {
						t.Errorf("%s asks for %s %q, which is none of %v", file, m[1], word, words[m[1]])
					}
				}
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d words were found", seen)
	}
}

func loadRules(t *testing.T) ruleFile {
	t.Helper()
	text, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	var rules ruleFile
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	return rules
}

// withRecorded adds the series that the recording rules make.
func withRecorded(t *testing.T, rules ruleFile, exported map[string][]string) {
	t.Helper()
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Record == "" {
				continue
			}
			by := outerBy.FindStringSubmatch(r.Expr)
			if by == nil {
				t.Errorf("%s: the test can't tell its labels: %s", r.Record, r.Expr)
				continue
			}
			exported[r.Record] = strings.FieldsFunc(by[1], func(c rune) bool { return c == ',' || c == ' ' })
		}
	}
}

// Every rule asks for what a gateway exports; every alert has a runbook, and a case that fires and one that
// does not.
func TestAlertRules(t *testing.T) {
	rules, exported := loadRules(t), exportedLabels(t)
	withRecorded(t, rules, exported)
	text, err := os.ReadFile(rulesTests)
	if err != nil {
		t.Fatal(err)
	}
	var cases struct {
		Tests []struct {
			AlertRuleTest []struct {
				AlertName string `yaml:"alertname"`
				ExpAlerts []struct {
					ExpLabels map[string]string `yaml:"exp_labels"`
				} `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		} `yaml:"tests"`
	}
	if err := yaml.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, c := range cases.Tests {
		for _, a := range c.AlertRuleTest {
			if len(a.ExpAlerts) > 0 {
				fires[a.AlertName] = true
			} else {
				quiet[a.AlertName] = true
			}
		}
	}
	root, seen := os.DirFS("../.."), map[string]bool{}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			checkQuery(t, r.Record+r.Alert, r.Expr, exported)
			if r.Alert == "" {
				continue
			}
			if seen[r.Alert] {
				t.Errorf("%s is there twice", r.Alert)
			}
			seen[r.Alert] = true
			if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) || r.Annotations["summary"] == "" {
				t.Errorf("%s has no severity or no summary", r.Alert)
			}
			page, anchor, _ := strings.Cut(r.Annotations["runbook_url"], "#")
			if !strings.HasSuffix(page, "/docs/operations.md") || anchor != strings.ToLower(r.Alert) || !hasHeading(t, root, "docs/operations.md", anchor) {
				t.Errorf("%s has no runbook: docs/operations.md has no heading %s, or runbook_url is not that of it", r.Alert, r.Alert)
			}
			if !fires[r.Alert] || !quiet[r.Alert] {
				t.Errorf("%s: has a case that fires: %v, that does not: %v", r.Alert, fires[r.Alert], quiet[r.Alert])
			}
		}
	}
	if len(seen) < 25 {
		t.Errorf("only %d alerts were found", len(seen))
	}
}

// The dashboard asks for what a gateway exports, and is one that Grafana can load: panels that have their place,
// their source and something to show.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 36 {
		t.Errorf("uid %q, title %q, schema %d", d.UID, d.Title, d.SchemaVersion)
	}
	exported := exportedLabels(t)
	variables := []string{"__rate_interval", "__range", "__interval"}
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
		if v.Type != "query" {
			continue
		}
		m := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(v.Definition)
		switch {
		case m == nil:
			t.Errorf("variable %s: the test does not understand %s", v.Name, v.Definition)
		case m[2] != "instance" && !slices.Contains(exported[m[1]], m[2]):
			t.Errorf("variable %s: no gateway exports %s with %s", v.Name, m[1], m[2])
		}
	}
	for _, name := range []string{"datasource", "instance", "pool", "class", "tenant"} {
		if !slices.Contains(variables, name) {
			t.Errorf("there is no variable %s", name)
		}
	}
	ids, taken, rows := map[int]bool{}, map[string]string{}, 0
	for _, p := range d.Panels {
		where := "panel " + p.Title
		if ids[p.ID] || p.ID <= 0 || p.Title == "" {
			t.Errorf("%s: its id is %d, which is not its own", where, p.ID)
		}
		ids[p.ID] = true
		if g := p.GridPos; g.X < 0 || g.Y < 0 || g.W <= 0 || g.H <= 0 || g.X+g.W > 24 {
			t.Errorf("%s: lies at %+v", where, g)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				cell := fmt.Sprint(p.GridPos.X+x, "/", p.GridPos.Y+y)
				if other := taken[cell]; other != "" {
					t.Fatalf("%s lies on %s", where, other)
				}
				taken[cell] = where
			}
		}
		if p.Type == "row" {
			rows++
			continue
		}
		if p.Description == "" || len(p.Targets) == 0 || p.Datasource.UID != "${datasource}" {
			t.Errorf("%s: description %q, %d queries, data source %q", where, p.Description, len(p.Targets), p.Datasource.UID)
		}
		refs := map[string]bool{}
		for _, q := range p.Targets {
			if refs[q.RefID] || q.Datasource.UID != "${datasource}" {
				t.Errorf("%s: query %s is there twice, or has another data source", where, q.RefID)
			}
			refs[q.RefID] = true
			checkQuery(t, where, q.Expr, exported)
			for _, use := range regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(q.Expr, -1) {
				if !slices.Contains(variables, use[1]) {
					t.Errorf("%s: there is no variable %s", where, use[1])
				}
			}
		}
	}
	if rows < 6 || len(ids) < 40 {
		t.Errorf("%d rows and %d panels", rows, len(ids))
	}
}
