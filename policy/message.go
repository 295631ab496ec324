package policy

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxMessage       = 1024
	maxDetail        = 256
	maxAnnotation    = 256
	maxWarningHeader = 256
	maxWarnings      = 5

	textPolicyError = "policy evaluation failed"
	textNoPool      = "no permitted pool serves the model"
)

// usableMessage reports whether a text may be shown to a client.
func usableMessage(s string) bool {
	return s != "" && len(s) <= maxMessage && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// messageOf is the text of a failed validation: messageExpression if it yields
// something usable, else message, else the rule's name. An error is for the log;
// the verdict stays.
func (a *activation) messageOf(v *validation) (text string, err error) {
	if v.dynamic != nil {
		s, err := a.string(v.dynamic)
		if err == nil && usableMessage(s) {
			return s, nil
		}
		if err == nil {
			err = &evalError{kind: ErrorValue, text: "messageExpression yields no usable text"}
		}
		return v.staticMessage(), err
	}
	return v.staticMessage(), nil
}

func (v *validation) staticMessage() string {
	if v.message != "" {
		return v.message
	}
	return deniedBy(v.ref)
}

func deniedBy(rule string) string { return "request denied by " + rule }

// WarningHeaders returns the values of the Warning response headers: at most
// five, each at most 256 bytes of printable ASCII. A rule that warns for
// several bindings is named once. After the warnings of bindings come those of
// limits that are used up to one of their thresholds.
func (d *Decision) WarningHeaders() []string {
	var out []string
	seen := map[string]bool{}
	add := func(rule, message string) {
		text := printable(rule + ": " + message)
		const frame = len(`299 sluice ""`)
		text = text[:min(len(text), maxWarningHeader-frame)]
		if seen[text] || len(out) == maxWarnings {
			return
		}
		seen[text] = true
		out = append(out, `299 sluice "`+text+`"`)
	}
	for _, w := range d.Warnings {
		add(w.Rule, w.Message)
	}
	for i := range d.Limits {
		if l := &d.Limits[i]; l.Warned > 0 {
			add(l.Rule, strconv.FormatInt(l.Warned, 10)+" % used")
		}
	}
	return out
}

// printable replaces what may not stand inside a quoted header value.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '"':
			return '\''
		case r == '\\' || r < ' ' || r > '~':
			return '?'
		}
		return r
	}, s)
}
