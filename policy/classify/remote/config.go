package remote

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Shape is the protocol of a detector.
const (
	// Presidio is POST /analyze of Presidio's analyzer: findings are entity types.
	Presidio = "presidio"
	// Moderation is POST /v1/moderations: findings are categories.
	Moderation = "moderation"
	// Classify is POST /classify of vLLM: the finding is the likeliest class.
	Classify = "classify"
)

// Config describes one detector. [DefaultConfig] has the defaults.
type Config struct {
	// Name in content.detectors and in metrics.
	Name string
	// Shape is Presidio, Moderation or Classify.
	Shape string
	// URL of the endpoint. Without a path it gets the shape's. It is https, or
	// http to a loopback address.
	URL string
	// Model names the model to ask, for Moderation and Classify. Empty leaves the
	// choice to the server.
	Model string
	// Language of the texts, and Entities to look for, for Presidio. No entities
	// mean all that it knows.
	Language string
	Entities []string
	// APIKey is sent as a bearer token if it is not empty.
	APIKey string
	// Labels maps findings to labels. A finding that is mapped to the empty text
	// is known and means nothing; one that is missing is counted as unmapped.
	Labels map[string]string
	// Threshold is the score, from 0 to 1, from which a finding counts. For
	// Moderation 0 means: what the server itself has flagged.
	Threshold float64
	// Timeout bounds the judgement of one body, all of its requests.
	Timeout time.Duration
	// Parallel is how many requests may be under way at once, of all bodies
	// together.
	Parallel int
	// MaxText is the longest text, in bytes, that the detector takes at once.
	// Longer ones are sent in pieces that overlap a little. 0 means the shape's
	// default: 50,000 for Presidio, 30,000 for Moderation, and 500 for Classify,
	// whose models often see 512 tokens: no text has more tokens than bytes.
	MaxText int
	// Log is told when the detector begins to fail and when it works again; nil
	// discards that.
	Log *slog.Logger
}

// DefaultConfig has the defaults of a shape, and no name, address or labels.
func DefaultConfig(shape string) Config {
	return Config{Shape: shape, Language: "en", Threshold: 0.5, Timeout: 300 * time.Millisecond, Parallel: 8, MaxText: shapes[shape].maxText}
}

// The bounds of a configuration.
const (
	minTimeout, maxTimeout = time.Millisecond, 30 * time.Second
	maxParallel            = 1024
	minText, maxText       = 256, 1_000_000 // spaCy, below Presidio, takes no more
	maxFindings            = 512            // of Labels and Entities
	maxFindingName         = 128
)

var (
	// namePattern is that of labels and detectors in the policy format.
	namePattern     = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	languagePattern = regexp.MustCompile(`^[A-Za-z]{2,8}([_-][A-Za-z0-9]{1,8})*$`)
)

// Problem is a fault of one field of a Config.
type Problem struct {
	// Field is the path in words of a configuration file, such as labels.PERSON.
	Field string
	// Text says what is wrong and what would be right.
	Text string
}

// Problems lists what is wrong; none means that [New] succeeds. Secrets are not
// quoted.
func (c *Config) Problems() []Problem {
	var out []Problem
	add := func(field, format string, args ...any) {
		out = append(out, Problem{field, fmt.Sprintf(format, args...)})
	}
	if !namePattern.MatchString(c.Name) {
		add("name", "%q should be lower-case letters, digits and dashes, at most 63", clip(c.Name))
	}
	if _, ok := shapes[c.Shape]; !ok {
		add("shape", "%q is unknown, should be one of %s, %s, %s", clip(c.Shape), Presidio, Moderation, Classify)
	}
	if err := checkURL(c.URL); err != nil {
		add("url", "%v", err)
	}
	c.shapeProblems(add)
	c.findingProblems(add)
	if !(c.Threshold >= 0 && c.Threshold <= 1) {
		add("threshold", "is %v, should be a score between 0 and 1", c.Threshold)
	}
	if c.Timeout < minTimeout || c.Timeout > maxTimeout {
		add("timeout", "is %s, should be between %s and %s", c.Timeout, minTimeout, maxTimeout)
	}
	if c.Parallel < 1 || c.Parallel > maxParallel {
		add("parallel", "is %d, should be between 1 and %d requests", c.Parallel, maxParallel)
	}
	if c.MaxText != 0 && (c.MaxText < minText || c.MaxText > maxText) {
		add("maxText", "is %d, should be between %d and %d bytes", c.MaxText, minText, maxText)
	}
	if strings.ContainsFunc(c.APIKey, func(r rune) bool { return r <= ' ' || r > '~' }) {
		add("apiKey", "holds white space or a character that no header can carry")
	}
	return out
}

// shapeProblems finds fields that the shape makes no use of, which would look
// as if they had an effect.
func (c *Config) shapeProblems(add func(field, format string, args ...any)) {
	if c.Shape != Presidio && len(c.Entities) > 0 {
		add("entities", "is for the shape %s only; the shape %s has no such list", Presidio, c.Shape)
	}
	if c.Shape == Presidio && c.Model != "" {
		add("model", "is for the shapes %s and %s only; the models of Presidio are its own configuration", Moderation, Classify)
	}
	if c.Shape == Presidio && !languagePattern.MatchString(c.Language) {
		add("language", "%q should be a language code such as en", clip(c.Language))
	}
}

func (c *Config) findingProblems(add func(field, format string, args ...any)) {
	if len(c.Labels) == 0 {
		add("labels", "is empty, should map the detector's findings to labels, such as CREDIT_CARD: pii")
	}
	if len(c.Labels) > maxFindings {
		add("labels", "has %d entries, should have at most %d", len(c.Labels), maxFindings)
	}
	for _, finding := range slices.Sorted(maps.Keys(c.Labels)) {
		label := c.Labels[finding]
		if finding == "" || len(finding) > maxFindingName {
			add("labels", "has a finding of %d characters, should be 1 to %d", len(finding), maxFindingName)
		}
		if label != "" && !namePattern.MatchString(label) {
			add("labels."+clip(finding), "%q should be lower-case letters, digits and dashes, at most 63, or empty for a finding that means nothing", clip(label))
		}
	}
	if len(c.Entities) > maxFindings {
		add("entities", "has %d entries, should have at most %d", len(c.Entities), maxFindings)
	}
	for i, e := range c.Entities {
		if _, ok := c.Labels[e]; !ok {
			add(fmt.Sprintf("entities[%d]", i), "%q is not in labels, so that finding it would mean nothing", clip(e))
		}
	}
}

// checkURL admits https, and http that does not leave the machine.
func checkURL(text string) error {
	if text == "" {
		return fmt.Errorf("is missing, should be the address of the detector, such as https://detector.example/analyze")
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return fmt.Errorf("is no URL") // the error would quote it, and what it may hold
	case u.User != nil:
		return fmt.Errorf("holds a user name or password; use apiKey for a credential")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return fmt.Errorf("has a query or fragment, should end with the path")
	case u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("has the scheme %q, should begin with https://, or with http:// on this machine", clip(u.Scheme))
	case u.Hostname() == "":
		return fmt.Errorf("names no host")
	case u.Scheme == "http" && !isLoopback(u.Hostname()):
		return fmt.Errorf("is http to another machine, which would show prompt text to the network; use https, or a detector on 127.0.0.1")
	}
	return nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// clip bounds a value that an error quotes.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
