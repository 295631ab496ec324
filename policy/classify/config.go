package classify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Defaults of section 11, and maxima of what a configuration may ask for.
const (
	defaultMaxBytes = 1 << 20
	defaultBudget   = 50 * time.Millisecond

	maxBytesLimit   = 64 << 20
	maxName         = 63 // of labels and detectors, section 11
	maxDetectors    = 64 // so that content.detectors stays within its maximum
	maxPatterns     = 64
	maxPatternSize  = 4096
	maxInstructions = 1000 // of a compiled pattern, as for matches in section 3
	maxKeywords     = 10_000
	maxKeywordSize  = 256
)

// Names of the built-in detectors.
const (
	PaymentCard = "payment-card"
	IBAN        = "iban"
	USSSN       = "us-ssn"
	Email       = "email"
	Phone       = "phone"
	PrivateKey  = "private-key"
	Secret      = "secret"
)

// builtinNames are the built-in detectors in the order of their hit counters.
var builtinNames = [builtinCount]string{PaymentCard, IBAN, USSSN, Email, Phone, PrivateKey, Secret}

const builtinCount = 7

// Config says what a Classifier looks for.
type Config struct {
	// MaxBytes is how much text of one body is scanned, in bytes after unescaping.
	// What lies beyond makes the scan partial.
	MaxBytes int
	// Budget is the time that built-in and custom detectors get for one body.
	// Beyond it the scan ends with the status timeout.
	Budget time.Duration
	// Builtin lists the built-in detectors to run, each at most once.
	Builtin []Builtin
	// Custom lists detectors by pattern and keyword.
	Custom []Custom
	// External lists detectors outside of this process. They run side by side,
	// after the others, each within its own time-out.
	External []External
}

// Builtin switches a built-in detector on and names the label of its findings.
type Builtin struct{ Detector, Label string }

// Custom is a detector by RE2 patterns and keywords. A keyword is found as a
// whole word, whatever its case; it may hold spaces. Text and keywords are
// compared in NFKC. A pattern sees one string of the body at a time, and
// consecutive text parts of a message joined by a line break. A match of more
// than 4 KiB may be missed.
type Custom struct {
	Name, Label        string
	Patterns, Keywords []string
}

// External is a detector outside of this process.
type External interface {
	// Name is unique among all detectors and matches [a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?.
	Name() string
	// Detect returns the hits for each label. Hits under the empty label are
	// findings that no label is mapped to; they are counted only. An error means
	// that the text was not judged: the scan becomes timeout where
	// errors.Is(err, context.DeadlineExceeded), else unavailable. Labels that
	// come with an error count all the same. Detect brings its own time-out and
	// returns soon after ctx has ended; it must not keep text or show it in an
	// error. It is called by several goroutines at once.
	Detect(ctx context.Context, text string) (map[string]int64, error)
}

// DefaultConfig is every built-in detector under the label pii or secret, 1 MiB
// of text and 50 ms.
func DefaultConfig() Config {
	return Config{
		MaxBytes: defaultMaxBytes,
		Budget:   defaultBudget,
		Builtin: []Builtin{
			{PaymentCard, "pii"}, {IBAN, "pii"}, {USSSN, "pii"}, {Email, "pii"}, {Phone, "pii"},
			{PrivateKey, "secret"}, {Secret, "secret"},
		},
	}
}

// Builtins returns the names of the built-in detectors, sorted.
func Builtins() []string { return slices.Sorted(slices.Values(builtinNames[:])) }

// Validate reports everything that New would refuse, each with the field it
// concerns, as one error.
func (c *Config) Validate() error {
	_, err := compile(c)
	return err
}

// checks collects the faults of a configuration.
type checks struct{ errs []error }

func (k *checks) fail(format string, args ...any) {
	k.errs = append(k.errs, fmt.Errorf(format, args...))
}

func (k *checks) label(field, label string) {
	if !isName(label) {
		k.fail("%s: %q is no label: use 1 to %d of a-z, 0-9 and -, not - at either end", field, label, maxName)
	}
}

// bounds checks the numbers.
func (k *checks) bounds(c *Config) {
	if c.MaxBytes < 1 || c.MaxBytes > maxBytesLimit {
		k.fail("maxBytes: %d is out of range: use 1 to %d bytes", c.MaxBytes, maxBytesLimit)
	}
	if c.Budget <= 0 {
		k.fail("budget: %v is no time: use more than 0, such as %v", c.Budget, defaultBudget)
	}
	if n := len(c.Builtin) + len(c.Custom) + len(c.External); n > maxDetectors {
		k.fail("%d detectors are too many: at most %d", n, maxDetectors)
	}
}

// names checks that each detector has a usable name of its own.
func (k *checks) names(c *Config) {
	seen := map[string]string{}
	add := func(field, name string) {
		if before, twice := seen[name]; twice {
			k.fail("%s: the name %q is taken by %s", field, name, before)
			return
		}
		seen[name] = field
	}
	for i, b := range c.Builtin {
		field := fmt.Sprintf("builtin[%d]", i)
		if !slices.Contains(builtinNames[:], b.Detector) {
			k.fail("%s: %q is no built-in detector: use one of %s", field, b.Detector, strings.Join(Builtins(), ", "))
			continue
		}
		add(field, b.Detector)
		k.label(field+".label", b.Label)
	}
	for i, d := range c.Custom {
		field := fmt.Sprintf("custom[%d]", i)
		if k.detectorName(field, d.Name) {
			add(field, d.Name)
		}
		k.label(field+".label", d.Label)
	}
	for i, e := range c.External {
		field := fmt.Sprintf("external[%d]", i)
		if e == nil {
			k.fail("%s: there is no detector", field)
			continue
		}
		if k.detectorName(field, e.Name()) {
			add(field, e.Name())
		}
	}
}

// detectorName checks the name of a detector that isn't built in. A built-in
// name is refused even where that detector is off, as a log would mislead.
func (k *checks) detectorName(field, name string) bool {
	switch {
	case !isName(name):
		k.fail("%s.name: %q is no name: use 1 to %d of a-z, 0-9 and -, not - at either end", field, name, maxName)
	case slices.Contains(builtinNames[:], name):
		k.fail("%s.name: %q is the name of a built-in detector: use another", field, name)
	default:
		return true
	}
	return false
}

func (k *checks) err() error { return errors.Join(k.errs...) }

// isName reports whether s matches [a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?.
func isName(s string) bool {
	if len(s) == 0 || len(s) > maxName || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
