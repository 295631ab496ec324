package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// definition matches the definition of a metric: its name, its help, and the labels at the end.
var definition = regexp.MustCompile(`(desc|histogramDesc|counter|single|histogram|plain)\("(sluice_\w+)", "[^"]*"(.*)\)[,]?\n`)

// The bound on series counts every metric that the code defines, with the same labels and buckets, and no
// other.
func TestMetricFamiliesAreComplete(t *testing.T) {
	defined := map[string][]string{}
	histograms := map[string]bool{}
	for _, file := range []string{"metrics.go", "collector.go", "queue_metrics.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range definition.FindAllStringSubmatch(string(text), -1) {
			var labels []string
			for _, l := range regexp.MustCompile(`"(\w+)"`).FindAllStringSubmatch(m[3], -1) {
				labels = append(labels, l[1])
			}
			defined[m[2]] = labels
			histograms[m[2]] = m[1] == "histogram" || m[1] == "histogramDesc" || m[1] == "plain"
		}
		named := strings.Count(string(text), `"sluice_`)
		if matched := len(definition.FindAllString(string(text), -1)); file == "collector.go" && matched != named {
			t.Errorf("%s names %d metrics, the test understands %d", file, named, matched)
		}
	}
	// The guard of the admin listener has a counter of its own.
	text, err := os.ReadFile("admin_guard.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?s)Name: "(sluice_\w+)".*?\[\]string\{"(\w+)"\}`).FindAllStringSubmatch(string(text), -1) {
		defined[m[1]] = []string{m[2]}
	}
	for _, f := range metricFamilies() {
		labels, ok := defined[f.name]
		delete(defined, f.name)
		switch {
		case f.name == "sluice_build_info" || f.name == "sluice_config_info":
		case !ok:
			t.Errorf("%s is counted, but not defined", f.name)
		case !slices.Equal(labels, f.labels):
			t.Errorf("%s: counted with labels %v, defined with %v", f.name, f.labels, labels)
		case histograms[f.name] != (f.buckets > 0):
			t.Errorf("%s: counted with %d buckets, histogram %v", f.name, f.buckets, histograms[f.name])
		}
		for _, label := range f.labels {
			if fixedLabels[label] == 0 && !slices.Contains([]string{"model", "class", "pool", "worker", "rule", "policy", "limit", "label", "detector", "issuer"}, label) {
				t.Errorf("%s: nobody knows how many values label %s can have", f.name, label)
			}
		}
	}
	for name := range defined {
		t.Errorf("%s is defined, but not counted", name)
	}
}
