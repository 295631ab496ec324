package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicegate/sluice/gateway/qos"
)

// withQoS parses the minimal configuration with more text, and returns its queue and the warnings.
func withQoS(t *testing.T, more string) (qos.Config, []Issue) {
	t.Helper()
	data, err := os.ReadFile("testdata/config/minimal.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cfg, warnings, err := parseConfig("testdata/config/x.yaml", append(data, more...))
	if err != nil {
		t.Fatal(err)
	}
	return cfg.QoS.queue(cfg.Policy.Classes), warnings
}

// What is not given has the default of the class's place, or follows from what is given.
func TestClassesOfAQueue(t *testing.T) {
	show := func(c qos.Config) (lines []string) {
		for _, c := range c.Classes {
			lines = append(lines, fmt.Sprintf("%s %v %v %v %v", c.Name, c.Target, c.MaxWait, c.Bound, c.Share))
		}
		return lines
	}
	for _, c := range []struct {
		more string
		want []string
	}{
		{"", []string{"critical 1s 30s 250ms 0", "interactive 2s 30s 125ms 0.05", "standard 8s 30s 62.5ms 0.05", "batch 1m0s 5m0s 31.25ms 0.05"}},
		{"qos: { classes: { standard: { target: 40s }, batch: { share: 0 } } }", []string{
			"critical 1s 30s 250ms 0", "interactive 2s 30s 125ms 0.05", "standard 40s 40s 62.5ms 0.05", "batch 1m0s 5m0s 31.25ms 0",
		}},
		{"qos: { classes: { critical: { bound: 2s }, interactive: { bound: 2s }, batch: { maxWait: 1h } } }", []string{
			"critical 1s 30s 2s 0", "interactive 2s 30s 2s 0.05", "standard 8s 30s 1s 0.05", "batch 1m0s 1h0m0s 500ms 0.05",
		}},
	} {
		got, warnings := withQoS(t, c.more)
		if !slices.Equal(show(got), c.want) || len(warnings) > 0 {
			t.Errorf("%s:\ngot  %q\nwant %q\nwarnings %v", c.more, show(got), c.want, warnings)
		}
		if err := got.Validate(); err != nil {
			t.Error(err)
		}
	}
	got, _ := withQoS(t, "qos: { maxRequests: 9, maxBytes: 2MiB, classes: { batch: { maxQueue: 3, preemptible: true, keepAlive: true, workerPriority: -2 } } }")
	last := got.Classes[3]
	if got.MaxEntries != 9 || got.MaxBytes != 2<<20 || last.MaxQueue != 3 || !last.Preemptible || !last.KeepAlive || last.WorkerPriority != -2 || !last.HasPriority {
		t.Errorf("got %+v", got)
	}
}

// There is a queue unless the section says that there is none.
func TestQueueIsOn(t *testing.T) {
	data, err := os.ReadFile("testdata/config/minimal.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for more, want := range map[string]bool{
		"": true, "qos:": true, "qos: {}": true, "qos: { classes: }": true, "qos: { maxRequests: 10 }": true, "qos: { classes: { batch: } }": true,
		"qos: { enabled: true }": true, "qos: { enabled: false }": false, "qos: { enabled: false, maxRequests: 10 }": false,
	} {
		cfg, warnings, err := parseConfig("testdata/config/x.yaml", append(slices.Clone(data), more...))
		if err != nil {
			t.Fatal(err)
		}
		if cfg.QoS.Enabled != want {
			t.Errorf("%q: a queue: %v", more, cfg.QoS.Enabled)
		}
		if i := slices.IndexFunc(warnings, func(w Issue) bool { return strings.HasPrefix(w.Path, "qos") }); i >= 0 {
			t.Errorf("%q: %v", more, warnings[i])
		}
	}
	_, warnings, err := parseConfig("testdata/config/x.yaml", append(slices.Clone(data), "qos: { enabled: false, classes: { batch: { maxQueue: 3 } } }"...))
	if err != nil || !slices.ContainsFunc(warnings, func(w Issue) bool { return w.Path == "qos.enabled" }) {
		t.Errorf("a bound without a queue: %v %v", warnings, err)
	}
}

// A model of more pools than a request can wait for is told of.
func TestTooManyPools(t *testing.T) {
	data, err := os.ReadFile("testdata/config/minimal.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]bool{qos.MaxPools: false, qos.MaxPools + 1: true} { // with the one that is there
		var pools strings.Builder
		for i := range n - 1 {
			fmt.Fprintf(&pools, "  - { name: p%d, models: [tiny], cacheSalt: [\"*\"], workers: [{ name: x%d, url: \"http://127.0.0.1:%d\" }] }\n", i, i, 8200+i)
		}
		_, warnings, err := parseConfig("testdata/config/x.yaml", append(slices.Clone(data), pools.String()...))
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.ContainsFunc(warnings, func(w Issue) bool { return strings.Contains(w.Text, "pools serve") }); got != want {
			t.Errorf("%d pools: warned: %v", n, got)
		}
	}
}

// What the documentation says of the defaults of places is what they are, and its example is one that may be written.
func TestClassesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Classes and the queue\n")
	section, _, _ = strings.Cut(section, "\n## ")
	places := []string{"first", "second", "third", "last"}
	rows := regexp.MustCompile(`(?m)^\| (first|second|third|last) \| (\d+) (s|min) \| (\d+) (s|min) \| ([0-9.]+) \|$`).FindAllStringSubmatch(section, -1)
	if len(rows) != len(places) {
		t.Fatalf("the table of places has %d rows", len(rows))
	}
	duration := func(number, unit string) time.Duration {
		d, err := time.ParseDuration(number + strings.TrimSuffix(unit, "in"))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for i, class := range qos.DefaultClasses(places...) {
		row := rows[i]
		if row[1] != class.Name || duration(row[2], row[3]) != class.Target || duration(row[4], row[5]) != class.MaxWait || row[6] != fmt.Sprint(class.Share) {
			t.Errorf("the documentation has %s, but it is %+v", row[0], class)
		}
	}
	for count, want := range map[int][]time.Duration{
		1: {2 * time.Second}, 2: {8 * time.Second, time.Minute}, 3: {2 * time.Second, 8 * time.Second, time.Minute},
		6: {time.Second, 2 * time.Second, 8 * time.Second, 8 * time.Second, 8 * time.Second, time.Minute},
	} {
		var targets []time.Duration
		for _, class := range qos.DefaultClasses(make([]string, count)...) {
			targets = append(targets, class.Target)
		}
		if !slices.Equal(targets, want) {
			t.Errorf("%d classes: targets %v, want %v", count, targets, want)
		}
	}
	_, example, _ := strings.Cut(section, "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	if !strings.HasPrefix(example, "qos:") {
		t.Fatalf("the example is %q", example)
	}
	withQoS(t, example)
}

// What is allowed and can't be meant is told.
func TestWarningsOfClasses(t *testing.T) {
	for _, c := range []struct{ more, path, text string }{
		{"qos: { classes: { batch: { bound: 10ms } } }", "qos.classes.batch.bound", "one step"},
		{"qos: { classes: { critical: { share: 0.5 } } }", "qos.classes.critical.share", "no class is more urgent"},
		{"qos: { classes: { batch: { workerPriority: 3 } } }", "qos.classes.batch.workerPriority", "no pool has priorityScheduling"},
		{"qos: { classes: { batch: { target: 1s } } }", "qos.classes.batch.target", "the 8s of standard"},
		{"qos: { classes: { batch: { keepAlive: true } } }\nlimits: { keepAliveComment: 0 }", "qos.classes.batch.keepAlive", "keepAliveComment"},
	} {
		_, warnings := withQoS(t, c.more)
		if len(warnings) != 1 || warnings[0].Path != c.path || !strings.Contains(warnings[0].Text, c.text) || warnings[0].Line == 0 {
			t.Errorf("%s: got %v", c.more, warnings)
		}
	}
	cfg := DefaultConfig()
	cfg.Pools = []PoolConfig{{PriorityScheduling: true}}
	warned := func() (texts []string) {
		v := validator{cfg: &cfg}
		v.qos()
		for _, w := range v.warnings {
			texts = append(texts, w.Path+" "+w.Text)
		}
		return texts
	}
	if got := warned(); len(got) != 1 || !strings.HasPrefix(got[0], "pools[0].priorityScheduling does nothing") {
		t.Errorf("no class has a priority: %q", got)
	}
	given := func(priority int) (c QoSClassConfig) {
		c.setDefaults()
		c.WorkerPriority = priority
		return c
	}
	cfg.QoS.Classes = map[string]QoSClassConfig{"interactive": given(5), "standard": given(4), "batch": given(6)}
	if got := warned(); len(got) != 1 || !strings.HasPrefix(got[0], "qos.classes.standard.workerPriority 4 is less than the 5 of interactive") {
		t.Errorf("priorities against the order of the classes: %q", got)
	}
}

// Nothing that a file can hold makes a queue that the queue itself refuses.
func TestEveryValidQueueIsUsable(t *testing.T) {
	for _, names := range [][]string{{"a"}, {"a", "b"}, {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p"}} {
		cfg := DefaultConfig()
		cfg.Policy.Classes = names
		v := validator{cfg: &cfg}
		v.qos()
		queue := cfg.QoS.queue(names)
		if len(v.errors)+len(v.warnings) > 0 || queue.Validate() != nil {
			t.Errorf("%d classes: %v %v, %v", len(names), v.errors, v.warnings, queue.Validate())
		}
		if len(names) > 1 && queue.Classes[len(names)-1].MaxWait != 5*time.Minute {
			t.Errorf("%d classes: the last has %+v", len(names), queue.Classes[len(names)-1])
		}
	}
}
