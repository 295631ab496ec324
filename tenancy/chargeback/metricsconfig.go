package chargeback

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// otherLabel stands for every value that is not exported by name.
const otherLabel = "other"

// maxLabel is how many bytes a label's value may have.
const maxLabel = 128

// MetricsConfig says which label values TenantMetrics may export.
type MetricsConfig struct {
	// Tenants and Models are exported by name; all others are "other", but for
	// those of Top.
	Tenants, Models []string
	// Top is how many further tenants are exported by name: those that use most.
	Top int
	// Known are the tenants that there are, nil for any. One that is not known
	// any more has no series.
	Known map[string]bool
	// Currencies are those of the price table.
	Currencies []string
	// Classes and Reasons are the classes of requests, and the reasons for which a
	// queue refuses them. With no classes there are no series of the queue.
	Classes, Reasons []string
	// MaxSeries is the hard cap on exported series, default 10,000. Pairs of
	// tenant and model beyond it are counted under "other".
	MaxSeries int
}

// Series that one pair of tenant and model can have, currencies apart: status
// classes, token kinds, reserved tokens.
var (
	statusClasses = []string{"2xx", "3xx", "4xx", "5xx", otherLabel}
	tokenKinds    = []string{"input", "cached_input", "output", "reasoning"}
)

const (
	defaultMaxSeries = 10_000
	// foldSeries are those of sluice_label_folds_total: tenant, model, currency.
	foldSeries = 3
)

// perPair is how many series one pair of tenant and model can have.
func (c MetricsConfig) perPair() int {
	return len(statusClasses) + len(tokenKinds) + 1 + len(c.Currencies) + 1
}

// fixed is how many series there are whatever the tenants: the folds, what
// retired series had counted, the changes of names, how far the ledger is.
func (c MetricsConfig) fixed() int {
	return foldSeries + 1 + len(tokenKinds) + len(c.Currencies) + 1 + 1 + positionSeries
}

// pairs is how many pairs may be exported by name and as "other", the pair of
// others included.
func (c MetricsConfig) pairs() int {
	all := (len(c.Tenants) + c.Top + 1) * (len(c.Models) + 1)
	return min(all, (c.maxSeries()-c.fixed()-c.queueTenants()*c.perQueueTenant())/c.perPair())
}

func (c MetricsConfig) maxSeries() int {
	if c.MaxSeries <= 0 {
		return defaultMaxSeries
	}
	return c.MaxSeries
}

// SeriesBound is the most series this configuration can ever export.
func (c MetricsConfig) SeriesBound() int {
	return c.fixed() + c.pairs()*c.perPair() + c.queueTenants()*c.perQueueTenant()
}

// FitsLabel reports whether a name can be a label's value: text of at most 128
// bytes without control characters, and not the word for all others.
func FitsLabel(name string) bool { return unfit(name) == "" }

// unfit says what keeps a name from being a label's value.
func unfit(name string) string {
	switch {
	case name == "" || !utf8.ValidString(name):
		return "is empty or no UTF-8 text"
	case len(name) > maxLabel:
		return fmt.Sprintf("is longer than %d bytes", maxLabel)
	case strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return "holds a control character or another one that can't be seen"
	case name == otherLabel:
		return fmt.Sprintf("is %q, which stands for all that are not listed; leave it out", name)
	}
	return ""
}

// Validate reports names that can't be label values, repeated ones, and a cap
// that leaves no room for anything.
func (c MetricsConfig) Validate() error {
	for _, list := range []struct {
		what   string
		values []string
	}{{"tenants", c.Tenants}, {"models", c.Models}, {"currencies", c.Currencies}} {
		seen := make(map[string]bool)
		for i, v := range list.values {
			if why := unfit(v); why != "" {
				return fmt.Errorf("metrics: entry %d of %s %s", i+1, list.what, why)
			}
			if seen[v] {
				return fmt.Errorf("metrics: %s lists %q twice", list.what, v)
			}
			seen[v] = true
		}
	}
	if c.Top < 0 {
		return fmt.Errorf("metrics: %d tenants can't be exported, should be 0 or more", c.Top)
	}
	if least := c.fixed() + c.perPair(); c.maxSeries() < least {
		return fmt.Errorf("metrics: a cap of %d series is too low; the totals alone need %d", c.MaxSeries, least)
	}
	return nil
}

// positionSeries are the two that say how far the ledger is.
const positionSeries = 2
