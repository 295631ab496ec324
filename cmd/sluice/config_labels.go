package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluicegate/sluice/policy/classify"
	"github.com/sluicegate/sluice/policy/classify/remote"
)

// LabelsConfig says how content labels come about beside those of tenants and of trusted callers' headers.
// Without any detector bodies are not scanned, and policies see the content.scan_status "unavailable".
type LabelsConfig struct {
	Claim     string                `yaml:"claim"`     // of a caller's token: a list or a space-separated text of labels
	MaxBytes  ByteSize              `yaml:"maxBytes"`  // text of one body that is scanned
	Timeout   time.Duration         `yaml:"timeout"`   // for built-in and custom detectors to scan one body
	Detectors map[string]string     `yaml:"detectors"` // label by built-in detector; those not named are off
	Custom    []CustomLabelConfig   `yaml:"custom"`
	External  []ExternalLabelConfig `yaml:"external"`
}

// CustomLabelConfig is a detector by patterns and keywords.
type CustomLabelConfig struct {
	Name     string   `yaml:"name"` // what policies see in content.detectors
	Label    string   `yaml:"label"`
	Patterns []string `yaml:"patterns"` // RE2
	Keywords []string `yaml:"keywords"` // whole words, whatever their case
}

// ExternalLabelConfig is a detector that is asked over HTTP. It receives prompt text.
type ExternalLabelConfig struct {
	Name       string            `yaml:"name"`
	Shape      string            `yaml:"shape"`      // presidio, moderation or classify
	URL        string            `yaml:"url"`        // https, or http on this machine; without a path the shape's
	Model      string            `yaml:"model"`      // of moderation and classify
	Language   string            `yaml:"language"`   // of presidio
	Entities   []string          `yaml:"entities"`   // of presidio: those to look for; empty: all that it knows
	Labels     map[string]string `yaml:"labels"`     // label by finding; an empty one means nothing
	Threshold  float64           `yaml:"threshold"`  // score from which a finding counts
	Timeout    time.Duration     `yaml:"timeout"`    // for the judgement of one body
	Parallel   int               `yaml:"parallel"`   // requests under way at a time
	MaxText    ByteSize          `yaml:"maxText"`    // of one request; 0: what the shape takes
	APIKeyFile string            `yaml:"apiKeyFile"` // its bearer token
}

// defaultLabels scans nothing.
func defaultLabels() LabelsConfig {
	c := classify.DefaultConfig()
	return LabelsConfig{MaxBytes: ByteSize(c.MaxBytes), Timeout: c.Budget}
}

// setDefaults fills an external detector before its keys are decoded.
func (e *ExternalLabelConfig) setDefaults() {
	c := remote.DefaultConfig("")
	e.Language, e.Threshold, e.Timeout, e.Parallel = c.Language, c.Threshold, c.Timeout, c.Parallel
}

// scans reports whether there is any detector.
func (c *LabelsConfig) scans() bool { return len(c.Detectors)+len(c.Custom)+len(c.External) > 0 }

// labels returns every label that the detectors can find.
func (c *LabelsConfig) labels() []string {
	all := slices.Collect(maps.Values(c.Detectors))
	for i := range c.Custom {
		all = append(all, c.Custom[i].Label)
	}
	for i := range c.External {
		all = append(all, slices.Collect(maps.Values(c.External[i].Labels))...)
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(l string) bool { return l == "" })
}

// classifier returns the configuration of the scan with those external detectors.
func (c *LabelsConfig) classifier(external []classify.External) classify.Config {
	cc := classify.Config{MaxBytes: int(c.MaxBytes), Budget: c.Timeout, External: external}
	for _, name := range slices.Sorted(maps.Keys(c.Detectors)) {
		cc.Builtin = append(cc.Builtin, classify.Builtin{Detector: name, Label: c.Detectors[name]})
	}
	for _, d := range c.Custom {
		cc.Custom = append(cc.Custom, classify.Custom{Name: d.Name, Label: d.Label, Patterns: d.Patterns, Keywords: d.Keywords})
	}
	return cc
}

// remote returns the configuration of the detector with its key, which is empty for none.
func (e *ExternalLabelConfig) remote(key string) remote.Config {
	return remote.Config{
		Name: e.Name, Shape: e.Shape, URL: e.URL, Model: e.Model, Language: e.Language, Entities: e.Entities, APIKey: key,
		Labels: e.Labels, Threshold: e.Threshold, Timeout: e.Timeout, Parallel: e.Parallel, MaxText: int(e.MaxText),
	}
}

// labels checks where content labels come from.
func (v *validator) labels() {
	c := &v.cfg.Labels
	if c.Claim != "" {
		v.matching("labels.claim", c.Claim, claimPattern, "a claim's name of letters, digits and underscores")
	}
	var external []classify.External
	for i := range c.External {
		rc := c.External[i].remote("")
		problems := rc.Problems()
		for _, p := range problems {
			v.errorf(fmt.Sprintf("labels.external[%d].%s", i, p.Field), "%s", strings.ReplaceAll(p.Text, "apiKey ", "apiKeyFile "))
		}
		if len(problems) > 0 {
			continue
		}
		d, err := remote.New(rc, nil)
		if err != nil {
			v.errorf(fmt.Sprintf("labels.external[%d]", i), "%v", err)
			continue
		}
		external = append(external, d)
	}
	if len(external) < len(c.External) {
		external = nil // their places in the list are not those of the file
	}
	cc := c.classifier(external)
	v.classifier(&cc)
}

// classifierFault takes a line of classify.Config.Validate apart: the field, whose index counts in the
// classifier's own list, and what is wrong.
var classifierFault = regexp.MustCompile(`^(?:(maxBytes|budget|(builtin|custom|external)\[(\d+)\])(\S*): )?(.*)$`)

// classifier reports what the classifier would refuse, each at the key that it comes from.
func (v *validator) classifier(cc *classify.Config) {
	err := cc.Validate()
	if err == nil {
		return
	}
	for line := range strings.Lines(err.Error()) {
		m := classifierFault.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		path := m[1] + m[4]
		switch {
		case m[1] == "budget":
			path = "timeout"
		case m[2] == "builtin":
			i, err := strconv.Atoi(m[3])
			if err != nil {
				panic("BUG: the index is digits: " + err.Error())
			}
			path = "detectors." + cc.Builtin[i].Detector
		}
		v.errorf(strings.TrimSuffix("labels."+path, "."), "%s", m[5])
	}
}
