package classify

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// detectorsVersion is part of the revision. It goes up with every change of what
// a built-in detector or the walker finds.
const detectorsVersion = 2

// maxKeywordText bounds the table of a detector's keywords, which has a row for
// each of their bytes.
const maxKeywordText = 64 << 10

// program is a compiled configuration.
type program struct {
	maxBytes  int
	budget    time.Duration
	builtin   builtins
	custom    []custom
	external  []External
	detectors []string // built-in and custom, sorted
	labels    []string // by hit counter
	revision  string
}

// compile checks a configuration and prepares the detectors. The error joins all
// faults.
func compile(c *Config) (*program, error) {
	var k checks
	k.bounds(c)
	k.names(c)
	p := &program{maxBytes: c.MaxBytes, budget: c.Budget, external: slices.Clone(c.External), labels: make([]string, builtinCount)}
	var on [builtinCount]bool
	for _, b := range c.Builtin {
		if i := slices.Index(builtinNames[:], b.Detector); i >= 0 {
			on[i] = true
			p.labels[i] = b.Label
			p.detectors = append(p.detectors, b.Detector)
		}
	}
	p.builtin = newBuiltins(on)
	for i := range c.Custom {
		d := &c.Custom[i]
		p.custom = append(p.custom, k.custom(fmt.Sprintf("custom[%d]", i), d))
		p.labels = append(p.labels, d.Label)
		p.detectors = append(p.detectors, d.Name)
	}
	slices.Sort(p.detectors)
	if err := k.err(); err != nil {
		return nil, err
	}
	p.revision = revision(c)
	return p, nil
}

// patternSize is the error of a pattern that compiles to too much.
type patternSize struct{ instructions int }

func (e *patternSize) Error() string {
	return fmt.Sprintf("it compiles to %d instructions, at most %d are allowed: shorten counted repetitions", e.instructions, maxInstructions)
}

// custom compiles a detector.
func (k *checks) custom(field string, d *Custom) custom {
	var out custom
	if len(d.Patterns)+len(d.Keywords) == 0 {
		k.fail("%s: it has neither patterns nor keywords: give one of them", field)
	}
	if len(d.Patterns) > maxPatterns {
		k.fail("%s.patterns: %d are too many: at most %d", field, len(d.Patterns), maxPatterns)
		return out
	}
	for i, expr := range d.Patterns {
		at := fmt.Sprintf("%s.patterns[%d]", field, i)
		if len(expr) > maxPatternSize {
			k.fail("%s: %d bytes are too long: at most %d", at, len(expr), maxPatternSize)
			continue
		}
		p, err := compilePattern(expr)
		switch {
		case err != nil:
			k.fail("%s: not a usable RE2 pattern: %w", at, err)
		case p.re.MatchString(""):
			k.fail("%s: it matches the empty text, so every body has it: ask for at least a character", at)
		default:
			out.patterns = append(out.patterns, p)
		}
	}
	out.keywords = k.keywords(field, d.Keywords)
	return out
}

// keywords normalises the words of a detector as text is.
func (k *checks) keywords(field string, words []string) *keywords {
	if len(words) > maxKeywords {
		k.fail("%s.keywords: %d are too many: at most %d", field, len(words), maxKeywords)
		return nil
	}
	var fold folder
	var folded [][]byte
	total := 0
	for i, w := range words {
		f := oneSpace(foldText(nil, fold.text([]byte(w), func(int) bool { return false })))
		total += len(f)
		switch {
		case len(f) == 0:
			k.fail("%s.keywords[%d]: it is empty: give a word", field, i)
		case f[0] == ' ' || f[len(f)-1] == ' ':
			k.fail("%s.keywords[%d]: it begins or ends with a space: a keyword is a whole word anyway", field, i)
		case len(f) > maxKeywordSize:
			k.fail("%s.keywords[%d]: %d bytes are too long: at most %d", field, i, len(f), maxKeywordSize)
		default:
			folded = append(folded, f)
		}
	}
	if total > maxKeywordText {
		k.fail("%s.keywords: %d bytes together are too many: at most %d, so use several detectors", field, total, maxKeywordText)
		return nil
	}
	if len(folded) == 0 {
		return nil
	}
	return newKeywords(folded)
}

// revision is the digest of what decides about findings. Budgets are no part of
// it: they change what is scanned, which the status says.
func revision(c *Config) string {
	type external struct{ Name, Revision string }
	doc := struct {
		Version  int
		Builtin  []Builtin
		Custom   []Custom
		External []external
	}{Version: detectorsVersion, Builtin: sortedBy(c.Builtin, func(b Builtin) string { return b.Detector }),
		Custom: sortedBy(c.Custom, func(d Custom) string { return d.Name })}
	for _, e := range c.External {
		x := external{Name: e.Name()}
		if r, ok := e.(interface{ Revision() string }); ok {
			x.Revision = r.Revision()
		}
		doc.External = append(doc.External, x)
	}
	doc.External = sortedBy(doc.External, func(e external) string { return e.Name })
	text, err := json.Marshal(doc)
	if err != nil {
		panic("BUG: a configuration of strings can't be encoded: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func sortedBy[T any](in []T, key func(T) string) []T {
	return slices.SortedFunc(slices.Values(in), func(a, b T) int {
		switch ka, kb := key(a), key(b); {
		case ka < kb:
			return -1
		case ka > kb:
			return 1
		}
		return 0
	})
}
